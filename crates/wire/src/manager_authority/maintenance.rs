//! `manager-service-maintenance`: mends a registration that has no proof left (contract 06 §5).

use serde::Serialize;

use super::{
    Kind,
    echo::Unbound,
    envelope::{Envelope, Identities, ProofMember, VERSION, known},
    fields::Fields,
    tokens::RequestId,
};
use crate::{
    delivery_admin::{EvictionResult, MAX_PRINCIPALS},
    endpoint_token::EndpointName,
    error::EpError,
    es_value::EsValue,
    rows::GateCoordinate,
    time::Revision,
    token::{Actor, InstanceId, LifecycleUid, OpId, Owner, Principal},
};

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// Whose registration is mended.
    pub target_instance_id: InstanceId,
    /// What is done.
    pub mend: Mend,
}

/// What maintenance does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// Ends the connections of holders of the target's credential family, named as text: 1 to
    /// [`MAX_PRINCIPALS`], distinct.
    Evict(Vec<String>),
    /// Reconciles the target's frozen gate.
    Reconcile,
}

impl Mend {
    /// The literal of the member `operation`.
    pub const fn operation(&self) -> &'static str {
        match self {
            Self::Evict(_) => EVICT,
            Self::Reconcile => RECONCILE,
        }
    }
}

const EVICT: &str = "evict-family-principal";
const RECONCILE: &str = "reconcile-registration";
/// Beside the envelope.
const MEMBERS: [&str; 3] = ["operation", "targetInstanceId", "principals"];

impl MaintenanceRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let members = known(MEMBERS);
        Self::read(&Fields::of(Kind::Maintenance.as_str(), Some(request))?.closed(&members)?)
    }

    fn read(fields: &Fields<'_>) -> Result<Self, EpError> {
        let evicts = match fields.value("operation").and_then(EsValue::as_text) {
            Some(EVICT) => true,
            Some(RECONCILE) => false,
            _ => return Err(fields.bad("operation", &format!("{EVICT} or {RECONCILE}"))),
        };
        let envelope = Envelope::read(fields, Kind::Maintenance, ProofMember::Absent)?;
        let target_instance_id = fields.token("targetInstanceId")?;
        let mend = if evicts {
            Mend::Evict(principals(fields)?)
        } else {
            fields.absent("principals")?;
            Mend::Reconcile
        };
        Ok(Self { envelope, target_instance_id, mend })
    }
}

fn principals(fields: &Fields<'_>) -> Result<Vec<String>, EpError> {
    let rule = format!("an array of 1 to {MAX_PRINCIPALS} distinct non-empty strings");
    let items = fields.array("principals", &rule)?;
    let named: Option<Vec<String>> =
        items.iter().map(|item| item.as_text().filter(|text| !text.is_empty()).map(str::to_owned)).collect();
    let distinct = |named: &Vec<String>| {
        let unique: std::collections::HashSet<_> = named.iter().collect();
        unique.len() == named.len() && (1..=MAX_PRINCIPALS).contains(&named.len())
    };
    named.filter(distinct).ok_or_else(|| fields.bad("principals", &rule))
}

/// What maintenance did: the whole request again, the owner, and one of two outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceResult {
    /// The request that it answers.
    pub request: MaintenanceRequest,
    /// The manager's owner, as the host derived it.
    pub owner: Owner,
    /// What was done.
    pub outcome: Mended,
}

/// The outcome of a mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mended {
    /// One entry for each principal, in the request's order. Only `verifiedGone` is success.
    Evicted(Vec<EvictionResult>),
    /// The gate is open again.
    Reconciled(Box<Reconciliation>),
}

/// A repaired gate (contract 06 §5, 07 §11.9).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconciliation {
    /// The endpoint.
    pub endpoint: EndpointName,
    /// The instance.
    pub instance_id: InstanceId,
    /// The gate's principal, whose process was proved gone.
    pub holder_principal: Principal,
    /// The operation that had frozen the gate.
    pub op_id: OpId,
    /// The revision of the freeze.
    pub freeze_token: Revision,
    /// Where the gate stood.
    pub before: GateCoordinate,
    /// What the probe of the holder said: `gone`, in a repair that was done.
    pub liveness: HolderLiveness,
    /// How many credential rows the family has.
    pub family_rows: u64,
    /// The keys of those that were revoked.
    pub revoked: Vec<String>,
    /// The principals that were proved gone.
    pub evicted: Vec<String>,
    /// The generation at which the gate reopened.
    pub reopened_at_generation: u64,
}

