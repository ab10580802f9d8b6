//! The two decisions of a delegated user intent, for a host that composes them (contract 06 §13).
//!
//! A user asks that a manager launch or retire an agent; the host records what it admitted; the manager executes just
//! that. The stock service refuses both kinds with `unimplemented`: who keeps the records is the host, on routes of its own.
//!
//! Both decisions are functions of what the host has read, and write nothing. What a host does around them:
//!
//! 1. It proves the user's sign-in, derives the owner, and parses the request ([`IntentRequest::parse`]).
//! 2. It reads, fresh: the scope of `(owner, request.actor)`, the platform's assignment, then the manager's gate; for a launch
//!    it walks the delegation envelope of the row that would be written and looks for records that hold the alias; for a
//!    retirement it finds the record of the launch. What cannot be read is [`Unobserved`].
//! 3. [`decide_admission`] says what the record is bound to. The host writes it create-only, with an expiry of at most
//!    [`MAX_INTENT_TTL_SECS`].
//! 4. The manager's execution comes ([`ExecutionRequest::parse`]). [`decide_execution`] says whether it consumes the record, or
//!    goes on with what the same request began. The host consumes by a revision-pinned write before any effect, and then
//!    asks once more for a launch.
//!
//! ```
//! use cotal_authority::manager::{AdmissionView, Assignment, IntentHost, decide_admission};
//! use cotal_trust::{nkey::Seed, registration_proof::RegistrationProofKey, system::SystemEntropy};
//! use cotal_wire::{
//!     Account, EpCode, LifecycleUid, Owner, Space,
//!     es_value::EsValue,
//!     manager_authority::{IntentRequest, serve_principal},
//!     rows::EndpointGate,
//! };
//!
//! let signing = Seed::<Account>::generate(&SystemEntropy);
//! let (space, account) = (Space::parse("main")?, signing.public().clone());
//! let (user, platform) = (
//!     Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa")?,
//!     Owner::parse("p_aaaaaaaaaaaaaaaaaaaaaaaaaa")?,
//! );
//! let request = format!(
//!     r#"{{
//!         "v": 1, "kind": "delegated-user-intent", "space": "main", "actor": "cli",
//!         "accountPublicKey": "{account}", "instanceId": "aaaaaaaaaaaaaaaaaaaaaaaaaa",
//!         "requestId": "aaaaaaaaaaaaaaaaaaaaaa",
//!         "intent": {{ "operation": "launch", "target": {{ "actor": "helper", "capabilities": [] }} }}
//!     }}"#
//! );
//! let request = IntentRequest::parse(&EsValue::parse(request.as_bytes())?)?;
//!
//! // What the host has read.
//! let assignment = Assignment {
//!     space: space.clone(),
//!     account: account.clone(),
//!     instance: request.instance_id.clone(),
//!     lifecycle_uid: LifecycleUid::parse("bbbbbbbbbbbbbbbbbbbbbbbbbb")?,
//!     revision: 7,
//!     assigned: true,
//! };
//! let gate = EndpointGate::provisioned(&serve_principal(&platform, &request.instance_id));
//! let scope = ["spawn".to_owned()];
//! let view = AdmissionView {
//!     scope: Some(&scope),
//!     assignment: Ok(Some(&assignment)),
//!     gate: Ok(Some(&gate)),
//!     envelope: Ok(()),
//!     alias_held: false,
//!     launch: None,
//! };
//!
//! let proof = RegistrationProofKey::new(signing);
//! let host = IntentHost { space: &space, account: &account, platform: &platform, proof: &proof };
//! let admitted = decide_admission(host, &user, &request, &view)?;
//! assert_eq!((admitted.assignment_revision, admitted.serve_epoch), (7, Some(0)));
//! assert_eq!(admitted.parent.key(), format!("{user}.cli"));
//!
//! // `supervise` is not what a user needs, and does not stand for it.
//! let scope = ["supervise".to_owned()];
//! let refusal = decide_admission(host, &user, &request, &AdmissionView { scope: Some(&scope), ..view });
//! assert_eq!(refusal.unwrap_err().code, EpCode::PermissionDenied);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{Account, Nkey};
use cotal_wire::{
    EpError, InstanceId, LifecycleUid, OpId, Owner, OwnerKind, Principal, Sha256Hex, Space,
    manager_authority::{
        EnrollmentTarget, Execution, ExecutionRequest, Incarnation, Intent, IntentRequest, RequestId, SPAWN,
        serve_principal,
    },
    rows::EndpointGate,
    time::UnixMillis,
};

