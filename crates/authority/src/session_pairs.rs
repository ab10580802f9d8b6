//! Ending the credential pair of a session (contract 07 §5 step 2c; 02 §12; 04 §11.3).
//!
//! A session's row lives in the sessions bucket, the one that redemption reads; an older row may stand in the auth
//! bucket. Its two credentials are ledger rows of the auth bucket in either case. The barrier executor may write none
//! of these, so each pair is ended over a connection of its own that names that pair alone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use cotal_broker::{
    Connection, Connector, Lifetime,
    kv::{Bucket, WriteOutcome},
    shape,
};
use cotal_wire::{
    EpError, InfraRole, Names, Principal, Revision, SessionId,
    grants::barriers,
    names::session_key,
    rows::{SessionParty, SessionRow, SessionState},
};

use crate::{
    barrier::{Sight, look},
    credential::{read_ledger_row, revoke_row},
    store::{Store, ambiguous, unsent},
    stores::AuthorityStores,
};

/// Lifetime of a pair's connection, in seconds.
const CONNECTION_TTL_SECS: u64 = 60;
/// How often a session row that moves is looked at again.
const TRIES: usize = 4;

/// Ends session pairs.
#[async_trait]
pub trait SessionPairs: Send + Sync {
    /// Ends one session: its row is terminal, its credentials are revoked and marked. Returns whose live connections
    /// must end with it: who served it, and its holder where this call took the holder's credential.
    async fn end(&self, session: &SessionId) -> Result<BTreeSet<Principal>, EpError>;
}

/// Ends pairs over a connection each.
pub struct SessionReconciler {
    connector: Connector,
    stores: AuthorityStores,
}

/// The stores of one pair.
struct Pair {
    auth: Store,
    sessions: Store,
}

impl SessionReconciler {
    /// Over connections that `connector` opens; `stores` are the barrier's, with which its writes are counted.
    pub fn new(connector: Connector, stores: AuthorityStores) -> Self {
        Self { connector, stores }
    }

    async fn open(&self, session: &SessionId) -> Result<(Connection, Pair), EpError> {
        let space = self.connector.space();
        let token = space.token();
        let names = Names::new(&token);
        let connection = self
            .connector
            .open(
                InfraRole::SESSION_PAIR.label(space),
                &|inbox| barriers::session_pair(&token, session, inbox),
                Lifetime::OneShot { ttl_secs: CONNECTION_TTL_SECS, principal: None },
            )
            .await?;
        let bucket = |name: String| self.stores.auth_store().beside(Bucket::new(&connection, &name));
        let pair = Pair { auth: bucket(names.auth_bucket()), sessions: bucket(names.sessions_bucket()) };
        Ok((connection, pair))
    }
}

#[async_trait]
impl SessionPairs for SessionReconciler {
    async fn end(&self, session: &SessionId) -> Result<BTreeSet<Principal>, EpError> {
        let (connection, pair) = self.open(session).await?;
        let reached = pair.end(&connection, session).await;
        let closed = connection.close().await;
        let reached = reached?;
        closed?;
        Ok(reached)
    }
}

impl Pair {
    async fn end(
        &self,
        connection: &Connection,
        session: &SessionId,
    ) -> Result<BTreeSet<Principal>, EpError> {
        for store in [&self.sessions, &self.auth] {
            shape::prove_authority_store(connection, store.bucket().name(), true).await?;
        }
        let mut reached = BTreeSet::new();
        let mut found = false;
        for store in [&self.sessions, &self.auth] {
            found |= self.end_in(store, session, &mut reached).await?;
        }
        if found {
            return Ok(reached);
        }
        Err(EpError::failed_precondition(format!(
            "containment: a credential derives from session {session}, which has no row; its serving half cannot be found"
        )))
    }

    /// Ends the session as this bucket knows it; `false` when it does not.
    async fn end_in(
        &self,
        store: &Store,
        session: &SessionId,
        reached: &mut BTreeSet<Principal>,
    ) -> Result<bool, EpError> {
        for _ in 0..TRIES {
            let seen = look(store, &session_key(session), |bytes| SessionRow::parse(session, bytes)).await?;
            let Sight::At(row, mut revision) = seen else { return Ok(false) };
            let mut ended = row.clone();
            if !row.state().is_terminal() {
                ended = ended.terminalize(SessionState::Retired);
                match write(store, &ended, revision).await? {
                    Some(at) => revision = at,
                    None => continue,
                }
            }
            let mut marked = ended.clone();
            for party in SessionParty::ALL {
                if self.revoke(&row, party, reached).await? {
                    marked = marked.mark_revoked(party);
                }
            }
            if marked == ended || write(store, &marked, revision).await?.is_some() {
                return Ok(true);
            }
        }
        Err(EpError::unavailable(format!("containment: session {session} kept moving; retry")))
    }

    /// Revokes a party's credential. `false` when there is none: then it stays unmarked, for whoever stages it later
    /// cannot release it any more, and a sweep will look again.
    async fn revoke(
        &self,
        row: &SessionRow,
        party: SessionParty,
        reached: &mut BTreeSet<Principal>,
    ) -> Result<bool, EpError> {
        let Some(seen) = read_ledger_row(&self.auth, &row.credential_key(party)).await? else {
            return Ok(false);
        };
        let holder = seen.0.holder().clone();
        let revoked_here = revoke_row(&self.auth, seen).await?;
        if revoked_here || party == SessionParty::Serving {
            reached.insert(holder);
        }
        Ok(true)
    }
}

async fn write(store: &Store, row: &SessionRow, read_at: Revision) -> Result<Option<Revision>, EpError> {
    let what = "containment: session row";
    match store.update(&session_key(row.session_id()), row.to_bytes(), read_at).await {
        WriteOutcome::Written(revision) => Ok(Some(revision)),
        WriteOutcome::Lost => Ok(None),
        WriteOutcome::Ambiguous(why) => Err(ambiguous(what, &why)),
        WriteOutcome::Refused(why) => Err(unsent(what, &why)),
    }
}
