//! A driver's next attempt, and an operator's turn.

use super::*;

fn attempt_payload(more: &Value) -> Value {
    let mut attempt = json!({
        "runId": run("a"), "takeoverId": "t1", "epoch": 1, "fencingToken": 1,
        "driverId": format!("U{}", "F".repeat(55)), "mediatorId": format!("U{}", "G".repeat(55)),
    });
    for (member, value) in more.as_object().unwrap() {
        attempt[member] = value.clone();
    }
    json!({ "attempt": attempt })
}

fn resume_case() -> Case {
    let world = World::new().admitted(&run("a"));
    let subject = subject("ep.v1", RUN_RESUME, "", PERSON);
    world.see(&subject, RunOperation::Resume { run: run("a") });
    Case::of(Kind::RunAttempt, world, &attempt_payload(&json!({ "served": subject })))
}

fn first_case() -> Case {
    Case::of(Kind::RunAttempt, World::new().admitted(&run("a")), &attempt_payload(&json!({})))
}

fn status(state: RunState, epoch: u64, fencing_token: u64) -> RunStatus {
    let holder = "U.t".to_owned();
    RunStatus { state, holder, epoch, fencing_token, observed_spec_revision: Revision(1) }
}

const BEFORE_ATTEMPT: [Fault; 2] = [
    ("holder", NO_SUPERVISE, EpCode::PermissionDenied),
    ("parse", |c| c.request["more"] = json!(1), EpCode::BadRequest),
];
const ADMITTED: [Fault; 3] = [
    ("admission", |c| *c.world.rows.admission.lock() = None, EpCode::PermissionDenied),
    ("revocation", |c| *c.world.rows.revocation.lock() = Some(marker()), EpCode::PermissionDenied),
    (
        "instance",
        |c| *c.world.rows.admission.lock() = Some(admitted(&run("a"), PERSON, &"j".repeat(26))),
        EpCode::PermissionDenied,
    ),
];

#[test]
fn a_resumed_attempt_is_decided_in_the_contracts_order() {
    let after: [Fault; 10] = [
        (
            "subject",
            |c| forward(c, "attempt", "served", &subject("ep.v1", RUN_START, "", PERSON)),
            EpCode::PermissionDenied,
        ),
        ("observation", unseen, EpCode::PermissionDenied),
        (
            "operation",
            |c| {
                for seen in c.world.observed.lock().values_mut() {
                    seen.operation = RunOperation::Resume { run: run("b") };
                }
            },
            EpCode::PermissionDenied,
        ),
        ("bind", bound_elsewhere, EpCode::PermissionDenied),
        ("absent", |c| c.world.declared = None, EpCode::FailedPrecondition),
        ("contract", another_contract, EpCode::PermissionDenied),
        (
            "owner",
            |c| {
                forward(c, "attempt", "served", &subject("ep.v1", RUN_RESUME, "", OTHER));
                c.world.resolved = c.world.resolved.clone().map(|_| evidence(OTHER, "cotal.>"));
            },
            EpCode::PermissionDenied,
        ),
        (
            "ceiling",
            |c| c.world.resolved = c.world.resolved.clone().map(|_| evidence(PERSON, "cotal.main.chat.>")),
            EpCode::PermissionDenied,
        ),
        ("terminal", |c| c.world.status = Some(status(RunState::Failed, 1, 1)), EpCode::FailedPrecondition),
        ("next", |c| c.request["attempt"]["epoch"] = json!(2), EpCode::Conflict),
    ];
    let before = BEFORE_ATTEMPT;
    let table: Vec<Fault> =
        before.iter().chain(&REGISTERED).chain(&ADMITTED).chain(&after).copied().collect();
    let steps = [
        ("gate", "account"),
        ("admission", "admission"),
        ("take", "observation"),
        ("declared", "absent"),
        ("resolve", "ceiling"),
        ("status", "terminal"),
    ];
    in_order(resume_case, &table, &steps);
}

