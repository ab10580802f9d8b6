//! The client of the delivery daemon's admin rail: evictor, claim oracle, principal oracle and membership inventory,
//! each call on a 60 s credential of its own (contract 07 §9, 03 §G "Oracle").
//!
//! Nothing here fails open. A refusal, a rail that does not answer, an answer of another shape, an answer about
//! somebody else and a `gone` that its own sweep contradicts all become unknown, or not verified, with a note that
//! says which it was.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use cotal_broker::{Connection, ConnectionTuple, Connector, Lifetime, Message};
use cotal_wire::{
    ConnId, EpCode, EpError, InfraRole, LifecycleUid, Permissions, Principal,
    delivery_admin::{
        AdminError, AdminRequest, BUDGET_SECS, EvictionResult, ExpectedCreds, Liveness, MAX_PRINCIPALS,
        Memberships, PlaneLiveness, PlaneQuery, PrincipalLiveness, Reloaded, StoreAnswer, parse_reply,
    },
    grants::delivery,
    rows::PlaneTuple,
    subject::{ControlService, Subjects},
};
use serde_json::Value;

use crate::{
    claim_oracle::{ClaimObservation, ClaimOracle, ClaimTuples, Verdict},
    evict::{Eviction, Evictor},
};

/// Lifetime of the credential of one call, in seconds (contract 07 §9).
const CREDENTIAL_TTL_SECS: u64 = 60;
/// The whole of one call, its connect included.
const BUDGET: Duration = Duration::from_secs(BUDGET_SECS);
/// The whole of a challenge before a renewal (contract 08 §7.3).
const CHALLENGE: Duration = Duration::from_secs(5);
/// The reply subject's last token: one request a connection, so any will do.
const NONCE: &str = "1";
/// What a rail without a daemon says.
const NOBODY: &str = "nobody hears its rail";

/// Asks the delivery daemon of a space.
#[derive(Clone)]
pub struct DeliveryAdmin {
    connector: Connector,
}

impl DeliveryAdmin {
    /// Over connections that `connector` opens and closes, one a call.
    pub fn new(connector: Connector) -> Self {
        Self { connector }
    }

    /// Whether any connection of a principal is there: `Gone` only under a complete sweep. The error says why nobody
    /// could be asked, or why the answer cannot be used.
    pub async fn try_principal_liveness(&self, principal: &Principal) -> Result<Verdict, EpError> {
        let request = AdminRequest::PrincipalLiveness(principal.clone());
        let data =
            self.ask(InfraRole::AUTH_PRINCIPAL_ORACLE, Asker::EndpointEvictor, &request, BUDGET).await?;
        principal_verdict(principal, &data).map_err(unusable)
    }

    /// The same, where an answer that is not to be had is as good as one that does not know.
    pub async fn principal_liveness(&self, principal: &Principal) -> Verdict {
        self.try_principal_liveness(principal).await.unwrap_or_else(|error| {
            tracing::warn!(space = %self.connector.space(), %principal, %error, "principal oracle: unknown");
            Verdict::Unknown
        })
    }

