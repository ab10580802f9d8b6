//! The issuer session that a callout holds (contract 03 §H.5, 08 §4.3).
//!
//! One connection for all issuances of a context. Its credential is short-lived, so the connection is replaced by a
//! new one before it expires: whoever began on the old one ends there, whoever begins later begins on the new. It
//! never reconnects. When it is lost, what was in flight is lost with it, and the next issuance dials anew.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

use cotal_broker::{Connection, ConnectionState, Connector, Lifetime};
use cotal_ledger::Ledger;
use cotal_wire::{Entropy, EpError, InfraRole, UnixSecs, grants::issued, rows::IssuedAuthorityRef};
use tokio::{
    sync::{Mutex, OwnedRwLockReadGuard, RwLock, watch},
    time::sleep,
};
use tracing::Instrument as _;

use super::{resolve::ResolvedAuthority, sources::HostSources, store::IssuedStore};

/// Lifetimes that an issuer credential may have, in seconds (contract 10 §5.2).
pub const ISSUER_TTL_SECS: RangeInclusive<u64> = 5..=300;
/// Lifetime of an issuer credential unless told otherwise, in seconds.
pub const ISSUER_TTL_DEFAULT_SECS: u64 = 300;
/// Pause before another try to replace a connection, while the old one still serves.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);

/// Holds one issuer connection at a time. Clones share it; the last one dropped ends it.
#[derive(Clone)]
pub struct IssuerSession {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Connector,
    entropy: Arc<dyn Entropy>,
    ttl_secs: u64,
    state: Mutex<State>,
    /// Held while a successor is dialled.
    replacing: Mutex<()>,
    /// Told to every keeper; its drop tells them too.
    closing: watch::Sender<bool>,
    #[cfg(any(test, feature = "failpoints"))]
    failpoint: std::sync::OnceLock<Arc<crate::failpoint::Failpoint>>,
}

#[derive(Default)]
struct State {
    closed: bool,
    current: Option<Arc<Window>>,
    /// Every connection that has not ended, the current one among them.
    open: Vec<Arc<Window>>,
}

/// One connection and the stores that were proved over it.
struct Window {
    connection: Connection,
    store: IssuedStore,
    /// Read-locked by each lease.
    in_use: Arc<RwLock<()>>,
}

/// The right to issue over one connection, which stays until the last of these is dropped.
pub(crate) struct Lease {
    window: Arc<Window>,
    _in_use: OwnedRwLockReadGuard<()>,
}

impl Lease {
    pub(crate) fn store(&self) -> &IssuedStore {
        &self.window.store
    }
}

impl Window {
    fn has_ended(&self) -> bool {
        *self.connection.state().borrow() == ConnectionState::Closed
    }
}

