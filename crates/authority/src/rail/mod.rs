//! The auth endpoint rail: the plane's own endpoint `auth`, whose one command ends a managed lifecycle
//! (contract 05 §11, 03 §A).
//!
//! It is an endpoint like any other: it describes itself in public, answers on the rail that a request came in on,
//! and refuses what does not agree with its subject. `serving` is what every endpoint checks, `handler` what this
//! command checks, `over_stores` where it reads, `contract` what it publishes of itself.
//!
//! The contract document names mode `exact`; requesters of older hosts hold `handle` rows. Both carry a literal triple
//! that the broker pinned, and both get the same checks.

pub mod contract;
mod handler;
mod over_stores;
mod serving;

use std::sync::Arc;

use cotal_broker::{Connection, Connector, Lifetime, Subscription, kv::Bucket};
use cotal_wire::{
    EpError, InfraRole, InstanceId, Names, SpaceToken,
    endpoint_token::{AUTH_ENDPOINT, DESCRIBE, RETIRE_LIFECYCLE},
    grants::rail,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::Instrument as _;

pub use self::handler::{RetireOnRail, nothing_stands};
use self::{contract::AuthContract, over_stores::OverStores, serving::Serving};
use crate::retirements::Retirements;

/// The registered incarnation of endpoint `auth` that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthIncarnation {
    /// The instance.
    pub instance: InstanceId,
    /// Its process epoch, as its registration's confirming read found it.
    pub epoch: u64,
}

/// An open rail. Dropped, it hears nothing more; [`Self::close`] waits for its connection's end.
pub struct AuthRail {
    connection: Connection,
    listeners: Mutex<JoinSet<()>>,
}

impl AuthRail {
    /// Opens the listener's connection and hears from here on (contract 05 §8.2 step 15).
    ///
    /// It reads the requester's serving gate over its own connection, everything else through `retirements`.
    pub async fn open(
        connector: &Connector,
        serves: &AuthIncarnation,
        retirements: Arc<Retirements>,
    ) -> Result<Self, EpError> {
        let space = connector.space();
        let token = space.token();
        let connection = connector
            .for_rail()
            .open(
                InfraRole::AUTH_ADMIN.label(space),
                &|inbox| rail::auth_listener(&token, inbox, &serves.instance, serves.epoch),
                Lifetime::Renewing,
            )
            .await?;
        let gates = Bucket::new(&connection, &Names::new(&token).auth_bucket());
        let port = Arc::new(OverStores { gates, retirements });
        let span = tracing::error_span!("rail", %space);
        match Self::hear(&connection, token, serves, port).instrument(span).await {
            Ok(listeners) => Ok(Self { connection, listeners: Mutex::new(listeners) }),
            Err(refusal) => {
                if let Err(error) = connection.close().await {
                    tracing::warn!(%space, %error, "auth rail: unwinding a failed open");
                }
                Err(refusal)
            }
        }
    }

    async fn hear(
        connection: &Connection,
        space: SpaceToken,
        serves: &AuthIncarnation,
        port: Arc<dyn RetireOnRail>,
    ) -> Result<JoinSet<()>, EpError> {
        let subjects = subjects(&space, &serves.instance);
        let contract = AuthContract::new()?;
        let serving = Arc::new(Serving::new(connection.clone(), space, serves.clone(), &contract, port));
        let mut listeners = JoinSet::new();
        for (subject, queue) in subjects {
            let subscription = connection.subscribe(&subject, queue.as_deref()).await?;
            listeners.spawn(listen(Arc::clone(&serving), subscription).in_current_span());
        }
        // The broker took every subscription, or says which it did not.
        connection.flush().await?;
        Ok(listeners)
    }

    /// Hears nothing more, and ends its connection. Retirements in flight fly on; who waited for one on the rail asks
    /// again. A close that failed may be tried again.
    pub async fn close(&self) -> Result<(), EpError> {
        self.listeners.lock().abort_all();
        self.connection.close().await
    }
}

/// What the listener subscribes to: each command, on the class, scatter and instance rails, plain and issued
/// (contract 01 §6.3). The class rail is heard in the endpoint's queue group alone.
fn subjects(space: &SpaceToken, instance: &InstanceId) -> Vec<(String, Option<String>)> {
    let prefix = Names::new(space).subject_prefix();
    let endpoint = AUTH_ENDPOINT;
    let mut subjects = Vec::new();
    for rail in ["ep", "ep.v1"] {
        for command in [RETIRE_LIFECYCLE, DESCRIBE] {
            subjects.extend([
                (format!("{prefix}.{rail}.one.{endpoint}.{command}.>"), Some(endpoint.to_owned())),
                (format!("{prefix}.{rail}.all.{endpoint}.{command}.>"), None),
                (format!("{prefix}.{rail}.inst.{endpoint}.{instance}.{command}.>"), None),
            ]);
        }
    }
    subjects
}

async fn listen(serving: Arc<Serving>, mut subscription: Subscription) {
    let mut handling = JoinSet::new();
    loop {
        tokio::select! {
            message = subscription.next() => {
                let Some(message) = message else { return };
                if let Some(request) = serving.receive(&message).await {
                    handling.spawn(request.in_current_span());
                }
            }
            Some(ended) = handling.join_next(), if !handling.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "auth rail: a request was not handled to its end");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_hears_exactly_what_its_grant_names() {
        let space = SpaceToken::parse("main").unwrap();
        let instance = InstanceId::parse(&"i".repeat(26)).unwrap();
        let inbox = cotal_wire::ConnId::parse("ibx0123456789").unwrap();
        let granted = rail::auth_listener(&space, &inbox, &instance, 3).subscribe.allow;
        let heard: Vec<String> = subjects(&space, &instance)
            .into_iter()
            .map(|(subject, queue)| queue.map_or(subject.clone(), |queue| format!("{subject} {queue}")))
            .collect();
        for subject in &heard {
            assert!(granted.contains(subject), "{subject} is not granted");
        }
        let rest: Vec<&String> = granted.iter().filter(|row| !heard.contains(row)).collect();
        assert_eq!(rest.len(), 2, "{rest:?}: the timer fires and the inbox");
    }
}