/// What a probe said, and how it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HolderLiveness {
    /// The verdict.
    pub state: HolderState,
    /// One sentence.
    pub detail: String,
}

/// Whether the holder of a gate is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderState {
    /// It is connected.
    Live,
    /// A complete sweep found it nowhere.
    Gone,
    /// The sweep could not say.
    Unknown,
    /// Nobody could be asked.
    Unestablishable,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    kind: &'static str,
    operation: &'static str,
    space: &'a str,
    actor: &'a Actor,
    instance_id: &'a InstanceId,
    manager_lifecycle_uid: &'a LifecycleUid,
    request_id: &'a RequestId,
    identities: &'a Identities,
    target_instance_id: &'a InstanceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    principals: Option<&'a [String]>,
    owner: &'a Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    evictions: Option<&'a [EvictionResult]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reconciliation: Option<&'a Reconciliation>,
}

impl Serialize for MaintenanceResult {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { request: MaintenanceRequest { envelope, target_instance_id, mend }, owner, outcome } =
            self;
        let principals = if let Mend::Evict(named) = mend { Some(named.as_slice()) } else { None };
        let (evictions, reconciliation) = match outcome {
            Mended::Evicted(evictions) => (Some(evictions.as_slice()), None),
            Mended::Reconciled(reconciliation) => (None, Some(&**reconciliation)),
        };
        Wire {
            v: VERSION,
            kind: Kind::Maintenance.as_str(),
            operation: mend.operation(),
            space: &envelope.space,
            actor: &envelope.actor,
            instance_id: &envelope.instance_id,
            manager_lifecycle_uid: &envelope.manager_lifecycle_uid,
            request_id: &envelope.request_id,
            identities: &envelope.identities,
            target_instance_id,
            principals,
            owner,
            evictions,
            reconciliation,
        }
        .serialize(serializer)
    }
}

impl HolderState {
    const ALL: [Self; 4] = [Self::Live, Self::Gone, Self::Unknown, Self::Unestablishable];

    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Gone => "gone",
            Self::Unknown => "unknown",
            Self::Unestablishable => "unestablishable",
        }
    }
}

impl MaintenanceResult {
    /// Reads an answer, closed: an eviction has evictions, a reconciliation its report.
    pub fn parse(result: &EsValue) -> Result<Self, EpError> {
        let members: Vec<_> =
            known(MEMBERS).into_iter().chain(["owner", "evictions", "reconciliation"]).collect();
        let fields = Fields::of("maintenance", Some(result))?.closed(&members)?;
        let request = MaintenanceRequest::read(&fields)?;
        let owner = fields.token("owner")?;
        let outcome = match request.mend {
            Mend::Evict(_) => {
                fields.absent("reconciliation")?;
                let rule = "an array of eviction results";
                let read = |entry| eviction(entry).ok_or_else(|| fields.bad("evictions", rule));
                let evictions = fields.array("evictions", rule)?;
                Mended::Evicted(evictions.iter().map(read).collect::<Result<_, _>>()?)
            }
            Mend::Reconcile => {
                fields.absent("evictions")?;
                Mended::Reconciled(Box::new(Reconciliation::read(&fields)?))
            }
        };
        Ok(Self { request, owner, outcome })
    }

    /// The outcome of the answer to this request of this owner: one eviction for each principal that was named, in that
    /// order, or the report of the named instance.
    pub fn bind(result: &EsValue, request: &MaintenanceRequest, owner: &Owner) -> Result<Mended, Unbound> {
        let result = Self::parse(result)?;
        let outcome_is_asked_for = match (&request.mend, &result.outcome) {
            (Mend::Evict(named), Mended::Evicted(evictions)) => {
                named.len() == evictions.len()
                    && named.iter().zip(evictions).all(|(named, one)| one.principal.key() == *named)
            }
            (Mend::Reconcile, Mended::Reconciled(report)) => {
                report.instance_id == request.target_instance_id
                    && report.endpoint.as_str() == super::MANAGER_ENDPOINT
            }
            _ => false,
        };
        if result.request == *request && result.owner == *owner && outcome_is_asked_for {
            Ok(result.outcome)
        } else {
            Err(Unbound::other(Kind::Maintenance))
        }
    }
}