use super::{
    holder::Assignment,
    registration::{check_current, open},
};

/// How long an admitted intent may wait for its execution at most.
pub const MAX_INTENT_TTL_SECS: u64 = 300;

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct IntentHost<'a> {
    /// Its space.
    pub space: &'a Space,
    /// Its data account.
    pub account: &'a Nkey<Account>,
    /// The platform's owner, who assigns managers.
    pub platform: &'a Owner,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

impl IntentHost<'_> {
    /// Whether an assignment stands, and is of this host's space, of its account and of this instance.
    fn has_assigned(&self, assignment: &Assignment, instance: &InstanceId) -> bool {
        assignment.assigned
            && assignment.space == *self.space
            && assignment.account == *self.account
            && assignment.instance == *instance
    }
}

/// Why something that was to be observed was not: the answer is then `unavailable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unobserved;

impl From<Unobserved> for EpError {
    fn from(Unobserved: Unobserved) -> Self {
        Self::unavailable("the manager's assignment or registration could not be read; retry")
    }
}

/// What an admission of a launch or a retirement rests on, as it was read.
#[derive(Debug, Clone)]
pub struct AdmissionView<'a> {
    /// The scope of the asking actor's row, `None` when there is no row.
    pub scope: Option<&'a [String]>,
    /// The assignment of the manager.
    pub assignment: Result<Option<&'a Assignment>, Unobserved>,
    /// The manager's gate.
    pub gate: Result<Option<&'a EndpointGate>, Unobserved>,
    /// For a launch: the walk of the delegation envelope of the row that would be written.
    pub envelope: Result<(), EpError>,
    /// For a launch: whether a record of this owner and agent holds the alias.
    pub alias_held: bool,
    /// For a retirement: the record of the launch at the target's incarnation.
    pub launch: Option<&'a LaunchRecord>,
}

/// What the record of an enrolled launch says, as far as its retirement asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRecord {
    /// The owner who asked for it.
    pub owner: Owner,
    /// The incarnation that it enrolled.
    pub lifecycle_uid: LifecycleUid,
    /// The agent that was launched.
    pub target_actor: cotal_wire::Actor,
    /// Through which manager.
    pub instance: InstanceId,
    /// In which lifecycle of it.
    pub manager_lifecycle_uid: LifecycleUid,
    /// Under which assignment.
    pub assignment_revision: u64,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// Whether its outcome is `enrolled`.
    pub enrolled: bool,
}

/// An intent that may be recorded as admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmittedIntent {
    /// The manager's lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The assignment's revision.
    pub assignment_revision: u64,
    /// The serving epoch that it is bound to; `None` for a retirement whose holder is gone.
    pub serve_epoch: Option<u64>,
    /// `<owner>.<actor>` of the user: the parent of what is launched.
    pub parent: Principal,
}

