//! The delivery-admin rail's bodies: what is sent reads back, and nothing else is read.

#![allow(clippy::unwrap_used, reason = "a test's own constants")]

use cotal_wire::{
    LifecycleUid, Nkey, Principal, Sha256Hex, SpaceToken, User,
    delivery_admin::{
        AdminRequest, Adoption, ConnectionVerdict, EvictionResult, ExpectedCreds, LeaseRow, Liveness,
        MAX_PRINCIPALS, MAX_REQUEST_BYTES, Memberships, PlaneLiveness, PlaneQuery, PrincipalLiveness,
        Reloaded, StoreAnswer, StoreIdentity, answer, parse_reply, refuse,
    },
    rows::PlaneTuple,
    subject::{ControlService, MessageKind, MessageSubject, Subjects},
};
use proptest::prelude::*;
use serde_json::{Value, json};

const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

fn principal(actor: &str) -> Principal {
    Principal::parse_key(&format!("{OWNER}.{actor}")).unwrap()
}

fn tuple(cid: u64) -> PlaneTuple {
    PlaneTuple::new("NSERVER", cid, &Nkey::<User>::parse(&format!("U{}", "A".repeat(55))).unwrap()).unwrap()
}

fn digest() -> Sha256Hex {
    Sha256Hex::parse(&"a".repeat(64)).unwrap()
}

fn requests() -> Vec<AdminRequest> {
    vec![
        AdminRequest::PlaneConnLiveness(PlaneQuery { ledger: tuple(1), records: tuple(2) }),
        AdminRequest::PrincipalLiveness(principal("a")),
        AdminRequest::EvictPrincipal(principal("a")),
        AdminRequest::EvictPrincipals(vec![principal("b"), principal("a")]),
        AdminRequest::LifecycleMemberships {
            principal: principal("a"),
            uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
        },
        AdminRequest::ReloadStoreIdentity,
        AdminRequest::ReloadCreds(ExpectedCreds::default()),
        AdminRequest::ReloadCreds(ExpectedCreds { delivery: Some(digest()), membership: Some(digest()) }),
    ]
}

