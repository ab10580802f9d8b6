//! Every operation, check by check, in the contract's order.

use cotal_trust::{nkey::Seed, system::SystemEntropy};
use cotal_wire::{EpCode, InstanceId, LifecycleUid, OpId, manager_authority::serve_principal};
use serde_json::{Value, json};

use super::*;

const INSTANCE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
const UID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";
const EPOCH: u64 = 3;
const REVISION: u64 = 7;

fn owner(letter: &str) -> Owner {
    Owner::parse(&format!("u_{}", letter.repeat(26))).unwrap()
}

fn key(letter: &str) -> String {
    format!("U{}", letter.repeat(55))
}

fn account(letter: &str) -> Nkey<Account> {
    Nkey::parse(&format!("A{}", letter.repeat(55))).unwrap()
}

/// Everything that a decision is made of; a check breaks one part of it.
struct World {
    operation: Operation,
    scope: &'static str,
    request: Value,
    /// Whether the request carries the proof that its operation asks for.
    proof: Given,
    gate: Option<Value>,
    run: Option<ObservedRun>,
}

#[derive(Clone, Copy, PartialEq)]
enum Given {
    Wanted,
    /// The other kind of proof, of the very same registration.
    OfTheOtherKind,
    /// Of the registration before.
    Stale,
    Garbage,
}

impl World {
    fn of(operation: Operation) -> Self {
        let mut request = json!({
            "v": 1, "kind": "manager-service-authority", "operation": operation.as_str(), "space": "main",
            "actor": "cli", "instanceId": INSTANCE, "managerLifecycleUid": UID, "requestId": "r".repeat(22),
            "identities": {
                "supervisor": { "id": key("A") }, "executor": { "id": key("B") }, "serve": { "id": key("C") },
                "goalWriter": { "id": key("D") }, "sessionLedger": { "id": key("E") },
            },
        });
        let uid = LifecycleUid::parse(UID).unwrap();
        let payload = match operation {
            Operation::Prepare | Operation::Renew => json!({}),
            Operation::Activate => json!({ "contractArtifacts": [{ "urn": "ai.cotal.manager" }] }),
            Operation::Session => json!({ "session": {
                "id": key("F"), "endpoint": "manager", "sessionId": "s".repeat(22), "epoch": 0, "exp": 9,
            } }),
            Operation::Retire => json!({ "retirement": {
                "id": key("F"), "opId": OpId::managed_retirement(&uid), "serveEpoch": EPOCH,
                "target": { "owner": owner("a"), "actor": "alice", "lifecycleUid": UID },
            } }),
            Operation::TransferReader => json!({ "transferReader": { "id": key("F") } }),
            Operation::RenewStandingBundle => {
                json!({ "accountPublicKey": account("A"), "processEpoch": EPOCH })
            }
            Operation::RenewRunDriver => json!({
                "accountPublicKey": account("A"), "processEpoch": EPOCH,
                "run": {
                    "runId": format!("run-{}", "0".repeat(32)), "holder": format!("{}.{}", key("A"), "0".repeat(16)),
                    "takeoverId": "0".repeat(16), "epoch": 2, "fencingToken": 4,
                    "driverId": key("F"), "mediatorId": key("G"),
                },
            }),
        };
        for (member, value) in payload.as_object().unwrap() {
            request[member] = value.clone();
        }
        let gate = json!({
            "state": "open", "generation": 2, "processEpoch": EPOCH, "registrationRevision": REVISION,
            "nameAuthorityRevision": 0,
            "principal": serve_principal(&owner("a"), &InstanceId::parse(INSTANCE).unwrap()),
        });
        let run = ObservedRun {
            running: true,
            instance: INSTANCE.to_owned(),
            holder: format!("{}.{}", key("A"), "0".repeat(16)),
            takeover_id: "0".repeat(16),
            epoch: 2,
            fencing_token: 4,
        };
        Self {
            operation,
            scope: "supervise",
            request,
            proof: Given::Wanted,
            gate: Some(gate),
            run: Some(run),
        }
    }