/// Decides an admission (contract 06 §13.1). `owner` is the owner of the verified sign-in.
pub fn decide_admission(
    host: IntentHost<'_>,
    owner: &Owner,
    request: &IntentRequest,
    view: &AdmissionView<'_>,
) -> Result<AdmittedIntent, EpError> {
    if request.space != host.space.as_str() || request.account != *host.account {
        return Err(EpError::permission_denied("the intent is of another space or data account"));
    }
    if owner.kind() != OwnerKind::Derived {
        return Err(EpError::permission_denied("an intent is a signed-in user's"));
    }
    if !view.scope.is_some_and(|scope| scope.iter().any(|held| held == SPAWN)) {
        return Err(EpError::permission_denied(format!("the actor's grant has no scope \"{SPAWN}\"")));
    }
    let assignment = view.assignment.map_err(EpError::from)?;
    let gate = view.gate.map_err(EpError::from)?;
    let parent = Principal::new(owner.clone(), request.actor.clone());
    match &request.intent {
        Intent::Launch(_) => {
            let assignment = assignment
                .filter(|assignment| host.has_assigned(assignment, &request.instance_id))
                .ok_or_else(not_assigned)?;
            let gate = open(gate)?;
            of_platform(host, gate, &request.instance_id)?;
            view.envelope.clone()?;
            if view.alias_held {
                return Err(EpError::failed_precondition(
                    "an earlier intent holds this agent's name; end that one first",
                ));
            }
            Ok(AdmittedIntent {
                manager_lifecycle_uid: assignment.lifecycle_uid.clone(),
                assignment_revision: assignment.revision,
                serve_epoch: Some(gate.coordinate().process_epoch),
                parent,
            })
        }
        Intent::Retire(target) => {
            if target.owner != *owner {
                return Err(EpError::permission_denied("the target belongs to another owner"));
            }
            let launch = view
                .launch
                .filter(|launch| {
                    launch.owner == *owner
                        && launch.enrolled
                        && launch.lifecycle_uid == target.lifecycle_uid
                        && launch.target_actor == target.actor
                        && launch.instance == request.instance_id
                })
                .ok_or_else(|| {
                    EpError::failed_precondition("no launch through this manager enrolled that incarnation")
                })?;
            let holds = assignment.is_some_and(|assignment| {
                host.has_assigned(assignment, &request.instance_id)
                    && assignment.lifecycle_uid == launch.manager_lifecycle_uid
                    && assignment.revision == launch.assignment_revision
            }) && gate.is_some_and(|gate| {
                gate.is_open()
                    && *gate.principal() == serve_principal(host.platform, &request.instance_id)
                    && gate.coordinate().process_epoch == launch.serve_epoch
            });
            Ok(AdmittedIntent {
                manager_lifecycle_uid: launch.manager_lifecycle_uid.clone(),
                assignment_revision: launch.assignment_revision,
                serve_epoch: holds.then_some(launch.serve_epoch),
                parent,
            })
        }
    }
}

fn not_assigned() -> EpError {
    EpError::permission_denied("the platform has not assigned this manager instance to the space")
}

fn of_platform(host: IntentHost<'_>, gate: &EndpointGate, instance: &InstanceId) -> Result<(), EpError> {
    if *gate.principal() == serve_principal(host.platform, instance) {
        Ok(())
    } else {
        Err(EpError::permission_denied("this manager instance is registered by another principal"))
    }
}

/// An admitted intent as its record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentRecord {
    /// Its id.
    pub intent_id: LifecycleUid,
    /// The space.
    pub space: Space,
    /// The data account.
    pub account: Nkey<Account>,
    /// The owner who asked.
    pub owner: Owner,
    /// The parent of what is launched.
    pub parent: Principal,
    /// The manager.
    pub instance: InstanceId,
    /// Its lifecycle.
    pub manager_lifecycle_uid: LifecycleUid,
    /// The assignment's revision.
    pub assignment_revision: u64,
    /// The epoch that it is bound to.
    pub serve_epoch: Option<u64>,
    /// What was admitted.
    pub intent: AdmittedTarget,
    /// Until when it may be executed.
    pub expires_at: UnixMillis,
    /// The pins of an execution that has consumed it; `None` while it is only admitted.
    pub consumed: Option<ExecutionPins>,
}

/// What was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmittedTarget {
    /// A launch.
    Launch(Box<EnrollmentTarget>),
    /// A retirement.
    Retire(Incarnation),
}

/// What an execution pinned when it consumed the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionPins {
    /// Its request, when a manager made one.
    pub request_id: Option<RequestId>,
    /// Its epoch.
    pub serve_epoch: Option<u64>,
    /// The digest of the agent's token, of a launch.
    pub token_hash: Option<Sha256Hex>,
}

/// An execution that may consume its record, or go on with one that it consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedExecution {
    /// Whether it goes on with what the same request began.
    pub resume: bool,
    /// What is done.
    pub act: Act,
}

/// What an execution does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Enrols the admitted target with this digest.
    Launch(Sha256Hex),
    /// Retires under this operation.
    Retire(OpId),
}

