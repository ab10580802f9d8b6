//! The handle of a started context: what it serves, how it is, and its end (contract 05 §15.3-15.4).

use std::sync::Arc;

use cotal_authority::Plane;
use cotal_broker::{Connection, ConnectionState, Custody, custody::Owned};
use cotal_callout::Callout;
use cotal_wire::{EpError, Space};
use futures::{FutureExt, future::Shared};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};

use crate::{capability::Capability, hosted::HostedContext, http::listener::Listener};

/// How a context is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It answers.
    Ready,
    /// It is closing.
    Draining,
    /// It ended by itself.
    Unavailable {
        /// The fence's text, or that the broker connection closed.
        cause: String,
    },
}

/// Why a context ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its host closed it.
    Closed,
    /// Its plane was fenced.
    Fenced(String),
    /// Its callout connection closed for good.
    BrokerClosed,
}

/// Why a close did not complete; it may be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the context did not close: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct CloseError(pub Vec<EpError>);

type Flight = Shared<futures::future::BoxFuture<'static, Result<(), CloseError>>>;

/// What a handle supervises.
pub(crate) struct HandleParts {
    pub context: Option<HostedContext>,
    pub space: Space,
    pub url: String,
    pub public_url: Option<String>,
    pub cap: Capability,
    pub custody: Custody,
    pub plane: Arc<Plane>,
    pub connection: Connection,
    pub callout: Option<Callout>,
    pub listeners: Vec<Listener>,
}

/// A started auth service of one space; clones are one handle. Dropping it closes nothing: call [`Self::close`].
#[derive(Clone)]
pub struct AuthService(Arc<Inner>);

struct Inner {
    parts: HandleParts,
    state: Mutex<State>,
    flight: Mutex<Option<Flight>>,
    intake_stopped: OnceCell<()>,
    end: watch::Sender<Option<End>>,
}

#[derive(Default)]
struct State {
    closing: bool,
    unavailable: Option<String>,
}

impl AuthService {
    /// Takes over what was opened and watches for its end.
    pub(crate) fn supervise(parts: HandleParts) -> Self {
        let service = Self(Arc::new(Inner {
            parts,
            state: Mutex::default(),
            flight: Mutex::new(None),
            intake_stopped: OnceCell::new(),
            end: watch::Sender::new(None),
        }));
        tokio::spawn(service.clone().watch_end());
        service
    }

    /// The assignment that a hosted context serves.
    pub fn context(&self) -> Option<&HostedContext> {
        self.0.parts.context.as_ref()
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.0.parts.space
    }

    /// The loopback URL.
    pub fn url(&self) -> &str {
        &self.0.parts.url
    }

    /// The public URL, when there is a public face.
    pub fn public_url(&self) -> Option<&str> {
        self.0.parts.public_url.as_deref()
    }

    /// The capability of the loopback face.
    pub fn cap(&self) -> &Capability {
        &self.0.parts.cap
    }

    /// How the context is now.
    pub fn readiness(&self) -> Readiness {
        let state = self.0.state.lock();
        match &state.unavailable {
            Some(cause) => Readiness::Unavailable { cause: cause.clone() },
            None if state.closing => Readiness::Draining,
            None => Readiness::Ready,
        }
    }

    /// Every connection that the context ever opened: a detached snapshot.
    pub fn connections(&self) -> Vec<Owned> {
        self.0.parts.custody.connections()
    }

    /// Resolves with the inventory once a close has completed and every connection has ended.
    pub async fn closed(&self) -> Vec<Owned> {
        self.0.parts.custody.closed().await
    }

    /// Resolves when the context ends: by [`Self::close`], a fence or a lost broker.
    pub async fn ended(&self) -> End {
        let mut end = self.0.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            // The sender lives in `self`, so it cannot be gone.
            Ok(None) | Err(_) => End::Closed,
        }
    }

    /// Closes: both listeners, the callout, the plane, the callout connection, and whatever is left. One flight at a
    /// time; callers join it, and one that failed may be tried again. The flight does not stop when a caller does.
    pub async fn close(&self) -> Result<(), CloseError> {
        let flight = {
            let mut slot = self.0.flight.lock();
            match &*slot {
                Some(flight) if flight.peek().is_none_or(Result::is_ok) => flight.clone(),
                _ => {
                    self.0.state.lock().closing = true;
                    let running = tokio::spawn(Arc::clone(&self.0).close_once());
                    let flight = async move {
                        running.await.unwrap_or_else(|error| {
                            Err(CloseError(vec![EpError::internal(format!(
                                "the close did not run to its end: {error}"
                            ))]))
                        })
                    }
                    .boxed()
                    .shared();
                    *slot = Some(flight.clone());
                    flight
                }
            }
        };
        flight.await
    }

    /// The same as [`Self::close`].
    pub async fn drain(&self) -> Result<(), CloseError> {
        self.close().await
    }

    /// A fence or a closed callout connection ends the context, unless a close came first.
    async fn watch_end(self) {
        let end = {
            let mut state = self.0.parts.connection.state();
            tokio::select! {
                reason = self.0.parts.plane.fenced() => End::Fenced(reason),
                _ = state.wait_for(|state| *state == ConnectionState::Closed) => End::BrokerClosed,
            }
        };
        let cause = match &end {
            End::Fenced(reason) => reason.clone(),
            End::BrokerClosed | End::Closed => "broker connection closed".to_owned(),
        };
        let end = {
            let mut state = self.0.state.lock();
            if state.closing && end == End::BrokerClosed {
                End::Closed
            } else {
                tracing::error!(space = %self.0.parts.space, %cause, "the context is unavailable and closes");
                state.unavailable = Some(cause);
                end
            }
        };
        self.0.end.send_replace(Some(end));
        if let Err(error) = self.close().await {
            tracing::error!(space = %self.0.parts.space, %error, "the context did not close");
        }
    }
}

impl Inner {
    async fn close_once(self: Arc<Self>) -> Result<(), CloseError> {
        self.intake_stopped.get_or_init(|| self.stop_intake()).await;
        let mut failures = Vec::new();
        failures.extend(self.parts.plane.close().await.err());
        failures.extend(self.parts.connection.close().await.err());
        if !failures.is_empty() {
            return Err(CloseError(failures));
        }
        self.parts.custody.close_remaining().await.map_err(|error| CloseError(vec![error]))?;
        self.parts.custody.complete();
        Ok(())
    }

    /// No request and no connect is taken any more; those in progress end. Runs once.
    async fn stop_intake(&self) {
        let listeners = futures::future::join_all(self.parts.listeners.iter().map(Listener::stop));
        let callout = async {
            if let Some(callout) = &self.parts.callout {
                callout.stop().await;
            }
        };
        futures::join!(listeners, callout);
    }
}
