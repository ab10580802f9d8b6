//! Taking back what was granted, as an operator does it: the real binary, a real broker, live connections.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set its stage must fail")]

use std::{
    process::Output,
    time::{Duration, Instant},
};

use cotal_ledger::Ledger;
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    stage::{Bearer, RunningSpace, Stage},
};
use cotal_wire::{Actor, DerivedOwner};
use cotal_workspace::root::Root;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A revoke ends live connections within this.
const WITHIN: Duration = Duration::from_secs(2);

/// A space with one person who is granted `cli`.
struct Person {
    stage: Stage,
    space: RunningSpace,
    sub: String,
}

impl Person {
    async fn new() -> Self {
        let stage = Stage::new(env!("CARGO_BIN_EXE_cotal")).unwrap();
        stage.ok(&["up", "--user-auth", "--dev-idp", "--port", "0"]).unwrap();
        let space = stage.space().await.unwrap();
        let (sub, _) = stage.login_at_dev_idp(&space.idp, "ada").await.unwrap();
        let person = Self { stage, space, sub };
        person.granted();
        person
    }

    fn actor(&self, verb: &str, more: &[&str]) -> (Output, Value) {
        let line = ["actor", verb, "cli", "--sub", &self.sub, "--json"];
        let output = self.stage.run(&[&line[..], more].concat()).unwrap();
        let document = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        (output, document)
    }

    fn ok(&self, verb: &str, more: &[&str]) -> Value {
        let (output, document) = self.actor(verb, more);
        assert!(output.status.success(), "{document}");
        document
    }

    fn granted(&self) -> Value {
        let lists = ["--scope", "", "--allow-subscribe", "general", "--allow-publish", "general"];
        self.ok("grant", &lists)
    }

    async fn bearer(&self) -> Bearer {
        self.stage.exchange_human(&self.space, "cli").await.unwrap().unwrap()
    }

    async fn connected(&self, bearer: &Bearer, nonce: &str) -> RawClient {
        let (client, outcome) = self.connect(bearer, nonce).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        client.unwrap()
    }

    async fn connect(&self, bearer: &Bearer, nonce: &str) -> (Option<RawClient>, ConnectOutcome) {
        let Self { space, .. } = self;
        RawClient::connect(&space.server, Some(&space.sentinel), Some(&bearer.token), Some(nonce)).await
    }

    fn row_bytes(&self, owner: &str) -> Option<Vec<u8>> {
        std::fs::read(self.space.state_dir.join(format!("actors/{owner}.cli.json"))).ok()
    }

    fn pid(&self, daemon: &str) -> Pid {
        let files = Root::at(self.stage.root()).daemon_files(daemon, Some(&self.space.name));
        Pid::from_raw(std::fs::read_to_string(files.pid).unwrap().trim().parse().unwrap()).unwrap()
    }

