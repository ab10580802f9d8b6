//! Results are written and read in one shape, and bound to what was asked.

use serde_json::{Value, json};

use super::*;

const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const UID: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";

fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

fn request(kind: Kind, more: &Value) -> Value {
    let id = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
    let mut request = json!({
        "v": 1, "kind": kind.as_str(), "space": "main", "actor": "cli", "instanceId": "a".repeat(26),
        "managerLifecycleUid": "c".repeat(26), "requestId": "r".repeat(22),
        "registrationProof": format!("sha256:{}", "0".repeat(64)), "serveEpoch": 3,
        "identities": {
            "supervisor": id("A"), "executor": id("B"), "serve": id("C"), "goalWriter": id("D"),
            "sessionLedger": id("E"),
        },
    });
    for (member, value) in more.as_object().unwrap() {
        request[member] = value.clone();
    }
    request
}

fn owner() -> Owner {
    Owner::parse(OWNER).unwrap()
}

fn target() -> Value {
    json!({ "owner": OWNER, "actor": "worker", "lifecycleUid": UID })
}

fn enrollment() -> (EnrollmentRequest, EnrollmentResult) {
    let target = json!({ "target": { "actor": "worker", "tokenHash": "0".repeat(64) } });
    let request = EnrollmentRequest::parse(&es(&request(Kind::Enrollment, &target))).unwrap();
    let material = AgentMaterial {
        owner: owner(),
        actor: Actor::parse("worker").unwrap(),
        lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
        sentinel_creds: "creds".to_owned(),
        subscribe: vec![],
        allow_subscribe: ChannelPattern::parse_all(&["team.>"]).unwrap(),
        allow_publish: vec![],
        agent_bearer_exchange_url: "https://auth.example".to_owned(),
    };
    let result = EnrollmentResult::answer(&request, &owner(), material);
    (request, result)
}

fn preparation() -> PrepareRetirementResult {
    let op = OpId::managed_retirement(&LifecycleUid::parse(UID).unwrap());
    let more = json!({ "target": target(), "opId": op });
    let request = PrepareRetirementRequest::parse(&es(&request(Kind::PrepareRetirement, &more))).unwrap();
    PrepareRetirementResult::answer(&request, &owner())
}

fn retained() -> RetainedAgentResult {
    let more = json!({ "target": target(), "actorToken": "t", "sentinelCreds": "s" });
    let request = es(&request(Kind::RetainedAgentValidation, &more));
    let request = RetainedAgentRequest::parse(&request, HolderKind::Human).unwrap();
    let authority = RetainedAuthority {
        owner: owner(),
        actor: Actor::parse("worker").unwrap(),
        lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
        scope: vec!["spawn".to_owned()],
        allow_subscribe: vec![],
        allow_publish: vec![],
        role: None,
        parent: Some(Principal::parse_key(&format!("{OWNER}.cli")).unwrap()),
    };
    RetainedAgentResult::answer(&request, &owner(), authority)
}

const ECHOED: &str = "\"space\":\"main\",\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"cli\",\
    \"instanceId\":\"aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"managerLifecycleUid\":\"cccccccccccccccccccccccccc\",\
    \"requestId\":\"rrrrrrrrrrrrrrrrrrrrrr\"";
const AGENT: &str = "\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"worker\",\
    \"lifecycleUid\":\"bbbbbbbbbbbbbbbbbbbbbbbbbb\"";

#[test]
fn results_are_written_in_the_contracts_order_and_read_back() {
    let proof = format!("sha256:{}", "0".repeat(64));
    let (_, enrolled) = enrollment();
    let text = serde_json::to_string(&enrolled).unwrap();
    assert_eq!(
        text,
        format!(
            "{{\"v\":1,\"kind\":\"manager-managed-agent-enrollment\",{ECHOED},\"registrationProof\":\"{proof}\",\
             \"serveEpoch\":3,\"material\":{{{AGENT},\"sentinelCreds\":\"creds\",\"subscribe\":[],\
             \"allowSubscribe\":[\"team.>\"],\"allowPublish\":[],\
             \"agentBearerExchangeUrl\":\"https://auth.example\"}}}}"
        )
    );
    assert_eq!(EnrollmentResult::parse(&EsValue::parse(text.as_bytes()).unwrap()).unwrap(), enrolled);

    let text = serde_json::to_string(&preparation()).unwrap();
    let op = OpId::managed_retirement(&LifecycleUid::parse(UID).unwrap());
    assert_eq!(
        text,
        format!(
            "{{\"v\":1,\"kind\":\"manager-managed-agent-prepare-retirement\",{ECHOED},\"target\":{{{AGENT}}},\
             \"opId\":\"{op}\",\"prepared\":true}}"
        )
    );
    let read = PrepareRetirementResult::parse(&EsValue::parse(text.as_bytes()).unwrap());
    assert_eq!(read.unwrap(), preparation());

    let text = serde_json::to_string(&retained()).unwrap();
    assert_eq!(
        text,
        format!(
            "{{\"v\":1,\"kind\":\"manager-retained-agent-validation\",{ECHOED},\"registrationProof\":\"{proof}\",\
             \"serveEpoch\":3,\"target\":{{{AGENT}}},\"authority\":{{{AGENT},\"scope\":[\"spawn\"],\
             \"allowSubscribe\":[],\"allowPublish\":[],\"parent\":\"{OWNER}.cli\"}}}}"
        )
    );
    let read = RetainedAgentResult::parse(&EsValue::parse(text.as_bytes()).unwrap(), HolderKind::Human);
    assert_eq!(read.unwrap(), retained());
}