impl IssuerSession {
    /// A session that dials at its first issuance. A lifetime outside [`ISSUER_TTL_SECS`] is `bad-request`.
    pub fn new(connector: Connector, entropy: Arc<dyn Entropy>, ttl_secs: u64) -> Result<Self, EpError> {
        if !ISSUER_TTL_SECS.contains(&ttl_secs) {
            return Err(EpError::bad_request(format!(
                "the issuer session's lifetime must be {} to {} seconds, not {ttl_secs}",
                ISSUER_TTL_SECS.start(),
                ISSUER_TTL_SECS.end()
            )));
        }
        let shared = Shared {
            connector,
            entropy,
            ttl_secs,
            state: Mutex::default(),
            replacing: Mutex::default(),
            closing: watch::Sender::new(false),
            #[cfg(any(test, feature = "failpoints"))]
            failpoint: std::sync::OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Has every write of this session's windows watched, of those that are yet to be dialled.
    #[cfg(any(test, feature = "failpoints"))]
    pub fn watch(&self, failpoint: &Arc<crate::failpoint::Failpoint>) {
        assert!(self.shared.failpoint.set(failpoint.clone()).is_ok(), "a session takes one failpoint");
    }

    pub(crate) fn entropy(&self) -> &dyn Entropy {
        self.shared.entropy.as_ref()
    }

    /// A lease of the stores over the session's connection, dialled if there is none. `unavailable` once closed, or
    /// when the broker cannot be reached.
    pub(crate) async fn enter(&self) -> Result<Lease, EpError> {
        // On a task: a caller that gives up must not take the dial with it, or a slow one would never end.
        let shared = self.shared.clone();
        tokio::spawn(async move { shared.lease().await })
            .await
            .map_err(|_| EpError::internal("issuer session: the dial ended without a result"))?
    }

    /// What was issued, if it stands now and this service attests everything that it rests on; refused as
    /// [`IssuedStore::resolve`] refuses.
    pub async fn resolve(
        &self,
        authority: &IssuedAuthorityRef,
        ledger: &Ledger,
        now: UnixSecs,
    ) -> Result<ResolvedAuthority, EpError> {
        let lease = self.enter().await?;
        let sources = HostSources::with_ledger(lease.store(), ledger);
        lease.store().resolve(authority, &sources, now).await
    }

    /// Closes and drains: from here on every issuance is `unavailable`, and what is in flight ends so. For the fence and
    /// the stop of a context. Every connection of the session has ended when this returns without a failure; a retry
    /// closes what is left.
    pub async fn close(&self) -> Result<(), EpError> {
        {
            let mut state = self.shared.state.lock().await;
            state.closed = true;
            state.current = None;
        }
        self.shared.closing.send_replace(true);
        // A successor that is being dialled finds the session closed, and is closed before this lock is free.
        drop(self.shared.replacing.lock().await);
        let open = self.shared.state.lock().await.open.clone();
        let mut result = Ok(());
        for window in open {
            match window.connection.close().await {
                Ok(()) => self.shared.forget(&window).await,
                Err(refusal) => result = result.and(Err(refusal)),
            }
        }
        result
    }
}

impl Shared {
    async fn lease(self: &Arc<Self>) -> Result<Lease, EpError> {
        let mut state = self.state.lock().await;
        if state.closed {
            return Err(closed());
        }
        let window = match state.current.clone().filter(|window| !window.has_ended()) {
            Some(window) => window,
            // Whoever else comes waits for this dial.
            None => self.install(&mut state, self.dial().await?),
        };
        // A window is locked for writing only after it was replaced, which the state's lock excludes.
        let in_use = window.in_use.clone().try_read_owned();
        let in_use =
            in_use.map_err(|_| EpError::internal("issuer session: a window in use is being closed"))?;
        Ok(Lease { window, _in_use: in_use })
    }

    async fn dial(&self) -> Result<Window, EpError> {
        let space = self.connector.space();
        let token = space.token();
        let lifetime = Lifetime::OneShot { ttl_secs: self.ttl_secs, principal: None };
        let label = InfraRole::ISSUER.label(space);
        let grants = |inbox: &cotal_wire::ConnId| issued::issuer_session(&token, inbox);
        let connection = self.connector.open(label, &grants, lifetime).await?;
        match IssuedStore::bind(&connection, space).await {
            Ok(store) => {
                #[cfg(any(test, feature = "failpoints"))]
                if let Some(failpoint) = self.failpoint.get() {
                    store.set_failpoint(failpoint);
                }
                Ok(Window { connection, store, in_use: Arc::default() })
            }
            Err(refusal) => {
                let _ = connection.close().await;
                Err(refusal)
            }
        }
    }

    /// Makes a window the current one, with a keeper of its own.
    fn install(self: &Arc<Self>, state: &mut State, window: Window) -> Arc<Window> {
        let window = Arc::new(window);
        state.current = Some(window.clone());
        state.open.push(window.clone());
        let keeping =
            keep(Arc::downgrade(self), window.clone(), self.replace_after(), self.closing.subscribe());
        let span = tracing::error_span!("issuer", space = %self.connector.space());
        tokio::spawn(keeping.instrument(span));
        window
    }

    /// Three quarters of the lifetime, in whole seconds: when any credential of the contract is renewed
    /// (contract 01 §3.4).
    fn replace_after(&self) -> Duration {
        Duration::from_secs(self.ttl_secs * 3 / 4)
    }

    /// Dials a successor and puts it in the window's place. The old one serves meanwhile.
    async fn replace(self: &Arc<Self>, old: &Arc<Window>) -> Result<(), EpError> {
        let _replacing = self.replacing.lock().await;
        if *self.closing.borrow() {
            return Ok(());
        }
        let successor = self.dial().await?;
        let mut state = self.state.lock().await;
        if state.closed || !state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, old)) {
            drop(state);
            return successor.connection.close().await;
        }
        self.install(&mut state, successor);
        Ok(())
    }

    /// Forgets a window whose connection has ended.
    async fn forget(&self, ended: &Arc<Window>) {
        let mut state = self.state.lock().await;
        if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, ended)) {
            state.current = None;
        }
        state.open.retain(|window| !Arc::ptr_eq(window, ended));
    }
}

/// Looks after one connection to its proved end: replaces it in time, lets what is in flight end, closes it.
async fn keep(
    session: Weak<Shared>,
    window: Arc<Window>,
    replace_after: Duration,
    mut closing: watch::Receiver<bool>,
) {
    let mut pause = replace_after;
    loop {
        let due = tokio::select! {
            () = sleep(pause) => true,
            () = window.connection.ended() => false,
            // Whoever closes the session closes this connection, and hears of it.
            _ = closing.wait_for(|closing| *closing) => return,
        };
        let Some(session) = session.upgrade() else { return };
        if !due {
            tracing::info!("issuer session: the connection was lost; the next issuance dials a new one");
            session.forget(&window).await;
            return;
        }
        match session.replace(&window).await {
            Ok(()) => break,
            Err(refusal) => {
                tracing::warn!(%refusal, "issuer session: it is not replaced yet");
                pause = REPLACE_PAUSE;
            }
        }
    }
    tokio::select! {
        _ = window.in_use.write() => {}
        () = window.connection.ended() => {}
        _ = closing.wait_for(|closing| *closing) => return,
    }
    match window.connection.close().await {
        Ok(()) => {}
        // It stays listed, so that the session's own close tries again.
        Err(refusal) => return tracing::warn!(%refusal, "issuer session: a replaced connection did not end"),
    }
    if let Some(session) = session.upgrade() {
        session.forget(&window).await;
    }
}

fn closed() -> EpError {
    EpError::unavailable("issuer session: it is closed; connect again once the service is back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_leaves_time_before_the_expiry() {
        for ttl in [*ISSUER_TTL_SECS.start(), 60, ISSUER_TTL_DEFAULT_SECS, *ISSUER_TTL_SECS.end()] {
            let after = ttl * 3 / 4;
            assert!(after >= 1 && ttl - after >= 2, "{ttl}");
        }
    }
}
