//! Both decisions, check by check, in the contract's order.

use cotal_wire::{
    Account, Actor, EpCode, EpError, LifecycleUid, Nkey, OpId, Owner, Principal, Sha256Hex, Space,
    UnixMillis,
    manager_authority::{ExecutionRequest, Intent, IntentRequest, Kind, RequestId},
};
use serde_json::json;

use super::*;
use crate::manager::{
    Holder,
    fixtures::{
        Check, EPOCH, INSTANCE, OTHER_INSTANCE, OTHER_OWNER, OWNER, PLATFORM, UID, World, account,
        assignment, es, instance, owner, prove_order, registration_checks,
    },
};

const DENIED: EpCode = EpCode::PermissionDenied;
const FAILED: EpCode = EpCode::FailedPrecondition;
/// The incarnation of the agent.
const AGENT: &str = "gggggggggggggggggggggggggg";
const NOW: UnixMillis = UnixMillis(1_000_000);

/// A manager that the platform has assigned, and everything else that either decision rests on.
#[derive(Clone)]
struct Scene {
    world: World,
    user: Owner,
    platform: Owner,
    account: Nkey<Account>,
    scope: Option<Vec<String>>,
    assignment: Result<Option<Assignment>, Unobserved>,
    gate_unread: bool,
    envelope: Result<(), EpError>,
    alias_held: bool,
    launch: Option<LaunchRecord>,
    record: Option<IntentRecord>,
    now: UnixMillis,
}

fn scene(kind: Kind, more: serde_json::Value) -> Scene {
    let mut world = World::of(kind, more);
    world.gate.owner = PLATFORM;
    world.holder = Holder::Platform { owner: owner(PLATFORM), assignment: assignment() };
    Scene {
        world,
        user: owner(OWNER),
        platform: owner(PLATFORM),
        account: account(),
        scope: Some(vec!["spawn".to_owned()]),
        assignment: Ok(Some(assignment())),
        gate_unread: false,
        envelope: Ok(()),
        alias_held: false,
        launch: Some(LaunchRecord {
            owner: owner(OWNER),
            lifecycle_uid: LifecycleUid::parse(AGENT).unwrap(),
            target_actor: Actor::parse("helper").unwrap(),
            instance: instance(INSTANCE),
            manager_lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
            assignment_revision: assignment().revision,
            serve_epoch: EPOCH,
            enrolled: true,
        }),
        record: None,
        now: NOW,
    }
}

fn admission(operation: &str, target: &serde_json::Value) -> Scene {
    let more =
        json!({ "accountPublicKey": account(), "intent": { "operation": operation, "target": target } });
    let mut scene = scene(Kind::DelegatedIntent, more);
    for member in ["managerLifecycleUid", "identities"] {
        scene.world.request.as_object_mut().unwrap().remove(member);
    }
    scene
}

fn launching() -> Scene {
    admission("launch", &json!({ "actor": "helper" }))
}

fn retiring() -> Scene {
    admission("retire", &json!({ "owner": OWNER, "actor": "helper", "lifecycleUid": AGENT }))
}

impl Scene {
    fn host(&self) -> IntentHost<'_> {
        let World { space, key, .. } = &self.world;
        IntentHost { space, account: &self.account, platform: &self.platform, proof: key }
    }

    fn admit(&self) -> Result<AdmittedIntent, EpError> {
        let request = IntentRequest::parse(&es(&self.world.request)).unwrap();
        let gate = self.world.gate();
        let view = AdmissionView {
            scope: self.scope.as_deref(),
            assignment: self.assignment.as_ref().map(Option::as_ref).map_err(|unread| *unread),
            gate: if self.gate_unread { Err(Unobserved) } else { Ok(gate.as_ref()) },
            envelope: self.envelope.clone(),
            alias_held: self.alias_held,
            launch: self.launch.as_ref(),
        };
        decide_admission(self.host(), &self.user, &request, &view)
    }

    fn execute(&self) -> Result<DecidedExecution, EpError> {
        let request = self.world.parsed(ExecutionRequest::parse, |request| &request.envelope);
        let assignment = self.assignment.as_ref().map(Option::as_ref).map_err(|unread| *unread);
        let gate = self.world.gate();
        decide_execution(self.host(), &request, self.record.as_ref(), assignment, gate.as_ref(), self.now)
    }

    fn assigned(&mut self, change: impl FnOnce(&mut Assignment)) {
        if let Ok(Some(assignment)) = &mut self.assignment {
            change(assignment);
        }
    }
}

