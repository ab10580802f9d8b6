//! Runs: a caller with issued authority asks its manager, the manager forwards what it serves, and the service decides from
//! what it saw itself (contract 06 §12, 10 §3).

use cotal_testkit::runs::run_id;
use cotal_wire::{
    Names,
    manager_authority::{
        Kind, RUN_CANCEL, RUN_RESUME, RUN_START, RUN_SUBMIT, RunAdmissionResult, RunAttemptResult, RunId,
        RunRevocationResult, RunSubmissionResult,
    },
};
use serde_json::{Value, json};

use super::{
    rig::PERSON,
    running::{Running, TAKEOVER, activation, creds_of, journal, keys},
    stage::{claims_of, es},
};

#[tokio::test]
async fn a_start_that_was_seen_is_admitted_once_under_its_callers_own_ceiling() {
    let running = Running::start().await;
    let mut caller = running.caller().await;
    let run = run_id();
    let forward = |subject: &str| json!({ "run": { "runId": run, "subject": subject } });

    // A manager may name any subject; only one that was published there is worth anything.
    let unseen = caller.asks.subject(&running.manager().instance, RUN_START);
    let why = running.refused(403, Kind::RunAdmission, forward(&unseen)).await;
    assert!(why.contains("did not see"), "{why}");

    let subject = caller.ask(running.manager(), RUN_START, &json!({ "program": "x" })).await;
    let (status, answer) = running.ask(Kind::RunAdmission, forward(&subject)).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunAdmissionResult::parse(&es(&answer)).unwrap();
    assert_eq!(result.admission.caller().principal, caller.asks.principal);
    assert_eq!(result.admission.caller().generation, caller.asks.generation);
    let stored = running.row(&running.admissions(), &format!("admission.v1.manager.{run}")).await;
    assert_eq!(stored, answer["admission"], "what is answered is what stands");
    assert!(stored["ceiling"]["publish"]["allow"]["patterns"].as_array().unwrap().len() > 5);

    // One forward for one request. The run is answered again to its caller's next request, as it stands.
    let why = running.refused(403, Kind::RunAdmission, forward(&subject)).await;
    assert!(why.contains("a forward of it came before"), "{why}");
    let again = caller.ask(running.manager(), RUN_START, &json!({})).await;
    let (_, same) = running.ask(Kind::RunAdmission, forward(&again)).await;
    assert_eq!(same["revision"], answer["revision"]);
    assert_eq!(same["admission"], answer["admission"]);

    // Another connection of the same person is another issuance.
    let mut other = running.caller().await;
    let subject = other.ask(running.manager(), RUN_START, &json!({})).await;
    running.refused(409, Kind::RunAdmission, forward(&subject)).await;

    // Nothing is issued from a row that is gone, and a request that a later check refused is used up all the same.
    let subject = caller.ask(running.manager(), RUN_START, &json!({})).await;
    running.rig.stage.revoke_human(PERSON, "cli");
    running.rig.stage.grant_human(PERSON, "cli", &["supervise", "run"], &["general"]);
    let fresh = json!({ "run": { "runId": run_id(), "subject": subject } });
    let why = running.refused(403, Kind::RunAdmission, fresh.clone()).await;
    assert!(why.contains("has ended"), "{why}");
    let why = running.refused(403, Kind::RunAdmission, fresh).await;
    assert!(why.contains("did not see"), "{why}");

    running.rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_goes_from_its_first_attempt_to_an_answer_off_its_own_journal() {
    let running = Running::start().await;
    let mut caller = running.caller().await;
    let (run, other) = (running.admitted(&mut caller).await, run_id());
    let both = keys();

    // The first attempt is 1 and 1, of an admitted run alone.
    for (run, epoch, token, status) in [(&run, 2, 1, 409), (&run, 1, 2, 409), (&other, 1, 1, 403)] {
        let attempt = json!({ "attempt": Running::attempt(run, epoch, token, &both) });
        running.refused(status, Kind::RunAttempt, attempt).await;
    }
    let (status, first) =
        running.ask(Kind::RunAttempt, json!({ "attempt": Running::attempt(&run, 1, 1, &both) })).await;
    assert_eq!(status, 200, "{first}");
    RunAttemptResult::parse(&es(&first)).unwrap();
    for (name, seed) in [("driver", &both[0]), ("mediator", &both[1])] {
        let claims = claims_of(first["credentials"][name]["jwt"].as_str().unwrap());
        assert_eq!(claims["sub"], seed.public().as_str());
        assert_eq!(claims["exp"], first["credentials"][name]["exp"]);
    }

    // A driver appends to its own journal and writes its own records, and nobody else's.
    let mut driver = running.rig.connected(&creds_of(&first["credentials"]["driver"]["jwt"], &both[0])).await;
    driver.try_publish(&journal(&run), activation(&run).to_string().as_bytes()).await.unwrap();
    driver.try_publish(&journal(&other), b"{}").await.expect_err("another run's journal");

    // The next attempt is one on from what is recorded; a run that has ended gets none.
    running.recorded(&run, "running", 1, 1, TAKEOVER).await;
    let why = running
        .refused(409, Kind::RunAttempt, json!({ "attempt": Running::attempt(&run, 1, 1, &both) }))
        .await;
    assert!(why.contains("epoch 1"), "{why}");
    let subject = caller.ask(running.manager(), RUN_RESUME, &json!({ "runId": run })).await;
    let mut second = Running::attempt(&run, 2, 2, &both);
    second["served"] = json!(subject);
    let (status, answer) = running.ask(Kind::RunAttempt, json!({ "attempt": second })).await;
    assert_eq!(status, 200, "a resume that its caller asked for: {answer}");
    running.refused(403, Kind::RunAttempt, json!({ "attempt": second })).await;
    // The caller asked to resume one run, the manager forwards another.
    let subject = caller.ask(running.manager(), RUN_RESUME, &json!({ "runId": other })).await;
    second["served"] = json!(subject);
    let why = running.refused(403, Kind::RunAttempt, json!({ "attempt": second })).await;
    assert!(why.contains("something else"), "{why}");

    // The renewal of the driver reads the same record.
    let renew = async |takeover: &str| {
        let request = running.renews(&running.proved, &run, takeover, &both);
        running.rig.send(PERSON, &request).await
    };
    let (status, answer) = renew(TAKEOVER).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = renew("fedcba9876543210").await;
    assert_eq!(status, 409, "{answer}");

    // An answer: the pause's token comes off the journal, and the credential reaches that checkpoint alone.
    let [operator, _] = keys();
    let answering = |served: &str| Running::answering(&run, &operator, served);
    let why = running.refused(403, Kind::RunAttempt, answering("x")).await;
    assert!(why.contains("never recorded"), "the journal is read before the request: {why}");
    running.pauses(&run, "token-1").await;
    let subject = caller.answers(running.manager(), &run).await;
    let (status, answer) = running.ask(Kind::RunAttempt, answering(&subject)).await;
    assert_eq!(status, 200, "{answer}");
    let jwt = &answer["credentials"]["operator"]["jwt"];
    let mut answers = running.rig.connected(&creds_of(jwt, &operator)).await;
    let row = |token: &str| {
        Names::kv_subject(&running.names().records_bucket(), &format!("answer.manager.{token}.a1"))
    };
    answers.try_publish(&row("token-1"), b"{}").await.unwrap();
    answers.try_publish(&row("token-2"), b"{}").await.expect_err("another pause");

    running.recorded(&run, "completed", 2, 2, TAKEOVER).await;
    let why = running
        .refused(403, Kind::RunAttempt, json!({ "attempt": Running::attempt(&run, 3, 3, &both) }))
        .await;
    assert!(why.contains("attempted no more"), "{why}");
    running.rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_revoked_or_cancelled_is_issued_nothing_more() {
    let running = Running::start().await;
    let mut caller = running.caller().await;
    let (revoked, cancelled) = (running.admitted(&mut caller).await, running.admitted(&mut caller).await);
    let both = keys();
    let attempt = |run: &RunId| json!({ "attempt": Running::attempt(run, 1, 1, &both) });
    for run in [&revoked, &cancelled] {
        assert_eq!(running.ask(Kind::RunAttempt, attempt(run)).await.0, 200);
    }

    // Nobody else's run, and nobody but its owner and an admin.
    let revoke = |run: &RunId, reason: &str| json!({ "revoke": { "runId": run, "reason": reason } });
    running.refused(403, Kind::RunRevoke, revoke(&run_id(), "x")).await;
    running.rig.stage.grant_human("bob", "cli", &["supervise"], &["general"]);
    let request = running.manager().proved(Kind::RunRevoke, &running.proved, &revoke(&revoked, "x"));
    assert_eq!(running.rig.send("bob", &request).await.0, 403);
    let (status, answer) = running.ask(Kind::RunRevoke, revoke(&revoked, "no longer wanted")).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunRevocationResult::parse_revoke(&es(&answer)).unwrap();
    assert_eq!(result.revocation.by, format!("{}.cli", running.manager().owner));
    let (_, again) = running.ask(Kind::RunRevoke, revoke(&revoked, "another reason")).await;
    assert_eq!(again["revocation"], answer["revocation"], "the first one stays");
    let why = running.refused(403, Kind::RunAttempt, attempt(&revoked)).await;
    assert!(why.contains("revoked"), "{why}");
    // Nor is its driver renewed, though its record still runs.
    running.recorded(&revoked, "running", 1, 1, TAKEOVER).await;
    let request = running.renews(&running.proved, &revoked, TAKEOVER, &both);
    let (status, answer) = running.rig.send(PERSON, &request).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("revoked"), "{answer}");

    // A cancellation is its caller's own.
    let cancel = |run: &RunId, subject: &str| json!({ "cancel": { "runId": run, "subject": subject } });
    let unseen = caller.asks.subject(&running.manager().instance, RUN_CANCEL);
    running.refused(403, Kind::RunCancel, cancel(&cancelled, &unseen)).await;
    let subject = caller.ask(running.manager(), RUN_CANCEL, &json!({ "runId": cancelled })).await;
    let (status, answer) = running.ask(Kind::RunCancel, cancel(&cancelled, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    RunRevocationResult::parse_cancel(&es(&answer)).unwrap();
    let stored = running.row(&running.admissions(), &format!("revoked.v1.manager.{cancelled}")).await;
    assert_eq!((&stored, &stored["by"]), (&answer["revocation"], &json!(caller.asks.principal.key())));
    running.refused(403, Kind::RunCancel, cancel(&cancelled, &subject)).await;
    running.refused(403, Kind::RunAttempt, attempt(&cancelled)).await;
    running.rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_submission_id_is_one_run_however_often_it_is_submitted() {
    let running = Running::start().await;
    let mut caller = running.caller().await;
    let submit = |id: &str, run: &RunId, subject: &str| json!({ "submission": { "submissionId": id, "runId": run, "subject": subject } });
    let args = json!({ "submissionId": "nightly", "program": "x" });
    let (first, second) = (run_id(), run_id());
    let subject = caller.ask(running.manager(), RUN_SUBMIT, &args).await;
    let (status, answer) = running.ask(Kind::RunSubmission, submit("nightly", &first, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    let result = RunSubmissionResult::parse(&es(&answer)).unwrap();
    assert_eq!((&result.run_id, result.created), (&first, true));

    let subject = caller.ask(running.manager(), RUN_SUBMIT, &args).await;
    let (status, answer) = running.ask(Kind::RunSubmission, submit("nightly", &second, &subject)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["runId"], &answer["created"]), (&json!(first), &json!(false)));
    let admissions = running.admissions();
    assert_eq!(running.row(&admissions, &format!("admission.v1.manager.{second}")).await, Value::Null);
    assert_eq!(admissions.keys("submission.v1.manager.*").await.unwrap().len(), 1);

    // The manager forwards another id than its caller named; and twice what it forwarded once.
    let subject = caller.ask(running.manager(), RUN_SUBMIT, &args).await;
    running.refused(403, Kind::RunSubmission, submit("weekly", &second, &subject)).await;
    running.refused(403, Kind::RunSubmission, submit("nightly", &second, &subject)).await;
    // A keyed run is a run: it is attempted like any other.
    let attempt = json!({ "attempt": Running::attempt(&first, 1, 1, &keys()) });
    assert_eq!(running.ask(Kind::RunAttempt, attempt).await.0, 200);
    running.rig.daemon.stop().await.unwrap();
}
