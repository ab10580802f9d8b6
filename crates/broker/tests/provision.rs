//! Provisioning a space on a real broker, under the very grants it is meant to run with (contract 01 §4, 07 §12.4).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use cotal_broker::{
    Connection, Lifetime,
    kv::{Bucket, WriteOutcome},
    provision::{Replicas, ensure_authority_stores, provision_replicated, provision_space},
    shape::prove_authority_store,
};
use cotal_wire::{EpCode, grants::infra, names::Names};
use serde_json::{Value, json};
use support::{Fixture, api, fixture};

async fn provisioner(f: &Fixture) -> Connection {
    let token = f.space.token();
    let grants = move |conn: &cotal_wire::ConnId| infra::provisioner(&token, conn);
    f.connector.open("cotal:provisioner:main".into(), &grants, Lifetime::Renewing).await.unwrap()
}

async fn writer(f: &Fixture) -> Connection {
    let token = f.space.token();
    let grants = move |conn: &cotal_wire::ConnId| infra::authority_writer(&token, conn);
    f.connector.open("cotal:auth-mint:main".into(), &grants, Lifetime::Renewing).await.unwrap()
}

async fn config(connection: &Connection, stream: &str) -> Value {
    api(connection, &format!("STREAM.INFO.{stream}"), &json!({})).await["config"].clone()
}

async fn change(connection: &Connection, stream: &str, changes: Value) {
    let mut config = config(connection, stream).await;
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    let answer = api(connection, &format!("STREAM.UPDATE.{stream}"), &config).await;
    assert_eq!(answer.get("error"), None, "{answer}");
}

#[tokio::test]
async fn provisioning_twice_is_idempotent_under_the_provisioners_grant() {
    let f = fixture().await;
    let provisioner = provisioner(&f).await;
    provision_space(&provisioner, &f.space).await.unwrap();
    let admin = f.open("admin").await;
    let names = Names::new(&f.space.token());
    let streams: Vec<String> = names
        .message_streams()
        .into_iter()
        .chain(names.endpoint_streams())
        .chain(names.messaging_buckets().map(|b| Names::kv_stream(&b)))
        .chain(names.authority_buckets().map(|b| Names::kv_stream(&b)))
        .collect();
    let mut before = Vec::new();
    for stream in &streams {
        before.push(config(&admin, stream).await);
        assert_eq!(before.last().unwrap()["name"], stream.as_str());
    }
    provision_space(&provisioner, &f.space).await.unwrap();
    for (stream, before) in streams.iter().zip(before) {
        assert_eq!(config(&admin, stream).await, before, "{stream}");
    }
    // Nothing was refused on the way, so nothing was left to the mercy of the grant.
    provisioner.flush().await.unwrap();
}