#[test]
fn what_is_asked_reads_back() {
    for request in requests() {
        assert_eq!(AdminRequest::parse(&request.to_bytes()).as_ref(), Ok(&request));
        let mut sent: Value = serde_json::from_slice(&request.to_bytes()).unwrap();
        sent["from"] = json!({ "id": "somebody", "kind": "endpoint" });
        assert_eq!(
            AdminRequest::parse(sent.to_string().as_bytes()),
            Ok(request),
            "`from` is taken and ignored"
        );
    }
    let sent: Value = serde_json::from_slice(&requests()[0].to_bytes()).unwrap();
    let of = |cid| json!({ "serverId": "NSERVER", "cid": cid, "userNkey": format!("U{}", "A".repeat(55)) });
    let query = json!({ "ledger": of(1), "records": of(2) });
    assert_eq!(sent, json!({ "op": "planeConnLiveness", "args": { "query": query } }));
    assert_eq!(
        AdminRequest::parse(br#"{"op":"reloadStoreIdentity"}"#),
        Ok(AdminRequest::ReloadStoreIdentity)
    );
    let bare = AdminRequest::ReloadCreds(ExpectedCreds::default());
    assert_eq!(AdminRequest::parse(br#"{"op":"reloadCreds"}"#), Ok(bare));
}

#[test]
fn a_member_that_is_not_known_is_refused_at_every_level() {
    for request in requests() {
        let sent: Value = serde_json::from_slice(&request.to_bytes()).unwrap();
        for pointer in ["", "/args", "/args/query", "/args/query/ledger", "/args/expected"] {
            let mut bad = sent.clone();
            if let Some(Value::Object(object)) = bad.pointer_mut(pointer) {
                object.insert("extra".into(), json!(1));
                assert!(AdminRequest::parse(bad.to_string().as_bytes()).is_err(), "{pointer}: {bad}");
            }
        }
    }
}

#[test]
fn a_batch_is_bounded_and_names_each_principal_once() {
    let batch = |n: usize| {
        let principals = (0..n).map(|n| principal(&format!("a{n}"))).collect();
        AdminRequest::parse(&AdminRequest::EvictPrincipals(principals).to_bytes())
    };
    assert!(batch(1).is_ok() && batch(MAX_PRINCIPALS).is_ok());
    assert!(batch(0).is_err() && batch(MAX_PRINCIPALS + 1).is_err());
    let twice = AdminRequest::EvictPrincipals(vec![principal("a"), principal("a")]);
    assert!(AdminRequest::parse(&twice.to_bytes()).unwrap_err().0.contains("each named once"));
    let longest = format!("{OWNER}.{}", "a".repeat(100));
    let full: Vec<String> = (100..356).map(|n| format!("{longest}{n}")).collect();
    let full = json!({ "op": "evictPrincipals", "args": { "principals": full } }).to_string();
    assert!(full.len() < MAX_REQUEST_BYTES && AdminRequest::parse(full.as_bytes()).is_ok());
    let large = " ".repeat(MAX_REQUEST_BYTES + 1);
    assert!(AdminRequest::parse(large.as_bytes()).unwrap_err().0.contains("larger than"));
}

fn answered<T: serde::Serialize>(data: &T) -> Value {
    parse_reply(&answer(data)).unwrap()
}

#[test]
fn what_is_answered_reads_back_and_an_unknown_member_never_does() {
    let extra = |mut value: Value| {
        value.as_object_mut().unwrap().insert("extra".into(), json!(1));
        value
    };
    let verdict = |cid, state| ConnectionVerdict { tuple: tuple(cid), state };
    let plane = PlaneLiveness {
        ledger: verdict(1, Liveness::Live),
        records: verdict(2, Liveness::Gone),
        sweep_complete: true,
        note: Some("n".into()),
    };
    assert_eq!(PlaneLiveness::read(&answered(&plane)), Ok(plane.clone()));
    assert!(PlaneLiveness::read(&extra(answered(&plane))).is_err());
    let liveness = PrincipalLiveness {
        principal: principal("a"),
        state: Liveness::Unknown,
        sweep_complete: false,
        note: None,
    };
    assert_eq!(PrincipalLiveness::read(&answered(&liveness)), Ok(liveness.clone()));
    assert!(PrincipalLiveness::read(&extra(answered(&liveness))).is_err());
    let eviction = EvictionResult {
        principal: principal("a"),
        kicked: 2,
        remaining: 0,
        verified_gone: true,
        scan_complete: true,
        note: None,
    };
    let data = answered(&eviction);
    assert_eq!(
        data,
        json!({
            "principal": principal("a").key(), "kicked": 2, "remaining": 0, "verifiedGone": true,
            "scanComplete": true,
        })
    );
    assert_eq!(EvictionResult::read(&data), Ok(eviction));
    assert!(EvictionResult::read(&extra(data)).is_err());
    let channels = Memberships { complete: true, channels: vec!["a".into(), "b.c".into()] };
    assert_eq!(Memberships::read(&answered(&channels)), Ok(channels));
    for bad in [
        json!({ "complete": false, "channels": [] }),
        json!({ "complete": true, "channels": [""] }),
        json!({ "complete": true, "channels": [1] }),
        json!({ "complete": true }),
        json!({ "complete": true, "channels": [], "more": 1 }),
    ] {
        assert!(Memberships::read(&bad).is_err(), "{bad}");
    }
    let adoption = |skipped: Option<&str>| Adoption {
        fingerprint: Some(digest()),
        broker_accepted: true,
        skipped: skipped.map(str::to_owned),
    };
    let reloaded = Reloaded { delivery: adoption(None), membership: adoption(Some("s")) };
    assert_eq!(Reloaded::read(&answered(&reloaded)), Ok(reloaded));
}

#[test]
fn a_store_is_named_by_its_kind_and_by_nothing_of_another() {
    let of = |store| StoreAnswer { store, answerer: "local.d".into(), holds_lease: true };
    for store in [
        StoreIdentity::Fs { root: "/r".into(), id: None },
        StoreIdentity::Fs { root: "/r".into(), id: Some("i".into()) },
        StoreIdentity::Injected { coordinate: "vault:prod".into() },
    ] {
        assert_eq!(StoreAnswer::read(&answered(&of(store.clone()))), Ok(of(store)));
    }
    for bad in [
        json!({ "kind": "fs", "coordinate": "c", "answerer": "a", "holdsLease": true }),
        json!({ "kind": "injected", "coordinate": "c", "root": "r", "answerer": "a", "holdsLease": true }),
        json!({ "kind": "fs", "root": "", "answerer": "a", "holdsLease": true }),
        json!({ "kind": "fs", "root": "r", "holdsLease": true }),
        json!({ "kind": "fs", "root": "r", "answerer": "a", "holdsLease": 1 }),
        json!({ "kind": "vault", "root": "r", "answerer": "a", "holdsLease": true }),
    ] {
        assert!(StoreAnswer::read(&bad).is_err(), "{bad}");
    }
}

#[test]
fn a_refusal_is_an_error_and_a_reply_of_another_shape_is_garbled() {
    assert!(parse_reply(&refuse("busy")).unwrap_err().0.ends_with("refused: busy"));
    for bad in [
        &b"{}"[..],
        b"[]",
        b"no JSON",
        br#"{"ok":1}"#,
        br#"{"ok":true,"error":"x"}"#,
        br#"{"ok":true,"data":1,"more":1}"#,
    ] {
        assert!(parse_reply(bad).unwrap_err().0.contains("garbled") || parse_reply(bad).is_err());
    }
    let long = parse_reply(&refuse(&"x\u{1b}\n".repeat(5_000))).unwrap_err().0;
    assert!(long.len() < 700 && !long.contains('\u{1b}'), "what a peer wrote is printed to a terminal");
}

#[test]
fn the_lease_row_has_the_contracts_three_members() {
    let row = LeaseRow { holder: "local.d".into(), since: 1_700_000_000_000, ready: false };
    assert_eq!(row.to_bytes(), br#"{"holder":"local.d","since":1700000000000,"ready":false}"#);
    assert_eq!(LeaseRow::parse(&row.to_bytes()), Ok(row));
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"holder":"","since":1,"ready":true}"#,
        r#"{"holder":"h","since":-1,"ready":true}"#,
    ] {
        assert!(LeaseRow::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_reply_subject_lies_under_its_request_and_is_no_request() {
    let subjects = Subjects::new(&SpaceToken::parse("main").unwrap());
    let (rail, asker) = (ControlService::DeliveryAdmin, principal("a"));
    let request = subjects.control(rail, &asker);
    assert_eq!(MessageSubject::parse(&request).unwrap().kind, MessageKind::Control(rail));
    let reply = subjects.control_reply(rail, &asker, "n");
    assert_eq!(reply, format!("{request}.reply.n"));
    assert_eq!(MessageSubject::parse(&reply), None);
    assert!(cotal_wire::subject_matches(&subjects.control_filter(rail), &request));
    assert!(!cotal_wire::subject_matches(&subjects.control_filter(rail), &reply));
    assert!(cotal_wire::subject_matches(&subjects.control_replies(rail), &reply));
    assert!(cotal_wire::subject_matches(&subjects.control_reply_filter(rail, &asker), &reply));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = AdminRequest::parse(&bytes);
        let _ = LeaseRow::parse(&bytes);
        if let Ok(data) = parse_reply(&bytes) {
            let _ = PlaneLiveness::read(&data);
        }
    }
}
