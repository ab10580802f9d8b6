//! The supervised connect reader and deny-new (contract 07 §7.5, §10; 04 §8.5).
//!
//! The reader answers only over a connection whose stores it has proved. The proof belongs to one (re)connect: it
//! falls with the connection and is made anew on the next, so a broker that comes back with other stores is noticed
//! before it is believed.
//!
//! The broker cuts the connection whenever its credential expires, and the next session follows at once. A connect
//! that comes in that gap waits for the proof, briefly; in an outage it is denied.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cotal_broker::{Connection, ConnectionState, Connector, Lifetime, kv::Bucket, shape};
use cotal_wire::{
    BearerClaims, Clock, CredentialId, EpCode, EpError, InfraRole, LifecycleUid, Names, Principal, Space,
    UnixMillis,
    grants::infra,
    rows::{CredentialRow, CredentialState, HeadState, LifecycleHead},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    credential::read_row,
    fence::Fence,
    foresight::Foresight,
    head::read_head,
    stores::{AuthorityStores, OUTAGE},
};

/// First pause before a proof that got no answer is tried again; it doubles up to [`PROOF_PAUSE_MAX`].
const PROOF_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries of a proof.
const PROOF_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long connects wait for a proof, from the cut and again from the new session on; all together well within the
/// time that a connect has. Past it the reader is not between two sessions but in an outage.
const GAP: Duration = Duration::from_secs(1);
/// How much sooner than the writer's the reader's credential expires, in seconds: the two are opened together, and
/// must not be cut together ever after.
const SOONER_SECS: u64 = 7;
/// How often one connect is decided, when the connection it was decided over was lost meanwhile.
const DECISIONS: usize = 2;

/// Reads the stores for every connect, and refuses while they are not proved.
pub struct ConnectReader {
    connection: Connection,
    state: watch::Receiver<ConnectionState>,
    stores: AuthorityStores,
    proof: watch::Receiver<Proof>,
    /// The connect on which the sessions store was proved, if it was ever asked for.
    sessions_proved: Mutex<Option<u64>>,
    closed: AtomicBool,
    fence: Arc<Fence>,
    clock: Arc<dyn Clock>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

/// The connect that the stores were proved on. What was read over them counts while it [still holds](ConnectReader::holds).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProvedOn(u64);

/// What is known of the stores, and on which connect of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// They were proved on this connect.
    Made(u64),
    /// They are being proved, since then: as soon as there is a session, and it answers.
    Awaited(Instant),
    /// On this connect they are not what they must be.
    Failed(u64),
}

/// Whether connects can be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Over this connect.
    Proved(u64),
    /// Perhaps soon: since then the proof is awaited.
    Awaited(Instant),
    /// Not on this connection, or never again.
    Denied,
}

// === deciding =================================================================================================

fn denied(why: &str) -> EpError {
    EpError::permission_denied(format!("connect: {why}"))
}

fn unproved() -> EpError {
    EpError::unavailable("connect: the authority stores are not proved on this connection; retry")
}