#[tokio::test]
async fn the_streams_are_the_contracts() {
    let f = fixture().await;
    provision_space(&provisioner(&f).await, &f.space).await.unwrap();
    let admin = f.open("admin").await;
    let second = 1_000_000_000_u64;
    for (stream, expected) in [
        (
            "CHAT_main",
            json!({ "subjects": ["cotal.main.chat.>"], "max_msgs_per_subject": 1000, "allow_direct": true,
                    "discard": "old", "duplicate_window": 120 * second }),
        ),
        (
            "DM_main",
            json!({ "subjects": ["cotal.main.inst.>"], "allow_direct": false, "retention": "limits" }),
        ),
        ("TASK_main", json!({ "subjects": ["cotal.main.svc.>"], "retention": "workqueue" })),
        ("DLV_main", json!({ "subjects": ["cotal.main.dlv.>"], "duplicate_window": 7200 * second })),
        ("KV_cotal_presence_main", json!({ "max_age": 6 * second, "duplicate_window": 6 * second })),
        ("KV_cotal_delivery_main", json!({ "max_age": 30 * second })),
        ("KV_cotal_manager_main", json!({ "max_age": 10 * second })),
        ("KV_cotal_membership_main", json!({ "max_bytes": 64 << 20, "max_age": 0 })),
        (
            "KV_cotal_acl_main",
            json!({ "max_msgs_per_subject": 1, "discard": "new", "allow_direct": true, "allow_rollup_hdrs": true,
                    "deny_delete": false, "deny_purge": false }),
        ),
        (
            "KV_cotal_records_main",
            json!({ "allow_direct": true, "allow_rollup_hdrs": false, "deny_delete": true, "deny_purge": true,
                    "max_msgs_per_subject": 1 }),
        ),
        (
            "KV_cotal_auth_main",
            json!({ "allow_direct": false, "allow_msg_ttl": true, "subject_delete_marker_ttl": 3600 * second }),
        ),
        ("KV_cotal_sessions_main", json!({ "allow_direct": false, "allow_msg_ttl": true })),
        (
            "KV_cotal_issued_main",
            json!({ "allow_direct": false, "max_msgs_per_subject": -1, "deny_delete": true, "deny_purge": true }),
        ),
        (
            "KV_cotal_accepted_main",
            json!({ "allow_direct": true, "max_msgs_per_subject": 1, "discard_new_per_subject": true }),
        ),
        ("KV_cotal_admission_main", json!({ "allow_direct": false, "discard": "new", "deny_purge": true })),
        ("EPJ_main", json!({ "duplicate_window": second / 10, "max_age": 24 * 3600 * second })),
        (
            "EPT_main",
            json!({ "subjects": ["cotal.main.ept.*.*.*.*.armed", "cotal.main.ept.*.*.*.*.fire"],
                    "allow_msg_schedules": true, "max_age": 31 * 24 * 3600 * second }),
        ),
        ("EPW_main", json!({ "retention": "workqueue", "allow_direct": false })),
        ("EPC_main", json!({ "discard_new_per_subject": true, "deny_delete": true, "allow_direct": true })),
        ("WFJ_main", json!({ "subjects": ["cotal.main.wfj.*"], "max_age": 0, "allow_direct": false })),
    ] {
        let found = config(&admin, stream).await;
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&found[field], value, "{stream}.{field}");
        }
        assert_eq!(found["storage"], "file", "{stream}");
    }
}

#[tokio::test]
async fn both_authority_stores_are_ensured_and_proved_under_the_mint_writers_grant() {
    let f = fixture().await;
    let writer = writer(&f).await;
    ensure_authority_stores(&writer, &f.space).await.unwrap();
    prove_authority_store(&writer, "cotal_records_main", false).await.unwrap();
    prove_authority_store(&writer, "cotal_auth_main", true).await.unwrap();
    ensure_authority_stores(&writer, &f.space).await.unwrap();
    let purge = Bucket::new(&writer, "cotal_auth_main");
    let WriteOutcome::Written(revision) = purge.create("natkey.x", "1".into()).await else {
        panic!("written")
    };
    assert!(matches!(purge.purge_pinned("natkey.x", revision, 3600).await, WriteOutcome::Written(_)));
}

