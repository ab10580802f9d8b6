//! Contract 05 §4.2: every row, and every pair of rows in its order.

use serde_json::{Map, Value, json};

use super::{
    call::{BOTH, Call, FaceName},
    rig::Rig,
};

/// How a good exchange is broken.
#[derive(Clone)]
enum Break {
    /// The head.
    Head(fn(&mut Call)),
    /// The whole body.
    Body(fn() -> Vec<u8>),
    /// Some members of the body.
    Members(Value),
}

struct Row {
    what: &'static str,
    only: Option<FaceName>,
    how: Break,
    status: u16,
    error: &'static str,
}

fn rows() -> Vec<Row> {
    let row = |what, how, status, error| Row { what, only: None, how, status, error };
    vec![
        row("method", Break::Head(|call| call.method = "PUT"), 405, "POST only"),
        row(
            "origin",
            Break::Head(|call| {
                call.headers.insert("origin".into(), String::new());
            }),
            403,
            "browser-origin requests are not served here",
        ),
        row(
            "content type",
            Break::Head(|call| {
                call.headers.insert("content-type".into(), "Application/json".into());
            }),
            415,
            "content-type must be application/json",
        ),
        Row {
            only: Some(FaceName::Loopback),
            ..row(
                "capability",
                Break::Head(|call| call.without_cap = true),
                401,
                "missing/invalid exchange capability - read it from the space's auth-service.json",
            )
        },
        row(
            "too large",
            Break::Body(|| vec![b' '; 65_537]),
            413,
            "request body too large (maximum 65536 bytes)",
        ),
        row("not JSON", Break::Body(|| b"{".to_vec()), 400, "request body is not valid JSON"),
        row("no object", Break::Body(|| b"[]".to_vec()), 400, "exchange body must be a JSON object"),
        row(
            "session pair",
            Break::Members(json!({"sessionGrant": null})),
            400,
            "view \"session-caller\" and sessionGrant come together or not at all",
        ),
        row(
            "transfer pair",
            Break::Members(json!({"transferWriter": null})),
            400,
            "view \"transfer-writer\" and transferWriter come together or not at all",
        ),
        row("ttl", Break::Members(json!({"ttlSec": null})), 400, "ttlSec must be a number"),
        row("view type", Break::Members(json!({"view": null})), 400, "view must be a string when present"),
        row(
            "instance type",
            Break::Members(json!({"managerInstanceId": null})),
            400,
            "managerInstanceId must be a string when present",
        ),
        row(
            "instance view",
            Break::Members(json!({"managerInstanceId": "x"})),
            400,
            "managerInstanceId is valid only with view \"manager-caller\"",
        ),
        Row {
            only: Some(FaceName::Public),
            ..row(
                "view not public",
                Break::Members(json!({"view": "admin"})),
                403,
                "elevated views are a loopback operator surface - the public exchange never serves them",
            )
        },
        row(
            "both proofs",
            Break::Members(json!({"idpToken": null})),
            400,
            "exchange takes idpToken (human) OR owner+actorToken (agent), never both",
        ),
        row(
            "agent view",
            Break::Members(json!({"view": "channel-writer"})),
            400,
            "the managed (agent-secret) exchange never mints elevated views - views ride a signed-in human exchange",
        ),
        row(
            "agent members",
            Break::Members(json!({"owner": ""})),
            400,
            "agent exchange needs { owner: string, actor: string, actorToken: string, ttlSec?: number }",
        ),
    ]
}

/// A good agent exchange, broken; `None` when the two breaks cannot be told apart in one request.
fn broken(good: &Value, breaks: &[&Break]) -> Option<Call> {
    let mut members = good.as_object().cloned().unwrap_or_default();
    let mut changed = Map::new();
    let mut whole = None;
    for how in breaks {
        match how {
            Break::Members(new) => {
                for (name, value) in new.as_object().into_iter().flatten() {
                    if changed.insert(name.clone(), value.clone()).is_some() {
                        return None;
                    }
                    members.insert(name.clone(), value.clone());
                }
            }
            Break::Body(bytes) if whole.is_none() => whole = Some(bytes()),
            Break::Body(_) => return None,
            Break::Head(_) => {}
        }
    }
    if whole.is_some() && !changed.is_empty() {
        return None;
    }
    let mut call = Call::exchange(whole.unwrap_or_else(|| Value::Object(members).to_string().into_bytes()));
    for how in breaks {
        if let Break::Head(change) = how {
            change(&mut call);
        }
    }
    Some(call)
}

#[tokio::test]
async fn every_row_of_the_exchange_refuses_with_its_own_status_and_sentence() {
    let rig = Rig::start().await;
    let good = rig.agent();
    for face in BOTH {
        assert_eq!(rig.exchange(face, &good).await.status, 200, "{face:?}");
        for row in rows().iter().filter(|row| row.only.is_none_or(|only| only == face)) {
            let answer = rig.send(face, &broken(&good, &[&row.how]).unwrap()).await;
            assert_eq!(
                (answer.status, answer.error().as_str()),
                (row.status, row.error),
                "{face:?} {}",
                row.what
            );
            assert_eq!(answer.text, json!({"error": row.error}).to_string(), "compact, and nothing else");
            assert_eq!(answer.headers["content-type"], "application/json");
            assert!(!answer.headers.contains_key("allow"));
            assert!(answer.headers.keys().all(|name| !name.starts_with("access-control")));
        }
    }
}