fn asked_checks() -> Vec<Check<Scene>> {
    vec![
        Check("space", |scene| scene.world.request["space"] = json!("other"), DENIED),
        Check("owner", |scene| scene.user = owner("p_bbbbbbbbbbbbbbbbbbbbbbbbbb"), DENIED),
        Check("scope", |scene| scene.scope = Some(vec!["supervise".to_owned(), "admin".to_owned()]), DENIED),
        Check("assignment unread", |scene| scene.assignment = Err(Unobserved), EpCode::Unavailable),
        Check("gate unread", |scene| scene.gate_unread = true, EpCode::Unavailable),
    ]
}

#[test]
fn a_launch_is_admitted_in_the_contracts_order() {
    let mut checks = asked_checks();
    checks.extend::<[Check<Scene>; 5]>([
        Check("assignment", |scene| scene.assigned(|assignment| assignment.assigned = false), DENIED),
        Check("gate", |scene| scene.world.gate.state = "frozen", FAILED),
        Check("principal", |scene| scene.world.gate.owner = OTHER_OWNER, DENIED),
        Check("envelope", |scene| scene.envelope = Err(EpError::permission_denied("too wide")), DENIED),
        Check("alias", |scene| scene.alias_held = true, FAILED),
    ]);
    // Both unread say the same: their order is the reads', which the host makes.
    checks.retain(|check| check.0 != "gate unread");
    prove_order(&launching(), &checks, |scene| scene.admit().map(drop));
    let mut unread = launching();
    unread.gate_unread = true;
    unread.alias_held = true;
    assert_eq!(unread.admit().unwrap_err().code, EpCode::Unavailable);
    for (what, change) in [
        (
            "another space",
            (|assignment: &mut Assignment| assignment.space = Space::parse("other").unwrap()) as fn(&mut _),
        ),
        ("another account", |assignment| {
            assignment.account = Nkey::parse(&format!("A{}", "B".repeat(55))).unwrap();
        }),
        ("another instance", |assignment| assignment.instance = instance(OTHER_INSTANCE)),
    ] {
        let mut scene = launching();
        scene.assigned(change);
        assert_eq!(scene.admit().unwrap_err().code, DENIED, "{what}");
    }
    let mut no_row = launching();
    no_row.scope = None;
    assert_eq!(no_row.admit().unwrap_err().code, DENIED);
    let mut other_account = launching();
    other_account.account = Nkey::parse(&format!("A{}", "B".repeat(55))).unwrap();
    assert_eq!(other_account.admit().unwrap_err().code, DENIED);
}

#[test]
fn a_launch_is_bound_to_the_assignment_and_the_epoch_that_were_read() {
    let admitted = launching().admit().unwrap();
    assert_eq!(admitted.manager_lifecycle_uid.as_str(), UID);
    assert_eq!((admitted.assignment_revision, admitted.serve_epoch), (4, Some(EPOCH)));
    assert_eq!(admitted.parent.key(), format!("{OWNER}.cli"));
}

#[test]
fn a_retirement_is_admitted_in_the_contracts_order() {
    let mut checks = asked_checks();
    checks.retain(|check| check.0 != "gate unread");
    checks.extend::<[Check<Scene>; 2]>([
        Check(
            "target",
            |scene| scene.world.request["intent"]["target"]["owner"] = json!(OTHER_OWNER),
            DENIED,
        ),
        Check("launch", |scene| scene.launch = None, FAILED),
    ]);
    prove_order(&retiring(), &checks, |scene| scene.admit().map(drop));
    for (what, change) in [
        ("not enrolled", (|launch: &mut LaunchRecord| launch.enrolled = false) as fn(&mut _)),
        ("another owner", |launch| launch.owner = owner(OTHER_OWNER)),
        ("another agent", |launch| launch.target_actor = Actor::parse("other").unwrap()),
        ("another incarnation", |launch| launch.lifecycle_uid = LifecycleUid::parse(UID).unwrap()),
        ("another manager", |launch| launch.instance = instance(OTHER_INSTANCE)),
    ] {
        let mut scene = retiring();
        change(scene.launch.as_mut().unwrap());
        assert_eq!(scene.admit().unwrap_err().code, FAILED, "{what}");
    }
}