#[test]
fn a_first_attempt_needs_no_request_and_looks_at_none() {
    let case = first_case();
    case.run().unwrap();
    assert!(!case.world.did("take") && !case.world.did("resolve") && !case.world.did("declared"));
}

#[test]
fn an_attempt_is_exactly_the_next_epoch_and_token() {
    for (recorded, epoch, token, ok) in [
        (None, 1, 1, true),
        (None, 2, 1, false),
        (None, 1, 2, false),
        (Some(status(RunState::Running, 3, 5)), 4, 6, true),
        (Some(status(RunState::Released, 3, 5)), 4, 6, true),
        (Some(status(RunState::Running, 3, 5)), 3, 6, false),
        (Some(status(RunState::Running, 3, 5)), 4, 5, false),
        (Some(status(RunState::Running, 3, 5)), 5, 7, false),
        (Some(status(RunState::Running, 3, 5)), 1, 1, false),
    ] {
        let mut case = first_case();
        case.world.status = recorded;
        case.request["attempt"]["epoch"] = json!(epoch);
        case.request["attempt"]["fencingToken"] = json!(token);
        let verdict = case.run();
        assert_eq!(verdict.is_ok(), ok, "{epoch}/{token}");
        assert!(verdict.err().is_none_or(|refusal| refusal.code == EpCode::Conflict));
    }
    for state in [RunState::Completed, RunState::Failed] {
        let mut case = first_case();
        case.world.status = Some(status(state, 1, 1));
        assert_eq!(case.run().unwrap_err().code, EpCode::FailedPrecondition);
    }
}

#[test]
fn a_legacy_resume_is_refused_by_its_callers_name() {
    let mut case = resume_case();
    forward(&mut case, "attempt", "served", &subject("ep", RUN_RESUME, "", PERSON));
    case.world.row = Some(row(RowKind::ManagedAgent, &[], UID));
    let refusal = case.run().unwrap_err();
    assert_eq!(refusal.code, EpCode::PermissionDenied);
    assert_eq!(refusal.details[0]["owner"], PERSON);
    assert!(!case.world.did("row"), "a seat resumes nothing");
}

fn answer_case() -> Case {
    let world = World::new().admitted(&run("a"));
    let subject = subject("ep.v1", RUN_ANSWER, "self.", PERSON);
    world.see(&subject, answering(false));
    let operator = json!({ "operator": {
        "id": format!("U{}", "H".repeat(55)), "takeoverId": "t1", "served": subject,
        "answers": { "runId": run("a"), "stepKey": STEP },
    } });
    Case::of(Kind::RunAttempt, world, &operator)
}

fn answering(amend: bool) -> RunOperation {
    RunOperation::Answer {
        endpoint: EndpointName::manager(),
        run: run("a"),
        step_key: STEP.to_owned(),
        amend,
    }
}

#[test]
fn an_answer_is_decided_in_the_contracts_order() {
    let after: [Fault; 10] = [
        ("pause", |c| c.world.pause = Err(EpCode::FailedPrecondition), EpCode::FailedPrecondition),
        ("checkpoint", |c| c.world.checkpoint = Some(CheckpointStatus::Expired), EpCode::FailedPrecondition),
        (
            "served",
            |c| {
                c.request["operator"].as_object_mut().unwrap().remove("served");
            },
            EpCode::PermissionDenied,
        ),
        (
            "subject",
            |c| forward(c, "operator", "served", &subject("ep.v1", RUN_START, "", PERSON)),
            EpCode::PermissionDenied,
        ),
        ("observation", unseen, EpCode::PermissionDenied),
        (
            "operation",
            |c| {
                for seen in c.world.observed.lock().values_mut() {
                    seen.operation = answering(true);
                }
            },
            EpCode::PermissionDenied,
        ),
        ("bind", bound_elsewhere, EpCode::PermissionDenied),
        ("contract", another_contract, EpCode::PermissionDenied),
        (
            "owner",
            |c| {
                forward(c, "operator", "served", &subject("ep.v1", RUN_ANSWER, "self.", OTHER));
                c.world.resolved = c.world.resolved.clone().map(|_| evidence(OTHER, "cotal.>"));
            },
            EpCode::PermissionDenied,
        ),
        (
            "ceiling",
            |c| c.world.resolved = c.world.resolved.clone().map(|_| evidence(PERSON, "cotal.main.chat.>")),
            EpCode::PermissionDenied,
        ),
    ];
    let table: Vec<Fault> =
        BEFORE_ATTEMPT.iter().chain(&REGISTERED).chain(&ADMITTED).chain(&after).copied().collect();
    let steps = [
        ("admission", "admission"),
        ("pause", "pause"),
        ("checkpoint", "checkpoint"),
        ("take", "observation"),
        ("resolve", "ceiling"),
    ];
    in_order(answer_case, &table, &steps);
}