/// As the delivery daemon answers it. A `verifiedGone` that its own sweep contradicts is no answer.
fn eviction(entry: &EsValue) -> Option<EvictionResult> {
    let value = serde_json::from_str(&entry.stringify()).ok()?;
    let result = EvictionResult::read(&value).ok()?;
    (!result.verified_gone || (result.scan_complete && result.remaining == 0)).then_some(result)
}

impl Reconciliation {
    fn read(result: &Fields<'_>) -> Result<Self, EpError> {
        let fields = result.inner("reconciliation", "reconciliation")?.exactly(&[
            "endpoint",
            "instanceId",
            "holderPrincipal",
            "opId",
            "freezeToken",
            "before",
            "liveness",
            "familyRows",
            "revoked",
            "evicted",
            "reopenedAtGeneration",
        ])?;
        let holder = fields.text("holderPrincipal")?;
        let holder_principal = Principal::parse_key(holder)
            .map_err(|_| fields.bad("holderPrincipal", "a principal `<owner>.<actor>`"))?;
        let texts = |member: &str| {
            let rule = "an array of strings";
            let items = fields.array(member, rule)?;
            let read = |item: &EsValue| item.as_text().map(str::to_owned);
            items.iter().map(read).collect::<Option<Vec<_>>>().ok_or_else(|| fields.bad(member, rule))
        };
        Ok(Self {
            endpoint: fields.token("endpoint")?,
            instance_id: fields.token("instanceId")?,
            holder_principal,
            op_id: fields.token("opId")?,
            freeze_token: Revision(fields.integer("freezeToken", 1)?),
            before: coordinate(&fields)?,
            liveness: HolderLiveness::read(&fields)?,
            family_rows: fields.integer("familyRows", 0)?,
            revoked: texts("revoked")?,
            evicted: texts("evicted")?,
            reopened_at_generation: fields.integer("reopenedAtGeneration", 1)?,
        })
    }
}

fn coordinate(report: &Fields<'_>) -> Result<GateCoordinate, EpError> {
    let members = ["generation", "processEpoch", "registrationRevision", "nameAuthorityRevision"];
    let fields = report.inner("before", "before")?.exactly(&members)?;
    Ok(GateCoordinate {
        generation: fields.integer("generation", 0)?,
        process_epoch: fields.integer("processEpoch", 0)?,
        registration_revision: fields.integer("registrationRevision", 0)?,
        name_authority_revision: fields.integer("nameAuthorityRevision", 0)?,
    })
}