#[tokio::test]
async fn a_drifted_authority_store_refuses_and_is_not_adopted() {
    for (stream, changes) in [
        ("KV_cotal_records_main", json!({ "allow_direct": false })),
        ("KV_cotal_records_main", json!({ "max_age": 3_600_000_000_000_u64 })),
        ("KV_cotal_records_main", json!({ "max_bytes": 1_000_000 })),
        ("KV_cotal_auth_main", json!({ "allow_direct": true })),
        ("KV_cotal_auth_main", json!({ "subjects": ["$KV.cotal_auth_main.>", "more"] })),
    ] {
        let f = fixture().await;
        let (writer, admin) = (writer(&f).await, f.open("admin").await);
        ensure_authority_stores(&writer, &f.space).await.unwrap();
        change(&admin, stream, changes.clone()).await;
        let drifted = config(&admin, stream).await;
        let error = ensure_authority_stores(&writer, &f.space).await.unwrap_err();
        assert_eq!(error.code, EpCode::FailedPrecondition, "{changes}");
        let field = changes.as_object().unwrap().keys().next().unwrap().clone();
        assert!(error.message.contains(&format!("{stream}: {field} ")), "{}", error.message);
        assert_eq!(config(&admin, stream).await, drifted, "{changes}");
    }
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_resumed_only_while_no_row_was_written() {
    let f = fixture().await;
    let (writer, admin) = (writer(&f).await, f.open("admin").await);
    let mut unhardened = support::kv_config("cotal_records_main");
    unhardened["allow_msg_ttl"] = json!(false);
    support::create_stream(&admin, &unhardened).await;
    ensure_authority_stores(&writer, &f.space).await.unwrap();
    assert_eq!(config(&admin, "KV_cotal_records_main").await["deny_purge"], true);

    let f = fixture().await;
    let (writer, admin) = (self::writer(&f).await, f.open("admin").await);
    support::create_stream(&admin, &unhardened).await;
    // Its answer says that the row is stored.
    let within = Duration::from_secs(30);
    admin.request("$KV.cotal_records_main.uid.x", &[], Bytes::from("1"), within).await.unwrap();
    let error = ensure_authority_stores(&writer, &f.space).await.unwrap_err();
    assert_eq!(error.code, EpCode::FailedPrecondition);
    assert_eq!(config(&admin, "KV_cotal_records_main").await["deny_purge"], false);
}

#[tokio::test]
async fn a_drifted_message_stream_refuses() {
    let f = fixture().await;
    let (provisioner, admin) = (provisioner(&f).await, f.open("admin").await);
    provision_space(&provisioner, &f.space).await.unwrap();
    for (stream, field, drift, right) in [
        ("CHAT_main", "max_msgs_per_subject", json!(10), json!(1000)),
        ("DM_main", "allow_direct", json!(true), json!(false)),
        ("KV_cotal_acl_main", "max_msgs", json!(5), json!(-1)),
        ("EPW_main", "allow_direct", json!(true), json!(false)),
        ("EPC_main", "discard_new_per_subject", json!(false), json!(true)),
    ] {
        change(&admin, stream, json!({ field: drift })).await;
        let error = provision_space(&provisioner, &f.space).await.unwrap_err();
        assert_eq!(error.code, EpCode::FailedPrecondition);
        assert!(error.message.starts_with(&format!("{stream}: {field} ")), "{}", error.message);
        change(&admin, stream, json!({ field: right })).await;
    }
    // The facts plane has no age by default: a space may choose one.
    change(&admin, "EPF_main", json!({ "max_age": 3_600_000_000_000_u64 })).await;
    provision_space(&provisioner, &f.space).await.unwrap();
}

#[tokio::test]
async fn the_lifetime_of_an_expiring_bucket_is_reconciled() {
    let f = fixture().await;
    let (provisioner, admin) = (provisioner(&f).await, f.open("admin").await);
    provision_space(&provisioner, &f.space).await.unwrap();
    let hour = 3_600_000_000_000_u64;
    change(
        &admin,
        "KV_cotal_presence_main",
        json!({ "max_age": hour, "duplicate_window": 120_000_000_000_u64 }),
    )
    .await;
    provision_space(&provisioner, &f.space).await.unwrap();
    let reconciled = config(&admin, "KV_cotal_presence_main").await;
    assert_eq!(reconciled["max_age"], 6_000_000_000_u64);
    assert_eq!(reconciled["duplicate_window"], 6_000_000_000_u64);
}

#[tokio::test]
async fn the_broker_denies_the_provisioner_what_its_list_does_not_name() {
    let f = fixture().await;
    let provisioner = provisioner(&f).await;
    provision_space(&provisioner, &f.space).await.unwrap();
    for subject in [
        "$JS.API.STREAM.DELETE.CHAT_main",
        "$JS.API.STREAM.PURGE.KV_cotal_auth_main",
        "$JS.API.STREAM.UPDATE.KV_cotal_auth_main",
        "$KV.cotal_auth_main.gate.x",
        "cotal.main.chat.x",
    ] {
        let error =
            provisioner.request(subject, &[], Bytes::from("{}"), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.code, EpCode::PermissionDenied, "{subject}");
    }
}

#[tokio::test]
async fn one_server_keeps_one_copy_and_nothing_is_made_that_is_not_kept_as_asked() {
    for copies in [0, Replicas::MOST + 1, u8::MAX] {
        assert_eq!(Replicas::new(copies).unwrap_err().code, EpCode::BadRequest, "{copies}");
    }
    let f = fixture().await;
    let provisioner = provisioner(&f).await;
    let refusal = provision_replicated(&provisioner, &f.space, Replicas::new(3).unwrap()).await.unwrap_err();
    assert!(refusal.message.contains("replicas"), "{refusal}");
    let names = api(&f.open("admin").await, "STREAM.NAMES", &json!({})).await;
    assert_eq!(names["total"], 0, "{names}");
    provision_replicated(&provisioner, &f.space, Replicas::default()).await.unwrap();
}
