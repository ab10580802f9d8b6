//! Contract 05 §7.1-7.3: every check of the lifecycle doors, every pair of checks in its order, every answer.

use std::sync::Arc;

use cotal_authority::{
    activation::ActivationFailure,
    retirement::{Retirement, RetirementFailure, RetirementReport},
};
use cotal_wire::{EpCode, EpError, OpId};
use serde_json::{Value, json};

use super::{
    call::{Answer, Call, FaceName},
    rig::{OTHER_ACCOUNT, Rig},
    stand_ins::Plane,
};

const INTERACTIVE: &str = "/interactive-lifecycle/retire";
const MANAGED: &str = "/managed-lifecycle/retire";
const ACTIVATE: &str = "/managed-lifecycle/activate";
const DOORS: [&str; 3] = [INTERACTIVE, MANAGED, ACTIVATE];

const UID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER_UID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";
/// Stands in garbled state and in members of a request; no answer may show it.
const SECRET: &str = "s3cret-marker";

fn post(path: &str, body: impl Into<Vec<u8>>) -> Call {
    Call { target: path.to_owned(), ..Call::exchange(body) }
}

/// The words of a door.
fn words(path: &str) -> (&'static str, &'static str, &'static str) {
    match path {
        INTERACTIVE => {
            ("interactive lifecycle retirement", "loopback operator action", "owner, actor, lifecycleUid")
        }
        MANAGED => ("managed lifecycle retirement", "loopback host action", "owner, actor, lifecycleUid"),
        _ => (
            "managed lifecycle activation",
            "loopback host action",
            "accountPublicKey, owner, actor, lifecycleUid",
        ),
    }
}

/// A rig whose ledger grants `worker` at [`UID`]: interactively for the one door, to be revoked for the other.
async fn rig_for(path: &str) -> (Rig, Value) {
    let rig = Rig::start().await;
    let owner = rig.owner_of("host");
    if path == INTERACTIVE {
        rig.grant_at("host", "worker", UID);
    }
    let mut body = json!({ "owner": owner.as_str(), "actor": "worker", "lifecycleUid": UID });
    if path == ACTIVATE {
        body["accountPublicKey"] = rig.data_account.as_str().into();
    }
    (rig, body)
}

async fn ask(rig: &Rig, path: &str, body: &Value) -> Answer {
    rig.send(FaceName::Loopback, &post(path, body.to_string())).await
}

