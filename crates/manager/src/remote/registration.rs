//! Registering with the credential of `prepare` (contract 08 §8.4): the ceremony of `cotal_authority::registration`, run by
//! somebody who holds that credential and nothing else. Who served before is ended by the host, not from here.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use cotal_authority::{
    evict::{Eviction, Evictor},
    registration::{
        Deregistration, EndpointInstance, OutOfTurn, OwnName, Registration, Registry, deregister_instance,
        gate::{observe, provision},
        own::publish,
        register::{EVICTION_SWEEP, Serving},
        register_serving_instance,
    },
};
use cotal_broker::Connection;
use cotal_wire::{
    EndpointName, Entropy, EpCode, EpError, InstanceId, OpId, Owner, Principal,
    manager_authority::serve_principal, rows::ServiceSpec,
};
use serde_json::Map;

use super::{authority::HostAuthority, backoff::Backoff, contract::ManagerContract, error::RemoteError};

/// First and longest pause of a manager that is out of turn, and how long it waits in all: the credential that it registers
/// with ends after five minutes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one and the same holder of the slot may stand still before the host is asked whether it is dead. A registration
/// that runs ends within milliseconds, or within the sweep that ends its predecessor.
const HOLDER_PATIENCE: Duration = Duration::from_secs(5);

// === deciding =================================================================================================

/// What a manager does that was out of turn.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Registers again after this pause.
    Wait(Duration),
    /// Asks the host to repair after this holder, then registers again.
    Reconcile(InstanceId),
    /// Tells the refusal.
    GiveUp,
}

/// The turns that a manager has waited for.
struct Turns {
    pauses: Backoff,
    /// Who holds the slot, and for how long it has been waited for.
    holder: Option<(InstanceId, Duration)>,
    reconciled: bool,
}

impl Turns {
    const fn new() -> Self {
        Self { pauses: Backoff::new(PAUSE.0, PAUSE.1, PATIENCE), holder: None, reconciled: false }
    }

    fn next(&mut self, seen: OutOfTurn, entropy: &dyn Entropy) -> Next {
        self.holder = match (seen, self.holder.take()) {
            (OutOfTurn::Overtaken, _) => None,
            (OutOfTurn::HeldBy(now), Some((before, waited))) if now == before => Some((now, waited)),
            (OutOfTurn::HeldBy(now), _) => Some((now, Duration::ZERO)),
        };
        if let Some((holder, waited)) = &self.holder
            && *waited >= HOLDER_PATIENCE
        {
            if std::mem::replace(&mut self.reconciled, true) {
                return Next::GiveUp;
            }
            return Next::Reconcile(holder.clone());
        }
        let Some(pause) = self.pauses.pause(entropy, Duration::ZERO) else { return Next::GiveUp };
        if let Some((_, waited)) = &mut self.holder {
            *waited += pause;
        }
        Next::Wait(pause)
    }
}

// === driving ==================================================================================================

/// Evicts through the host: only its maintenance may end a connection.
struct ThroughHost<'a> {
    authority: &'a HostAuthority,
    owner: &'a Owner,
}

#[async_trait]
impl Evictor for ThroughHost<'_> {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let asked: Vec<Principal> = principals.iter().cloned().collect();
        let verdicts = match self.authority.evict(self.owner, &asked).await {
            Ok(verdicts) => verdicts,
            Err(why) => {
                let why = why.to_string();
                return asked.iter().map(|principal| Eviction::unverified(principal, why.clone())).collect();
            }
        };
        let by_key: BTreeMap<_, _> =
            verdicts.into_iter().map(|verdict| (verdict.principal.key(), verdict)).collect();
        asked
            .into_iter()
            .map(|principal| match by_key.get(&principal.key()) {
                None => Eviction::unverified(&principal, "the host gave no verdict"),
                Some(verdict) => Eviction {
                    kicked: verdict.kicked,
                    remaining: verdict.remaining,
                    verified_gone: verdict.verified_gone,
                    scan_complete: verdict.scan_complete,
                    note: verdict.note.clone(),
                    principal,
                },
            })
            .collect()
    }
}

/// The instance of this manager's endpoint.
fn at(authority: &HostAuthority) -> EndpointInstance {
    EndpointInstance {
        endpoint: EndpointName::manager().token(),
        instance: authority.identity().instance().clone(),
    }
}