#[test]
fn a_retirement_whose_holder_is_gone_is_bound_to_no_epoch() {
    assert_eq!(retiring().admit().unwrap().serve_epoch, Some(EPOCH));
    for (what, change) in [
        ("no assignment", (|scene: &mut Scene| scene.assignment = Ok(None)) as fn(&mut _)),
        ("taken back", |scene| scene.assigned(|assignment| assignment.assigned = false)),
        ("assigned anew", |scene| scene.assigned(|assignment| assignment.revision += 1)),
        ("another lifecycle", |scene| {
            scene.assigned(|assignment| assignment.lifecycle_uid = LifecycleUid::parse(AGENT).unwrap());
        }),
        ("another instance", |scene| {
            scene.assigned(|assignment| assignment.instance = instance(OTHER_INSTANCE));
        }),
        ("no gate", |scene| scene.world.gate.there = false),
        ("a frozen gate", |scene| scene.world.gate.state = "frozen"),
        ("another principal", |scene| scene.world.gate.owner = OTHER_OWNER),
        ("another epoch", |scene| scene.world.gate.epoch = EPOCH + 1),
    ] {
        let mut scene = retiring();
        change(&mut scene);
        let admitted = scene.admit().unwrap();
        assert_eq!(admitted.serve_epoch, None, "{what}");
        assert_eq!(
            (admitted.assignment_revision, admitted.manager_lifecycle_uid.as_str()),
            (4, UID),
            "{what}"
        );
    }
}

fn executing(execute: &serde_json::Value, intent: AdmittedTarget) -> Scene {
    let more = json!({
        "accountPublicKey": account(), "assignmentRevision": assignment().revision, "serveEpoch": EPOCH,
        "intentId": "nnnnnnnnnnnnnnnnnnnnnnnnnn", "execute": execute,
    });
    let mut scene = scene(Kind::DelegatedIntentExecution, more);
    scene.record = Some(IntentRecord {
        intent_id: LifecycleUid::parse(&"n".repeat(26)).unwrap(),
        space: Space::parse("main").unwrap(),
        account: account(),
        owner: owner(OWNER),
        parent: Principal::parse_key(&format!("{OWNER}.cli")).unwrap(),
        instance: instance(INSTANCE),
        manager_lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
        assignment_revision: assignment().revision,
        serve_epoch: Some(EPOCH),
        intent,
        expires_at: UnixMillis(NOW.0 + 1),
        consumed: None,
    });
    scene
}

fn hash(letter: &str) -> String {
    letter.repeat(64)
}

fn launch_execution() -> Scene {
    let request = IntentRequest::parse(&es(&launching().world.request)).unwrap();
    let Intent::Launch(target) = request.intent else { unreachable!() };
    let execute = json!({ "operation": "launch", "target": { "actor": "helper", "tokenHash": hash("a") } });
    executing(&execute, AdmittedTarget::Launch(target))
}

fn retire_execution() -> Scene {
    let request = IntentRequest::parse(&es(&retiring().world.request)).unwrap();
    let Intent::Retire(target) = request.intent else { unreachable!() };
    let target_now = json!({ "owner": OWNER, "actor": "helper", "lifecycleUid": AGENT });
    executing(&json!({ "operation": "retire", "target": target_now }), AdmittedTarget::Retire(target))
}

fn record(scene: &mut Scene) -> &mut IntentRecord {
    scene.record.as_mut().unwrap()
}

fn execution_checks(other_target: fn(&mut Scene)) -> Vec<Check<Scene>> {
    let mut checks: Vec<Check<Scene>> = vec![
        Check("space", |scene| scene.world.request["space"] = json!("other"), DENIED),
        Check("record", |scene| record(scene).intent_id = LifecycleUid::parse(AGENT).unwrap(), FAILED),
        Check("expired", |scene| scene.now = UnixMillis(NOW.0 + 1), FAILED),
        Check("instance", |scene| record(scene).instance = instance(OTHER_INSTANCE), DENIED),
        Check("assignment unread", |scene| scene.assignment = Err(Unobserved), EpCode::Unavailable),
    ];
    checks.extend(registration_checks().into_iter().map(|Check(what, _, code)| {
        let how: fn(&mut Scene) = match what {
            "gate" => |scene| scene.world.gate.state = "frozen",
            "principal" => |scene| scene.world.gate.owner = OTHER_OWNER,
            "epoch" => |scene| scene.world.gate.epoch = EPOCH + 1,
            _ => |scene| scene.world.proved = false,
        };
        Check(what, how, code)
    }));
    checks.extend::<[Check<Scene>; 2]>([
        Check("bound epoch", |scene| record(scene).serve_epoch = None, DENIED),
        Check("target", other_target, DENIED),
    ]);
    checks
}