/// A proof holds for its own connect alone. One that belongs to another is about to be renewed: that was noticed `now`.
fn standing(state: ConnectionState, proof: Proof, now: Instant) -> Standing {
    match (state, proof) {
        (ConnectionState::Closed, _) => Standing::Denied,
        (ConnectionState::Connected(nth), Proof::Made(on)) if nth == on => Standing::Proved(nth),
        (ConnectionState::Connected(nth), Proof::Failed(on)) if nth == on => Standing::Denied,
        (_, Proof::Awaited(since)) => Standing::Awaited(since),
        (_, Proof::Made(_) | Proof::Failed(_)) => Standing::Awaited(now),
    }
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
        let connection = connector
            .renewing_sooner(SOONER_SECS)
            .open(label, &|inbox| infra::connect_reader(&token, inbox), Lifetime::Renewing)
            .await?;
        let mut state = connection.state();
        match Self::first_proof(&connection, space, &mut state).await {
            Ok((nth, stores)) => {
                let (proved, proof) = watch::channel(Proof::Made(nth));
                let supervisor = tokio::spawn(supervise(state.clone(), stores.clone(), nth, proved));
                Ok(Arc::new(Self {
                    connection,
                    state,
                    stores,
                    proof,
                    sessions_proved: Mutex::new(None),
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
    /// millisecond clock: agent rows carry `exp` in milliseconds (contract 12 D18). In the gap of a reconnect this waits
    /// for the proof, `GAP` at the most.
    pub async fn authorize_connect(&self, claims: &BearerClaims) -> Result<(), EpError> {
        let id = claims.act.credential_id.as_ref().ok_or_else(|| denied("the bearer names no credential"))?;
        let uid =
            claims.act.lifecycle_uid.as_ref().ok_or_else(|| denied("the bearer names no incarnation"))?;
        let principal = claims.principal();
        for _ in 0..DECISIONS {
            let nth = self.proved().await?;
            let (row, head) = tokio::join!(
                read_row(self.stores.auth(), uid, id),
                read_head(self.stores.records(), &principal)
            );
            // A reconnect in between may have carried a read to a server whose stores nobody has proved.
            if self.standing()? != Standing::Proved(nth) {
                continue;
            }
            let row = row.inspect_err(|error| self.stores.doubt_after(error))?;
            if check_row(row.as_ref().map(|(row, _)| row), &principal, uid, id, self.clock.now_millis())? {
                let head = head.inspect_err(|error| self.stores.doubt_after(error))?;
                check_head(head.as_ref().map(|at| &at.head), id)?;
            }
            return Ok(());
        }
        Err(unproved())
    }

    /// What an exchange of this incarnation would meet in the stores, asked over this reader and without a write.
    pub async fn foresee(&self, principal: &Principal, uid: &LifecycleUid) -> Result<Foresight, EpError> {
        self.proved().await?;
        Ok(Foresight::look(&self.stores, principal, uid, self.clock.now_millis()).await)
    }

    /// Waits for the stores as [`Self::authorize_connect`] does, for whatever else is read at a connect.
    /// What is read over stores that are proved before it and after it, on the same connect; read again after a reconnect
    /// in between.
    pub(crate) async fn decided<T, F>(&self, read: impl Fn(ProvedOn) -> F) -> Result<T, EpError>
    where
        F: Future<Output = Result<T, EpError>>,
    {
        for _ in 0..DECISIONS {
            let on = self.proved_on().await?;
            let seen = read(on).await;
            if self.holds(on)? {
                return seen.inspect_err(|error| self.stores.doubt_after(error));
            }
        }
        Err(unproved())
    }

    async fn proved_on(&self) -> Result<ProvedOn, EpError> {
        self.proved().await.map(ProvedOn)
    }

    /// Whether what was read since then was read over stores that are proved: a reconnect in between may have carried a
    /// read to a server whose stores nobody has proved.
    fn holds(&self, on: ProvedOn) -> Result<bool, EpError> {
        Ok(self.standing()? == Standing::Proved(on.0))
    }

    pub(crate) fn stores(&self) -> &AuthorityStores {
        &self.stores
    }

    pub(crate) fn now_millis(&self) -> UnixMillis {
        self.clock.now_millis()
    }

    /// The sessions store, proved on this connect. It is proved when a session is first asked for, because a space in
    /// which no manager ever served one need not have it.
    pub(crate) async fn sessions(&self, on: ProvedOn) -> Result<Bucket, EpError> {
        let sessions =
            Bucket::new(&self.connection, &Names::new(&self.stores.space().token()).sessions_bucket());
        if *self.sessions_proved.lock() != Some(on.0) {
            shape::prove_authority_store(&self.connection, sessions.name(), true).await?;
            *self.sessions_proved.lock() = Some(on.0);
        }
        Ok(sessions)
    }

    /// Whether the stores are proved on the current connection: for tests, which wait for it.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn is_proved(&self) -> bool {
        matches!(self.standing(), Ok(Standing::Proved(_)))
    }

    /// Resolves when this reader no longer answers, with why: its connection has ended, the stores failed a proof, or
    /// none was made for 5 s. The proof is made after a reconnect, and once more when a store refused a connect by not
    /// answering or by not being there. For whoever ends with its stores, over a connector that
    /// [ends with the broker](Connector::ending_with_the_broker).
    pub async fn lost(&self) -> String {
        tokio::select! {
            biased;
            why = self.proof_lost() => why,
            why = self.stores.lost() => why,
        }
    }

    /// What the supervisor's proofs and the connection say of that.
    async fn proof_lost(&self) -> String {
        let (mut state, mut proof) = (self.state.clone(), self.proof.clone());
        let label = self.connection.label();
        loop {
            state.mark_unchanged();
            proof.mark_unchanged();
            let until = match standing(*self.state.borrow(), *self.proof.borrow(), Instant::now()) {
                Standing::Proved(_) => None,
                Standing::Awaited(since) => Some(since + OUTAGE),
                Standing::Denied => break,
            };
            let moved = async {
                tokio::select! {
                    moved = state.changed() => moved.is_ok(),
                    moved = proof.changed() => moved.is_ok(),
                }
            };
            let moved = match until {
                None => moved.await,
                Some(until) => match timeout_at(until, moved).await {
                    Ok(moved) => moved,
                    Err(_) => {
                        return format!("{label}: the authority stores gave no proof after a reconnect");
                    }
                },
            };
            if !moved {
                break;
            }
        }
        match (self.connection.failure(), *self.proof.borrow()) {
            (Some(failure), _) => failure.message.clone(),
            (None, Proof::Failed(_)) => {
                format!("{label}: the authority stores failed their proof; the log names the check")
            }
            (None, _) => format!("{label}: the connection was closed"),
        }
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

    /// Where the reader stands; refuses at once when it is closed or fenced.
    fn standing(&self) -> Result<Standing, EpError> {
        self.fence.check()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(unproved());
        }
        Ok(standing(*self.state.borrow(), *self.proof.borrow(), Instant::now()))
    }

    /// Which connect the stores are proved on, waiting for it in the gap of a reconnect.
    async fn proved(&self) -> Result<u64, EpError> {
        let (mut state, mut proof) = (self.state.clone(), self.proof.clone());
        loop {
            state.mark_unchanged();
            proof.mark_unchanged();
            let until = match self.standing()? {
                Standing::Proved(nth) => return Ok(nth),
                Standing::Awaited(since) => since + GAP,
                Standing::Denied => return Err(unproved()),
            };
            let moved = async {
                tokio::select! {
                    moved = state.changed() => moved.is_ok(),
                    // The supervisor ends with the reader.
                    moved = proof.changed() => moved.is_ok(),
                    _ = self.fence.tripped() => true,
                }
            };
            if !timeout_at(until, moved).await.unwrap_or(false) {
                return Err(unproved());
            }
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

/// Proves the stores again after every reconnect; they were proved on the connect `proved_on`.
///
/// A proof that gets no answer is tried again, for JetStream is up a little later than the server it lives in. A
/// proof that fails leaves the reader denying until the next reconnect (contract 07 §7.5).
async fn supervise(
    mut state: watch::Receiver<ConnectionState>,
    stores: AuthorityStores,
    proved_on: u64,
    proof: watch::Sender<Proof>,
) {
    let mut pause = PROOF_PAUSE;
    // Whether this connect is settled, proved or not, and only a change of state makes work.
    let mut settled = true;
    let mut at = Some(proved_on);
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
                proof.send_replace(Proof::Awaited(Instant::now()));
                (settled, at) = (true, None);
                continue;
            }
            ConnectionState::Closed => return,
        };
        if at != Some(nth) {
            proof.send_replace(Proof::Awaited(Instant::now()));
            at = Some(nth);
        }
        settled = match stores.prove().await {
            Ok(()) => {
                // Proved for `nth` alone: should it be gone by now, the number no longer matches.
                proof.send_replace(Proof::Made(nth));
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
                proof.send_replace(Proof::Failed(nth));
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

    #[test]
    fn a_proof_holds_on_its_own_connect_and_a_failure_denies_on_its_own() {
        let (since, now) = (Instant::now(), Instant::now() + Duration::from_secs(9));
        let (on, off) = (ConnectionState::Connected(2), ConnectionState::Disconnected);
        for (state, proof, expected) in [
            (on, Proof::Made(2), Standing::Proved(2)),
            (on, Proof::Failed(2), Standing::Denied),
            (on, Proof::Made(1), Standing::Awaited(now)),
            (on, Proof::Failed(1), Standing::Awaited(now)),
            (on, Proof::Awaited(since), Standing::Awaited(since)),
            (off, Proof::Made(2), Standing::Awaited(now)),
            (off, Proof::Failed(2), Standing::Awaited(now)),
            (off, Proof::Awaited(since), Standing::Awaited(since)),
            (ConnectionState::Closed, Proof::Made(2), Standing::Denied),
            (ConnectionState::Closed, Proof::Awaited(since), Standing::Denied),
        ] {
            assert_eq!(standing(state, proof, now), expected, "{state:?} {proof:?}");
        }
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
