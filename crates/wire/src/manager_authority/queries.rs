//! The kinds that only ask: the owner's goals, and whether a caller is an admin (contract 06 §10-11).

use serde::Serialize;

use super::{
    HolderKind, Kind,
    echo::{ECHO, Echo, Unbound},
    envelope::{Envelope, Identities, Incarnation, ProofMember, VERSION, known},
    fields::Fields,
    tokens::RequestId,
};
use crate::{
    endpoint_token::DigestRef,
    error::EpError,
    es_value::EsValue,
    rows::{Allocated, GoalIndexRow},
    token::{Actor, InstanceId, LifecycleUid, Owner},
};

/// A parsed goal index scan: it has no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalIndexRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
}

impl GoalIndexRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch"]);
        let fields = Fields::of(Kind::GoalIndexScan.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::GoalIndexScan, ProofMember::Required)?;
        Ok(Self { envelope, serve_epoch: fields.integer("serveEpoch", 0)? })
    }
}

/// A parsed admin question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// About whom.
    pub caller: Incarnation,
}

impl AdminRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "caller"]);
        Self::read(&Fields::of(Kind::AdminAuthorization.as_str(), Some(request))?.closed(&members)?, holder)
    }

    fn read(fields: &Fields<'_>, holder: HolderKind) -> Result<Self, EpError> {
        let envelope = Envelope::read(fields, Kind::AdminAuthorization, ProofMember::Required)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let caller = Incarnation::read(fields, "caller", "caller", holder)?;
        Ok(Self { envelope, serve_epoch, caller })
    }
}

/// The goals of the manager's owner, each as its row says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GoalIndexResult {
    /// Whose request it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// The proof that the request carried.
    pub registration_proof: Option<DigestRef>,
    /// The serving epoch at which it was asked.
    pub serve_epoch: u64,
    /// The goals, in the order of their keys.
    pub entries: Vec<GoalIndexRow>,
}

impl GoalIndexResult {
    /// The answer to a request.
    pub fn answer(request: &GoalIndexRequest, owner: &Owner, entries: Vec<GoalIndexRow>) -> Self {
        Self {
            echo: Echo::of(Kind::GoalIndexScan, &request.envelope, owner),
            registration_proof: request.envelope.registration_proof.clone(),
            serve_epoch: request.serve_epoch,
            entries,
        }
    }

    /// Reads an answer, closed.
    pub fn parse(result: &EsValue) -> Result<Self, EpError> {
        let members: Vec<_> =
            ECHO.into_iter().chain(["registrationProof", "serveEpoch", "entries"]).collect();
        let fields = Fields::of("goal index", Some(result))?.closed(&members)?;
        let echo = Echo::read(&fields, Kind::GoalIndexScan)?;
        let registration_proof = Some(fields.token("registrationProof")?);
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let entries =
            fields.array("entries", "an array of goals")?.iter().map(goal).collect::<Result<_, _>>()?;
        Ok(Self { echo, registration_proof, serve_epoch, entries })
    }

    /// Reads the answer to this request of this owner: every coordinate is the request's, and every goal the owner's.
    pub fn bind(result: &EsValue, request: &GoalIndexRequest, owner: &Owner) -> Result<Self, Unbound> {
        let result = Self::parse(result)?;
        let own =
            |goal: &GoalIndexRow| goal.endpoint == super::MANAGER_ENDPOINT && goal.owner == owner.as_str();
        let asked = Self::answer(request, owner, Vec::new());
        let bound = result.echo == asked.echo
            && result.registration_proof == asked.registration_proof
            && result.serve_epoch == asked.serve_epoch
            && result.entries.iter().all(own);
        if bound { Ok(result) } else { Err(Unbound::other(Kind::GoalIndexScan)) }
    }
}

