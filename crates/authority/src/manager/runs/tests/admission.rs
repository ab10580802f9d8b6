//! Admission, and keyed submission.

use super::*;

fn admission_case() -> Case {
    let world = World::new();
    let subject = subject("ep.v1", RUN_START, "", PERSON);
    world.see(&subject, RunOperation::Start);
    Case::of(Kind::RunAdmission, world, &json!({ "run": { "runId": run("a"), "subject": subject } }))
}

#[test]
fn an_admission_is_decided_in_the_contracts_order() {
    let after: [Fault; 6] = [
        (
            "subject",
            |c| forward(c, "run", "subject", &subject("ep.v1", RUN_RESUME, "", PERSON)),
            EpCode::PermissionDenied,
        ),
        ("observation", unseen, EpCode::PermissionDenied),
        (
            "owner",
            |c| {
                forward(c, "run", "subject", &subject("ep.v1", RUN_START, "", OTHER));
                c.world.resolved = c.world.resolved.clone().map(|_| evidence(OTHER, "cotal.>"));
            },
            EpCode::PermissionDenied,
        ),
        ("issuance", |c| c.world.resolved = Err(EpCode::Internal), EpCode::Internal),
        ("evidence", |c| c.world.resolved = Ok(evidence(OTHER, "cotal.>")), EpCode::PermissionDenied),
        (
            "ceiling",
            |c| c.world.resolved = c.world.resolved.clone().map(|_| evidence(PERSON, "cotal.main.chat.>")),
            EpCode::PermissionDenied,
        ),
    ];
    let before: [Fault; 2] = [
        ("holder", NO_SUPERVISE, EpCode::PermissionDenied),
        ("parse", |c| c.request["more"] = json!(1), EpCode::BadRequest),
    ];
    let table = faults(&before, &after);
    // The owner of a subject and its observation are broken by one text, so a broken observation goes last.
    let table: Vec<_> = table.into_iter().collect();
    in_order(
        admission_case,
        &table,
        &[("gate", "account"), ("take", "observation"), ("resolve", "issuance")],
    );
    let mut fenced = admission_case();
    fenced.world.open = false;
    assert_eq!(fenced.run().unwrap_err().code, EpCode::Unavailable);
    assert!(!fenced.world.did("write"));
}

#[test]
fn an_admission_takes_the_ceiling_word_for_word_and_one_forward_of_a_request() {
    let case = admission_case();
    let answer = case.run().unwrap();
    assert_eq!(answer["admission"]["ceiling"]["publish"]["allow"]["patterns"], json!(["cotal.>"]));
    assert_eq!(answer["admission"]["provenance"]["resolvedRevision"], 9);
    assert_eq!((&answer["revision"], &answer["admission"]["admittedAt"]), (&json!(3), &json!(NOW.0)));
    let again = case.run().unwrap_err();
    assert_eq!(again.code, EpCode::PermissionDenied, "the request was forwarded before: {again}");
}

#[test]
fn a_run_that_was_admitted_is_answered_to_the_same_caller_and_is_a_conflict_to_another() {
    let again = |other: fn(&Case)| {
        let case = admission_case();
        case.run().unwrap();
        case.world.see(&subject("ep.v1", RUN_START, "", PERSON), RunOperation::Start);
        other(&case);
        case.run()
    };
    assert_eq!(again(|_| {}).unwrap()["revision"], 3);
    let elsewhere =
        again(|c| *c.world.rows.admission.lock() = Some(admitted(&run("a"), PERSON, &"j".repeat(26))));
    assert_eq!(elsewhere.unwrap_err().code, EpCode::Conflict);
    let another = again(|c| *c.world.rows.admission.lock() = Some(admitted(&run("a"), OTHER, INSTANCE)));
    assert_eq!(another.unwrap_err().code, EpCode::Conflict);
}

#[test]
fn a_start_on_the_older_rail_or_with_a_target_is_not_admitted() {
    let mut case = admission_case();
    forward(&mut case, "run", "subject", &subject("ep", RUN_START, "", PERSON));
    let refusal = case.run().unwrap_err();
    assert_eq!(refusal.details[0]["kind"], "ai.cotal.ep.unbound-caller-authority");
    assert_eq!(refusal.details[0]["actor"], "alice");
    for odd in [
        subject("ep.v1", RUN_START, "self.", PERSON),
        subject("ep.v1", RUN_START, "", PERSON).replace("cotal.main", "cotal.other"),
        subject("ep.v1", RUN_START, "", PERSON).replace(".manager.", ".auth."),
        subject("ep.v1", RUN_START, "", PERSON)
            .replace(".one.manager.", &format!(".inst.manager.{}.", "j".repeat(26))),
        subject("ep.v1", RUN_START, "", PERSON).replace(".one.", ".all."),
        "cotal.main.chat.x".to_owned(),
    ] {
        let mut case = admission_case();
        forward(&mut case, "run", "subject", &odd);
        assert_eq!(case.run().unwrap_err().code, EpCode::PermissionDenied, "{odd}");
        assert!(!case.world.did("take"), "{odd}");
    }
    let mut case = admission_case();
    let to_it = subject("ep.v1", RUN_START, "", PERSON)
        .replace(".one.manager.", &format!(".inst.manager.{INSTANCE}."));
    forward(&mut case, "run", "subject", &to_it);
    case.run().unwrap();
}