    /// The decision, in the order in which an executor makes it.
    fn decide(&self) -> Result<(), EpError> {
        let seed = Seed::<Account>::generate(&SystemEntropy);
        let proofs = RegistrationProofKey::new(seed);
        let (space, account) = (Space::parse("main").unwrap(), account("A"));
        let host = LifecycleHost { space: &space, account: &account, proof: &proofs };
        let holder =
            Holder::Human { owner: owner("a"), scope: self.scope.split(' ').map(str::to_owned).collect() };
        let gate = self.gate.as_ref().map(|gate| EndpointGate::parse(gate.to_string().as_bytes()).unwrap());

        let mut request = self.request.clone();
        if self.operation != Operation::Prepare {
            request["registrationProof"] = json!(format!("sha256:{}", "0".repeat(64)));
        }
        let parse = |request: &Value| {
            let request = EsValue::parse(request.to_string().as_bytes()).unwrap();
            ServiceRequest::parse(&request, holder.kind()).unwrap()
        };
        let unsigned = parse(&request);
        let artifacts: &[EsValue] = match &unsigned.payload {
            Payload::Artifacts(artifacts) => artifacts,
            _ => &[],
        };
        let unkeyed = |artifacts| registration_proof(&unsigned.envelope, holder.owner(), artifacts);
        let keyed = |revision| proofs.prove(&unsigned.envelope, holder.owner(), revision, EPOCH);
        let is_keyed =
            unsigned.operation.rule().proof == cotal_wire::manager_authority::Proof::CurrentRegistration;
        let proof = match (self.proof, is_keyed) {
            (Given::Wanted, false) => Some(unkeyed(artifacts)),
            (Given::Wanted, true) | (Given::OfTheOtherKind, false) => Some(keyed(REVISION)),
            (Given::OfTheOtherKind, true) => Some(unkeyed(&[])),
            (Given::Stale, _) => Some(keyed(REVISION - 1)),
            (Given::Garbage, _) => None,
        };
        if let Some(proof) = proof
            && self.operation != Operation::Prepare
        {
            request["registrationProof"] = json!(proof);
        }
        let request = parse(&request);
        decide_asking(host, &holder, &request)?;
        let read = gate.as_ref().filter(|_| request.operation.rule().reads_gate());
        decide_at_gate(host, &holder, &request, read)?;
        match &request.payload {
            Payload::Run(_, wanted) => same_run(&request.envelope, wanted, self.run.as_ref()),
            _ => Ok(()),
        }
    }
}

type Break = fn(&mut World);
/// A rule: how a world breaks it, and the refusal's code and a word of it.
type Rule = (&'static str, Break, EpCode, &'static str);

fn at_gate(world: &mut World, member: &str, value: Value) {
    if let Some(gate) = &mut world.gate {
        gate[member] = value;
    }
}

const HOLDER: Rule = ("holder", |w| w.scope = "spawn admin run", EpCode::PermissionDenied, "supervise");
const DISTINCT: Rule = (
    "distinct keys",
    |w| w.request["identities"]["executor"] = w.request["identities"]["supervisor"].clone(),
    EpCode::BadRequest,
    "another one",
);
const SPACE: Rule =
    ("space", |w| w.request["space"] = json!("other"), EpCode::PermissionDenied, "another space");
