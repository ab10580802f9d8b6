//! Contract 06 §2 and 05 §3.5: every check of the route in its order, every status, and what the budget sees of it.

use cotal_authority::manager::Holder;
use cotal_wire::{EpCode, EpError, Owner};
use serde_json::{Value, json};

use super::{
    call::{Answer, BOTH, Call, FaceName, THROTTLED},
    rig::Rig,
};

const PATH: &str = "/manager-service-authority";
const NEEDS: &str = "manager-service authority needs { idpToken, request }";
const REQUEST_OBJECT: &str = "manager-service authority request must be an object";
const REQUEST_ACTOR: &str = "manager-service authority request requires an actor";

fn call(body: impl Into<Vec<u8>>) -> Call {
    Call { target: PATH.to_owned(), ..Call::exchange(body) }
}

async fn ask(rig: &Rig, face: FaceName, body: &Value) -> Answer {
    rig.send(face, &call(body.to_string())).await
}

/// A rig in which alice supervises, and her good request.
async fn rig() -> (Rig, Value) {
    let rig = Rig::with_people().await;
    rig.grant_human("alice", "cli", &["supervise", "spawn"]);
    let request = json!({"kind": "manager-goal-index-scan", "actor": "cli"});
    let body = json!({"idpToken": rig.proof("alice", 3_600), "request": request});
    (rig, body)
}

fn refuse(rig: &Rig, code: EpCode) {
    rig.authority.answers(Err(EpError::new(code, "the dispatcher says no")));
}

