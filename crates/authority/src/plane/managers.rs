//! What the plane enumerates about managers, each time through a sealed scanner and under its claim: their gates, the
//! goals of one owner, and who holds credentials of one instance (contract 05 §5, §8.7; 06 §5, §10).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cotal_wire::{
    DerivedOwner, EndpointName, EpError, InstanceId, Owner, Principal,
    endpoint_token::MANAGER_ENDPOINT,
    rows::{EndpointGate, GateState, GoalIndexRow},
};
use futures::{FutureExt, StreamExt, stream};

use super::Plane;
use crate::{
    LocalManager, ManagerVerdict,
    manager::{ManagerSide, Survey, SurveyedManager, family_holders, side_of},
    scanner::{LedgerScanner, Scanned},
    sharing::{Bounds, Sharing},
};

/// How many instances of one owner are looked at side by side.
const VERDICTS_AT_ONCE: usize = 8;
/// How many instances of one owner are looked at in all. What is retired is not looked at again.
const MOST_LOOKED_AT: usize = 1_024;

/// Every manager gate of the space as one scan found them, by the owner of their principals.
type Gates = HashMap<Owner, Vec<ScannedGate>>;

struct ScannedGate {
    instance: InstanceId,
    principal: Principal,
    retired: bool,
}

/// One of an owner's, or of the host's.
struct Own {
    instance: InstanceId,
    side: ManagerSide,
    retired: bool,
}

/// Scans of all manager gates. Whoever asks while one runs shares the next: what a selection costs the broker does not grow
/// with how many there are, and what it finds is as fresh as if it had scanned alone.
pub(super) struct ManagerGates(Sharing<(), Result<Arc<Gates>, EpError>>);

impl ManagerGates {
    pub(super) fn over(scanner: Arc<LedgerScanner>) -> Self {
        let work = move |calls: Vec<()>| {
            let scanner = Arc::clone(&scanner);
            async move {
                let gates = scanner.manager_gates().await.and_then(|rows| read_gates(&rows)).map(Arc::new);
                vec![gates; calls.len()]
            }
            .boxed()
        };
        // Scans of a stream take turns anyway, and any number of calls is answered by one.
        let bounds = Bounds { lanes: 1, most: usize::MAX, weigh: |()| 1 };
        Self(Sharing::new(bounds, Box::new(work)))
    }

    async fn scan(&self) -> Result<Arc<Gates>, EpError> {
        let scanned = self.0.call(()).await;
        scanned.unwrap_or_else(|| Err(EpError::unavailable("the scan of the manager gates broke off; retry")))
    }
}

/// Reads the gates. A marker is passed over, and a row that cannot be read: whoever registers an instance writes what they like
/// there, and it is nobody's. A key that is no gate's refuses all of it: no registrant writes one.
fn read_gates(rows: &[Scanned]) -> Result<Gates, EpError> {
    let prefix = format!("epgate.{MANAGER_ENDPOINT}.");
    let mut gates = Gates::new();
    for row in rows {
        let Some(value) = &row.value else { continue };
        let instance =
            row.key.strip_prefix(&prefix).and_then(|id| InstanceId::parse(id).ok()).ok_or_else(|| {
                EpError::internal(format!("{}: it is no key of a manager's gate", row.key.escape_default()))
            })?;
        let gate = match EndpointGate::parse(value) {
            Ok(gate) => gate,
            Err(error) => {
                tracing::warn!(key = %row.key, %error, "a manager's gate cannot be read; its instance is nobody's");
                continue;
            }
        };
        let (principal, retired) = (gate.principal().clone(), matches!(gate.state(), GateState::Retired(_)));
        gates.entry(principal.owner.clone()).or_default().push(ScannedGate { instance, principal, retired });
    }
    Ok(gates)
}

/// Those of an owner's instances that are looked at, in the order of their ids, and whether these are all.
fn within(mut own: Vec<Own>) -> (Vec<Own>, bool) {
    own.sort_by(|one, other| one.instance.cmp(&other.instance));
    let standing = own.iter().enumerate().filter(|(_, one)| !one.retired);
    let beyond = standing.map(|(nth, _)| nth).nth(MOST_LOOKED_AT);
    own.truncate(beyond.unwrap_or(own.len()));
    (own, beyond.is_none())
}

impl Plane {
    /// The instances that this owner might be bound to, in the order of their ids: the owner's own and the host's. Each that is
    /// not retired is looked at anew; of no other owner's more is read than the scan does.
    pub async fn survey_managers(
        &self,
        owner: &DerivedOwner,
        local: Option<&LocalManager>,
    ) -> Result<Survey, EpError> {
        self.fence.check()?;
        let gates = self.gates.scan().await?;
        let (own, whole) = within(self.own_gates(owner, local, &gates).await?);
        let looks = own.into_iter().map(|Own { instance, side, retired }| async move {
            // It is the last word of its instance.
            let verdict = if retired {
                ManagerVerdict::NotOpen
            } else {
                self.reader.verdict_of_own(owner, &instance, local).await?
            };
            Ok::<_, EpError>(SurveyedManager { instance, side, verdict })
        });
        let looked: Vec<_> = stream::iter(looks).buffered(VERDICTS_AT_ONCE).collect().await;
        self.fence.check()?;
        // One that was registered for somebody else meanwhile.
        let not_theirs = |one: &Result<SurveyedManager, EpError>| {
            one.as_ref().is_ok_and(|one| one.verdict == ManagerVerdict::NotThisOwners)
        };
        let managers = looked.into_iter().filter(|one| !not_theirs(one)).collect::<Result<_, _>>()?;
        Ok(Survey { managers, whole })
    }