impl HolderLiveness {
    fn read(report: &Fields<'_>) -> Result<Self, EpError> {
        let fields = report.inner("liveness", "liveness")?.exactly(&["state", "detail"])?;
        let word = fields.text("state")?;
        let state = HolderState::ALL
            .into_iter()
            .find(|state| state.as_str() == word)
            .ok_or_else(|| fields.bad("state", "live, gone, unknown or unestablishable"))?;
        Ok(Self { state, detail: fields.string("detail")?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const INSTANCE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    fn request(more: &Value) -> MaintenanceRequest {
        let key = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let mut request = json!({
            "v": 1, "kind": Kind::Maintenance.as_str(), "space": "main", "actor": "cli", "instanceId": INSTANCE,
            "managerLifecycleUid": "b".repeat(26), "requestId": "r".repeat(22), "targetInstanceId": INSTANCE,
            "identities": {
                "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                "sessionLedger": key("E"),
            },
        });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        MaintenanceRequest::parse(&es(&request)).unwrap()
    }

    fn owner() -> Owner {
        Owner::parse(OWNER).unwrap()
    }

    fn gone(actor: &str) -> EvictionResult {
        EvictionResult {
            principal: Principal::parse_key(&format!("{OWNER}.{actor}")).unwrap(),
            kicked: 1,
            remaining: 0,
            verified_gone: true,
            scan_complete: true,
            note: None,
        }
    }

    fn refuses(good: &Value, request: &MaintenanceRequest, changes: &[(&str, Value)]) {
        let binds = |value: &Value| MaintenanceResult::bind(&es(value), request, &owner()).is_ok();
        assert!(binds(good), "{good}");
        for member in good.as_object().unwrap().keys() {
            let mut without = good.clone();
            without.as_object_mut().unwrap().remove(member);
            assert!(!binds(&without), "without {member}");
        }
        for (pointer, bad) in changes {
            let mut other = good.clone();
            *other.pointer_mut(pointer).unwrap() = bad.clone();
            assert!(!binds(&other), "{pointer} {bad}");
        }
        for more in ["more", "registrationProof", "evictions", "reconciliation", "principals"] {
            let mut other = good.clone();
            if other.get(more).is_none() {
                other[more] = json!([]);
                assert!(!binds(&other), "{more} too");
            }
        }
    }

    #[test]
    fn evictions_bind_one_by_one_in_the_requests_order() {
        let principals = [format!("{OWNER}.b"), format!("{OWNER}.a")];
        let request = request(&json!({ "operation": "evict-family-principal", "principals": principals }));
        let evictions = vec![gone("b"), EvictionResult { note: Some("x".to_owned()), ..gone("a") }];
        let answer = MaintenanceResult {
            request: request.clone(),
            owner: owner(),
            outcome: Mended::Evicted(evictions),
        };
        let value = serde_json::to_value(&answer).unwrap();
        assert_eq!(MaintenanceResult::parse(&es(&value)).unwrap(), answer);
        let (first, second) = (value["evictions"][0].clone(), value["evictions"][1].clone());
        refuses(
            &value,
            &request,
            &[
                ("/owner", json!("u_bbbbbbbbbbbbbbbbbbbbbbbbbb")),
                ("/requestId", json!("s".repeat(22))),
                ("/operation", json!("reconcile-registration")),
                ("/principals", json!([principals[1], principals[0]])),
                ("/evictions", json!([second, first])),
                ("/evictions", json!([first])),
                ("/evictions", json!([first, second, second])),
                ("/evictions/0/verifiedGone", json!("true")),
                ("/evictions/0/scanComplete", json!(false)),
                ("/evictions/0/remaining", json!(1)),
                ("/evictions/0", json!({})),
            ],
        );
    }

    #[test]
    fn a_reconciliation_binds_to_the_instance_that_was_named() {
        let request = request(&json!({ "operation": "reconcile-registration" }));
        let report = Reconciliation {
            endpoint: EndpointName::manager(),
            instance_id: InstanceId::parse(INSTANCE).unwrap(),
            holder_principal: Principal::parse_key(&format!("{OWNER}.manager_serve_{INSTANCE}")).unwrap(),
            op_id: OpId::parse(&"f".repeat(26)).unwrap(),
            freeze_token: Revision(9),
            before: GateCoordinate {
                generation: 3,
                process_epoch: 1,
                registration_revision: 7,
                name_authority_revision: 0,
            },
            liveness: HolderLiveness { state: HolderState::Gone, detail: "nobody".to_owned() },
            family_rows: 2,
            revoked: vec!["epcred.manager.x.c1".to_owned()],
            evicted: vec![format!("{OWNER}.manager_serve_{INSTANCE}")],
            reopened_at_generation: 4,
        };
        let outcome = Mended::Reconciled(Box::new(report));
        let answer = MaintenanceResult { request: request.clone(), owner: owner(), outcome };
        let value = serde_json::to_value(&answer).unwrap();
        assert_eq!(MaintenanceResult::parse(&es(&value)).unwrap(), answer);
        assert_eq!(value["reconciliation"]["liveness"], json!({ "state": "gone", "detail": "nobody" }));
        refuses(
            &value,
            &request,
            &[
                ("/targetInstanceId", json!("b".repeat(26))),
                ("/reconciliation/instanceId", json!("b".repeat(26))),
                ("/reconciliation/endpoint", json!("auth")),
                ("/reconciliation/liveness/state", json!("dead")),
                ("/reconciliation/before/generation", json!(-1)),
                ("/reconciliation/before", json!({})),
                ("/reconciliation/freezeToken", json!(0)),
                ("/reconciliation/revoked", json!([1])),
                ("/reconciliation/evicted", json!("x")),
                ("/reconciliation/holderPrincipal", json!("x")),
                ("/reconciliation", json!([])),
            ],
        );
    }
}
