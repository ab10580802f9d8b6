//! A manager, its gate and who asks, for the tests of what is decided for it; and the proof that checks stand in an order.

use cotal_trust::{nkey::Seed, registration_proof::RegistrationProofKey, system::SystemEntropy};
use cotal_wire::{
    Account, EpCode, EpError, InstanceId, LifecycleUid, Nkey, Owner, Principal, Space,
    es_value::EsValue,
    manager_authority::{Envelope, Kind, SUPERVISE, serve_principal},
    rows::EndpointGate,
};
use serde_json::{Value, json};

use super::{Assignment, Holder, Host};

pub(super) const INSTANCE: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";
pub(super) const OTHER_INSTANCE: &str = "jjjjjjjjjjjjjjjjjjjjjjjjjj";
pub(super) const UID: &str = "llllllllllllllllllllllllll";
pub(super) const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(super) const OTHER_OWNER: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
pub(super) const PLATFORM: &str = "p_aaaaaaaaaaaaaaaaaaaaaaaaaa";
/// Where the manager of [`World`] stands.
pub(super) const EPOCH: u64 = 3;
const REVISION: u64 = 9;

pub(super) fn owner(text: &str) -> Owner {
    Owner::parse(text).unwrap()
}

pub(super) fn instance(text: &str) -> InstanceId {
    InstanceId::parse(text).unwrap()
}

pub(super) fn account() -> Nkey<Account> {
    Nkey::parse(&format!("A{}", "A".repeat(55))).unwrap()
}

pub(super) fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

/// How a gate stands, member by member, so that each may be broken beside any other.
#[derive(Clone)]
pub(super) struct GateSeen {
    pub(super) there: bool,
    /// `open`, `frozen` or `retired`.
    pub(super) state: &'static str,
    pub(super) owner: &'static str,
    pub(super) instance: &'static str,
    pub(super) epoch: u64,
}

/// Everything that a decision rests on.
#[derive(Clone)]
pub(super) struct World {
    pub(super) space: Space,
    pub(super) key: RegistrationProofKey,
    pub(super) holder: Holder,
    pub(super) gate: GateSeen,
    /// Whether the request carries the proof of the gate as it stands.
    pub(super) proved: bool,
    /// The request's members.
    pub(super) request: Value,
}

impl World {
    /// A person who supervises an open manager of their own, and `more` beside the envelope of a kind.
    pub(super) fn of(kind: Kind, more: Value) -> Self {
        let key = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let mut request = json!({
            "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": INSTANCE,
            "managerLifecycleUid": UID, "requestId": "r".repeat(22),
            "identities": {
                "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                "sessionLedger": key("E"),
            },
        });
        let (Some(members), Value::Object(more)) = (request.as_object_mut(), more) else { unreachable!() };
        members.extend(more);
        Self {
            space: Space::parse("main").unwrap(),
            key: RegistrationProofKey::new(Seed::generate(&SystemEntropy)),
            holder: human(OWNER, &[SUPERVISE]),
            gate: GateSeen { there: true, state: "open", owner: OWNER, instance: INSTANCE, epoch: EPOCH },
            proved: true,
            request,
        }
    }

    /// The same, asked by a platform that has assigned the instance.
    pub(super) fn platform(self) -> Self {
        let holder = Holder::Platform { owner: owner(PLATFORM), assignment: assignment() };
        Self { holder, gate: GateSeen { owner: PLATFORM, ..self.gate }, ..self }
    }

    pub(super) fn host(&self) -> Host<'_> {
        Host { space: &self.space, proof: &self.key }
    }

    pub(super) fn gate(&self) -> Option<EndpointGate> {
        self.gate.there.then(|| {
            let principal: Principal =
                serve_principal(&owner(self.gate.owner), &instance(self.gate.instance));
            let op = match self.gate.state {
                "open" => String::new(),
                "frozen" => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"registration\"}}", "f".repeat(26)),
                _ => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", "f".repeat(26)),
            };
            let row = format!(
                "{{\"state\":\"{}\",\"generation\":5,\"processEpoch\":{},\"registrationRevision\":{REVISION},\
                 \"nameAuthorityRevision\":0,\"principal\":\"{principal}\"{op}}}",
                self.gate.state, self.gate.epoch
            );
            EndpointGate::parse(row.as_bytes()).unwrap()
        })
    }

    /// The request as it is sent, with the proof of the gate as it stands when it is one that proves it.
    ///
    /// `parse` reads a request, `envelope` shows its envelope.
    pub(super) fn parsed<R>(
        &self,
        parse: impl Fn(&EsValue) -> Result<R, EpError>,
        envelope: impl Fn(&R) -> &Envelope,
    ) -> R {
        let mut request = self.request.clone();
        request["registrationProof"] = json!(format!("sha256:{}", "0".repeat(64)));
        if self.proved {
            let unproved = parse(&es(&request)).unwrap();
            let proof = self.key.prove(envelope(&unproved), self.holder.owner(), REVISION, self.gate.epoch);
            request["registrationProof"] = json!(proof);
        }
        parse(&es(&request)).unwrap()
    }
}

pub(super) fn human(of: &str, scope: &[&str]) -> Holder {
    Holder::Human { owner: owner(of), scope: scope.iter().map(ToString::to_string).collect() }
}

/// The platform's assignment of [`INSTANCE`].
pub(super) fn assignment() -> Assignment {
    Assignment {
        space: Space::parse("main").unwrap(),
        account: account(),
        instance: instance(INSTANCE),
        lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
        revision: 4,
        assigned: true,
    }
}

/// One check of an order: how it is broken, and how it refuses.
pub(super) struct Check<W>(pub(super) &'static str, pub(super) fn(&mut W), pub(super) EpCode);

/// Each check refuses alone, with its code; of two broken ones the earlier one refuses. `checks` stand in the contract's
/// order, and `sound` breaks none.
pub(super) fn prove_order<W: Clone>(
    sound: &W,
    checks: &[Check<W>],
    decide: impl Fn(&W) -> Result<(), EpError>,
) {
    decide(sound).unwrap_or_else(|refusal| panic!("sound: {refusal}"));
    let alone: Vec<EpError> = checks
        .iter()
        .map(|Check(what, break_it, code)| {
            let mut broken = sound.clone();
            break_it(&mut broken);
            let refusal = decide(&broken).expect_err(what);
            assert_eq!(refusal.code, *code, "{what}: {refusal}");
            refusal
        })
        .collect();
    for (at, earlier) in checks.iter().enumerate() {
        for later in &checks[at + 1..] {
            let mut broken = sound.clone();
            (later.1)(&mut broken);
            (earlier.1)(&mut broken);
            let refusal = decide(&broken).expect_err(earlier.0);
            assert_eq!(refusal.message, alone[at].message, "{} before {}", earlier.0, later.0);
        }
    }
}

/// The four checks of a current registration (contract 06 §3.4).
pub(super) fn registration_checks() -> Vec<Check<World>> {
    vec![
        Check("gate", |world| world.gate.state = "frozen", EpCode::FailedPrecondition),
        Check("principal", |world| world.gate.owner = OTHER_OWNER, EpCode::PermissionDenied),
        Check("epoch", |world| world.gate.epoch = EPOCH + 1, EpCode::Conflict),
        Check("proof", |world| world.proved = false, EpCode::PermissionDenied),
    ]
}
