//! What the plane enumerates about managers, each time through a sealed scanner and under its claim: their gates, the
//! goals of one owner, and who holds credentials of one instance (contract 05 §5, §8.7; 06 §5, §10).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cotal_wire::{
    DerivedOwner, EndpointName, EpError, InstanceId, Owner, Principal,
    endpoint_token::MANAGER_ENDPOINT,
    rows::{EndpointGate, GoalIndexRow},
};
use futures::{FutureExt, StreamExt, stream};

use super::Plane;
use crate::{
    LocalManager, ManagerVerdict,
    manager::{SurveyedManager, family_holders, side_of},
    scanner::{LedgerScanner, Scanned},
    sharing::{Bounds, Sharing},
};

/// How many instances of one owner are looked at side by side.
const VERDICTS_AT_ONCE: usize = 8;

/// Every manager gate of the space as one scan found them, by the owner of their principals.
type Gates = HashMap<Owner, Vec<ScannedGate>>;

struct ScannedGate {
    instance: InstanceId,
    principal: Principal,
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
        let principal = gate.principal().clone();
        gates.entry(principal.owner.clone()).or_default().push(ScannedGate { instance, principal });
    }
    Ok(gates)
}

impl Plane {
    /// The instances that this owner might be bound to, in the order of their ids: the owner's own and the host's. Each is
    /// looked at anew; of no other owner's more is read than the scan does.
    pub async fn survey_managers(
        &self,
        owner: &DerivedOwner,
        local: Option<&LocalManager>,
    ) -> Result<Vec<SurveyedManager>, EpError> {
        self.fence.check()?;
        let gates = self.gates.scan().await?;
        let owners = [owner.into(), Owner::local()];
        let mut own: Vec<_> = owners
            .iter()
            .filter_map(|owner| gates.get(owner))
            .flatten()
            .filter_map(|gate| {
                let side = side_of(owner, &gate.instance, local, &gate.principal)?;
                Some((gate.instance.clone(), side))
            })
            .collect();
        own.sort_by(|(one, _), (other, _)| one.cmp(other));
        let looks = own.into_iter().map(|(instance, side)| async move {
            let verdict = self.reader.manager_verdict(owner, &instance, local).await?;
            Ok::<_, EpError>(SurveyedManager { instance, side, verdict })
        });
        let looked: Vec<_> = stream::iter(looks).buffered(VERDICTS_AT_ONCE).collect().await;
        self.fence.check()?;
        // A gate that names this owner without being theirs is not told, and stands in nobody's way.
        let not_theirs = |one: &Result<SurveyedManager, EpError>| {
            one.as_ref().is_ok_and(|one| one.verdict == ManagerVerdict::NotThisOwners)
        };
        looked.into_iter().filter(|one| !not_theirs(one)).collect()
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