#[test]
fn a_reserved_runtime_is_shown_and_nothing_else_is() {
    let (_, mut enrolled) = enrollment();
    enrolled.runtime_intent = Some(RuntimeIntent::Reserved);
    let mut answer = serde_json::to_value(&enrolled).unwrap();
    assert_eq!(answer["runtimeIntent"], json!({ "state": "reserved" }));
    assert_eq!(EnrollmentResult::parse(&es(&answer)).unwrap(), enrolled);
    for bad in [json!(null), json!({}), json!({ "state": "bound" }), json!({ "state": "reserved", "at": 1 })]
    {
        answer["runtimeIntent"] = bad.clone();
        assert!(EnrollmentResult::parse(&es(&answer)).is_err(), "{bad}");
    }
}

/// Every member that is missing, `null`, of another type, or one too many is refused.
#[test]
fn a_result_is_closed() {
    type Parse = fn(&EsValue) -> Result<(), EpError>;
    let (_, enrolled) = enrollment();
    let results: [(&str, Value, Parse); 3] = [
        ("enrollment", serde_json::to_value(enrolled).unwrap(), |es| EnrollmentResult::parse(es).map(drop)),
        ("preparation", serde_json::to_value(preparation()).unwrap(), |es| {
            PrepareRetirementResult::parse(es).map(drop)
        }),
        ("validation", serde_json::to_value(retained()).unwrap(), |es| {
            RetainedAgentResult::parse(es, HolderKind::Human).map(drop)
        }),
    ];
    for (what, result, parse) in results {
        parse(&es(&result)).unwrap();
        for path in ["", "/material", "/authority", "/target"] {
            let Some(object) = result.pointer(path).and_then(Value::as_object).cloned() else { continue };
            for member in object.keys().map(String::as_str).chain(["more"]) {
                for bad in [None, Some(Value::Null), Some(json!(7.5)), Some(json!({}))] {
                    let mut broken = result.clone();
                    let at = broken.pointer_mut(path).unwrap().as_object_mut().unwrap();
                    let changed = match &bad {
                        None => at.remove(member).is_some() && member != "parent",
                        Some(bad) => {
                            at.insert(member.to_owned(), bad.clone());
                            true
                        }
                    };
                    if changed {
                        let refused = parse(&es(&broken)).is_err();
                        assert!(refused, "{what}{path}: {member} as {bad:?} is read");
                    }
                }
            }
        }
    }
}

/// An answer in which any one thing was changed is the answer to nothing.
#[test]
fn an_answer_is_bound_to_every_coordinate_of_its_request() {
    let (request, enrolled) = enrollment();
    let answer = serde_json::to_value(&enrolled).unwrap();
    assert_eq!(EnrollmentResult::bind(&es(&answer), &request, &owner()).unwrap(), enrolled);
    let other = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";
    for (path, other) in [
        ("/space", json!("other")),
        ("/owner", json!(other)),
        ("/actor", json!("other")),
        ("/instanceId", json!("d".repeat(26))),
        ("/managerLifecycleUid", json!("d".repeat(26))),
        ("/requestId", json!("s".repeat(22))),
        ("/registrationProof", json!(format!("sha256:{}", "1".repeat(64)))),
        ("/serveEpoch", json!(4)),
        ("/material/owner", json!(other)),
        ("/material/actor", json!("other")),
        ("/material/subscribe", json!(["general"])),
    ] {
        let mut changed = answer.clone();
        *changed.pointer_mut(path).unwrap() = other;
        assert!(EnrollmentResult::bind(&es(&changed), &request, &owner()).is_err(), "{path}");
    }
    assert!(EnrollmentResult::bind(&es(&answer), &request, &Owner::parse(other).unwrap()).is_err());
}

#[test]
fn the_sentinel_is_not_printed() {
    let (_, enrolled) = enrollment();
    assert!(!format!("{enrolled:?}").contains("creds\""), "{enrolled:?}");
}