const ACCOUNT: Rule = (
    "account",
    |w| w.request["accountPublicKey"] = json!(account("B")),
    EpCode::PermissionDenied,
    "data account",
);
const PROOF: Rule = ("proof", |w| w.proof = Given::Garbage, EpCode::PermissionDenied, "registration proof");
const TARGET: Rule = (
    "target",
    |w| w.request["retirement"]["target"]["owner"] = json!(owner("b")),
    EpCode::PermissionDenied,
    "owner",
);
const ABSENT: Rule = ("gate", |w| w.gate = None, EpCode::FailedPrecondition, "regist");
const FROZEN: Rule = (
    "open gate",
    |w| {
        at_gate(w, "state", json!("frozen"));
        at_gate(w, "op", json!({ "opId": "o".repeat(26), "kind": "registration" }));
    },
    EpCode::FailedPrecondition,
    "not open",
);
const PRINCIPAL: Rule = (
    "principal",
    |w| {
        at_gate(w, "principal", json!(serve_principal(&owner("b"), &InstanceId::parse(INSTANCE).unwrap())));
    },
    EpCode::PermissionDenied,
    "another principal",
);
const EPOCH_RULE: Rule =
    ("epoch", |w| at_gate(w, "processEpoch", json!(EPOCH + 1)), EpCode::Conflict, "present epoch");

fn moved(world: &mut World, change: fn(&mut ObservedRun)) {
    if let Some(run) = &mut world.run {
        change(run);
    }
}

const RUN: [Rule; 7] = [
    ("run", |w| w.run = None, EpCode::Conflict, "run"),
    ("running", |w| moved(w, |run| run.running = false), EpCode::Conflict, "run"),
    ("instance", |w| moved(w, |run| run.instance = "c".repeat(26)), EpCode::Conflict, "run"),
    ("run's holder", |w| moved(w, |run| run.holder.push('x')), EpCode::Conflict, "run"),
    ("takeover", |w| moved(w, |run| run.takeover_id = "1".repeat(16)), EpCode::Conflict, "run"),
    ("run's epoch", |w| moved(w, |run| run.epoch += 1), EpCode::Conflict, "run"),
    ("token", |w| moved(w, |run| run.fencing_token += 1), EpCode::Conflict, "run"),
];

/// The rules of an operation in the contract's order (06 §4.2-4.6).
fn rules(operation: Operation) -> Vec<Rule> {
    let mut rules = vec![HOLDER, DISTINCT, SPACE];
    match operation {
        Operation::Prepare => {}
        Operation::Session => rules.push(PROOF),
        Operation::Activate | Operation::TransferReader => {
            rules.extend([PROOF, ABSENT, FROZEN, PRINCIPAL]);
        }
        Operation::Renew => rules.extend([ABSENT, FROZEN, PRINCIPAL, PROOF]),
        Operation::Retire => rules.extend([PROOF, TARGET, ABSENT, FROZEN, PRINCIPAL, EPOCH_RULE]),
        Operation::RenewStandingBundle => {
            rules.extend([ACCOUNT, ABSENT, FROZEN, PRINCIPAL, EPOCH_RULE, PROOF]);
        }
        Operation::RenewRunDriver => {
            rules.extend([ACCOUNT, ABSENT, FROZEN, PRINCIPAL, EPOCH_RULE, PROOF]);
            rules.extend(RUN);
        }
    }
    rules
}

#[test]
fn each_rule_of_an_operation_refuses_alone_and_the_earlier_of_two_answers() {
    for operation in Operation::ALL {
        let name = operation.as_str();
        World::of(operation).decide().unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let rules = rules(operation);
        let broken = |breaks: &[Break]| {
            let mut world = World::of(operation);
            for break_it in breaks {
                break_it(&mut world);
            }
            world.decide().expect_err(name)
        };
        for (i, (rule, break_it, code, says)) in rules.iter().enumerate() {
            let alone = broken(&[*break_it]);
            assert_eq!(alone.code, *code, "{name}: {rule}: {alone}");
            assert!(alone.message.contains(says), "{name}: {rule}: {alone}");
            for (later, break_later, ..) in &rules[i + 1..] {
                let both = broken(&[*break_later, *break_it]);
                assert_eq!(both, alone, "{name}: {rule} before {later}");
            }
        }
    }
}

#[test]
fn an_operation_needs_a_gate_only_when_it_stands_on_one() {
    for operation in Operation::ALL {
        let needs = !matches!(operation, Operation::Prepare | Operation::Session);
        let mut world = World::of(operation);
        world.gate = None;
        assert_eq!(world.decide().is_err(), needs, "{}", operation.as_str());
    }
}

