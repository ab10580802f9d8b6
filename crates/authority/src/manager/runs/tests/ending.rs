//! Revocation and cancellation.

use super::*;

fn revoke_case() -> Case {
    let mut case = Case::of(
        Kind::RunRevoke,
        World::new().admitted(&run("a")),
        &json!({ "revoke": { "runId": run("a"), "reason": "no longer wanted" } }),
    );
    case.holder = Holder::Human { owner: owner(PERSON), scope: vec![] };
    case
}

#[test]
fn a_revocation_is_decided_in_the_contracts_order() {
    let table: [Fault; 9] = [
        ("parse", |c| c.request["more"] = json!(1), EpCode::BadRequest),
        ("admission", |c| *c.world.rows.admission.lock() = None, EpCode::PermissionDenied),
        (
            "instance",
            |c| *c.world.rows.admission.lock() = Some(admitted(&run("a"), PERSON, &"j".repeat(26))),
            EpCode::PermissionDenied,
        ),
        (
            "owner",
            |c| c.holder = Holder::Human { owner: owner(OTHER), scope: vec!["supervise".into()] },
            EpCode::PermissionDenied,
        ),
        ("gate", |c| c.world.gate = None, EpCode::FailedPrecondition),
        (
            "account",
            |c| c.request["accountPublicKey"] = json!(format!("A{}", "A".repeat(55))),
            EpCode::PermissionDenied,
        ),
        (
            "frozen",
            |c| {
                let op = OpId::parse(&"e".repeat(26)).unwrap();
                c.world.gate = c.world.gate.take().map(|gate| gate.freeze(&op).unwrap());
            },
            EpCode::FailedPrecondition,
        ),
        ("epoch", |c| c.request["processEpoch"] = json!(EPOCH + 1), EpCode::Conflict),
        ("proof", |c| c.prove = false, EpCode::PermissionDenied),
    ];
    in_order(revoke_case, &table, &[("admission", "admission"), ("gate", "gate")]);
}