/// Decides an execution (contract 06 §13.2).
pub fn decide_execution(
    host: IntentHost<'_>,
    request: &ExecutionRequest,
    record: Option<&IntentRecord>,
    assignment: Result<Option<&Assignment>, Unobserved>,
    gate: Option<&EndpointGate>,
    now: UnixMillis,
) -> Result<DecidedExecution, EpError> {
    let envelope = &request.envelope;
    if envelope.space != host.space.as_str() || request.account != *host.account {
        return Err(EpError::permission_denied("the execution is of another space or data account"));
    }
    let record = record
        .filter(|record| {
            record.intent_id == request.intent_id
                && record.space == *host.space
                && record.account == *host.account
        })
        .ok_or_else(|| EpError::failed_precondition("there is no such intent"))?;
    let resume = match &record.consumed {
        None if record.expires_at <= now => {
            return Err(EpError::failed_precondition("the intent has expired; the user must ask again"));
        }
        None => false,
        Some(pins) => {
            let hash = match &request.execute {
                Execution::Launch { token_hash, .. } => Some(token_hash),
                Execution::Retire(_) => None,
            };
            let same = pins.request_id.as_ref() == Some(&envelope.request_id)
                && pins.serve_epoch == Some(request.serve_epoch)
                && (hash.is_none() || pins.token_hash.as_ref() == hash);
            if !same {
                return Err(EpError::failed_precondition("another execution has consumed this intent"));
            }
            true
        }
    };
    let same_operation = matches!(
        (&record.intent, &request.execute),
        (AdmittedTarget::Launch(_), Execution::Launch { .. })
            | (AdmittedTarget::Retire(_), Execution::Retire(_))
    );
    if record.instance != envelope.instance_id
        || record.manager_lifecycle_uid != envelope.manager_lifecycle_uid
        || record.assignment_revision != request.assignment_revision
        || !same_operation
    {
        return Err(EpError::permission_denied("the intent was admitted for another manager or operation"));
    }
    let assignment = assignment.map_err(EpError::from)?;
    let current = assignment.is_some_and(|assignment| {
        host.has_assigned(assignment, &record.instance)
            && assignment.revision == record.assignment_revision
            && assignment.lifecycle_uid == record.manager_lifecycle_uid
    });
    if !current {
        return Err(not_assigned());
    }
    check_current(gate, envelope, Some(request.serve_epoch), host.platform, host.proof)?;
    if record.serve_epoch != Some(request.serve_epoch) {
        return Err(EpError::permission_denied("the intent is bound to another serving epoch"));
    }
    let act = match (&record.intent, &request.execute) {
        (AdmittedTarget::Launch(admitted), Execution::Launch { actor, token_hash })
            if admitted.actor == *actor =>
        {
            Act::Launch(token_hash.clone())
        }
        (AdmittedTarget::Retire(admitted), Execution::Retire(target)) if admitted == target => {
            Act::Retire(OpId::managed_retirement(&target.lifecycle_uid))
        }
        _ => return Err(EpError::permission_denied("the intent was admitted for another target")),
    };
    Ok(DecidedExecution { resume, act })
}

#[cfg(test)]
mod tests {
    use cotal_wire::{Actor, EpCode, manager_authority::Kind};
    use serde_json::json;

    use super::*;
    use crate::manager::fixtures::{
        Check, EPOCH, INSTANCE, OTHER_INSTANCE, OTHER_OWNER, OWNER, PLATFORM, UID, World, account,
        assignment, es, instance, owner, prove_order, registration_checks,
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
        world.holder = super::super::Holder::Platform { owner: owner(PLATFORM), assignment: assignment() };
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
            Check(
                "scope",
                |scene| scene.scope = Some(vec!["supervise".to_owned(), "admin".to_owned()]),
                DENIED,
            ),
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
                (|assignment: &mut Assignment| assignment.space = Space::parse("other").unwrap())
                    as fn(&mut _),
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
        let execute =
            json!({ "operation": "launch", "target": { "actor": "helper", "tokenHash": hash("a") } });
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
            (
                "a record of another space",
                |scene| record(scene).space = Space::parse("other").unwrap(),
                FAILED,
            ),
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
                ExecutionPins {
                    request_id: Some(RequestId::parse(&"s".repeat(22)).unwrap()),
                    ..pins.clone()
                },
            ),
            ("nobody's request", ExecutionPins { request_id: None, ..pins.clone() }),
            ("epoch", ExecutionPins { serve_epoch: Some(EPOCH + 1), ..pins.clone() }),
            ("no epoch", ExecutionPins { serve_epoch: None, ..pins.clone() }),
            (
                "token",
                ExecutionPins { token_hash: Some(Sha256Hex::parse(&hash("b")).unwrap()), ..pins.clone() },
            ),
        ] {
            assert_eq!(consumed(other).unwrap_err().code, FAILED, "{what}");
        }
        let mut scene = retire_execution();
        record(&mut scene).consumed = Some(ExecutionPins { token_hash: None, ..pins });
        assert!(scene.execute().unwrap().resume, "a retirement pins no token");
    }
}