    /// The concrete channels and families that durable membership rows of exactly this incarnation name, sorted.
    pub async fn lifecycle_memberships(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Vec<String>, EpError> {
        let request = AdminRequest::LifecycleMemberships { principal: principal.clone(), uid: uid.clone() };
        let data = self.ask(InfraRole::AUTH_MEMBERSHIPS, Asker::Supervisor, &request, BUDGET).await?;
        Ok(Memberships::read(&data).map_err(unusable)?.channels)
    }

    /// Which store the daemon reads its credentials from, who answers, and whether it holds the lease. An answerer is
    /// to be compared with the lease row before anything rests on it (contract 08 §7.4).
    pub async fn store_identity(&self) -> Result<StoreAnswer, EpError> {
        self.challenge().await?.ok_or_else(|| unreachable(&AdminRequest::ReloadStoreIdentity, NOBODY))
    }

    /// The same; `None` when the broker says that nobody hears the rail. A rail that hangs, refuses, or answers what
    /// cannot be read is an error: somebody is there.
    pub async fn challenge(&self) -> Result<Option<StoreAnswer>, EpError> {
        let request = AdminRequest::ReloadStoreIdentity;
        let data = self.try_ask(InfraRole::AUTH_RENEWAL, Asker::Supervisor, &request, CHALLENGE).await?;
        data.map(|data| StoreAnswer::read(&data).map_err(unusable)).transpose()
    }

    /// Has the daemon take over re-signed credentials; refused when what it reads is not what is expected.
    pub async fn reload_creds(&self, expected: &ExpectedCreds) -> Result<Reloaded, EpError> {
        let request = AdminRequest::ReloadCreds(expected.clone());
        let data = self.ask(InfraRole::AUTH_RENEWAL, Asker::Supervisor, &request, BUDGET).await?;
        Reloaded::read(&data).map_err(unusable)
    }

    /// Evicts a batch that one request may name, as `endpoint-evictor`: it may ask this rail and nothing else. Contract
    /// 07 §9 knows `supervisor` here as well, which also writes a manager's lease and presence; no answer depends on it.
    async fn evict_batch(&self, batch: &[Principal]) -> Vec<Eviction> {
        let request = match batch {
            [one] => AdminRequest::EvictPrincipal(one.clone()),
            many => AdminRequest::EvictPrincipals(many.to_vec()),
        };
        let answer = self.ask(InfraRole::AUTH_BARRIER_EVICT, Asker::EndpointEvictor, &request, BUDGET).await;
        match answer.and_then(|data| evictions(batch, &data).map_err(unusable)) {
            Ok(evictions) => evictions,
            Err(error) => {
                batch.iter().map(|principal| Eviction::unverified(principal, &error.message)).collect()
            }
        }
    }

    /// One request on one connection. The error is always a reason not to know.
    async fn ask(
        &self,
        role: InfraRole,
        asker: Asker,
        request: &AdminRequest,
        budget: Duration,
    ) -> Result<Value, EpError> {
        self.try_ask(role, asker, request, budget).await?.ok_or_else(|| unreachable(request, NOBODY))
    }

    /// The same; `None` when nobody hears the rail.
    async fn try_ask(
        &self,
        role: InfraRole,
        asker: Asker,
        request: &AdminRequest,
        budget: Duration,
    ) -> Result<Option<Value>, EpError> {
        let call = async {
            let connection = self.open(role, asker).await?;
            let principal = delivery::nkey_principal(connection.user_nkey())
                .map_err(|error| EpError::internal(error.to_string()))?;
            let subjects = Subjects::new(&self.connector.space().token());
            let rail = ControlService::DeliveryAdmin;
            let (subject, reply) =
                (subjects.control(rail, &principal), subjects.control_reply(rail, &principal, NONCE));
            let request = Bytes::from(request.to_bytes());
            let answer = connection.ask_at(&subject, &reply, request, budget).await;
            // The last handle: it closes by itself, and custody knows when it has.
            drop(connection);
            answer
        };
        let answer = tokio::time::timeout(budget, call)
            .await
            .map_err(|_| unreachable(request, &format!("no answer within {} s", budget.as_secs())))?
            .map_err(|error| unreachable(request, &error.message))?;
        let read = |answer: Message| {
            parse_reply(&answer.payload).map_err(|refusal| EpError::new(EpCode::Unavailable, refusal.0))
        };
        answer.map(read).transpose()
    }

    async fn open(&self, role: InfraRole, asker: Asker) -> Result<Connection, EpError> {
        let space = self.connector.space();
        let token = space.token();
        let grants = move |conn: &ConnId| {
            // A principal that does not read leaves the grant empty, which the connector refuses.
            asker.grants(&token, conn).unwrap_or_default()
        };
        let lifetime = Lifetime::OneShot { ttl_secs: CREDENTIAL_TTL_SECS, principal: None };
        self.connector.open(role.label(space), &grants, lifetime).await
    }
}

/// As whom the rail is asked.
#[derive(Debug, Clone, Copy)]
enum Asker {
    Supervisor,
    EndpointEvictor,
}

impl Asker {
    fn grants(self, space: &cotal_wire::SpaceToken, conn: &ConnId) -> Option<Permissions> {
        let user = cotal_wire::Nkey::parse(conn.as_str()).ok()?;
        let principal = delivery::nkey_principal(&user).ok()?;
        Some(match self {
            Self::Supervisor => delivery::supervisor(space, &principal, conn),
            Self::EndpointEvictor => delivery::endpoint_evictor(space, &principal, conn),
        })
    }
}

#[async_trait]
impl Evictor for DeliveryAdmin {
    async fn evict(&self, principals: &BTreeSet<Principal>) -> Vec<Eviction> {
        let all: Vec<Principal> = principals.iter().cloned().collect();
        let mut evictions = Vec::with_capacity(all.len());
        for batch in all.chunks(MAX_PRINCIPALS) {
            evictions.extend(self.evict_batch(batch).await);
        }
        evictions
    }
}

#[async_trait]
impl ClaimOracle for DeliveryAdmin {
    async fn observe(&self, tuples: &ClaimTuples) -> ClaimObservation {
        let (Ok(ledger), Ok(records)) = (wire_tuple(&tuples.ledger), wire_tuple(&tuples.records)) else {
            return ClaimObservation::unknown(tuples, "the claim's connections cannot be asked about");
        };
        let query = PlaneQuery { ledger, records };
        let request = AdminRequest::PlaneConnLiveness(query.clone());
        let answer = self.ask(InfraRole::AUTH_PLANE_ORACLE, Asker::Supervisor, &request, BUDGET).await;
        match answer.and_then(|data| plane_observation(tuples, &query, &data).map_err(unusable)) {
            Ok(observation) => observation,
            Err(error) => ClaimObservation::unknown(tuples, error.message),
        }
    }
}

// === what an answer proves ===

fn unreachable(request: &AdminRequest, why: &str) -> EpError {
    EpError::unavailable(format!(
        "the delivery daemon did not answer {}: {why}; check that it runs (`cotal status`)",
        request.op()
    ))
}

fn unusable(AdminError(why): AdminError) -> EpError {
    EpError::unavailable(format!("the delivery daemon's answer cannot be used: {why}"))
}

fn wire_tuple(tuple: &ConnectionTuple) -> Result<PlaneTuple, EpError> {
    PlaneTuple::new(&tuple.server_id, tuple.client_id, &tuple.user_nkey)
}

fn verdict(state: Liveness) -> Verdict {
    match state {
        Liveness::Live => Verdict::Live,
        Liveness::Gone => Verdict::Gone,
        Liveness::Unknown => Verdict::Unknown,
    }
}

fn principal_verdict(asked: &Principal, data: &Value) -> Result<Verdict, AdminError> {
    let answer = PrincipalLiveness::read(data)?;
    if answer.principal != *asked {
        return Err(AdminError("it is about another principal".into()));
    }
    if answer.state == Liveness::Gone && !answer.sweep_complete {
        return Err(AdminError("it says gone after an incomplete sweep".into()));
    }
    Ok(verdict(answer.state))
}

fn plane_observation(
    tuples: &ClaimTuples,
    asked: &PlaneQuery,
    data: &Value,
) -> Result<ClaimObservation, AdminError> {
    let answer = PlaneLiveness::read(data)?;
    if answer.ledger.tuple != asked.ledger || answer.records.tuple != asked.records {
        return Err(AdminError("it is about other connections".into()));
    }
    let says_gone = [&answer.ledger, &answer.records].iter().any(|one| one.state == Liveness::Gone);
    if says_gone && !answer.sweep_complete {
        return Err(AdminError("it says gone after an incomplete sweep".into()));
    }
    Ok(ClaimObservation {
        tuples: tuples.clone(),
        ledger: verdict(answer.ledger.state),
        records: verdict(answer.records.state),
        sweep_complete: answer.sweep_complete,
        note: answer.note,
    })
}

/// One eviction for each principal asked about, in order; a list of another length or order proves nothing of anyone.
fn evictions(batch: &[Principal], data: &Value) -> Result<Vec<Eviction>, AdminError> {
    let foreign = || AdminError("its results do not match the principals that were asked about".into());
    let results = match batch {
        [_] => std::slice::from_ref(data),
        _ => data.as_array().map(Vec::as_slice).ok_or_else(foreign)?,
    };
    if results.len() != batch.len() {
        return Err(foreign());
    }
    batch
        .iter()
        .zip(results)
        .map(|(principal, result)| {
            let result = EvictionResult::read(result)?;
            if result.principal != *principal {
                return Err(foreign());
            }
            if result.verified_gone && (!result.scan_complete || result.remaining > 0) {
                return Err(AdminError("it says verified after an incomplete sweep".into()));
            }
            Ok(Eviction {
                principal: result.principal,
                kicked: result.kicked,
                remaining: result.remaining,
                verified_gone: result.verified_gone,
                scan_complete: result.scan_complete,
                note: result.note,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use cotal_wire::{Nkey, User};
    use serde_json::json;

    use super::*;

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("local.{actor}")).unwrap()
    }

    fn tuple(cid: u64) -> ConnectionTuple {
        let user_nkey = Nkey::<User>::parse(&format!("U{}", "A".repeat(55))).unwrap();
        ConnectionTuple { server_id: "NSERVER".into(), client_id: cid, user_nkey }
    }

    fn tuples() -> ClaimTuples {
        ClaimTuples { ledger: tuple(1), records: tuple(2) }
    }

    fn query() -> PlaneQuery {
        let tuples = tuples();
        PlaneQuery {
            ledger: wire_tuple(&tuples.ledger).unwrap(),
            records: wire_tuple(&tuples.records).unwrap(),
        }
    }

    fn observed(change: impl FnOnce(&mut Value)) -> Result<ClaimObservation, AdminError> {
        let of = |tuple: &PlaneTuple| json!({ "tuple": tuple, "state": "gone" });
        let mut data =
            json!({ "ledger": of(&query().ledger), "records": of(&query().records), "sweepComplete": true });
        change(&mut data);
        plane_observation(&tuples(), &query(), &data)
    }

    type Change = fn(&mut Value);

    #[test]
    fn an_observation_that_is_not_exactly_of_the_claim_is_refused() {
        let good = observed(|_| {}).unwrap();
        assert_eq!((good.ledger, good.records, good.sweep_complete), (Verdict::Gone, Verdict::Gone, true));
        assert_eq!(good.tuples, tuples());
        let cases: [(Change, &str); 12] = [
            (|d| d["sweepComplete"] = json!(false), "incomplete sweep"),
            (|d| d["ledger"]["tuple"]["cid"] = json!(9), "other connections"),
            (|d| d["records"]["tuple"]["serverId"] = json!("OTHER"), "other connections"),
            (|d| d["records"]["tuple"]["more"] = json!(1), "serverId, cid and userNkey"),
            (|d| d["ledger"]["tuple"]["cid"] = json!(0), "serverId, cid and userNkey"),
            (|d| d["ledger"]["state"] = json!("dead"), "live, gone or unknown"),
            (|d| d["ledger"]["more"] = json!(1), "does not know"),
            (|d| d["more"] = json!(1), "does not know"),
            (|d| d["note"] = json!(7), "a string"),
            (|d| d["sweepComplete"] = json!("true"), "true or false"),
            (|d| drop(d.as_object_mut().unwrap().remove("records")), "missing"),
            (|d| *d = json!([]), "must be an object"),
        ];
        for (change, why) in cases {
            let refusal = observed(change).unwrap_err().0;
            assert!(refusal.contains(why), "{refusal:?} should say {why:?}");
        }
        let live = observed(|d| {
            d["ledger"]["state"] = json!("live");
            d["records"]["state"] = json!("unknown");
            d["sweepComplete"] = json!(false);
        });
        assert_eq!(live.unwrap().ledger, Verdict::Live, "found is found, however incomplete the sweep");
    }

    #[test]
    fn a_principals_verdict_is_refused_when_it_is_anothers_or_contradicts_itself() {
        let asked = principal("a");
        let of = |who: &str, state: &str, complete: bool| {
            let data = json!({ "principal": who, "state": state, "sweepComplete": complete });
            principal_verdict(&asked, &data)
        };
        assert_eq!(of("local.a", "gone", true), Ok(Verdict::Gone));
        assert_eq!(of("local.a", "live", false), Ok(Verdict::Live));
        assert_eq!(of("local.a", "unknown", false), Ok(Verdict::Unknown));
        assert!(of("local.a", "gone", false).is_err());
        assert!(of("local.b", "gone", true).is_err());
        assert!(of("local.a", "GONE", true).is_err());
    }

    #[test]
    fn evictions_must_match_the_batch_one_by_one() {
        let result = |who: &str, gone: bool, complete: bool, remaining: u64| {
            json!({
                "principal": format!("local.{who}"), "kicked": 1, "remaining": remaining, "verifiedGone": gone,
                "scanComplete": complete,
            })
        };
        let (a, b) = (principal("a"), principal("b"));
        let one = std::slice::from_ref(&a);
        assert!(evictions(one, &result("a", true, true, 0)).unwrap()[0].verified_gone);
        assert!(!evictions(one, &result("a", false, false, 2)).unwrap()[0].verified_gone);
        assert!(evictions(one, &json!([result("a", true, true, 0)])).is_err(), "a single result is no list");
        assert!(evictions(one, &result("b", true, true, 0)).is_err());
        assert!(evictions(one, &result("a", true, false, 0)).is_err());
        assert!(evictions(one, &result("a", true, true, 1)).is_err());
        let two = [a, b];
        let (ra, rb) = (result("a", true, true, 0), result("b", false, true, 3));
        assert_eq!(evictions(&two, &json!([ra, rb])).unwrap()[1].remaining, 3);
        assert!(evictions(&two, &json!([rb, ra])).is_err(), "another order");
        assert!(evictions(&two, &json!([ra])).is_err());
        assert!(evictions(&two, &json!([ra, rb, ra])).is_err());
        assert!(evictions(&two, &ra).is_err());
        assert!(evictions(&two, &Value::Null).is_err());
    }

    #[test]
    fn the_asker_may_ask_as_its_own_nkey_alone() {
        let space = cotal_wire::Space::parse("main").unwrap().token();
        let nkey = format!("U{}", "A".repeat(55));
        let conn = ConnId::parse(&nkey).unwrap();
        let asks = format!("cotal.main.ctl.delivery-admin.local.{nkey}");
        for asker in [Asker::Supervisor, Asker::EndpointEvictor] {
            let permissions = asker.grants(&space, &conn).unwrap();
            assert!(permissions.publish.allow.contains(&asks), "{asker:?}");
        }
        assert!(Asker::Supervisor.grants(&space, &ConnId::parse("not_an_nkey").unwrap()).is_none());
    }
}