/// Registers this manager's endpoint over the executor's connection, and says that it is ready.
///
/// The operation is the instance's own id, so that a start that was cut off is resumed by the next one. Managers take turns:
/// one that was overtaken, or that finds another in the middle of its registration, tries again shortly. A holder that stands
/// still is asked about once: the host repairs after one that is dead. Every other refusal is told as it is.
pub async fn register(
    connection: &Connection,
    authority: &HostAuthority,
    owner: &Owner,
    contract: &ManagerContract,
) -> Result<Serving, RemoteError> {
    let identity = authority.identity();
    let registry = Registry::of_participant(connection, identity.space());
    let at = at(authority);
    publish(&registry, contract.artifacts()).await?;

    let principal = serve_principal(owner, identity.instance());
    let stores = registry.stores();
    let mut seen = observe(stores, &at).await?;
    if seen.is_none() {
        // Another first start of the same identity may have been first, and further than we are.
        let provisioned = provision(stores, &at, &principal).await;
        seen = observe(stores, &at).await?;
        if seen.is_none() {
            provisioned?;
        }
    }
    if seen.is_some_and(|seen| *seen.gate.principal() != principal) {
        return Err(RemoteError::State(format!(
            "the gate of {at} was provisioned for another owner than {owner}: sign in as the person who made this manager, \
             or move its identity file away to make another one"
        )));
    }

    let name = EndpointName::manager();
    let spec = ServiceSpec::new(&name, owner, vec![contract.cluster().clone()])?;
    let op = OpId::parse(identity.instance().as_str())
        .map_err(|_| EpError::internal("an instance's id is an operation's"))?;
    let evictor = ThroughHost { authority, owner };
    let request = Registration {
        at: &at,
        spec: &spec,
        registrant: owner,
        op: &op,
        names: &OwnName { name, owner: owner.clone() },
        evictor: &evictor,
        eviction_sweep: EVICTION_SWEEP,
    };
    let (pools, mut turns) = (BTreeSet::new(), Turns::new());
    loop {
        // Each try reads the slot anew.
        let refusal = match register_serving_instance(&registry, &request, &pools, Map::new()).await {
            Ok(serving) => return Ok(serving),
            Err(refusal) => refusal,
        };
        let Some(seen) = OutOfTurn::of(&refusal) else { return Err(refusal.into()) };
        match turns.next(seen, authority.entropy()) {
            Next::Wait(pause) => tokio::time::sleep(pause).await,
            Next::Reconcile(holder) => {
                tracing::info!(%holder, "another manager's registration holds the slot and stands still; asking the host");
                authority.reconcile(owner, &holder).await?;
            }
            Next::GiveUp => return Err(refusal.into()),
        }
    }
}

/// Takes this manager out of the registry, over the executor's connection. Its gate and its identity stay: a later start is
/// the next epoch of the same manager.
pub async fn deregister(connection: &Connection, authority: &HostAuthority) -> Result<bool, RemoteError> {
    let registry = Registry::of_participant(connection, authority.identity().space());
    let at = at(authority);
    match deregister_instance(registry.stores(), &at).await? {
        Deregistration::Removed { .. } => Ok(true),
        Deregistration::Absent => Ok(false),
        Deregistration::Superseded | Deregistration::RegistrationInFlight => Err(EpError::new(
            EpCode::Conflict,
            format!("{at} is being registered anew by another process; it is left to that one"),
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::system::SystemEntropy;

    use super::*;

    fn held_by(c: char) -> OutOfTurn {
        OutOfTurn::HeldBy(InstanceId::parse(&c.to_string().repeat(26)).unwrap())
    }

    /// What is done until it is no wait, when this is seen each time; and how long was waited.
    fn until_no_wait(turns: &mut Turns, seen: impl Fn() -> OutOfTurn) -> (Next, Duration) {
        let mut waited = Duration::ZERO;
        loop {
            match turns.next(seen(), &SystemEntropy) {
                Next::Wait(pause) => waited += pause,
                other => return (other, waited),
            }
        }
    }

    #[test]
    fn a_holder_that_stands_still_is_asked_about_once_and_is_told_when_it_still_does() {
        let mut turns = Turns::new();
        let OutOfTurn::HeldBy(holder) = held_by('h') else { return };
        let (asked, waited) = until_no_wait(&mut turns, || held_by('h'));
        assert_eq!(asked, Next::Reconcile(holder));
        assert!((HOLDER_PATIENCE..HOLDER_PATIENCE + PAUSE.1).contains(&waited), "{waited:?}");
        assert_eq!(turns.next(held_by('h'), &SystemEntropy), Next::GiveUp);
    }

    #[test]
    fn of_holders_that_take_turns_nobody_is_asked_about_and_patience_ends() {
        let (mut turns, round) = (Turns::new(), std::cell::Cell::new(0u32));
        let seen = || {
            round.set(round.get() + 1);
            match round.get() % 3 {
                0 => OutOfTurn::Overtaken,
                1 => held_by('a'),
                _ => held_by('b'),
            }
        };
        let (ended, waited) = until_no_wait(&mut turns, seen);
        assert_eq!(ended, Next::GiveUp);
        assert!(waited <= PATIENCE && waited + PAUSE.1 > PATIENCE, "{waited:?}");
        let (ended, _) = until_no_wait(&mut Turns::new(), || OutOfTurn::Overtaken);
        assert_eq!(ended, Next::GiveUp);
    }
}
