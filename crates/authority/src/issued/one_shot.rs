//! A window of its own for the end of a lifecycle (contract 08 §4.3).

use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{ConnId, EpError, InfraRole, Permissions, SpaceToken, grants::issued, rows::SourceRef};
use futures::{StreamExt, stream};

use super::store::{IssuedStore, canonical};

/// Lifetime of a one-shot issuer credential, in seconds (contract 01 §3.4).
const ONE_SHOT_TTL_SECS: u64 = 300;
/// Lifecycles whose issuances are looked at together.
const SOURCES_AT_ONCE: usize = 8;

/// Retires everything that was issued from a lifecycle's row of the actor ledger, over one connection that is drained
/// at the end, and says how many issuances there are.
///
/// For the retirement of a lifecycle, behind its frozen gate: from the freeze on nothing that is issued from it resolves
/// ([`super::HostSources`]), though its row of the ledger may stand until the operator's tool removes it. It is
/// idempotent. Refusals are those of
/// [`IssuedStore::retire_source`]; a store of another shape is `failed-precondition`.
pub async fn retire_lifecycle_issuance(connector: &Connector, source: &SourceRef) -> Result<u64, EpError> {
    let outcomes = retire_lifecycles_issuance(connector, std::slice::from_ref(source)).await;
    outcomes.into_iter().next().unwrap_or(Ok(0))
}

/// The same for many, over one connection: an outcome for each, in order.
pub(super) async fn retire_lifecycles_issuance(
    connector: &Connector,
    sources: &[SourceRef],
) -> Vec<Result<u64, EpError>> {
    // Where the space's name is no token nothing was ever issued.
    let Some(space) = canonical(connector.space()) else { return vec![Ok(0); sources.len()] };
    let connection = match open(connector, issued::issuer).await {
        Ok(connection) => connection,
        Err(refusal) => return vec![Err(refusal); sources.len()],
    };
    let outcomes = match IssuedStore::bind_issued(&connection, space).await {
        Ok(store) => {
            let store = &store;
            // Owned, and so are their futures: the compiler then sees that they may be sent.
            stream::iter(sources.to_vec())
                .map(|source| async move { store.retire_source(&source).await })
                .buffered(SOURCES_AT_ONCE)
                .collect()
                .await
        }
        Err(refusal) => vec![Err(refusal); sources.len()],
    };
    drained(&connection).await;
    outcomes
}

/// Runs work over an issuer connection of its own, which is drained at the end whatever the work came to.
pub async fn with_issuer_session<T>(
    connector: &Connector,
    work: impl AsyncFnOnce(&IssuedStore) -> Result<T, EpError>,
) -> Result<T, EpError> {
    let connection = open(connector, issued::issuer_session).await?;
    let outcome = match IssuedStore::bind(&connection, connector.space()).await {
        Ok(store) => work(&store).await,
        Err(refusal) => Err(refusal),
    };
    drained(&connection).await;
    outcome
}

async fn open(
    connector: &Connector,
    grants: fn(&SpaceToken, &ConnId) -> Permissions,
) -> Result<Connection, EpError> {
    let space = connector.space();
    let token = space.token();
    let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_TTL_SECS, principal: None };
    connector.open(InfraRole::ISSUER.label(space), &|inbox| grants(&token, inbox), lifetime).await
}

/// What was done is done, whether or not the broker lets go of the connection in time.
async fn drained(connection: &Connection) {
    if let Err(refusal) = connection.close().await {
        tracing::warn!(%refusal, "issued authority: a one-shot issuer connection did not end");
    }
}