#[test]
fn an_admin_of_another_owner_revokes_with_the_managers_own_proof_and_a_platform_never_does() {
    let mut case = revoke_case();
    case.holder = Holder::Human { owner: owner(OTHER), scope: vec!["admin".into()] };
    let answer = case.run().unwrap();
    assert_eq!(answer["revocation"]["by"], format!("{OTHER}.cli"));
    let mut platform = revoke_case();
    platform.holder = Holder::Platform {
        owner: owner("p_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
        assignment: crate::manager::Assignment {
            space: Space::parse("main").unwrap(),
            account: platform.world.account.clone(),
            instance: instance(),
            lifecycle_uid: uid(),
            revision: 1,
            assigned: true,
        },
    };
    assert_eq!(platform.run().unwrap_err().code, EpCode::PermissionDenied);
}

#[test]
fn the_first_revocation_stays() {
    let case = revoke_case();
    *case.world.rows.revocation.lock() = Some(marker());
    assert_eq!(case.run().unwrap()["revocation"], marker().to_value());
}

fn cancel_case() -> Case {
    let world = World::new().admitted(&run("a"));
    let subject = cancel_subject(PERSON);
    world.see(&subject, RunOperation::Cancel { run: run("a") });
    Case::of(Kind::RunCancel, world, &json!({ "cancel": { "runId": run("a"), "subject": subject } }))
}

fn cancel_subject(caller: &str) -> String {
    subject("ep.v1", RUN_CANCEL, "", caller).replace(".one.manager.", &format!(".inst.manager.{INSTANCE}."))
}

fn cancelled_by_another(case: &mut Case) {
    forward(case, "cancel", "subject", &cancel_subject(OTHER));
    case.world.resolved = case.world.resolved.clone().map(|_| evidence(OTHER, "cotal.>"));
}

#[test]
fn a_cancellation_is_decided_in_its_order() {
    let before: [Fault; 2] = [
        ("parse", |c| c.request["more"] = json!(1), EpCode::BadRequest),
        ("holder", NO_SUPERVISE, EpCode::PermissionDenied),
    ];
    let after: [Fault; 11] = [
        (
            "subject",
            |c| forward(c, "cancel", "subject", &subject("ep.v1", RUN_START, "", PERSON)),
            EpCode::PermissionDenied,
        ),
        ("observation", unseen, EpCode::PermissionDenied),
        (
            "operation",
            |c| {
                for seen in c.world.observed.lock().values_mut() {
                    seen.operation = RunOperation::Cancel { run: run("b") };
                }
            },
            EpCode::PermissionDenied,
        ),
        ("bind", bound_elsewhere, EpCode::PermissionDenied),
        ("absent", |c| c.world.declared = None, EpCode::FailedPrecondition),
        ("contract", another_contract, EpCode::PermissionDenied),
        ("issuance", |c| c.world.resolved = Err(EpCode::Internal), EpCode::Internal),
        (
            "ceiling",
            |c| {
                let by = c.world.resolved.as_ref().unwrap().evidence.authority().principal.owner.clone();
                c.world.resolved = Ok(evidence(by.as_str(), "cotal.main.chat.>"));
            },
            EpCode::PermissionDenied,
        ),
        ("admission", |c| *c.world.rows.admission.lock() = None, EpCode::PermissionDenied),
        (
            "instance",
            |c| *c.world.rows.admission.lock() = Some(admitted(&run("a"), PERSON, &"j".repeat(26))),
            EpCode::PermissionDenied,
        ),
        ("owner", cancelled_by_another, EpCode::PermissionDenied),
    ];
    let table: Vec<Fault> = before.iter().chain(&REGISTERED).chain(&after).copied().collect();
    let steps = [
        ("gate", "account"),
        ("take", "observation"),
        ("declared", "absent"),
        ("resolve", "issuance"),
        ("admission", "admission"),
    ];
    in_order(cancel_case, &table, &steps);
    let mut case = cancel_case();
    NO_SUPERVISE(&mut case);
    assert_eq!(case.run().unwrap_err().message, "manager run cancellation needs scope \"supervise\"");
    let mut case = cancel_case();
    case.world.declared = None;
    assert_eq!(case.run().unwrap_err().message, "registered manager has no run-cancel contract");
}

#[test]
fn a_cancellation_marks_the_run_in_the_callers_name() {
    let answer = cancel_case().run().unwrap();
    assert_eq!(answer["kind"], "manager-run-cancel");
    assert_eq!(answer["revocation"]["by"], principal().key());
    let case = cancel_case();
    *case.world.rows.revocation.lock() = Some(marker());
    assert_eq!(case.run().unwrap()["revocation"], marker().to_value(), "the first marker stays");
}

#[test]
fn only_the_owner_or_an_interactive_admin_cancels() {
    for (kind, scope, uid, ok) in [
        (RowKind::Interactive, &["admin"][..], UID, true),
        (RowKind::Interactive, &["supervise", "run"][..], UID, false),
        (RowKind::ManagedAgent, &["admin"][..], UID, false),
        (RowKind::Interactive, &["admin"][..], "vvvvvvvvvvvvvvvvvvvvvvvvvv", false),
    ] {
        let mut case = cancel_case();
        cancelled_by_another(&mut case);
        case.world.row = Some(row(kind, scope, uid));
        assert_eq!(case.run().is_ok(), ok, "{kind} {scope:?} {uid}");
    }
    // Its authority must rest on that row and on nothing else.
    let mut case = cancel_case();
    cancelled_by_another(&mut case);
    case.world.row = Some(row(RowKind::Interactive, &["admin"], UID));
    let resolved = case.world.resolved.clone().unwrap();
    let evidence = IssuedEvidence::new(
        resolved.evidence.authority().clone(),
        vec![],
        resolved.evidence.permissions().clone(),
        Some(UnixSecs(9_999_999)),
    );
    case.world.resolved = Ok(ResolvedAuthority { evidence: evidence.unwrap(), ..resolved });
    assert_eq!(case.run().unwrap_err().code, EpCode::PermissionDenied);
    assert!(!case.world.did("row"));
}
