//! Revoking a capability handle: everything that was ever minted from it ends (contract 07 §5.1, 02 §3.10).

use cotal_broker::{Connection, Connector, Lifetime, kv::Bucket, shape};
use cotal_wire::{
    EpCode, EpError, InfraRole, KeySegment, Names, Principal,
    grants::barriers,
    names::srcgate_key,
    rows::{BySource, CredentialRow, SourceGate},
};

use crate::{
    barrier::{BarrierDeps, Sight, look},
    containment::{deleted, end_sessions, reach},
    credential::{read_ledger_row, revoke_row},
    store::{Store, at_key, must_land},
};

/// Lifetime of a revocation's connection, in seconds.
const CONNECTION_TTL_SECS: u64 = 60;

/// A handle that was revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandleRevocation {
    /// Credential rows that this run revoked.
    pub revoked_rows: u64,
    /// Principals that were verified gone, in ascending order.
    pub evicted: Vec<Principal>,
}

/// Revokes a handle, or resumes a revocation: its gate is frozen first, for ever, and then every row that derives from
/// it is contained.
///
/// Refusals: `not-found` for a handle without a gate; `conflict` when its gate moved; `failed-precondition` for a
/// marker or for an index row whose credential row is gone; `unavailable` when somebody is not verifiably gone.
pub async fn revoke_handle(
    deps: &BarrierDeps,
    connector: &Connector,
    issuer_key: &KeySegment,
    id: &KeySegment,
) -> Result<HandleRevocation, EpError> {
    let space = connector.space();
    let token = space.token();
    let connection = connector
        .open(
            InfraRole::HANDLE_REVOCATION.label(space),
            &|inbox| barriers::handle_revocation(&token, issuer_key, id, inbox),
            Lifetime::OneShot { ttl_secs: CONNECTION_TTL_SECS, principal: None },
        )
        .await?;
    let revoked = revoke_over(deps, &connection, &Names::new(&token), issuer_key, id).await;
    let closed = connection.close().await;
    let revoked = revoked?;
    closed?;
    Ok(revoked)
}

async fn revoke_over(
    deps: &BarrierDeps,
    connection: &Connection,
    names: &Names,
    issuer_key: &KeySegment,
    id: &KeySegment,
) -> Result<HandleRevocation, EpError> {
    shape::prove_authority_store(connection, &names.auth_bucket(), true).await?;
    let auth = deps.stores.auth_store().beside(Bucket::new(connection, &names.auth_bucket()));
    freeze(&auth, issuer_key, id).await?;

    deps.stores.auth_store().count_request();
    let mut rows: Vec<CredentialRow> = Vec::new();
    let mut revoked_rows = 0;
    for index in deps.ledger.by_source(issuer_key, id).await? {
        let Some(value) = index.value else { return Err(deleted(&index.key)) };
        let reference = at_key(&index.key, BySource::parse(&index.key, &value))?;
        let Some(seen) = read_ledger_row(&auth, reference.target()).await? else {
            return Err(EpError::failed_precondition(format!(
                "{}: the credential row that it names is gone; restore it from a backup",
                index.key.escape_default()
            )));
        };
        rows.push(seen.0.clone());
        revoked_rows += u64::from(revoke_row(&auth, seen).await?);
    }
    let mut reach = reach(&rows)?;
    reach.holders.extend(end_sessions(deps.sessions.as_deref(), &reach.sessions).await?);
    let evicted = deps.evict(&reach.holders).await?;
    Ok(HandleRevocation { revoked_rows, evicted })
}

/// Closes the handle's gate for ever, so that no mint from it can win any more.
async fn freeze(auth: &Store, issuer_key: &KeySegment, id: &KeySegment) -> Result<(), EpError> {
    let key = srcgate_key(issuer_key, id);
    let (gate, revision) = match look(auth, &key, |bytes| SourceGate::parse(issuer_key, id, bytes)).await? {
        Sight::At(gate, revision) => (gate, revision),
        Sight::Absent | Sight::Unread => {
            return Err(EpError::new(EpCode::NotFound, "handle revocation: there is no such handle here"));
        }
    };
    if !gate.is_open() {
        return Ok(());
    }
    let outcome = auth.update(&key, gate.freeze().to_bytes(), revision).await;
    must_land(outcome, "handle revocation: source gate").map(drop)
}