    /// The gates of the owner and of the host among all of them. One that names this owner without being theirs is not told,
    /// and stands in nobody's way.
    async fn own_gates(
        &self,
        owner: &DerivedOwner,
        local: Option<&LocalManager>,
        gates: &Gates,
    ) -> Result<Vec<Own>, EpError> {
        let (asking, hosts) = (Owner::from(owner), Owner::local());
        let named = [&asking, &hosts].into_iter().filter_map(|owner| gates.get(owner)).flatten();
        let named: Vec<_> = named
            .filter_map(|gate| {
                let side = side_of(owner, &gate.instance, local, &gate.principal)?;
                Some(Own { instance: gate.instance.clone(), side, retired: gate.retired })
            })
            .collect();
        let asking = &asking;
        let whose = named.into_iter().map(|own| async move {
            let remote = own.side == ManagerSide::Remote;
            let anothers = remote && self.instances.is_anothers(&self.reader, &own.instance, asking).await?;
            Ok::<_, EpError>((!anothers).then_some(own))
        });
        let whose: Vec<_> = stream::iter(whose).buffered(VERDICTS_AT_ONCE).collect().await;
        whose.into_iter().filter_map(Result::transpose).collect()
    }

    /// The goals of one owner, each row parsed: a marker is `failed-precondition`, a row that is garbled or another's
    /// `internal`.
    pub async fn goal_index(&self, owner: &Owner) -> Result<Vec<GoalIndexRow>, EpError> {
        self.fence.check()?;
        let goals = self.barriers.deps().records.goal_index(owner).await?;
        self.fence.check()?;
        Ok(goals)
    }

    /// Everybody who holds, or held, a credential of this manager instance: a marker is `failed-precondition`, a row of
    /// another family `internal`.
    pub async fn manager_family(&self, instance: &InstanceId) -> Result<BTreeSet<Principal>, EpError> {
        self.fence.check()?;
        let manager = EndpointName::manager().token();
        let rows = self.barriers.deps().ledger.endpoint_family(&manager, instance).await?;
        family_holders(instance, &rows)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_wire::{EpCode, Revision};

    use super::*;

    fn row(key: &str, value: Option<String>) -> Scanned {
        Scanned { key: key.to_owned(), revision: Revision(1), value: value.map(Bytes::from) }
    }

    #[test]
    fn of_an_owners_instances_a_thousand_are_looked_at_and_any_number_that_are_retired() {
        let one = |id: String, retired| Own {
            instance: InstanceId::parse(&id).unwrap(),
            side: ManagerSide::Remote,
            retired,
        };
        let own = || (0..2 * MOST_LOOKED_AT).rev().map(|nth| one(format!("{nth:026}"), nth % 2 == 0));
        let (looked, whole) = within(own().collect());
        assert_eq!((looked.len(), whole), (2 * MOST_LOOKED_AT, true));
        assert!(looked.is_sorted_by_key(|one| &one.instance));
        let (looked, whole) = within(own().chain([one("z".repeat(26), false)]).collect());
        assert_eq!((looked.len(), whole), (2 * MOST_LOOKED_AT, false), "the last in the order of their ids");
    }

    fn gate(principal: &str) -> String {
        let principal = Principal::parse_key(principal).unwrap();
        String::from_utf8(EndpointGate::provisioned(&principal).to_bytes()).unwrap()
    }

    #[test]
    fn gates_are_read_by_owner_and_one_that_cannot_be_read_is_nobodys() {
        let (a, b) = ("a".repeat(26), "b".repeat(26));
        let good = row(&format!("epgate.manager.{a}"), Some(gate(&format!("u_{a}.manager_serve_{a}"))));
        let local = row(&format!("epgate.manager.{b}"), Some(gate("local.UAAA")));
        let marker = row("epgate.manager.not-a-token", None);
        let garbled = row(&format!("epgate.manager.{}", "c".repeat(26)), Some("{}".to_owned()));
        let gates = read_gates(&[good.clone(), garbled, local, marker]).unwrap();
        assert_eq!(gates.len(), 2);
        assert_eq!(gates[&Owner::local()][0].instance.as_str(), b);
        for bad in [
            row("epgate.manager.not-a-token", Some(gate("local.UAAA"))),
            row(&format!("epgate.other.{a}"), Some(gate("local.UAAA"))),
            row(&format!("epgate.manager.{a}.x"), Some(gate("local.UAAA"))),
        ] {
            let key = bad.key.clone();
            assert_eq!(read_gates(&[good.clone(), bad]).err().unwrap().code, EpCode::Internal, "{key}");
        }
    }
}
