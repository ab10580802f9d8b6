//! What manager requests are decided and executed with.

use std::{
    fmt::Display,
    sync::{Arc, OnceLock},
};

use cotal_authority::{
    Plane,
    issued::IssuerSession,
    managed_agents::ManagedAgents,
    manager::{Host, LifecycleHost},
    turns::Turns,
};
use cotal_broker::Connector;
use cotal_ledger::{Ledger, LedgerError, TaggedRow};
use cotal_trust::{bundle::DataAccount, registration_proof::RegistrationProofKey};
use cotal_wire::{Actor, Clock, Entropy, EpError, Owner, Space};
use cotal_workspace::file;
use tokio::sync::OnceCell;
use zeroize::Zeroizing;

use super::{issuing::Issuing, lifecycle::pace::RenewalPace, runs::RunObserver};

/// The gates of every manager that was ever registered, as a filter of the auth store.
const MANAGER_GATES: &str = "epgate.manager.*";

/// What [`Parts`] are made of.
pub(crate) struct PartsInputs {
    pub space: Space,
    pub data_account: DataAccount,
    pub ledger: Ledger,
    pub plane: Arc<Plane>,
    pub connector: Connector,
    pub issuer: IssuerSession,
    /// Lifetime of the standing renewable credentials, in seconds.
    pub standing_ttl_secs: u64,
    /// The space-wide creds with which a bearer's holder dials.
    pub sentinel_creds: Zeroizing<String>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

/// What the executors of one space share.
pub(crate) struct Parts {
    pub(crate) space: Space,
    pub(crate) data_account: DataAccount,
    pub(crate) proof: RegistrationProofKey,
    pub(crate) ledger: Ledger,
    pub(crate) plane: Arc<Plane>,
    pub(crate) connector: Connector,
    pub(crate) issuer: IssuerSession,
    pub(crate) standing_ttl_secs: u64,
    pub(crate) sentinel_creds: Zeroizing<String>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The one writer of managed agents.
    pub(super) agents: ManagedAgents,
    /// When standing credentials are renewed.
    pub(super) renewals: RenewalPace,
    /// Where an enrolled agent exchanges its secret; unset without a public face.
    exchange_url: OnceLock<String>,
    /// Goal-index scans: an owner's go one after another, so that the stream's own turns are everybody's.
    pub(super) scans: Turns<Owner>,
    /// Maintenance: an owner's go one after another, too.
    pub(super) mending: Turns<Owner>,
    /// See [`Parts::issuing`].
    pub(super) issuing: OnceCell<Issuing>,
    /// See [`Parts::run_observer`].
    run_observer: OnceCell<RunObserver>,
}

impl Parts {
    pub(super) fn new(inputs: PartsInputs) -> Self {
        let proof = RegistrationProofKey::new(inputs.data_account.signing.clone());
        let agents = ManagedAgents::new(
            inputs.ledger.clone(),
            inputs.connector.clone(),
            inputs.plane.delivery().clone(),
            Arc::clone(&inputs.clock),
            Arc::clone(&inputs.entropy),
            {
                let plane = Arc::clone(&inputs.plane);
                Arc::new(move || plane.check_open())
            },
        );
        Self {
            agents,
            renewals: RenewalPace::of_this_machine(),
            space: inputs.space,
            data_account: inputs.data_account,
            proof,
            ledger: inputs.ledger,
            plane: inputs.plane,
            connector: inputs.connector,
            issuer: inputs.issuer,
            standing_ttl_secs: inputs.standing_ttl_secs,
            sentinel_creds: inputs.sentinel_creds,
            clock: inputs.clock,
            entropy: inputs.entropy,
            exchange_url: OnceLock::new(),
            scans: Turns::default(),
            mending: Turns::default(),
            issuing: OnceCell::new(),
            run_observer: OnceCell::new(),
        }
    }

    /// Where a manager was ever registered, what managers are asked is heard from the start on; elsewhere from the first
    /// activation. A space without managers has no connection for them.
    pub(crate) async fn hear_known_managers(&self) -> Result<(), EpError> {
        let gates = self.plane.stores().auth().keys(MANAGER_GATES).await?;
        if !gates.is_empty() {
            self.run_observer().await?;
        }
        Ok(())
    }

    /// What managers are asked about runs, heard from the first call on.
    pub(crate) async fn run_observer(&self) -> Result<&RunObserver, EpError> {
        self.run_observer
            .get_or_try_init(|| async {
                let issuing = self.issuing().await?;
                RunObserver::listen(issuing.connection(), &self.space.token(), Arc::clone(&self.clock)).await
            })
            .await
    }

    /// The public face is bound: agents may be enrolled.
    pub(crate) fn exchange_at(&self, url: String) {
        let _already = self.exchange_url.set(url);
    }

    /// Where an enrolled agent exchanges its secret (contract 06 §6).
    pub(crate) fn exchange_url(&self) -> Result<&str, EpError> {
        self.exchange_url.get().map(String::as_str).ok_or_else(|| {
            EpError::failed_precondition(
                "this service has no public face, at which a managed agent could exchange its secret; start it with a \
                 public port",
            )
        })
    }

    /// An actor's row of either kind. A ledger that cannot be read fails the question, and which file it is the log says.
    pub(super) async fn row(&self, owner: &Owner, actor: &Actor) -> Result<Option<TaggedRow>, EpError> {
        // A platform's own actors have no rows.
        let Some(owner) = owner.as_derived() else { return Ok(None) };
        let (ledger, actor) = (self.ledger.clone(), actor.clone());
        let unread = |why: &dyn Display| {
            tracing::error!(space = %self.space, %why, "the actor ledger cannot be read");
            EpError::internal(
                "the actor ledger cannot be read for this caller; ask the operator of the space",
            )
        };
        match file::blocking(move || ledger.lookup(&owner, &actor)).await {
            Ok(Ok(found)) => Ok(found),
            // A name that is too long for the ledger is nobody's.
            Ok(Err(LedgerError::Refused(_))) => Ok(None),
            Ok(Err(LedgerError::Broken(detail))) => Err(unread(&detail)),
            Err(error) => Err(unread(&error)),
        }
    }

    /// Who decides, for the kinds that compare the space alone.
    pub(crate) fn host(&self) -> Host<'_> {
        Host { space: &self.space, proof: &self.proof }
    }

    /// Who decides, for the kinds that compare the account too.
    pub(crate) fn lifecycle_host(&self) -> LifecycleHost<'_> {
        LifecycleHost { space: &self.space, account: &self.data_account.account, proof: &self.proof }
    }
}
