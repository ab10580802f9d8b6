//! Each check alone and each pair of checks, over a world that a test makes: a request that breaks two rules gets the refusal of
//! the earlier one, and nothing that comes after a refusal was read, taken or written.

mod admission;
mod attempt;
mod ending;

use std::{collections::BTreeMap, sync::Arc};

use cotal_ledger::{ActorRow, RowKind};
use cotal_trust::{nkey::Seed, registration_proof::RegistrationProofKey, system::SystemEntropy};
use cotal_wire::{
    Account, Actor, DerivedOwner, EpCode, Generation, LifecycleUid, Nkey, OpId, Permissions, Rules, Space,
    SpaceToken, UnixSecs,
    canonical::VOID_CLOSURE_DIGEST,
    envelope::IncarnationBind,
    manager_authority::{
        Kind, RUN_ANSWER, RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, RunAdmissionRequest, RunOperation,
        SubmissionId, serve_principal,
    },
    rows::{GateCoordinate, IssuedEvidence, IssuedPermissions, RunState, SourceRef},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const PERSON: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
const INSTANCE: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";
const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
const GENERATION: &str = "00000000000000000000000000000000";
const EPOCH: u64 = 4;
const REGISTRATION: u64 = 77;
const NOW: UnixMillis = UnixMillis(1_000_000);
const STEP: &str = "/checkpoint:approve#0";
const TOKEN: &str = "token-1";

fn run(letter: &str) -> RunId {
    RunId::parse(&format!("run-{}", letter.repeat(32))).unwrap()
}

fn owner(text: &str) -> Owner {
    Owner::parse(text).unwrap()
}

fn instance() -> InstanceId {
    InstanceId::parse(INSTANCE).unwrap()
}

fn principal() -> Principal {
    Principal::parse_key(&format!("{PERSON}.alice")).unwrap()
}

fn uid() -> LifecycleUid {
    LifecycleUid::parse(UID).unwrap()
}

/// The subject of a request on the class rail.
fn subject(rail: &str, command: &str, target: &str, caller: &str) -> String {
    let generation = if rail == "ep.v1" { format!("{GENERATION}.") } else { String::new() };
    format!(
        "cotal.main.{rail}.one.manager.{command}.{target}{caller}.alice.{UID}.{generation}{}",
        "n".repeat(22)
    )
}

fn reference(owner_of: &str) -> IssuedAuthorityRef {
    IssuedAuthorityRef {
        space: SpaceToken::parse("main").unwrap(),
        principal: Principal::parse_key(&format!("{owner_of}.alice")).unwrap(),
        uid: uid(),
        generation: Generation::parse(GENERATION).unwrap(),
    }
}

fn evidence(owner_of: &str, allow: &str) -> ResolvedAuthority {
    let reference = reference(owner_of);
    let permissions = Permissions {
        publish: Rules { allow: vec![allow.into()], deny: vec![] },
        subscribe: Rules { allow: vec!["_INBOX_x.>".into()], deny: vec![] },
    };
    let source = SourceRef::actor_ledger(&reference.space, &reference.principal, &reference.uid);
    let permissions = IssuedPermissions::of_grants(&permissions).unwrap();
    ResolvedAuthority {
        evidence: IssuedEvidence::new(reference, vec![source], permissions, None).unwrap(),
        revision: Revision(9),
    }
}

fn admitted(run: &RunId, owner_of: &str, instance_of: &str) -> RunAdmission {
    let permissions = IssuedPermissions::of_grants(&Permissions::default()).unwrap();
    RunAdmission::issued(
        &manager(),
        run,
        &InstanceId::parse(instance_of).unwrap(),
        (reference(owner_of), Revision(9)),
        permissions,
        NOW,
    )
}

fn observed(operation: RunOperation) -> ObservedRequest {
    ObservedRequest {
        operation,
        class: CallClass::Ephemeral,
        input_digest: DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap(),
        output_digest: DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap(),
        bind: None,
    }
}

fn row(kind: RowKind, scope: &[&str], uid: &str) -> TaggedRow {
    let row = ActorRow {
        owner: DerivedOwner::parse(PERSON).unwrap(),
        actor: Actor::parse("alice").unwrap(),
        scope: scope.iter().map(ToString::to_string).collect(),
        allow_subscribe: vec![],
        allow_publish: vec![],
        role: None,
        parent: None,
        label: None,
        token_hash: None,
        lifecycle_uid: Some(uid.to_owned()),
        granted_at: None,
    };
    TaggedRow { kind, row }
}

/// What stands in the admission bucket.
#[derive(Default)]
struct Rows {
    admission: Mutex<Option<RunAdmission>>,
    revocation: Mutex<Option<RunRevocation>>,
    submission: Mutex<Option<RunSubmissionRow>>,
    /// Refuses the next admission as a write whose answer was lost: it landed all the same.
    forgets: Mutex<bool>,
}

struct Admitter(Arc<Rows>);

fn create<T: Clone>(cell: &Mutex<Option<T>>, row: &T) -> Landing {
    let mut cell = cell.lock();
    if cell.is_some() {
        return Landing::Stands;
    }
    *cell = Some(row.clone());
    Landing::Created(Revision(3))
}

#[async_trait]
impl RunAdmitter for Admitter {
    async fn create_admission(&self, row: &RunAdmission) -> Result<Landing, EpError> {
        let landed = create(&self.0.admission, row);
        if std::mem::take(&mut *self.0.forgets.lock()) {
            return Err(EpError::unavailable("the answer was lost"));
        }
        Ok(landed)
    }
    async fn create_submission(&self, row: &RunSubmissionRow) -> Result<Landing, EpError> {
        Ok(create(&self.0.submission, row))
    }
    async fn create_revocation(&self, row: &RunRevocation) -> Result<Landing, EpError> {
        Ok(create(&self.0.revocation, row))
    }
    async fn close(&self) {}
}

fn marker() -> RunRevocation {
    RunRevocation { run: run("a"), by: "x.y".into(), reason: "r".into(), revoked_at: NOW }
}

/// Everything that the decisions read, good unless a test says otherwise.
struct World {
    key: Seed<Account>,
    account: Nkey<Account>,
    open: bool,
    gate: Option<EndpointGate>,
    observed: Mutex<BTreeMap<String, ObservedRequest>>,
    resolved: Result<ResolvedAuthority, EpCode>,
    declared: Option<DeclaredContract>,
    row: Option<TaggedRow>,
    rows: Arc<Rows>,
    status: Option<RunStatus>,
    pause: Result<&'static str, EpCode>,
    checkpoint: Option<CheckpointStatus>,
    /// What was read, taken and written, in order.
    done: Mutex<Vec<&'static str>>,
}

impl World {
    fn new() -> Self {
        let key = Seed::<Account>::generate(&SystemEntropy);
        Self {
            account: Seed::<Account>::generate(&SystemEntropy).public().clone(),
            key,
            open: true,
            gate: Some(gate(PERSON, EPOCH)),
            observed: Mutex::default(),
            resolved: Ok(evidence(PERSON, "cotal.>")),
            declared: Some(DeclaredContract {
                class: CallClass::Ephemeral,
                input_digest: DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap(),
                output_digest: DigestRef::parse(VOID_CLOSURE_DIGEST).unwrap(),
            }),
            row: Some(row(RowKind::Interactive, &[], UID)),
            rows: Arc::default(),
            status: None,
            pause: Ok(TOKEN),
            checkpoint: Some(CheckpointStatus::Waiting),
            done: Mutex::default(),
        }
    }

    fn note(&self, what: &'static str) {
        self.done.lock().push(what);
    }

    fn did(&self, what: &'static str) -> bool {
        self.done.lock().contains(&what)
    }

    fn see(&self, subject: &str, operation: RunOperation) {
        self.observed.lock().insert(subject.to_owned(), observed(operation));
    }

    fn admitted(self, run: &RunId) -> Self {
        *self.rows.admission.lock() = Some(admitted(run, PERSON, INSTANCE));
        self
    }
}

/// A gate that is open at this epoch, as a re-registration leaves it.
fn gate(owner_of: &str, epoch: u64) -> EndpointGate {
    let op = OpId::parse(&"f".repeat(26)).unwrap();
    let gate = EndpointGate::provisioned(&serve_principal(&owner(owner_of), &instance()));
    let at = GateCoordinate {
        generation: 1,
        process_epoch: epoch,
        registration_revision: REGISTRATION,
        name_authority_revision: 0,
    };
    gate.freeze(&op).unwrap().reopen(&op, at).unwrap()
}

#[async_trait]
impl RunWorld for World {
    fn now(&self) -> UnixMillis {
        NOW
    }
    fn check_open(&self) -> Result<(), EpError> {
        if self.open { Ok(()) } else { Err(EpError::unavailable("fenced")) }
    }
    async fn gate(&self, _: &InstanceId) -> Result<Option<EndpointGate>, EpError> {
        self.note("gate");
        Ok(self.gate.clone())
    }
    async fn take_served(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.note("take");
        Ok(self.observed.lock().remove(subject))
    }
    async fn take_cancel(&self, subject: &str) -> Result<Option<ObservedRequest>, EpError> {
        self.take_served(subject).await
    }
    async fn resolve(&self, _: &IssuedAuthorityRef) -> Result<ResolvedAuthority, EpError> {
        self.note("resolve");
        self.resolved.clone().map_err(|code| EpError::new(code, "resolve"))
    }
    async fn declared(
        &self,
        _: &Owner,
        _: &InstanceId,
        registration: Revision,
        _: &str,
    ) -> Result<Option<DeclaredContract>, EpError> {
        self.note("declared");
        assert_eq!(registration, Revision(REGISTRATION), "the gate's own");
        Ok(self.declared.clone())
    }
    async fn row(&self, _: &Principal) -> Result<Option<TaggedRow>, EpError> {
        self.note("row");
        Ok(self.row.clone())
    }
    async fn admission(&self, run: &RunId) -> Result<Option<(RunAdmission, Revision)>, EpError> {
        self.note("admission");
        Ok(self.rows.admission.lock().clone().filter(|row| row.run() == run).map(|row| (row, Revision(3))))
    }
    async fn revocation(&self, _: &RunId) -> Result<Option<RunRevocation>, EpError> {
        self.note("revocation");
        Ok(self.rows.revocation.lock().clone())
    }
    async fn submission(&self, _: &RunSubmissionRow) -> Result<Option<RunSubmissionRow>, EpError> {
        self.note("submission");
        Ok(self.rows.submission.lock().clone())
    }
    async fn status(&self, _: &RunId) -> Result<Option<RunStatus>, EpError> {
        self.note("status");
        Ok(self.status.clone())
    }
    async fn pause_token(&self, _: &RunId, key: &str, _: PauseWanted) -> Result<IdToken, EpError> {
        self.note("pause");
        assert_eq!(key, STEP);
        self.pause.map(|token| IdToken::parse(token).unwrap()).map_err(|code| EpError::new(code, "pause"))
    }
    async fn checkpoint(&self, token: &IdToken) -> Result<Option<CheckpointStatus>, EpError> {
        self.note("checkpoint");
        assert_eq!(token.as_str(), TOKEN);
        Ok(self.checkpoint)
    }
    async fn admitter(&self, _: AdmitterPurpose<'_>) -> Result<Box<dyn RunAdmitter>, EpError> {
        self.note("write");
        Ok(Box::new(Admitter(Arc::clone(&self.rows))))
    }
}

/// One request, as a test breaks it.
struct Case {
    world: World,
    holder: Holder,
    request: Value,
    /// Signed last, over the request as it then is, unless a test broke the proof itself.
    prove: bool,
}

impl Case {
    fn of(kind: Kind, world: World, payload: &Value) -> Self {
        let key = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let mut request = json!({
            "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": INSTANCE,
            "managerLifecycleUid": UID, "requestId": "r".repeat(22),
            "registrationProof": format!("sha256:{}", "0".repeat(64)),
            "identities": {
                "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                "sessionLedger": key("E"),
            },
            "accountPublicKey": world.account, "processEpoch": EPOCH,
        });
        for (member, value) in payload.as_object().unwrap() {
            request[member] = value.clone();
        }
        let holder = Holder::Human { owner: owner(PERSON), scope: vec!["supervise".into()] };
        Self { world, holder, request, prove: true }
    }

    /// The request, its proof signed over the gate as it stands.
    fn signed(&self) -> (RegistrationProofKey, EsValue) {
        let proof = RegistrationProofKey::new(self.world.key.clone());
        let value = |request: &Value| EsValue::parse(request.to_string().as_bytes()).unwrap();
        let mut request = self.request.clone();
        // Any run kind reads the envelope; this one has the plainest payload.
        let mut plain = request.clone();
        for member in ["run", "attempt", "operator", "submission", "cancel", "revoke"] {
            plain.as_object_mut().unwrap().remove(member);
        }
        plain["kind"] = json!(Kind::RunAdmission.as_str());
        plain["run"] = json!({ "runId": run("a"), "subject": "s" });
        if self.prove
            && let Ok(parsed) = RunAdmissionRequest::parse(&value(&plain))
        {
            let at = self.world.gate.as_ref().map_or(EPOCH, |gate| gate.coordinate().process_epoch);
            let by = self.world.gate.as_ref().map_or(owner(PERSON), |gate| gate.principal().owner.clone());
            request["registrationProof"] = json!(proof.prove(&parsed.envelope, &by, REGISTRATION, at));
        }
        (proof, value(&request))
    }

    fn run(&self) -> Result<Value, EpError> {
        let (proof, request) = self.signed();
        let space = Space::parse("main").unwrap();
        let host = LifecycleHost { space: &space, account: &self.world.account, proof: &proof };
        let (world, holder) = (&self.world as &dyn RunWorld, &self.holder);
        let print = |value: &dyn erased::Print| value.print();
        let kind = self.request["kind"].as_str().and_then(Kind::from_name).unwrap();
        futures::executor::block_on(async {
            Ok(match kind {
                Kind::RunAdmission => print(&admit(world, host, holder, &request).await?),
                Kind::RunSubmission => print(&submit(world, host, holder, &request).await?),
                Kind::RunRevoke => print(&revoke(world, host, holder, &request).await?.of_revoke()),
                Kind::RunCancel => print(&cancel(world, host, holder, &request).await?.of_cancel()),
                _ => json!(format!("{:?}", decide_attempt(world, host, holder, &request).await?.pins())),
            })
        })
    }
}

mod erased {
    pub(super) trait Print {
        fn print(&self) -> serde_json::Value;
    }
    impl<T: serde::Serialize> Print for T {
        fn print(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

/// A rule, how a request breaks it, and what it is refused with.
type Fault = (&'static str, fn(&mut Case), EpCode);

/// Breaks each rule alone, then each pair, in the contract's order. What is later than a refusal was not done: `steps` are the
/// rules before which a thing must not have happened.
fn in_order(base: fn() -> Case, faults: &[Fault], steps: &[(&'static str, &str)]) {
    base().run().expect("the request is good");
    let alone: Vec<EpError> = faults
        .iter()
        .map(|(name, break_it, code)| {
            let mut case = base();
            break_it(&mut case);
            let refusal = case.run().expect_err(name);
            assert_eq!(refusal.code, *code, "{name}: {refusal}");
            assert!(!case.world.did("write"), "{name}: nothing is written");
            for (what, rule) in steps {
                let after = faults.iter().position(|fault| fault.0 == *rule).expect("a rule of this table");
                let at = faults.iter().position(|fault| fault.0 == *name).unwrap();
                assert_eq!(case.world.did(what), at >= after, "{name}: {what} comes with {rule}");
            }
            refusal
        })
        .collect();
    for first in 0..faults.len() {
        for second in first + 1..faults.len() {
            let mut case = base();
            (faults[second].1)(&mut case);
            (faults[first].1)(&mut case);
            let refusal = case.run().expect_err("two rules are broken");
            assert_eq!(
                (refusal.code, &refusal.message),
                (alone[first].code, &alone[first].message),
                "{} comes before {}",
                faults[first].0,
                faults[second].0
            );
        }
    }
}

/// What every kind about runs stands on once it was parsed.
const REGISTERED: [Fault; 5] = [
    (
        "account",
        |c| c.request["accountPublicKey"] = json!(format!("A{}", "A".repeat(55))),
        EpCode::PermissionDenied,
    ),
    ("gate", |c| c.world.gate = None, EpCode::FailedPrecondition),
    ("principal", |c| c.world.gate = Some(gate(OTHER, EPOCH)), EpCode::PermissionDenied),
    ("epoch", |c| c.request["processEpoch"] = json!(EPOCH + 1), EpCode::Conflict),
    ("proof", |c| c.prove = false, EpCode::PermissionDenied),
];

const NO_SUPERVISE: fn(&mut Case) =
    |c| c.holder = Holder::Human { owner: owner(PERSON), scope: vec!["spawn".into(), "run".into()] };

fn faults(before: &[Fault], after: &[Fault]) -> Vec<Fault> {
    before.iter().chain(&REGISTERED).chain(after).copied().collect()
}

/// Another subject in a member of the payload, seen like the good one.
fn forward(case: &mut Case, payload: &str, member: &str, subject: &str) {
    let operation = case.world.observed.lock().values().next().map(|seen| seen.operation.clone());
    if let Some(operation) = operation {
        case.world.see(subject, operation);
    }
    case.request[payload][member] = json!(subject);
}

fn unseen(case: &mut Case) {
    case.world.observed.lock().clear();
}

fn bound_elsewhere(case: &mut Case) {
    for seen in case.world.observed.lock().values_mut() {
        seen.bind = Some(IncarnationBind { instance: instance(), epoch: EPOCH + 1 });
    }
}

fn another_contract(case: &mut Case) {
    for seen in case.world.observed.lock().values_mut() {
        seen.output_digest = DigestRef::of_sha256(&[9; 32]);
    }
}

#[test]
fn a_runs_driver_is_renewed_by_the_manager_and_for_the_owner_of_its_admission_alone() {
    let run = RunId::parse(&format!("run-{}", "1".repeat(32))).unwrap();
    let (owner, space) = (Owner::parse(PERSON).unwrap(), Space::parse("main").unwrap());
    let instance = InstanceId::parse(INSTANCE).unwrap();
    let decide = |admission: Option<&RunAdmission>, revoked: bool, owner: &Owner, space: &Space| {
        decide_renewed_run(admission, revoked, &run, (owner, &instance, space))
    };
    let mine = admitted(&run, PERSON, INSTANCE);
    assert_eq!(decide(Some(&mine), false, &owner, &space), Ok(owner.clone()));
    let other_run = RunId::parse(&format!("run-{}", "2".repeat(32))).unwrap();
    for (admission, revoked, owner, space) in [
        (None, false, PERSON, "main"),
        (Some(mine.clone()), true, PERSON, "main"),
        (Some(mine.clone()), false, OTHER, "main"),
        (Some(mine), false, PERSON, "elsewhere"),
        (Some(admitted(&run, PERSON, &"j".repeat(26))), false, PERSON, "main"),
        (Some(admitted(&other_run, PERSON, INSTANCE)), false, PERSON, "main"),
        (Some(admitted(&run, OTHER, INSTANCE)), false, PERSON, "main"),
    ] {
        let (owner, space) = (Owner::parse(owner).unwrap(), Space::parse(space).unwrap());
        let refusal = decide(admission.as_ref(), revoked, &owner, &space).unwrap_err();
        assert_eq!(refusal.code, EpCode::PermissionDenied, "{refusal}");
    }
}