/// How a good request is broken.
#[derive(Clone)]
enum Break {
    Head(fn(&mut Call)),
    Whole(fn() -> Vec<u8>),
    /// A member of the body; `None` leaves it out.
    Member(&'static str, Option<Value>),
    /// The dispatcher refuses.
    Dispatch(EpCode),
}

struct Row {
    what: &'static str,
    only: Option<FaceName>,
    how: Break,
    status: u16,
    /// What the sentence starts with.
    error: &'static str,
    counted: bool,
}

/// The checks in the contract's order.
fn rows() -> Vec<Row> {
    let row = |what, how, status, error, counted| Row { what, only: None, how, status, error, counted };
    vec![
        row("method", Break::Head(|call| call.method = "PUT"), 405, "POST only", false),
        row(
            "origin",
            Break::Head(|call| {
                call.headers.insert("origin".into(), String::new());
            }),
            403,
            "browser-origin requests are not served here",
            false,
        ),
        row(
            "content type",
            Break::Head(|call| {
                call.headers.insert("content-type".into(), "text/plain".into());
            }),
            415,
            "content-type must be application/json",
            false,
        ),
        Row {
            only: Some(FaceName::Loopback),
            ..row(
                "capability",
                Break::Head(|call| call.without_cap = true),
                401,
                "missing/invalid exchange capability - manager-service authority requires the operator exchange \
                 capability on this face",
                false,
            )
        },
        row(
            "too large",
            Break::Whole(|| vec![b' '; 65_537]),
            413,
            "request body too large (maximum 65536 bytes)",
            false,
        ),
        row("not JSON", Break::Whole(|| b"{".to_vec()), 400, "request body is not valid JSON", false),
        row("no proof", Break::Member("idpToken", None), 400, NEEDS, false),
        row("empty proof", Break::Member("idpToken", Some(json!(""))), 400, NEEDS, false),
        row("proof is no text", Break::Member("idpToken", Some(json!(1))), 400, NEEDS, false),
        row("bad proof", Break::Member("idpToken", Some(json!("x.y.z"))), 403, "", true),
        row("no request", Break::Member("request", None), 403, REQUEST_OBJECT, true),
        row("request is no object", Break::Member("request", Some(json!([]))), 403, REQUEST_OBJECT, true),
        row("no actor", Break::Member("request", Some(json!({"kind": 1}))), 403, REQUEST_ACTOR, true),
        row(
            "actor is no text",
            Break::Member("request", Some(json!({"actor": null}))),
            403,
            REQUEST_ACTOR,
            true,
        ),
        row("actor grammar", Break::Member("request", Some(json!({"actor": "a.b"}))), 403, "", true),
        row("no grant", Break::Member("request", Some(json!({"actor": "web"}))), 403, "", true),
        row("conflict", Break::Dispatch(EpCode::Conflict), 409, "the dispatcher says no", true),
        row("bad request", Break::Dispatch(EpCode::BadRequest), 403, "the dispatcher says no", true),
        row("denied", Break::Dispatch(EpCode::PermissionDenied), 403, "the dispatcher says no", true),
    ]
}

/// A good request, broken; `None` when the two breaks cannot stand in one request.
fn broken(rig: &Rig, good: &Value, breaks: &[&Break]) -> Option<Call> {
    let mut body = good.clone();
    let (mut whole, mut changed, mut dispatch) = (None, Vec::new(), None);
    for how in breaks {
        match how {
            Break::Member(name, value) => {
                if changed.contains(name) {
                    return None;
                }
                changed.push(*name);
                match value {
                    Some(value) => body[*name] = value.clone(),
                    None => drop(body.as_object_mut().unwrap().remove(*name)),
                }
            }
            Break::Whole(_) if whole.is_some() => return None,
            Break::Whole(bytes) => whole = Some(bytes()),
            Break::Dispatch(_) if dispatch.is_some() => return None,
            Break::Dispatch(code) => dispatch = Some(*code),
            Break::Head(_) => {}
        }
    }
    rig.authority
        .answers(dispatch.map_or(Ok(json!({})), |code| Err(EpError::new(code, "the dispatcher says no"))));
    let mut call = call(whole.unwrap_or_else(|| body.to_string().into_bytes()));
    for how in breaks {
        if let Break::Head(change) = how {
            change(&mut call);
        }
    }
    Some(call)
}

#[tokio::test]
async fn every_check_refuses_with_its_own_status_and_nothing_else() {
    let (rig, good) = rig().await;
    for face in BOTH {
        for row in rows().iter().filter(|row| row.only.is_none_or(|only| only == face)) {
            let answer = rig.send(face, &broken(&rig, &good, &[&row.how]).unwrap()).await;
            rig.clock.advance_ms(60_001);
            assert_eq!(answer.status, row.status, "{face:?} {}: {}", row.what, answer.text);
            assert!(answer.error().starts_with(row.error), "{face:?} {}: {}", row.what, answer.text);
            assert_eq!(answer.json().as_object().unwrap().len(), 1, "{face:?} {}: {}", row.what, answer.text);
            assert!(!answer.text.contains("x.y.z"), "a proof is repeated");
        }
    }
}

#[tokio::test]
async fn of_two_broken_rules_the_earlier_one_answers() {
    let (rig, good) = rig().await;
    let rows = rows();
    let mut pairs = 0;
    for face in BOTH {
        let served: Vec<&Row> = rows.iter().filter(|row| row.only.is_none_or(|only| only == face)).collect();
        for (at, first) in served.iter().enumerate() {
            let alone = rig.send(face, &broken(&rig, &good, &[&first.how]).unwrap()).await;
            rig.clock.advance_ms(60_001);
            for second in &served[at + 1..] {
                let Some(call) = broken(&rig, &good, &[&first.how, &second.how]) else { continue };
                let answer = rig.send(face, &call).await;
                rig.clock.advance_ms(60_001);
                assert_eq!(
                    (answer.status, answer.error()),
                    (alone.status, alone.error()),
                    "{face:?}: {} and {}",
                    first.what,
                    second.what
                );
                pairs += 1;
            }
        }
    }
    assert!(pairs > 200, "{pairs} pairs were told apart");
}

#[tokio::test]
async fn a_body_that_is_no_object_has_no_proof() {
    let (rig, _) = rig().await;
    for face in BOTH {
        for body in ["null", "[]", "1", "\"x\"", "{}", "{\"request\":{\"actor\":\"cli\"}}"] {
            let answer = rig.send(face, &call(body)).await;
            assert_eq!((answer.status, answer.error().as_str()), (400, NEEDS), "{face:?} {body}");
        }
    }
}

#[tokio::test]
async fn an_authorization_header_never_stands_for_the_proof() {
    let (rig, good) = rig().await;
    rig.authority.answers(Ok(json!({"v": 1})));
    let mut without = call(json!({"request": good["request"]}).to_string());
    without.headers.insert("authorization".into(), format!("Bearer {}", good["idpToken"].as_str().unwrap()));
    assert_eq!(rig.send(FaceName::Public, &without).await.status, 400);
    assert_eq!(rig.send(FaceName::Loopback, &without).await.status, 401);
    let mut with = call(good.to_string());
    with.headers.insert("authorization".into(), "Bearer nonsense".into());
    assert_eq!(rig.send(FaceName::Public, &with).await.status, 200, "the public face does not look at it");
}

#[tokio::test]
async fn what_is_proved_and_granted_reaches_the_dispatcher_as_it_came() {
    let (rig, _) = rig().await;
    let result = json!({"v": 1, "kind": "x", "credentials": {"supervisor": {"jwt": "j", "exp": 1}}});
    rig.authority.answers(Ok(result.clone()));
    // Members in an order, with duplicates and numbers, that a digest would see; and a scope that nobody gave.
    let request = r#"{"kind":"k","scope":["admin"],"actor":"cli","z":1.0,"a":[1e21,-0],"10":1,"2":2,"z":3}"#;
    let body =
        format!(r#"{{"idpToken":"{}","request":{request},"scope":["admin"]}}"#, rig.proof("alice", 60));
    for face in BOTH {
        let answer = rig.send(face, &call(body.clone())).await;
        assert_eq!((answer.status, answer.json()), (200, result.clone()), "{face:?}");
    }
    let holder = Holder::Human {
        owner: Owner::from(rig.owner_of("alice")),
        scope: vec!["spawn".to_owned(), "supervise".to_owned()],
    };
    let text = r#"{"2":2,"10":1,"kind":"k","scope":["admin"],"actor":"cli","z":3,"a":[1e+21,0]}"#;
    for (mut asked, request) in rig.authority.asked() {
        if let Holder::Human { scope, .. } = &mut asked {
            scope.sort();
        }
        assert_eq!((asked, request.as_str()), (holder.clone(), text));
    }
    assert_eq!(rig.authority.asked().len(), 2);
}

#[tokio::test]
async fn the_row_is_read_anew_at_every_request() {
    let (rig, good) = rig().await;
    rig.authority.answers(Ok(json!({})));
    assert_eq!(ask(&rig, FaceName::Public, &good).await.status, 200);
    rig.revoke_human("alice", "cli");
    let refused = ask(&rig, FaceName::Public, &good).await;
    assert_eq!(refused.status, 403);
    assert!(refused.error().contains("is not granted in this space"), "{}", refused.error());
    rig.grant_human("alice", "cli", &[]);
    assert_eq!(ask(&rig, FaceName::Public, &good).await.status, 200);
    let scopes: Vec<_> =
        rig.authority.asked().into_iter().map(|(holder, _)| holder.has("supervise")).collect();
    assert_eq!(scopes, [true, false], "the narrowed row's scope is the only one");
    rig.spoil_row("actors", "alice", "cli", "s3cret-marker");
    let broken = ask(&rig, FaceName::Public, &good).await;
    assert_eq!(broken.status, 403);
    assert!(!broken.text.contains("s3cret-marker"), "{}", broken.text);
}

#[tokio::test]
async fn a_managed_agents_row_is_no_interactive_grant() {
    let (rig, good) = rig().await;
    rig.grant_agent_at("alice", "scout", &"a".repeat(26));
    let mut body = good;
    body["request"]["actor"] = json!("scout");
    let refused = ask(&rig, FaceName::Public, &body).await;
    assert_eq!(refused.status, 403);
    assert!(rig.authority.asked().is_empty());
}

#[tokio::test]
async fn a_conflict_is_409_and_every_other_native_refusal_403() {
    let (rig, good) = rig().await;
    for code in EpCode::ALL {
        refuse(&rig, code);
        for face in BOTH {
            let answer = ask(&rig, face, &good).await;
            rig.clock.advance_ms(60_001);
            assert_eq!(answer.status, if code == EpCode::Conflict { 409 } else { 403 }, "{face:?} {code:?}");
            let told = !matches!(code, EpCode::Internal | EpCode::Unavailable);
            assert_eq!(answer.error() == "the dispatcher says no", told, "{code:?}: {}", answer.error());
        }
    }
}

#[tokio::test]
async fn a_dispatch_that_dies_is_a_500_that_says_nothing_and_the_route_lives() {
    let (rig, good) = rig().await;
    rig.authority.dies();
    for face in BOTH {
        let answer = ask(&rig, face, &good).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (500, r#"{"error":"internal server error"}"#),
            "{face:?}"
        );
        assert_eq!(rig.send(face, &call("{}")).await.status, 400);
    }
}

/// What refuses on this face and is counted.
fn counted(rig: &Rig, good: &Value, face: FaceName) -> Vec<(Call, u16)> {
    let rows = rows();
    let served = rows.iter().filter(|row| row.counted && row.only.is_none_or(|only| only == face));
    served.map(|row| (broken(rig, good, &[&row.how]).unwrap(), row.status)).collect()
}

#[tokio::test]
async fn each_counted_refusal_counts_once_and_what_is_not_counted_never_does() {
    let (rig, good) = rig().await;
    for face in BOTH {
        let rows: Vec<Row> = rows();
        let rows = rows.iter().filter(|row| row.only.is_none_or(|only| only == face));
        for row in rows {
            for n in 0..30 {
                let answer = rig.send(face, &broken(&rig, &good, &[&row.how]).unwrap()).await;
                assert_eq!(
                    answer.status, row.status,
                    "{face:?} {} {n}: the 30th is not masked yet",
                    row.what
                );
            }
            let answer = rig.send(face, &broken(&rig, &good, &[&row.how]).unwrap()).await;
            let wanted = if row.counted { 429 } else { row.status };
            assert_eq!(answer.status, wanted, "{face:?} {}: {}", row.what, answer.text);
            if row.counted {
                assert_eq!(answer.error(), THROTTLED);
            }
            // The exchange of the same face sees what was spent, and nothing else.
            let elsewhere = rig.exchange(face, &json!({"idpToken": "x.y.z", "actor": "cli"})).await;
            assert_eq!(elsewhere.status, if row.counted { 429 } else { 401 }, "{face:?} {}", row.what);
            rig.clock.advance_ms(60_001);
        }
    }
}

#[tokio::test]
async fn the_budget_is_the_exchanges_of_the_same_face_and_no_other_faces() {
    let (rig, good) = rig().await;
    let no_exchange = json!({"idpToken": "x.y.z", "actor": "cli"});
    for (face, other) in [(FaceName::Loopback, FaceName::Public), (FaceName::Public, FaceName::Loopback)] {
        for _ in 0..15 {
            assert_eq!(rig.exchange(face, &no_exchange).await.status, 401);
            refuse(&rig, EpCode::Conflict);
            assert_eq!(ask(&rig, face, &good).await.status, 409);
        }
        for (call, status) in counted(&rig, &good, face) {
            // `broken` set the dispatcher last for the last row; each of them refuses either way.
            refuse(&rig, if status == 409 { EpCode::Conflict } else { EpCode::PermissionDenied });
            assert_eq!(rig.send(face, &call).await.status, 429, "{face:?} {status}");
        }
        rig.authority.answers(Ok(json!({"v": 1})));
        assert_eq!(ask(&rig, face, &good).await.status, 200, "a valid request is served over a full budget");
        assert_eq!(rig.send(face, &call("{}")).await.status, 400, "what is not counted is not masked");
        refuse(&rig, EpCode::PermissionDenied);
        assert_eq!(ask(&rig, other, &good).await.status, 403, "{other:?} has its own budget");
        rig.clock.advance_ms(60_001);
    }
}

#[tokio::test]
async fn the_budget_is_looked_at_before_the_proof_is() {
    let (rig, good) = rig().await;
    for face in BOTH {
        refuse(&rig, EpCode::Conflict);
        for _ in 0..29 {
            assert_eq!(ask(&rig, face, &good).await.status, 409);
        }
        rig.authority.hold.arm();
        let early = ask(&rig, face, &good);
        let meanwhile = async {
            rig.authority.hold.reached().await;
            assert_eq!(ask(&rig, face, &good).await.status, 409, "the 30th fills the budget");
            assert_eq!(ask(&rig, face, &good).await.status, 429);
            rig.authority.hold.release();
        };
        let (early, ()) = tokio::join!(early, meanwhile);
        assert_eq!(early.status, 409, "{face:?}: it came while there was room");
        rig.clock.advance_ms(60_001);
    }
}

#[tokio::test]
async fn a_wrong_capability_goes_to_no_window() {
    let (rig, good) = rig().await;
    let mut wrong = call(good.to_string());
    wrong.headers.insert("authorization".into(), "Bearer nope".into());
    for n in 0..40 {
        assert_eq!(rig.send(FaceName::Loopback, &wrong).await.status, 401, "attempt {n}");
    }
    let mut exchange = Call::exchange("{}");
    exchange.headers.insert("authorization".into(), "Bearer nope".into());
    assert_eq!(
        rig.send(FaceName::Loopback, &exchange).await.status,
        401,
        "the window of the exchange is untouched"
    );
    refuse(&rig, EpCode::PermissionDenied);
    assert_eq!(ask(&rig, FaceName::Loopback, &good).await.status, 403);
}