#[tokio::test]
async fn of_two_broken_rules_the_earlier_one_answers() {
    let rig = Rig::start().await;
    let good = rig.agent();
    let rows = rows();
    let mut pairs = 0;
    for face in BOTH {
        let served: Vec<&Row> = rows.iter().filter(|row| row.only.is_none_or(|only| only == face)).collect();
        for (at, first) in served.iter().enumerate() {
            for second in &served[at + 1..] {
                let Some(call) = broken(&good, &[&first.how, &second.how]) else { continue };
                let answer = rig.send(face, &call).await;
                // A minute later, so that no budget fills.
                rig.clock.advance_ms(60_001);
                assert_eq!(answer.error(), first.error, "{face:?}: {} and {}", first.what, second.what);
                pairs += 1;
            }
        }
    }
    assert!(pairs > 150, "{pairs} pairs were told apart");
}

#[tokio::test]
async fn only_the_exact_request_target_is_a_route() {
    let rig = Rig::start().await;
    for face in BOTH {
        let paths = match face {
            FaceName::Loopback => {
                "/health, /jwks, /exchange, /manager-service-authority, /manager-instances, \
                 /manager-service-authority/verify-enrollment, /interactive-lifecycle/retire, \
                 /managed-lifecycle/retire, /managed-lifecycle/activate"
            }
            FaceName::Public => {
                "/health, /jwks, /exchange, /manager-service-authority, /manager-instances, \
                 /.well-known/cotal-mesh"
            }
        };
        for target in [
            "/",
            "/health?",
            "/health?x=1",
            "/health/",
            "//health",
            "/Health",
            "/%68ealth",
            "http://127.0.0.1/health",
            "/exchange/",
            "/__proto__",
            "/manager-instances?",
            "/chat-session/open",
            "/interactive-lifecycle/retire?",
            "/managed-lifecycle/activate/",
            "/manager-service-authority?",
            "/manager-service-authority/",
            "/manager-service-authority/verify-enrollment?",
            "/tool-result-consent/issue",
        ] {
            let answer = rig.send(face, &Call::get(target)).await;
            assert_eq!(
                (answer.status, answer.error()),
                (404, format!("unknown path - {paths}")),
                "{face:?} {target}"
            );
        }
    }
    let mesh = Call::get("/.well-known/cotal-mesh");
    assert_eq!(rig.send(FaceName::Loopback, &mesh).await.status, 404, "the bundle is public only");
    assert_eq!(rig.send(FaceName::Public, &mesh).await.text, r#"{"space":"demo"}"#);
}

#[tokio::test]
async fn health_checks_the_method_on_the_public_face_only() {
    let rig = Rig::start().await;
    let delete = Call { method: "DELETE", ..Call::get("/health") };
    let answer = rig.send(FaceName::Loopback, &delete).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, r#"{"ok":true,"issuer":"urn:cotal:auth:demo"}"#));
    let answer = rig.send(FaceName::Public, &delete).await;
    assert_eq!((answer.status, answer.error().as_str()), (405, "GET only"));
    let mut with_origin = Call::get("/health");
    with_origin.headers.insert("origin".into(), "https://x.example".into());
    assert_eq!(rig.send(FaceName::Public, &with_origin).await.status, 200, "a GET accepts an origin");
}

#[tokio::test]
async fn jwks_is_the_key_set_with_its_cache_time_and_refuses_head() {
    let rig = Rig::start().await;
    for face in BOTH {
        let answer = rig.send(face, &Call::get("/jwks")).await;
        assert_eq!(answer.text, rig.issuer.jwks());
        assert_eq!(answer.headers["cache-control"], "max-age=300");
        let head = rig.send(face, &Call { method: "HEAD", ..Call::get("/jwks") }).await;
        assert_eq!(head.status, 405, "{face:?}");
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_bound_is_read_and_a_larger_one_is_drained_to_its_end() {
    let rig = Rig::start().await;
    let mut good = rig.agent().to_string();
    good.push_str(&" ".repeat(65_536 - good.len()));
    for face in BOTH {
        assert_eq!(rig.send(face, &Call::exchange(good.clone())).await.status, 200, "{face:?}");
        let answer = rig.send(face, &Call::exchange(vec![b' '; 3 * 1024 * 1024])).await;
        assert_eq!(answer.status, 413, "{face:?}: the answer arrives after three megabytes were read");
    }
}

#[tokio::test]
async fn a_refusal_before_the_body_still_reaches_a_client_that_sends_all_of_it() {
    let rig = Rig::start().await;
    let mut call = Call::exchange(vec![b' '; 512 * 1024]);
    call.headers.insert("origin".into(), "https://x.example".into());
    for face in BOTH {
        assert_eq!(rig.send(face, &call).await.status, 403, "{face:?}");
    }
}
