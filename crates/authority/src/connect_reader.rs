//! The supervised connect reader and deny-new (contract 07 §7.5, §10; 04 §8.5).
//!
//! The reader answers only over a connection whose stores it has proved. The proof belongs to one (re)connect: it
//! falls with the connection and is made anew on the next, so a broker that comes back with other stores is noticed
//! before it is believed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cotal_broker::{Connection, ConnectionState, Connector, Lifetime};
use cotal_wire::{
    BearerClaims, Clock, CredentialId, EpCode, EpError, InfraRole, LifecycleUid, Principal, Space,
    UnixMillis,
    grants::infra,
    rows::{CredentialRow, CredentialState, HeadState, LifecycleHead},
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use crate::{credential::read_row, fence::Fence, head::read_head, stores::AuthorityStores};

/// First pause before a proof that got no answer is tried again; it doubles up to [`PROOF_PAUSE_MAX`].
const PROOF_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries of a proof.
const PROOF_PAUSE_MAX: Duration = Duration::from_secs(5);
/// The number of no connect.
const UNPROVED: u64 = u64::MAX;

/// Reads the stores for every connect, and refuses while they are not proved.
pub struct ConnectReader {
    connection: Connection,
    state: watch::Receiver<ConnectionState>,
    stores: AuthorityStores,
    /// Which connect of the connection the stores were proved on.
    proved: Arc<AtomicU64>,
    closed: AtomicBool,
    fence: Arc<Fence>,
    clock: Arc<dyn Clock>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

// === deciding =================================================================================================

fn denied(why: &str) -> EpError {
    EpError::permission_denied(format!("connect: {why}"))
}

fn unproved() -> EpError {
    EpError::unavailable("connect: the authority stores are not proved on this connection; retry")
}

/// Steps 3 to 8 of contract 07 §10: what the row must say. Returns whether the head has to agree too, which it has
/// for a credential that stems from the root alone.
fn check_row(
    row: Option<&CredentialRow>,
    principal: &Principal,
    uid: &LifecycleUid,
    id: &CredentialId,
    now: UnixMillis,
) -> Result<bool, EpError> {
    let row = row.ok_or_else(|| denied("the bearer's credential was never issued"))?;
    if row.state() != CredentialState::Active {
        return Err(denied("the bearer's credential was revoked"));
    }
    if row.holder() != principal {
        return Err(denied("the bearer's credential is another principal's"));
    }
    if row.lifecycle_uid() != Some(uid) {
        return Err(denied("the bearer's credential is another incarnation's"));
    }
    if row.credential_id() != id {
        return Err(denied("the bearer's credential has another id"));
    }
    if row.expires_at() <= now {
        return Err(denied("the bearer's credential has expired"));
    }
    Ok(row.is_root())
}

/// Step 9: the head must be active and name this root.
fn check_head(head: Option<&LifecycleHead>, id: &CredentialId) -> Result<(), EpError> {
    let head = head.ok_or_else(|| denied("the alias has no incarnation"))?;
    if *head.state() != HeadState::Active {
        return Err(denied("the alias was retired or is being retired"));
    }
    if head.current_credential_id() != Some(id.as_str()) {
        return Err(denied("the alias has another root credential by now"));
    }
    Ok(())
}

// === driving ==================================================================================================

impl ConnectReader {
    /// Opens `cotal:auth-reader:<space>` and proves both stores before it returns.
    pub async fn open(connector: &Connector, clock: Arc<dyn Clock>) -> Result<Arc<Self>, EpError> {
        Self::open_under(connector, clock, Arc::new(Fence::new())).await
    }

    /// As [`Self::open`], refusing also once the plane's fence is tripped.
    pub(crate) async fn open_under(
        connector: &Connector,
        clock: Arc<dyn Clock>,
        fence: Arc<Fence>,
    ) -> Result<Arc<Self>, EpError> {
        let space = connector.space();
        let token = space.token();
        let label = InfraRole::AUTH_READER.label(space);
        let connection =
            connector.open(label, &|inbox| infra::connect_reader(&token, inbox), Lifetime::Renewing).await?;
        let mut state = connection.state();
        match Self::first_proof(&connection, space, &mut state).await {
            Ok((nth, stores)) => {
                let proved = Arc::new(AtomicU64::new(nth));
                let supervisor = tokio::spawn(supervise(state.clone(), stores.clone(), proved.clone()));
                Ok(Arc::new(Self {
                    connection,
                    state,
                    stores,
                    proved,
                    closed: AtomicBool::new(false),
                    fence,
                    clock,
                    supervisor: Mutex::new(Some(supervisor)),
                }))
            }
            Err(refusal) => {
                // The refusal is what the caller must hear; a close that fails is custody's to report.
                let _ = connection.close().await;
                Err(refusal)
            }
        }
    }

    async fn first_proof(
        connection: &Connection,
        space: &Space,
        state: &mut watch::Receiver<ConnectionState>,
    ) -> Result<(u64, AuthorityStores), EpError> {
        let ConnectionState::Connected(nth) = *state.borrow_and_update() else { return Err(unproved()) };
        Ok((nth, AuthorityStores::bind(connection, space).await?))
    }

    /// Deny-new, in the order of contract 07 §10. The row and the head are read together, and decided in order.
    ///
    /// `permission-denied` when the credential does not admit this bearer; a marker is `failed-precondition`, a
    /// garbled row `internal`, an unproved reader `unavailable`. Each of them denies. The clock is the
    /// millisecond clock: agent rows carry `exp` in milliseconds (decision D18).
    pub async fn authorize_connect(&self, claims: &BearerClaims) -> Result<(), EpError> {
        let id = claims.act.credential_id.as_ref().ok_or_else(|| denied("the bearer names no credential"))?;
        let uid =
            claims.act.lifecycle_uid.as_ref().ok_or_else(|| denied("the bearer names no incarnation"))?;
        let nth = self.current()?;
        let principal = claims.principal();
        let (row, head) =
            tokio::join!(read_row(self.stores.auth(), uid, id), read_head(self.stores.records(), &principal));
        // A reconnect in between may have carried a read to a server whose stores nobody has proved.
        if self.current()? != nth {
            return Err(unproved());
        }
        let row = row?;
        if check_row(row.as_ref().map(|(row, _)| row), &principal, uid, id, self.clock.now_millis())? {
            check_head(head?.as_ref().map(|at| &at.head), id)?;
        }
        Ok(())
    }

    /// Whether the stores are proved on the current connection.
    pub fn is_proved(&self) -> bool {
        self.current().is_ok()
    }

    /// Refuses at once, then closes. May be called again when it failed.
    pub async fn close(&self) -> Result<(), EpError> {
        self.closed.store(true, Ordering::Release);
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor {
            supervisor.abort();
            // It ended either way, and it holds nothing whose end could fail.
            let _ = supervisor.await;
        }
        self.connection.close().await
    }

    /// Which connect the stores are proved on; `unavailable` when they are not.
    fn current(&self) -> Result<u64, EpError> {
        self.fence.check()?;
        let proved = self.proved.load(Ordering::Acquire);
        match *self.state.borrow() {
            ConnectionState::Connected(nth) if nth == proved && !self.closed.load(Ordering::Acquire) => {
                Ok(nth)
            }
            _ => Err(unproved()),
        }
    }
}

impl Drop for ConnectReader {
    fn drop(&mut self) {
        // The supervisor holds the connection, and would keep it open for nobody.
        if let Some(supervisor) = self.supervisor.lock().take() {
            supervisor.abort();
        }
    }
}

/// Proves the stores again after every reconnect.
///
/// A proof that gets no answer is tried again, for JetStream is up a little later than the server it lives in. A
/// proof that fails leaves the reader denying until the next reconnect (contract 07 §7.5).
async fn supervise(
    mut state: watch::Receiver<ConnectionState>,
    stores: AuthorityStores,
    proved: Arc<AtomicU64>,
) {
    let mut pause = PROOF_PAUSE;
    // Whether this connect is settled, proved or not, and only a change of state makes work.
    let mut settled = true;
    loop {
        if settled {
            if state.changed().await.is_err() {
                return;
            }
            pause = PROOF_PAUSE;
        }
        let nth = match *state.borrow_and_update() {
            ConnectionState::Connected(nth) => nth,
            ConnectionState::Disconnected => {
                proved.store(UNPROVED, Ordering::Release);
                settled = true;
                continue;
            }
            ConnectionState::Closed => return,
        };
        settled = match stores.prove().await {
            Ok(()) => {
                // Proved for `nth` alone: should it be gone by now, the number no longer matches.
                proved.store(nth, Ordering::Release);
                tracing::info!(space = %stores.space(), "connect reader: stores proved again");
                true
            }
            Err(refusal) if refusal.code == EpCode::Unavailable => {
                tracing::warn!(space = %stores.space(), %refusal, "connect reader: no proof yet, denying connects");
                // A change of state ends the pause early.
                if let Ok(Err(_)) = tokio::time::timeout(pause, state.changed()).await {
                    return;
                }
                pause = (pause * 2).min(PROOF_PAUSE_MAX);
                false
            }
            Err(refusal) => {
                tracing::error!(
                    space = %stores.space(), %refusal,
                    "connect reader: the stores failed their proof, denying connects until the next reconnect"
                );
                true
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::rows::{HeadStep, SourceMember};

    use super::*;

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{actor}")).unwrap()
    }

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn id(s: &str) -> CredentialId {
        CredentialId::parse(s).unwrap()
    }

    fn row(chain: &[&str]) -> CredentialRow {
        let chain = chain.iter().map(|member| SourceMember::parse(member).unwrap()).collect();
        CredentialRow::agent(&uid('a'), &id("c1"), &principal("alice"), chain, UnixMillis(1_000)).unwrap()
    }

    fn refusal(row: Option<&CredentialRow>, who: &str, at: char, named: &str, now: u64) -> String {
        let refusal = check_row(row, &principal(who), &uid(at), &id(named), UnixMillis(now)).unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied);
        refusal.message
    }

    /// Each case mends the first fault of the case before it.
    #[test]
    fn a_row_is_checked_in_the_contracts_order() {
        let active = row(&["root"]);
        let revoked = active.clone().revoke();
        for (row, who, at, named, now, says) in [
            (None, "bob", 'b', "c2", 1_000, "never issued"),
            (Some(&revoked), "bob", 'b', "c2", 1_000, "was revoked"),
            (Some(&active), "bob", 'b', "c2", 1_000, "another principal's"),
            (Some(&active), "alice", 'b', "c2", 1_000, "another incarnation's"),
            (Some(&active), "alice", 'a', "c2", 1_000, "another id"),
            (Some(&active), "alice", 'a', "c1", 1_000, "has expired"),
        ] {
            let message = refusal(row, who, at, named, now);
            assert!(message.contains(says), "{message:?} does not say {says:?}");
        }
        let now = UnixMillis(999);
        assert_eq!(check_row(Some(&active), &principal("alice"), &uid('a'), &id("c1"), now), Ok(true));
    }

    #[test]
    fn the_head_is_asked_only_when_the_chain_is_exactly_root() {
        for (chain, asked) in [
            (&["root"][..], true),
            (&["root", "handle.k.h"][..], false),
            (&["handle.k.h"][..], false),
            (&["session.s"][..], false),
        ] {
            let row = row(chain);
            let verdict = check_row(Some(&row), &principal("alice"), &uid('a'), &id("c1"), UnixMillis(0));
            assert_eq!(verdict, Ok(asked), "{chain:?}");
        }
    }

    #[test]
    fn a_head_admits_only_its_own_root_and_only_while_active() {
        let says =
            |head: Option<&LifecycleHead>, named: &str| check_head(head, &id(named)).unwrap_err().message;
        let written = |step: HeadStep| match step {
            HeadStep::Write(head) | HeadStep::Done(head) => head,
        };
        let active = LifecycleHead::activated(&principal("alice"), &uid('a'), "m").unwrap();
        let stamped = written(active.clone().stamp_root(&uid('a'), &id("c1")).unwrap());
        let op = "o".repeat(26).parse().unwrap();
        let retiring = written(stamped.clone().begin_retirement(&uid('a'), &op).unwrap());
        assert!(says(None, "c1").contains("no incarnation"));
        assert!(says(Some(&retiring), "c2").contains("being retired"));
        assert!(says(Some(&active), "c1").contains("another root"));
        assert!(says(Some(&stamped), "c2").contains("another root"));
        assert_eq!(check_head(Some(&stamped), &id("c1")), Ok(()));
    }
}