#[test]
fn a_static_caller_is_admitted_on_a_persons_manager() {
    let mut case = admission_case();
    forward(&mut case, "run", "subject", &subject("ep.v1", RUN_START, "", "local"));
    case.world.resolved = Ok(evidence("local", "cotal.>"));
    assert_eq!(case.run().unwrap()["admission"]["caller"]["owner"], "local");
}

fn submission_case() -> Case {
    let world = World::new();
    let subject = subject("ep.v1", RUN_SUBMIT, "", PERSON);
    world.see(&subject, RunOperation::Submit { submission: SubmissionId::parse("nightly").unwrap() });
    let payload =
        json!({ "submission": { "submissionId": "nightly", "runId": run("a"), "subject": subject } });
    Case::of(Kind::RunSubmission, world, &payload)
}

fn submitted_again(case: &mut Case, run_id: &RunId) {
    let submission = SubmissionId::parse("nightly").unwrap();
    case.world.see(&subject("ep.v1", RUN_SUBMIT, "", PERSON), RunOperation::Submit { submission });
    case.request["submission"]["runId"] = json!(run_id);
}

#[test]
fn a_submission_is_decided_in_its_order() {
    let after: [Fault; 9] = [
        (
            "subject",
            |c| forward(c, "submission", "subject", &subject("ep.v1", RUN_START, "", PERSON)),
            EpCode::PermissionDenied,
        ),
        ("observation", unseen, EpCode::PermissionDenied),
        (
            "operation",
            |c| c.request["submission"]["submissionId"] = json!("weekly"),
            EpCode::PermissionDenied,
        ),
        ("bind", bound_elsewhere, EpCode::PermissionDenied),
        ("absent", |c| c.world.declared = None, EpCode::FailedPrecondition),
        ("contract", another_contract, EpCode::PermissionDenied),
        (
            "owner",
            |c| {
                forward(c, "submission", "subject", &subject("ep.v1", RUN_SUBMIT, "", OTHER));
                c.world.resolved = c.world.resolved.clone().map(|_| evidence(OTHER, "cotal.>"));
            },
            EpCode::PermissionDenied,
        ),
        ("issuance", |c| c.world.resolved = Err(EpCode::Internal), EpCode::Internal),
        (
            "ceiling",
            |c| c.world.resolved = c.world.resolved.clone().map(|_| evidence(PERSON, "cotal.main.chat.>")),
            EpCode::PermissionDenied,
        ),
    ];
    let before: [Fault; 2] = [
        ("holder", NO_SUPERVISE, EpCode::PermissionDenied),
        ("parse", |c| c.request["more"] = json!(1), EpCode::BadRequest),
    ];
    let steps =
        [("gate", "account"), ("take", "observation"), ("declared", "absent"), ("resolve", "issuance")];
    in_order(submission_case, &faults(&before, &after), &steps);
    let mut case = submission_case();
    NO_SUPERVISE(&mut case);
    assert_eq!(case.run().unwrap_err().message, "keyed run submission needs scope \"supervise\"");
    let mut case = submission_case();
    case.world.declared = None;
    assert_eq!(case.run().unwrap_err().message, "registered manager has no keyed contract");
}

#[test]
fn a_submission_id_stands_for_the_run_that_it_was_given_first() {
    let mut case = submission_case();
    let first = case.run().unwrap();
    assert_eq!((&first["runId"], &first["created"]), (&json!(run("a")), &json!(true)));
    submitted_again(&mut case, &run("b"));
    let again = case.run().unwrap();
    assert_eq!((&again["runId"], &again["created"]), (&json!(run("a")), &json!(false)));
    assert_eq!(again["admission"], first["admission"]);
}

#[test]
fn a_submission_that_was_cut_off_after_either_write_is_ended_by_the_same_one() {
    // After the first: the id is bound, and no admission stands.
    let mut case = submission_case();
    case.run().unwrap();
    *case.world.rows.admission.lock() = None;
    submitted_again(&mut case, &run("b"));
    let ended = case.run().unwrap();
    assert_eq!((&ended["runId"], &ended["created"]), (&json!(run("a")), &json!(false)));
    // After the second: its answer was lost.
    let mut case = submission_case();
    *case.world.rows.forgets.lock() = true;
    assert_eq!(case.run().unwrap_err().code, EpCode::Unavailable);
    submitted_again(&mut case, &run("b"));
    assert_eq!(case.run().unwrap()["runId"], json!(run("a")));
}

#[test]
fn a_submission_id_that_is_bound_on_another_instance_is_a_conflict() {
    let mut case = submission_case();
    case.run().unwrap();
    if let Some(row) = case.world.rows.submission.lock().as_mut() {
        row.instance = InstanceId::parse(&"j".repeat(26)).unwrap();
    }
    submitted_again(&mut case, &run("b"));
    assert_eq!(case.run().unwrap_err().code, EpCode::Conflict);
}