#[test]
fn an_answer_is_pinned_to_the_journals_token_and_to_nothing_of_the_request() {
    let granted = answer_case().run().unwrap();
    assert!(granted.as_str().unwrap().contains(TOKEN), "{granted}");
}

#[test]
fn an_amendment_needs_a_checkpoint_that_an_answer_resumed() {
    for (checkpoint, ok) in [
        (Some(CheckpointStatus::Resumed { answered: true }), true),
        (Some(CheckpointStatus::Resumed { answered: false }), false),
        (Some(CheckpointStatus::Waiting), false),
        (Some(CheckpointStatus::Expired), false),
        (None, false),
    ] {
        let mut case = answer_case();
        case.request["operator"]["answers"]["amend"] = json!(true);
        for seen in case.world.observed.lock().values_mut() {
            seen.operation = answering(true);
        }
        case.world.checkpoint = checkpoint;
        assert_eq!(case.run().is_ok(), ok, "{checkpoint:?}");
    }
    let mut case = answer_case();
    case.world.checkpoint = None;
    assert_eq!(case.run().unwrap_err().code, EpCode::FailedPrecondition);
}

#[test]
fn a_live_seat_of_the_runs_owner_answers_on_the_older_rail() {
    for (kind, uid, caller, ok) in [
        (RowKind::ManagedAgent, UID, PERSON, true),
        (RowKind::Interactive, UID, PERSON, false),
        (RowKind::ManagedAgent, "vvvvvvvvvvvvvvvvvvvvvvvvvv", PERSON, false),
        (RowKind::ManagedAgent, UID, "local", false),
    ] {
        let mut case = answer_case();
        forward(&mut case, "operator", "served", &subject("ep", RUN_ANSWER, "self.", caller));
        case.world.row = Some(row(kind, &[], uid));
        let verdict = case.run();
        assert_eq!(verdict.is_ok(), ok, "{kind} {uid} {caller}");
        assert!(verdict.err().is_none_or(|refusal| refusal.details.len() == 1));
    }
}

#[test]
fn an_operator_that_only_looks_needs_the_run_admitted_and_no_request() {
    let operator = |more: Value| {
        let mut operator = json!({ "id": format!("U{}", "H".repeat(55)), "takeoverId": "t1" });
        for (member, value) in more.as_object().unwrap() {
            operator[member] = value.clone();
        }
        json!({ "operator": operator })
    };
    let looks = Case::of(Kind::RunAttempt, World::new(), &operator(json!({})));
    looks.run().unwrap();
    assert!(!looks.world.did("admission"), "it names no run");
    let named = operator(json!({ "runId": run("a") }));
    assert_eq!(
        Case::of(Kind::RunAttempt, World::new(), &named).run().unwrap_err().code,
        EpCode::PermissionDenied
    );
    let case = Case::of(Kind::RunAttempt, World::new().admitted(&run("a")), &named);
    case.run().unwrap();
    assert!(!case.world.did("take") && !case.world.did("pause"));
}