/// How a good request is broken.
#[derive(Clone)]
enum Break {
    Head(fn(&mut Call)),
    Whole(&'static [u8]),
    TooLarge,
    Member(&'static str, Option<Value>),
    Plane(fn(&Plane)),
    Ledger(fn(&Rig)),
}

impl Break {
    /// Whether it is broken for the next request too.
    fn stays(&self) -> bool {
        matches!(self, Self::Plane(_) | Self::Ledger(_))
    }
}

struct Row {
    what: &'static str,
    how: Break,
    status: u16,
    error: String,
    /// What stands in `outcome`.
    outcome: Option<&'static str>,
}

/// The rows of one door in the contract's order.
fn rows(path: &'static str, rig: &Rig) -> Vec<Row> {
    let (what, whose, members) = words(path);
    let owner = rig.owner_of("host");
    let always = (path == INTERACTIVE).then_some("not-executed");
    let parsed = (path != MANAGED).then_some("not-executed");
    let row = |what, how, status, error: String, outcome| Row { what, how, status, error, outcome };
    let mut rows = vec![
        row("method", Break::Head(|call| call.method = "PUT"), 405, "POST only".into(), always),
        row(
            "origin",
            Break::Head(|call| {
                call.headers.insert("origin".into(), String::new());
            }),
            403,
            "browser-origin requests are not served here".into(),
            always,
        ),
        row(
            "content type",
            Break::Head(|call| {
                call.headers.insert("content-type".into(), "application/jsonx".into());
            }),
            415,
            "content-type must be application/json".into(),
            always,
        ),
        row(
            "capability",
            Break::Head(|call| call.without_cap = true),
            401,
            format!("missing/invalid exchange capability - {what} is a {whose}"),
            always,
        ),
        row("too large", Break::TooLarge, 413, "request body too large (maximum 65536 bytes)".into(), parsed),
        row("not JSON", Break::Whole(b"{"), 400, "request body is not valid JSON".into(), parsed),
        row("no object", Break::Whole(b"[]"), 400, format!("{what} needs {{ {members} }}"), parsed),
        row(
            "unknown member",
            Break::Member("force", Some(true.into())),
            400,
            format!("{what} carries the unknown field \"force\""),
            parsed,
        ),
    ];
    let no_text = format!("{what} needs string {{ {members} }}");
    for member in members.split(", ") {
        rows.push(row("a member is absent", Break::Member(member, None), 400, no_text.clone(), parsed));
        rows.push(row(
            "a member is no string",
            Break::Member(member, Some(7.into())),
            400,
            no_text.clone(),
            parsed,
        ));
    }
    for (member, bad, says) in [
        ("accountPublicKey", SECRET, "not a valid account nkey: the role's letter followed by 55 of A-Z 2-7"),
        ("owner", "local", "not a valid derived owner"),
        ("actor", "a.b", "not a valid actor"),
        ("lifecycleUid", "short", "not a valid lifecycle uid: 26 to 32 of a-z 0-9"),
    ] {
        if members.contains(member) {
            let how = Break::Member(member, Some(bad.into()));
            rows.push(row(
                "a member is outside its grammar",
                how,
                400,
                format!("{what}: {member} is {says}"),
                parsed,
            ));
        }
    }
    match path {
        INTERACTIVE => {
            rows.push(row(
                "the ledger is broken",
                Break::Ledger(|rig| rig.spoil_row("actors", "host", "worker", SECRET)),
                500,
                "internal server error".into(),
                always,
            ));
            rows.push(row(
                "not granted",
                Break::Ledger(|rig| rig.revoke_human("host", "worker")),
                404,
                format!("interactive actor \"{owner}/worker\" is not granted"),
                always,
            ));
            rows.push(row(
                "granted at another uid",
                Break::Ledger(|rig| rig.grant_at("host", "worker", OTHER_UID)),
                409,
                format!(
                    "interactive actor \"{owner}/worker\" is granted at lifecycle {OTHER_UID}, not at {UID}"
                ),
                always,
            ));
            rows.push(row("fenced", Break::Plane(Plane::fence), 503, "the plane is closed".into(), always));
        }
        MANAGED => {
            rows.push(row("fenced", Break::Plane(Plane::fence), 500, "internal server error".into(), None));
            rows.push(row(
                "the ledger is broken",
                Break::Ledger(|rig| rig.spoil_row("managed-actors", "host", "worker", SECRET)),
                500,
                "internal server error".into(),
                None,
            ));
            rows.push(row(
                "still granted",
                Break::Ledger(|rig| rig.grant_agent_at("host", "worker", UID)),
                409,
                format!(
                    "managed actor \"{owner}/worker\" is still granted at lifecycle {UID}; revoke the grant first"
                ),
                None,
            ));
        }
        _ => {
            rows.push(row(
                "another account",
                Break::Member("accountPublicKey", Some(OTHER_ACCOUNT.into())),
                403,
                "managed lifecycle activation: accountPublicKey is not the data account that this service is \
                 assigned; ask the service of that account"
                    .into(),
                parsed,
            ));
            rows.push(row("fenced", Break::Plane(Plane::fence), 503, "the plane is closed".into(), parsed));
        }
    }
    rows
}

/// The good request, broken; `None` when the breaks cannot be told apart in one request.
fn broken(path: &str, good: &Value, rig: &Rig, breaks: &[&Break]) -> Option<Call> {
    let mut body = good.clone();
    let (mut whole, mut touched, mut on_disk) = (None, Vec::new(), false);
    for how in breaks {
        match how {
            Break::Member(member, value) => {
                if touched.contains(member) {
                    return None;
                }
                touched.push(member);
                match value {
                    Some(value) => body[member] = value.clone(),
                    None => drop(body.as_object_mut().unwrap().remove(*member)),
                }
            }
            Break::Whole(bytes) if whole.is_none() => whole = Some(bytes.to_vec()),
            Break::TooLarge if whole.is_none() => whole = Some(vec![b' '; 65_537]),
            Break::Whole(_) | Break::TooLarge => return None,
            Break::Ledger(_) if on_disk => return None,
            Break::Ledger(_) => on_disk = true,
            Break::Plane(_) | Break::Head(_) => {}
        }
    }
    if whole.is_some() && !touched.is_empty() {
        return None;
    }
    let mut call = post(path, whole.unwrap_or_else(|| body.to_string().into_bytes()));
    for how in breaks {
        match how {
            Break::Head(change) => change(&mut call),
            Break::Ledger(change) => change(rig),
            Break::Plane(change) => change(&rig.plane),
            Break::Whole(_) | Break::TooLarge | Break::Member(..) => {}
        }
    }
    Some(call)
}

fn starts_like(answer: &Answer, row: &Row) -> bool {
    answer.status == row.status && answer.error().starts_with(&row.error)
}

#[tokio::test]
async fn every_check_of_a_door_refuses_with_its_own_status_sentence_and_outcome() {
    for path in DOORS {
        let (probe, _) = rig_for(path).await;
        for at in 0..rows(path, &probe).len() {
            let (rig, good) = rig_for(path).await;
            let row = &rows(path, &rig)[at];
            let answer = rig.send(FaceName::Loopback, &broken(path, &good, &rig, &[&row.how]).unwrap()).await;
            let at = format!("{path}: {}: {}", row.what, answer.text);
            assert!(starts_like(&answer, row), "{at} is not {} {}", row.status, row.error);
            let body = answer.json();
            assert_eq!(body["outcome"].as_str(), row.outcome, "{at}");
            let members: Vec<&String> = body.as_object().unwrap().keys().collect();
            let code = usize::from((path, row.what) == (ACTIVATE, "fenced"));
            assert_eq!(members.len(), 1 + usize::from(row.outcome.is_some()) + code, "{at}");
            assert!(!answer.text.contains(SECRET) && !answer.text.contains(rig.cap.expose()), "{at}");
            assert!(rig.plane.asked().is_empty(), "{at}: a refusal reached the plane");
        }
    }
}

#[tokio::test]
async fn of_two_broken_checks_of_a_door_the_earlier_one_answers() {
    let mut pairs = 0;
    for path in DOORS {
        let (mut rig, mut good) = rig_for(path).await;
        let count = rows(path, &rig).len();
        for first in 0..count {
            for second in first + 1..count {
                let rows = rows(path, &rig);
                let (first, second) = (&rows[first], &rows[second]);
                if second.error == first.error {
                    continue;
                }
                let Some(call) = broken(path, &good, &rig, &[&first.how, &second.how]) else { continue };
                let answer = rig.send(FaceName::Loopback, &call).await;
                assert!(
                    starts_like(&answer, first),
                    "{path}: {} and {}: {}",
                    first.what,
                    second.what,
                    answer.text
                );
                pairs += 1;
                if first.how.stays() || second.how.stays() {
                    (rig, good) = rig_for(path).await;
                }
            }
        }
    }
    assert!(pairs > 250, "{pairs} pairs were told apart");
}

#[tokio::test]
async fn a_retirement_is_answered_by_what_it_came_to_and_by_nothing_more() {
    for path in [INTERACTIVE, MANAGED] {
        let (rig, good) = rig_for(path).await;
        let report = RetirementReport { revoked_rows: 3, ..RetirementReport::default() };
        let op = OpId::parse(UID).unwrap();
        for (came_to, text) in [
            (
                Retirement::NotStarted,
                format!("{{\"retired\":false,\"lifecycleUid\":\"{UID}\",\"notStarted\":true}}"),
            ),
            (
                Retirement::AlreadyRetired,
                format!("{{\"retired\":true,\"lifecycleUid\":\"{UID}\",\"alreadyRetired\":true}}"),
            ),
            (
                Retirement::Retired { op: op.clone(), report: report.clone() },
                format!("{{\"retired\":true,\"lifecycleUid\":\"{UID}\"}}"),
            ),
        ] {
            rig.plane.retires(Ok(came_to));
            let answer = ask(&rig, path, &good).await;
            assert_eq!((answer.status, answer.text), (200, text), "{path}");
        }
        let asked = if path == INTERACTIVE { "interactive" } else { "managed" };
        let who = format!("{asked} {}.worker {UID}", rig.owner_of("host"));
        assert_eq!(rig.plane.asked(), vec![who; 3]);
    }
}

#[tokio::test]
async fn an_interactive_failure_says_not_executed_exactly_when_no_barrier_had_begun() {
    let (rig, good) = rig_for(INTERACTIVE).await;
    for (code, status) in [
        (EpCode::BadRequest, 400),
        (EpCode::Unauthenticated, 401),
        (EpCode::PermissionDenied, 403),
        (EpCode::NotFound, 404),
        (EpCode::Conflict, 409),
        (EpCode::AlreadyExists, 409),
        (EpCode::FailedPrecondition, 412),
        (EpCode::Expired, 412),
        (EpCode::Unimplemented, 501),
        (EpCode::Unavailable, 503),
        (EpCode::Internal, 500),
    ] {
        for began in [false, true] {
            rig.plane.retires(Err(RetirementFailure { error: EpError::new(code, "why"), began }));
            let answer = ask(&rig, INTERACTIVE, &good).await;
            let sentence = if code == EpCode::Internal { "internal server error" } else { "why" };
            let text = if began {
                format!("{{\"error\":\"{sentence}\"}}")
            } else {
                format!("{{\"error\":\"{sentence}\",\"outcome\":\"not-executed\"}}")
            };
            assert_eq!((answer.status, answer.text), (status, text), "{code} {began}");
        }
    }
}

#[tokio::test]
async fn of_a_managed_failure_only_conflict_has_a_status_of_its_own() {
    let (rig, good) = rig_for(MANAGED).await;
    for code in EpCode::ALL {
        for began in [false, true] {
            rig.plane.retires(Err(RetirementFailure { error: EpError::new(code, SECRET), began }));
            let answer = ask(&rig, MANAGED, &good).await;
            let want = if code == EpCode::Conflict {
                (409, format!("{{\"error\":\"{SECRET}\"}}"))
            } else {
                (500, "{\"error\":\"internal server error\"}".to_owned())
            };
            assert_eq!((answer.status, answer.text), want, "{code} {began}");
        }
    }
}

#[tokio::test]
async fn a_managed_grant_at_another_incarnation_does_not_keep_this_one_from_retiring() {
    let (rig, good) = rig_for(MANAGED).await;
    rig.grant_agent_at("host", "worker", OTHER_UID);
    rig.plane.retires(Ok(Retirement::AlreadyRetired));
    assert_eq!(ask(&rig, MANAGED, &good).await.status, 200);
}

#[tokio::test]
async fn an_interactive_row_without_an_incarnation_is_printed_as_missing() {
    let (rig, good) = rig_for(INTERACTIVE).await;
    rig.strip_uid("host", "worker");
    let answer = ask(&rig, INTERACTIVE, &good).await;
    let owner = rig.owner_of("host");
    assert_eq!(
        (answer.status, answer.error()),
        (
            409,
            format!("interactive actor \"{owner}/worker\" is granted at lifecycle <missing>, not at {UID}")
        )
    );
}

#[tokio::test]
async fn a_name_that_no_ledger_can_hold_is_not_granted() {
    let (rig, mut good) = rig_for(INTERACTIVE).await;
    good["actor"] = "a".repeat(300).into();
    assert_eq!(ask(&rig, INTERACTIVE, &good).await.status, 404);
}

#[tokio::test]
async fn an_activation_is_answered_with_what_was_asked_for() {
    let (rig, good) = rig_for(ACTIVATE).await;
    let answer = ask(&rig, ACTIVATE, &good).await;
    let (account, owner) = (&rig.data_account, rig.owner_of("host"));
    let text = format!(
        "{{\"accountPublicKey\":\"{account}\",\"owner\":\"{owner}\",\"actor\":\"worker\",\
         \"lifecycleUid\":\"{UID}\",\"activated\":true}}"
    );
    assert_eq!((answer.status, answer.text), (200, text));
    assert_eq!(rig.plane.asked(), [format!("activate {owner}.worker {UID}")]);
}

#[tokio::test]
async fn a_native_activation_failure_returns_its_code_its_details_and_its_outcome() {
    let (rig, good) = rig_for(ACTIVATE).await;
    let detail = json!({"kind": "ai.cotal.ep.lifecycle-blocked"});
    for (error, began, status, text) in [
        (
            EpError::new(EpCode::AlreadyExists, "active elsewhere"),
            false,
            409,
            r#"{"error":"active elsewhere","code":"already-exists","outcome":"not-executed"}"#.to_owned(),
        ),
        (
            EpError::failed_precondition("held").with_detail(detail.clone()),
            true,
            412,
            format!(
                r#"{{"error":"held","code":"failed-precondition","details":[{detail}],"outcome":"unknown"}}"#
            ),
        ),
        (
            EpError::internal(SECRET),
            true,
            500,
            r#"{"error":"internal server error","code":"internal","outcome":"unknown"}"#.to_owned(),
        ),
    ] {
        rig.plane.activates(Err(ActivationFailure { error, began }));
        let answer = ask(&rig, ACTIVATE, &good).await;
        assert_eq!((answer.status, answer.text), (status, text));
    }
}

#[tokio::test]
async fn an_activation_that_dies_is_unknown_and_never_success() {
    let (rig, good) = rig_for(ACTIVATE).await;
    rig.plane.dies();
    let answer = ask(&rig, ACTIVATE, &good).await;
    assert_eq!(
        (answer.status, answer.text.as_str()),
        (500, r#"{"error":"internal server error","outcome":"unknown"}"#)
    );
}

#[tokio::test]
async fn no_refusal_of_a_door_spends_a_window_and_no_full_window_masks_a_door() {
    let (rig, good) = rig_for(INTERACTIVE).await;
    for _ in 0..40 {
        let mut call = post(INTERACTIVE, good.to_string());
        call.without_cap = true;
        assert_eq!(rig.send(FaceName::Loopback, &call).await.status, 401);
        assert_eq!(ask(&rig, INTERACTIVE, &json!([])).await.status, 400);
    }
    let mut call = Call::exchange("{}");
    call.without_cap = true;
    assert_eq!(rig.send(FaceName::Loopback, &call).await.status, 401, "the capability window is not spent");
    let no_object = Call::exchange("[]");
    let refused = || rig.send(FaceName::Loopback, &no_object);
    for _ in 0..30 {
        assert_eq!(refused().await.status, 400, "the refusal window is not spent");
    }
    assert_eq!(refused().await.status, 429);
    assert_eq!(ask(&rig, INTERACTIVE, &json!([])).await.status, 400);
}

#[tokio::test]
async fn the_public_face_has_no_door() {
    let (rig, good) = rig_for(INTERACTIVE).await;
    for path in DOORS {
        let mut call = post(path, good.to_string());
        call.headers.insert("authorization".into(), format!("Bearer {}", rig.cap.expose()));
        assert_eq!(rig.send(FaceName::Public, &call).await.status, 404, "{path}");
    }
    assert!(rig.plane.asked().is_empty());
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_stop_a_retirement() {
    let (rig, good) = rig_for(MANAGED).await;
    let plane = Arc::clone(&rig.plane);
    plane.hold.arm();
    let call = rig.with_cap(post(MANAGED, good.to_string()));
    let mut stream = tokio::net::TcpStream::connect(rig.addr(FaceName::Loopback)).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &call.to_bytes()).await.unwrap();
    plane.hold.reached().await;
    drop(stream);
    plane.hold.release();
    plane.finished().await;
}