    fn kill(&self, daemon: &str) {
        let pid = self.pid(daemon);
        kill_process(pid, Signal::KILL).unwrap();
        let began = Instant::now();
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        while std::fs::read_to_string(&stat)
            .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
        {
            assert!(began.elapsed() < Duration::from_secs(10), "{daemon} does not die");
            std::thread::yield_now();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_ends_live_connections_within_two_seconds_and_the_name_is_free_again() {
    let person = Person::new().await;
    let bearer = person.bearer().await;
    let mut live = person.connected(&bearer, "taking-back-1").await;
    live.ping().await.unwrap();

    let began = Instant::now();
    let revoked = person.ok("revoke", &[]);
    let ended = tokio::time::timeout(WITHIN, live.ended()).await.expect("the connection is still there");
    assert!(began.elapsed() < WITHIN, "it took {:?}", began.elapsed());
    assert!(ended.is_some() || live.ping().await.is_err());
    assert_eq!((&revoked["revoked"], &revoked["retired"][0]["outcome"]), (&json!(true), &json!("retired")));
    let eviction = &revoked["eviction"];
    assert_eq!((&eviction["remaining"], &eviction["verifiedGone"]), (&json!(0), &json!(true)), "{revoked}");
    assert!(eviction["kicked"].is_u64(), "{revoked}");
    assert_ne!(person.connect(&bearer, "taking-back-2").await.1, ConnectOutcome::Connected);
    let refused = person.stage.exchange_human(&person.space, "cli").await.unwrap().err().unwrap();
    assert!(refused.contains("is not granted"), "{refused}");

    person.granted();
    let fresh = person.bearer().await;
    let mut live = person.connected(&fresh, "taking-back-3").await;
    live.ping().await.unwrap();
    assert_ne!(person.connect(&bearer, "taking-back-4").await.1, ConnectOutcome::Connected);
    let nothing = person.ok("revoke", &[]);
    assert_eq!(nothing["revoked"], true);
    // A second one finds nothing to take away, and still proves that nobody is connected.
    let again = person.ok("revoke", &[]);
    assert_eq!(
        (&again["revoked"], &again["eviction"]["verifiedGone"]),
        (&json!(false), &json!(true)),
        "{again}"
    );
    // Without the proof it does not say that all is well.
    person.kill("delivery");
    let (output, again) = person.actor("revoke", &[]);
    assert_eq!(
        (output.status.code(), &again["revoked"], &again["eviction"]["verifiedGone"]),
        (Some(1), &json!(false), &json!(false)),
        "{again}"
    );
    // With the broker gone not even the incarnation can be looked up.
    person.stage.ok(&["down"]).unwrap();
    let (output, refused) = person.actor("revoke", &[]);
    assert_eq!(
        (output.status.code(), &refused["error"]["outcome"]),
        (Some(1), &json!("not-executed")),
        "{refused}"
    );
    assert!(refused["error"]["message"].as_str().unwrap().contains("could not be seen"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regrant_ends_the_incarnation_before_it_and_begins_one_that_connects() {
    let person = Person::new().await;
    let stolen = person.bearer().await;
    let mut live = person.connected(&stolen, "taking-back-1").await;
    let uid = |document: &Value| document["granted"]["lifecycleUid"].as_str().unwrap().to_owned();
    let ledger = Ledger::at(&person.space.state_dir);
    let (owner, actor) = (DerivedOwner::parse(&stolen.owner).unwrap(), Actor::parse("cli").unwrap());
    let before = ledger.read_interactive(&owner, &actor).unwrap().unwrap().lifecycle_uid.unwrap();

    let regranted = person.granted();
    assert_eq!(
        regranted["retired"],
        json!([{ "lifecycleUid": before, "outcome": "retired" }]),
        "{regranted}"
    );
    assert_eq!(regranted["eviction"]["verifiedGone"], true, "{regranted}");
    assert_ne!(uid(&regranted), before);
    tokio::time::timeout(WITHIN, live.ended()).await.expect("the old connection is still there");
    assert_ne!(person.connect(&stolen, "taking-back-2").await.1, ConnectOutcome::Connected);
    let fresh = person.bearer().await;
    person.connected(&fresh, "taking-back-3").await.ping().await.unwrap();
    // A command that is at work on the name lets no second one in.
    {
        let locks = person.space.state_dir.join("actor-locks");
        let lock = std::fs::File::open(locks.join(format!("{}.cli.lock", fresh.owner))).unwrap();
        lock.lock().unwrap();
        let (output, refused) = person.actor("revoke", &[]);
        assert_eq!(
            (output.status.code(), &refused["error"]["outcome"]),
            (Some(1), &json!("not-executed")),
            "{refused}"
        );
    }
    // One that never connected has nothing to retire, and one that is granted twice in a row goes on.
    let again = person.granted();
    assert_eq!(again["retired"][0]["outcome"], "retired");
    assert_eq!(person.granted()["retired"][0]["outcome"], "not-started");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_daemon_down_the_row_stands_and_the_command_says_what_is_known() {
    let person = Person::new().await;
    let bearer = person.bearer().await;
    let row = person.row_bytes(&bearer.owner);
    assert!(row.is_some());
    // Without the delivery daemon nothing is proved gone: the barrier has begun, and stays.
    person.kill("delivery");
    let (output, refused) = person.actor("revoke", &[]);
    assert_eq!(
        (output.status.code(), &refused["error"]["outcome"]),
        (Some(1), &json!("unknown")),
        "{refused}"
    );
    assert_eq!(person.row_bytes(&bearer.owner), row);
    assert_ne!(person.connect(&bearer, "taking-back-1").await.1, ConnectOutcome::Connected);
    // Without the auth service nothing happens at all.
    person.kill("auth-service");
    let (output, refused) = person.actor("revoke", &[]);
    assert_eq!(
        (output.status.code(), &refused["error"]["outcome"]),
        (Some(1), &json!("not-executed")),
        "{refused}"
    );
    assert!(refused["error"]["message"].as_str().unwrap().contains("cotal up --user-auth"), "{refused}");
    assert_eq!(person.row_bytes(&bearer.owner), row);
    // Both come back in order, the new service takes the claim over, and the barrier goes on from where it stood.
    person.stage.ok(&["up", "--user-auth"]).unwrap();
    let revoked = person.ok("revoke", &[]);
    assert_eq!(
        (&revoked["revoked"], &revoked["eviction"]["verifiedGone"]),
        (&json!(true), &json!(true)),
        "{revoked}"
    );
    assert_eq!(person.row_bytes(&bearer.owner), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_that_is_active_without_its_row_is_retired_by_the_next_grant() {
    let person = Person::new().await;
    let bearer = person.bearer().await;
    // As a revoke of an earlier version left it.
    std::fs::remove_file(person.space.state_dir.join(format!("actors/{}.cli.json", bearer.owner))).unwrap();
    let granted = person.granted();
    assert_eq!(granted["retired"][0]["outcome"], "retired", "{granted}");
    let fresh = person.bearer().await;
    person.connected(&fresh, "taking-back-1").await.ping().await.unwrap();
    assert_ne!(person.connect(&bearer, "taking-back-2").await.1, ConnectOutcome::Connected);
    // And a revoke finds it too.
    std::fs::remove_file(person.space.state_dir.join(format!("actors/{}.cli.json", bearer.owner))).unwrap();
    let revoked = person.ok("revoke", &[]);
    assert_eq!((&revoked["revoked"], &revoked["retired"][0]["outcome"]), (&json!(false), &json!("retired")));
}