/// One goal: what [`GoalIndexRow`] stores.
fn goal(entry: &EsValue) -> Result<GoalIndexRow, EpError> {
    let known = ["v", "endpoint", "owner", "actor", "uid", "goalId", "iid", "allocated"];
    let fields = Fields::of("goal", Some(entry))?.closed(&known)?;
    if fields.integer("v", VERSION)? != VERSION {
        return Err(fields.bad("v", "1"));
    }
    let text = |member: &str| fields.string(member).map(str::to_owned);
    let allocated = if fields.has("allocated") { Some(allocated(&fields)?) } else { None };
    Ok(GoalIndexRow {
        endpoint: text("endpoint")?,
        owner: text("owner")?,
        actor: text("actor")?,
        uid: text("uid")?,
        goal_id: text("goalId")?,
        iid: text("iid")?,
        allocated,
    })
}

fn allocated(goal: &Fields<'_>) -> Result<Allocated, EpError> {
    const DEADLINE: &str = "readinessDeadlineMs";
    let fields = goal.inner("allocated", "allocated")?.closed(&["name", "actor", "uid", DEADLINE])?;
    let text = |member: &str| fields.string(member).map(str::to_owned);
    let readiness_deadline_ms = if fields.has(DEADLINE) { Some(fields.integer(DEADLINE, 1)?) } else { None };
    Ok(Allocated { name: text("name")?, actor: text("actor")?, uid: text("uid")?, readiness_deadline_ms })
}

/// Whether a caller is an admin: the whole request again, and one boolean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminResult {
    /// The request that it answers.
    pub request: AdminRequest,
    /// The manager's owner, as the host derived it.
    pub owner: Owner,
    /// The answer.
    pub authorized: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireAdmin<'a> {
    v: u64,
    kind: &'static str,
    space: &'a str,
    actor: &'a Actor,
    instance_id: &'a InstanceId,
    manager_lifecycle_uid: &'a LifecycleUid,
    request_id: &'a RequestId,
    registration_proof: &'a Option<DigestRef>,
    serve_epoch: u64,
    identities: &'a Identities,
    caller: &'a Incarnation,
    owner: &'a Owner,
    authorized: bool,
}

impl Serialize for AdminResult {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { request: AdminRequest { envelope, serve_epoch, caller }, owner, authorized } = self;
        WireAdmin {
            v: VERSION,
            kind: Kind::AdminAuthorization.as_str(),
            space: &envelope.space,
            actor: &envelope.actor,
            instance_id: &envelope.instance_id,
            manager_lifecycle_uid: &envelope.manager_lifecycle_uid,
            request_id: &envelope.request_id,
            registration_proof: &envelope.registration_proof,
            serve_epoch: *serve_epoch,
            identities: &envelope.identities,
            caller,
            owner,
            authorized: *authorized,
        }
        .serialize(serializer)
    }
}

