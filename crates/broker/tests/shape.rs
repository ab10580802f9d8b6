//! The shape proof over a real broker: each check is refused by a stream created with exactly that drift
//! (contract 07 §1). The order of the checks is proved beside the checks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod support;

use cotal_broker::{Lifetime, shape::prove_authority_store};
use cotal_wire::EpCode;
use serde_json::{Value, json};
use support::{Fixture, create_stream, fixture, kv_config, only};

fn drifted(bucket: &str, change: &Value) -> Value {
    let mut config = kv_config(bucket);
    config["allow_direct"] = json!(false);
    for (field, value) in change.as_object().unwrap() {
        if value.is_null() {
            config.as_object_mut().unwrap().remove(field);
        } else {
            config[field] = value.clone();
        }
    }
    config
}

async fn refused_field(f: &Fixture, bucket: &str) -> String {
    let connection = f.open("prover").await;
    let error = prove_authority_store(&connection, bucket, true).await.unwrap_err();
    assert_eq!(error.code, EpCode::FailedPrecondition, "{error}");
    error.message
}

#[tokio::test]
async fn a_store_of_the_right_shape_is_proved() {
    let f = fixture().await;
    let connection = f.open("prover").await;
    create_stream(&connection, &drifted("auth", &json!({}))).await;
    prove_authority_store(&connection, "auth", true).await.unwrap();
    create_stream(&connection, &drifted("records", &json!({ "allow_direct": true }))).await;
    prove_authority_store(&connection, "records", false).await.unwrap();
}

#[tokio::test]
async fn each_drift_of_a_real_stream_is_refused_by_its_own_check() {
    let f = fixture().await;
    let connection = f.open("maker").await;
    create_stream(&connection, &drifted("origin", &json!({}))).await;
    let origin = json!({ "name": "KV_origin" });
    for (field, change) in [
        ("mirror", json!({ "mirror": origin, "subjects": null, "discard": "old" })),
        ("sources", json!({ "sources": [origin] })),
        ("retention", json!({ "retention": "workqueue" })),
        ("max_age", json!({ "max_age": 1_000_000_000_u64, "duplicate_window": 1_000_000_000_u64 })),
        ("max_msgs", json!({ "max_msgs": 100 })),
        ("max_bytes", json!({ "max_bytes": 1_000_000 })),
        ("subjects", json!({ "subjects": ["$KV.subjects.>", "also.this"] })),
        ("storage", json!({ "storage": "memory" })),
        ("allow_direct", json!({ "allow_direct": true })),
    ] {
        create_stream(&connection, &drifted(field, &change)).await;
        let message = refused_field(&f, field).await;
        assert!(message.starts_with(&format!("KV_{field}: {field} ")), "{field}: {message}");
    }
}

#[tokio::test]
async fn an_absent_store_is_refused_with_what_to_run() {
    let f = fixture().await;
    assert!(refused_field(&f, "nowhere").await.contains("cotal up"));
}

#[tokio::test]
async fn a_prover_without_the_grant_proves_nothing() {
    let f = fixture().await;
    let maker = f.open("maker").await;
    create_stream(&maker, &drifted("auth", &json!({}))).await;
    let blind = f
        .connector
        .open("cotal:blind:main".into(), &only(&["$JS.API.INFO"]), Lifetime::Renewing)
        .await
        .unwrap();
    let error = prove_authority_store(&blind, "auth", true).await.unwrap_err();
    assert_eq!(error.code, EpCode::Unavailable, "{error}");
}