#[test]
fn nobody_prepares_an_instance_that_another_principal_registered() {
    let mut world = World::of(Operation::Prepare);
    assert_eq!(world.decide(), Ok(()), "one's own, whatever its state");
    (PRINCIPAL.1)(&mut world);
    assert_eq!(world.decide().unwrap_err().code, EpCode::PermissionDenied);
}

#[test]
fn a_proof_of_another_kind_or_of_the_registration_before_proves_nothing() {
    for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::Prepare) {
        for given in [Given::OfTheOtherKind, Given::Stale] {
            let mut world = World::of(operation);
            world.proof = given;
            let refusal = world.decide().unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied, "{}", operation.as_str());
        }
    }
}

#[test]
fn an_activation_is_proved_over_its_artifacts_as_they_came() {
    let proved = |world: &World, artifacts: Value| {
        let mut other = World::of(Operation::Activate);
        other.request["contractArtifacts"] = artifacts;
        let parse = |request: &Value| {
            let mut request = request.clone();
            request["registrationProof"] = json!(format!("sha256:{}", "0".repeat(64)));
            let request = EsValue::parse(request.to_string().as_bytes()).unwrap();
            ServiceRequest::parse(&request, cotal_wire::manager_authority::HolderKind::Human).unwrap()
        };
        let of = |request: &ServiceRequest| match &request.payload {
            Payload::Artifacts(artifacts) => registration_proof(&request.envelope, &owner("a"), artifacts),
            _ => unreachable!("an activation"),
        };
        of(&parse(&world.request)) == of(&parse(&other.request))
    };
    let world = World::of(Operation::Activate);
    assert!(proved(&world, json!([{ "urn": "ai.cotal.manager" }])));
    assert!(!proved(&world, json!([{ "urn": "ai.cotal.manager", "x": 1 }])));
    assert!(!proved(&world, json!([{ "urn": "ai.cotal.manager" }, {}])));
}

#[test]
fn a_gate_that_moved_during_a_renewal_is_a_conflict() {
    let gate = |state: &str, epoch: u64| {
        let mut world = World::of(Operation::Renew);
        if state == "frozen" {
            (FROZEN.1)(&mut world);
        }
        at_gate(&mut world, "processEpoch", json!(epoch));
        EndpointGate::parse(world.gate.unwrap().to_string().as_bytes()).unwrap()
    };
    assert!(still_at(Some(&gate("open", EPOCH)), EPOCH).is_ok());
    for moved in [None, Some(gate("frozen", EPOCH)), Some(gate("open", EPOCH + 1)), Some(gate("open", 0))] {
        assert_eq!(still_at(moved.as_ref(), EPOCH).unwrap_err().code, EpCode::Conflict);
    }
}

#[test]
fn a_platform_asks_for_the_instance_that_it_assigned_and_for_no_other() {
    let platform = Owner::parse(&format!("p_{}", "a".repeat(26))).unwrap();
    let assignment = |instance: &str| super::super::Assignment {
        space: Space::parse("main").unwrap(),
        account: account("A"),
        instance: InstanceId::parse(instance).unwrap(),
        lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
        revision: 1,
        assigned: true,
    };
    let request = World::of(Operation::Prepare).request.to_string();
    let request = EsValue::parse(request.as_bytes()).unwrap();
    let proofs = RegistrationProofKey::new(Seed::<Account>::generate(&SystemEntropy));
    let (space, account) = (Space::parse("main").unwrap(), account("A"));
    let host = LifecycleHost { space: &space, account: &account, proof: &proofs };
    let decide = |instance: &str| {
        let holder = Holder::Platform { owner: platform.clone(), assignment: assignment(instance) };
        decide_asking(host, &holder, &ServiceRequest::parse(&request, holder.kind()).unwrap())
    };
    assert!(decide(INSTANCE).is_ok());
    assert_eq!(decide(&"c".repeat(26)).unwrap_err().code, EpCode::PermissionDenied);
}
