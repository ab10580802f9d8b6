//! Connections that look at a space, its service-endpoint admission, and how connects were answered.

use std::{sync::Arc, time::Duration};

use cotal_auth::CalloutLog;
use cotal_broker::{Connection, Connector, Custody, Lifetime, kv::Bucket};
use cotal_testkit::raw::ConnectOutcome;
use cotal_trust::{
    bundle::SpaceAccount,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    ConnId, Names, Permissions, Rules, Space, UnixMillis, names::SERVICE_ADMISSION_KEY,
    rows::ServiceAdmission,
};
use parking_lot::Mutex;

use crate::stage::{AT_LAST, Stage};

pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

pub(crate) fn into(lines: &Lines) -> CalloutLog {
    let lines = Arc::clone(lines);
    Arc::new(move |line| lines.lock().push(line.to_owned()))
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_LAST, future).await.expect("within the test's patience")
}

pub(crate) fn connector(stage: &Stage, url: &str) -> Connector {
    connector_of(&stage.space.space, &stage.space.account, url)
}

pub(crate) fn connector_of(space: &Space, account: &SpaceAccount, url: &str) -> Connector {
    Connector::new(
        url,
        space.clone(),
        account.data_account(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    )
}

pub(crate) fn everything(_: &ConnId) -> Permissions {
    let all = || Rules { allow: vec![">".to_owned()], deny: vec![] };
    Permissions { publish: all(), subscribe: all() }
}

pub(crate) async fn admin(stage: &Stage) -> Connection {
    let connector = connector(stage, &stage.space.server.url());
    connector.open("cotal:test-admin:demo".to_owned(), &everything, Lifetime::Renewing).await.unwrap()
}

/// Opens the space's service-endpoint admission, with these bytes.
pub(crate) async fn open_admission(stage: &Stage, bytes: Vec<u8>) {
    open_admission_over(&connector(stage, &stage.space.server.url()), bytes).await;
}

pub(crate) async fn open_admission_over(connector: &Connector, bytes: Vec<u8>) {
    let label = "cotal:test-admin".to_owned();
    let admin = connector.open(label, &everything, Lifetime::Renewing).await.unwrap();
    let bucket = Bucket::new(&admin, &Names::new(&connector.space().token()).auth_bucket());
    assert!(matches!(
        bucket.create(SERVICE_ADMISSION_KEY, bytes.into()).await,
        cotal_broker::kv::WriteOutcome::Written(_)
    ));
    admin.close().await.unwrap();
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
