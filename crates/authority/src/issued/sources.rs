//! Whether what an issuance rests on still stands, and who can say so (contract 03 §H.4).

use async_trait::async_trait;
use cotal_broker::kv::LeaderRead;
use cotal_ledger::Ledger;
use cotal_wire::{
    EpError, LifecycleUid, Principal,
    names::gate_key,
    rows::{AgentGate, GateState, KnownSource, OpKind, SourceRef},
};

use super::store::IssuedStore;
use crate::store::at_key;

/// Says whether a source is live. A coordinate that it does not attest is `permission-denied`, never `false`.
#[async_trait]
pub trait SourceLiveness: Send + Sync {
    /// Whether it is live now, read fresh.
    async fn is_live(&self, source: &SourceRef) -> Result<bool, EpError>;
}

/// What a host attests: the actor ledger, where it has one, and otherwise what the issuer session can read.
pub struct HostSources<'a> {
    store: &'a IssuedStore,
    ledger: Option<&'a Ledger>,
}

impl<'a> HostSources<'a> {
    /// The auth service's own: it alone has the ledger.
    pub fn with_ledger(store: &'a IssuedStore, ledger: &'a Ledger) -> Self {
        Self { store, ledger: Some(ledger) }
    }

    /// Every other host's: an actor's row is not its to attest.
    pub fn without_ledger(store: &'a IssuedStore) -> Self {
        Self { store, ledger: None }
    }

    async fn row_is_live(&self, principal: Principal, uid: LifecycleUid) -> Result<bool, EpError> {
        let Some(ledger) = self.ledger.cloned() else { return Err(not_attested()) };
        // A ledger holds rows of derived owners alone.
        let Some(owner) = principal.owner.as_derived() else { return Ok(false) };
        tokio::task::spawn_blocking(move || ledger.is_live(&owner, &principal.actor, &uid))
            .await
            .map_err(|_| EpError::internal("issued authority: the actor ledger was not read to its end"))?
            .map_err(|error| EpError::internal(format!("issued authority: {error}")))
    }

    async fn gate(&self, uid: &LifecycleUid) -> Result<Option<AgentGate>, EpError> {
        let key = gate_key(uid);
        match self.store.auth().leader_read(&key).await? {
            LeaderRead::Absent | LeaderRead::Marker(_) => Ok(None),
            LeaderRead::Value(entry) => at_key(&key, AgentGate::parse(uid, &entry.value)).map(Some),
        }
    }

    /// An incarnation stands as long as its gate is there and not final.
    async fn gate_is_live(&self, uid: &LifecycleUid) -> Result<bool, EpError> {
        let gate = self.gate(uid).await?;
        Ok(gate.is_some_and(|gate| !matches!(gate.state(), GateState::Retired(_))))
    }

    /// A retirement ends what was issued as soon as it holds the gate: the row of the ledger outlives it, until the
    /// operator's tool removes it.
    async fn is_retiring(&self, uid: &LifecycleUid) -> Result<bool, EpError> {
        let gate = self.gate(uid).await?;
        Ok(gate.is_some_and(|gate| match gate.state() {
            GateState::Retired(_) => true,
            GateState::Frozen(op) => op.kind() == OpKind::Retirement,
            GateState::Open => false,
        }))
    }
}

#[async_trait]
impl SourceLiveness for HostSources<'_> {
    async fn is_live(&self, source: &SourceRef) -> Result<bool, EpError> {
        if source.space() != self.store.space() {
            return Err(not_attested());
        }
        match source.known() {
            Some(KnownSource::ActorLedger { principal, uid }) => {
                Ok(self.row_is_live(principal, uid.clone()).await? && !self.is_retiring(&uid).await?)
            }
            Some(KnownSource::StaticIncarnation(uid)) => self.gate_is_live(&uid).await,
            None => Err(not_attested()),
        }
    }
}

fn not_attested() -> EpError {
    EpError::permission_denied("issued authority: it rests on something that this host cannot attest")
}
