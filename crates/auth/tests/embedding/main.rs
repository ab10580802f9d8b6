//! The embedding API: what a host does with a context, with a plane alone, and with the parts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

#[path = "../../examples/embed.rs"]
mod embed;
mod host;
mod manager_route;
mod parts;
mod plane;
mod platform_doors;
#[path = "../stage/mod.rs"]
mod stage;

use std::sync::Arc;

use cotal_auth::{AuthServiceArgs, AuthServiceRuntimeOptions, Root, run_auth_service_until};

#[tokio::test]
async fn a_daemon_refuses_a_selection_that_there_is_not_before_any_effect() {
    let dir = tempfile::tempdir().unwrap();
    let options = AuthServiceRuntimeOptions {
        root: Root::at(dir.path()),
        startup_hold_ms: None,
        secret_store: None,
        announce: Arc::new(|_| {}),
        interactive_manager_selection: Some("remote-primary".to_owned()),
    };
    for callout_only in [false, true] {
        let args = AuthServiceArgs {
            space: Some("demo".to_owned()),
            server: Some("nats://127.0.0.1:1".to_owned()),
            callout_only,
            ..AuthServiceArgs::default()
        };
        let ended = run_auth_service_until(&args, None, &options, std::future::pending());
        let error = ended.await.unwrap_err().to_string();
        assert!(error.contains("takes only \"local-primary\""), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn the_example_hosts_two_spaces_and_shuts_down() {
    embed::main().unwrap();
}