#[test]
fn an_execution_is_decided_in_the_contracts_order() {
    let other_actor: fn(&mut Scene) =
        |scene| scene.world.request["execute"]["target"]["actor"] = json!("other");
    for scene in [launch_execution(), retire_execution()] {
        prove_order(&scene, &execution_checks(other_actor), |scene| scene.execute().map(drop));
    }
    for (what, change, code) in [
        ("no record", (|scene: &mut Scene| scene.record = None) as fn(&mut _), FAILED),
        ("a record of another space", |scene| record(scene).space = Space::parse("other").unwrap(), FAILED),
        (
            "a record of another account",
            |scene| record(scene).account = Nkey::parse(&format!("A{}", "B".repeat(55))).unwrap(),
            FAILED,
        ),
        (
            "another lifecycle",
            |scene| record(scene).manager_lifecycle_uid = LifecycleUid::parse(AGENT).unwrap(),
            DENIED,
        ),
        ("another revision", |scene| record(scene).assignment_revision += 1, DENIED),
        (
            "another operation",
            |scene| record(scene).intent = retire_execution().record.unwrap().intent,
            DENIED,
        ),
        ("no assignment", |scene| scene.assignment = Ok(None), DENIED),
        ("taken back", |scene| scene.assigned(|assignment| assignment.assigned = false), DENIED),
        ("assigned anew", |scene| scene.assigned(|assignment| assignment.revision += 1), DENIED),
        ("no gate", |scene| scene.world.gate.there = false, FAILED),
    ] {
        let mut scene = launch_execution();
        change(&mut scene);
        assert_eq!(scene.execute().unwrap_err().code, code, "{what}");
    }
}

#[test]
fn an_execution_does_what_was_admitted_and_goes_on_with_what_the_same_request_began() {
    let launched = launch_execution().execute().unwrap();
    assert_eq!(
        launched,
        DecidedExecution { resume: false, act: Act::Launch(Sha256Hex::parse(&hash("a")).unwrap()) }
    );
    let retired = retire_execution().execute().unwrap();
    let op = OpId::managed_retirement(&LifecycleUid::parse(AGENT).unwrap());
    assert_eq!(retired, DecidedExecution { resume: false, act: Act::Retire(op) });

    let pins = ExecutionPins {
        request_id: Some(RequestId::parse(&"r".repeat(22)).unwrap()),
        serve_epoch: Some(EPOCH),
        token_hash: Some(Sha256Hex::parse(&hash("a")).unwrap()),
    };
    let consumed = |pins: ExecutionPins| {
        let mut scene = launch_execution();
        // Expiry is of what is only admitted.
        scene.now = UnixMillis(u64::MAX);
        record(&mut scene).consumed = Some(pins);
        scene.execute()
    };
    assert!(consumed(pins.clone()).unwrap().resume);
    for (what, other) in [
        (
            "request",
            ExecutionPins { request_id: Some(RequestId::parse(&"s".repeat(22)).unwrap()), ..pins.clone() },
        ),
        ("nobody's request", ExecutionPins { request_id: None, ..pins.clone() }),
        ("epoch", ExecutionPins { serve_epoch: Some(EPOCH + 1), ..pins.clone() }),
        ("no epoch", ExecutionPins { serve_epoch: None, ..pins.clone() }),
        ("token", ExecutionPins { token_hash: Some(Sha256Hex::parse(&hash("b")).unwrap()), ..pins.clone() }),
    ] {
        assert_eq!(consumed(other).unwrap_err().code, FAILED, "{what}");
    }
    let mut scene = retire_execution();
    record(&mut scene).consumed = Some(ExecutionPins { token_hash: None, ..pins });
    assert!(scene.execute().unwrap().resume, "a retirement pins no token");
}
