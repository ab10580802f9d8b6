//! A space that a full service has left, its service-endpoint admission, and how connects were answered.

use std::{sync::Arc, time::Duration};

use cotal_auth::{AuthServiceArgs, CalloutLog};
use cotal_testkit::{raw::ConnectOutcome, rows::Rows};
use cotal_wire::{UnixMillis, names::SERVICE_ADMISSION_KEY, rows::ServiceAdmission};
use parking_lot::Mutex;

use crate::stage::{AT_LAST, Daemon, Stage, bearer_of};

pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

pub(crate) fn into(lines: &Lines) -> CalloutLog {
    let lines = Arc::clone(lines);
    Arc::new(move |line| lines.lock().push(line.to_owned()))
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_LAST, future).await.expect("within the test's patience")
}

/// A bearer of alice, who may what `scope` says, of a full service that has stopped again.
pub(crate) async fn left_bearer(stage: &Stage, scope: &[&str]) -> String {
    stage.grant_human("alice", "cli", scope, &["general"]);
    let daemon = Daemon::start(stage, AuthServiceArgs::default()).await;
    let bearer = bearer_of(daemon.exchange(&stage.human("alice", "cli")).await);
    daemon.stop().await.unwrap();
    bearer
}

/// Opens the service-endpoint admission of the space of these rows, with these bytes.
pub(crate) async fn open_admission(rows: &Rows, bytes: Vec<u8>) {
    rows.put("auth", SERVICE_ADMISSION_KEY, bytes).await.unwrap();
}

pub(crate) fn admission() -> Vec<u8> {
    ServiceAdmission::opened("local.auth", UnixMillis(1)).unwrap().to_bytes()
}

/// The JWT of the space's callout user.
pub(crate) fn callout_jwt(stage: &Stage) -> &str {
    let creds = &stage.space.material.callout.callout_creds;
    creds.lines().nth(1).unwrap()
}

/// What came of one connect: on the callout's line, and what the client may then do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) outcome: String,
    pub(crate) reason: Option<String>,
    pub(crate) may: Vec<bool>,
}

/// Connects with each bearer, and tells how that was answered.
pub(crate) async fn answers(stage: &Stage, lines: &Lines, bearers: &[Option<String>]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for bearer in bearers {
        lines.lock().clear();
        let (client, outcome) = stage.connect(bearer.as_deref()).await;
        let line = soon(async {
            loop {
                if let Some(line) = lines.lock().iter().find(|line| line.contains(" outcome=")).cloned() {
                    return line;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let mut may = Vec::new();
        if let Some(mut client) = client {
            let owner = stage.owner_of("alice");
            for subject in [
                format!("cotal.demo.chat.{owner}.cli.general"),
                format!("cotal.demo.chat.{owner}.cli.secret"),
                "$JS.API.STREAM.PURGE.CHAT_demo".to_owned(),
                "$KV.cotal_auth_demo.gate.x".to_owned(),
            ] {
                may.push(client.try_publish(&subject, b"").await.is_ok());
            }
            for subject in ["cotal.demo.chat.*.*.general", "cotal.demo.chat.*.*.secret", "cotal.>"] {
                may.push(client.try_subscribe(subject, None).await.is_ok());
            }
        }
        assert_eq!(outcome == ConnectOutcome::Connected, line.contains(" outcome=minted "), "{line}");
        let after = |name: &str| line.split_once(name).map(|(_, rest)| rest.to_owned());
        answers.push(Answer {
            outcome: after(" outcome=").unwrap().split(' ').next().unwrap().to_owned(),
            reason: after(" reason="),
            may,
        });
    }
    answers
}