impl AdminResult {
    /// Reads an answer, closed.
    pub fn parse(result: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "caller", "owner", "authorized"]);
        let fields = Fields::of("admin authorization", Some(result))?.closed(&members)?;
        let request = AdminRequest::read(&fields, holder)?;
        Ok(Self { request, owner: fields.token("owner")?, authorized: fields.flag("authorized")? })
    }

    /// The one boolean of the answer to this request of this owner; any other answer is none.
    pub fn bind(
        result: &EsValue,
        request: &AdminRequest,
        owner: &Owner,
        holder: HolderKind,
    ) -> Result<bool, Unbound> {
        let result = Self::parse(result, holder)?;
        if result.request == *request && result.owner == *owner {
            Ok(result.authorized)
        } else {
            Err(Unbound::other(Kind::AdminAuthorization))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    fn request(kind: Kind, more: &Value) -> Value {
        let key = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let mut request = json!({
            "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": "a".repeat(26),
            "managerLifecycleUid": "b".repeat(26), "requestId": "r".repeat(22),
            "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": 0,
            "identities": {
                "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                "sessionLedger": key("E"),
            },
        });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    }

    /// Every member of an answer, changed or gone, and one more than there are: none of it binds.
    fn closed(good: &Value, binds: impl Fn(&Value) -> bool) {
        assert!(binds(good));
        for member in good.as_object().unwrap().keys() {
            let mut without = good.clone();
            without.as_object_mut().unwrap().remove(member);
            assert!(!binds(&without), "without {member}");
            let mut other = good.clone();
            other[member] = json!("another");
            assert!(!binds(&other), "another {member}");
        }
        let mut more = good.clone();
        more["more"] = json!(1);
        assert!(!binds(&more), "one member more");
    }

    #[test]
    fn goals_bind_to_their_request_alone_and_are_the_owners() {
        let request = GoalIndexRequest::parse(&es(&request(Kind::GoalIndexScan, &json!({})))).unwrap();
        let owner = Owner::parse(OWNER).unwrap();
        let goal = |owner: &str| GoalIndexRow {
            endpoint: "manager".to_owned(),
            owner: owner.to_owned(),
            actor: "alice".to_owned(),
            uid: "u".to_owned(),
            goal_id: "g".to_owned(),
            iid: "i".to_owned(),
            allocated: Some(Allocated {
                name: "n".to_owned(),
                actor: "helper".to_owned(),
                uid: "x".to_owned(),
                readiness_deadline_ms: Some(5),
            }),
        };
        let answer = GoalIndexResult::answer(&request, &owner, vec![goal(OWNER)]);
        let text = serde_json::to_string(&answer).unwrap();
        let order = [
            "v",
            "kind",
            "space",
            "owner",
            "actor",
            "instanceId",
            "managerLifecycleUid",
            "requestId",
            "registrationProof",
            "serveEpoch",
            "entries",
        ];
        let places = order.map(|member| text.find(&format!("\"{member}\":")).unwrap());
        assert!(places.is_sorted(), "{text}");
        let binds = |value: &Value| GoalIndexResult::bind(&es(value), &request, &owner).is_ok();
        closed(&serde_json::to_value(&answer).unwrap(), binds);
        assert_eq!(GoalIndexResult::parse(&EsValue::parse(text.as_bytes()).unwrap()).unwrap(), answer);

        let foreign = GoalIndexResult::answer(&request, &owner, vec![goal("u_bbbbbbbbbbbbbbbbbbbbbbbbbb")]);
        assert!(!binds(&serde_json::to_value(&foreign).unwrap()), "a goal of another owner");
        for (pointer, bad) in [
            ("/entries/0/v", json!(2)),
            ("/entries/0/endpoint", json!("other")),
            ("/entries/0/goalId", json!(1)),
            ("/entries/0/allocated/readinessDeadlineMs", json!(0)),
            ("/entries/0/allocated", json!(null)),
            ("/entries/0", json!([])),
        ] {
            let mut value = serde_json::to_value(&answer).unwrap();
            *value.pointer_mut(pointer).unwrap() = bad;
            assert!(!binds(&value), "{pointer}");
        }
    }

    #[test]
    fn an_admins_answer_binds_to_the_whole_request() {
        let caller = json!({ "owner": OWNER, "actor": "ops", "lifecycleUid": "c".repeat(26) });
        let sent = request(Kind::AdminAuthorization, &json!({ "caller": caller }));
        let request = AdminRequest::parse(&es(&sent), HolderKind::Human).unwrap();
        let owner = Owner::parse(OWNER).unwrap();
        for authorized in [true, false] {
            let answer = AdminResult { request: request.clone(), owner: owner.clone(), authorized };
            let value = serde_json::to_value(&answer).unwrap();
            let mut whole = sent.clone();
            whole["owner"] = json!(OWNER);
            whole["authorized"] = json!(authorized);
            assert_eq!(value, whole, "every field again, and two more");
            let bind = |value: &Value| AdminResult::bind(&es(value), &request, &owner, HolderKind::Human);
            assert_eq!(bind(&value), Ok(authorized));
            closed(&value, |value| bind(value).is_ok());
        }
    }
}
