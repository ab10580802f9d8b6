//! A manager without any signing key on a root of its own, against a real host: as a process, `remote-check`, and where more is
//! asked than that asks, as the participant in this one.
//!
//! Where renewals matter, the host signs standing credentials for five seconds, so that two of their lives fit into a test.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test that cannot go on ends")]

mod house;
mod killed;
mod passing;
mod questions;
mod runs;
mod scan;

use std::{collections::BTreeSet, path::PathBuf};

use cotal_wire::manager_authority::StandingRole;

use house::{ACTOR, AGENT, Host, Machine, step};
use scan::{Needle, found_in, memory_of, needles, secrets_of};

/// The check's own table: every step of a run that waits for two renewals, before its goodbye.
pub(crate) const EVERY_STEP: [&str; 23] = [
    "identity",
    "prepare",
    "register",
    "activate",
    "serve",
    "renew-1",
    "renew-2",
    "admin",
    "goals",
    "enroll",
    "validate",
    "exchange",
    "connect",
    "describe",
    "prepare-retirement",
    "retire",
    "enroll-again",
    "validate-again",
    "exchange-again",
    "connect-again",
    "describe-again",
    "prepare-retirement-again",
    "retire-again",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_lives_its_life_across_two_standing_periods_and_no_signing_seed_is_on_its_machine() {
    let host = Host::start().await;
    let machine = Machine::signed_in(&host).await;
    let mut run = machine.check(&host, &["--periods", "2"]);
    run.until("renew-2");

    let secrets = secrets_of(&host);
    assert!(secrets.len() > 10, "operator, system, account, signing, callout, issuer and owner secrets");
    let identity = machine.identity().expect("it is kept");
    let own = needles(&identity.seed(StandingRole::Serve).expose());
    let pid = rustix::process::Pid::from_child(&run.child);
    let scanned = || {
        // It stands still for the look, which is longer than a step.
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let regions = memory_of(pid.as_raw_nonzero().get().unsigned_abs());
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        let in_memory = |needles: &[Needle]| {
            let found: BTreeSet<String> =
                regions.iter().flat_map(|region| found_in(region, needles)).map(str::to_owned).collect();
            found
        };
        assert!(!in_memory(&own).is_empty(), "the scan finds the key that the process does hold");
        assert_eq!(in_memory(&secrets), BTreeSet::new());
    };
    scanned();
    // And once agents have come and gone.
    run.until("retire-again");
    scanned();

    let report = run.report();
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, [&EVERY_STEP[..], &["goodbye"]].concat());
    assert_eq!(step(&report, "register")["epoch"], "0", "the first registration");
    assert_eq!(step(&report, "identity")["identity"], "made");
    let until = |name: &str| step(&report, name)["until"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(until("renew-2") > until("renew-1"), "each period renews");
    assert_eq!(step(&report, "admin")["authorized"], "false");
    let lifecycle = |name: &str| step(&report, name)["lifecycle"].as_str().unwrap().to_owned();
    assert_ne!(
        lifecycle("enroll"),
        lifecycle("enroll-again"),
        "the name is free again, at another lifecycle"
    );
    assert_eq!(host.agents(), Vec::<PathBuf>::new(), "no row of the agent is left");

    for (path, bytes) in &machine.files() {
        assert_eq!(found_in(bytes, &secrets), Vec::<&str>::new(), "{}", path.display());
        assert!(
            !path.to_string_lossy().contains(AGENT),
            "a retired agent leaves no secret: {}",
            path.display()
        );
    }

    // The same manager again: one epoch on.
    let again = machine.check(&host, &[]).report();
    assert_eq!(again["instanceId"], report["instanceId"]);
    assert_eq!(step(&again, "identity")["identity"], "kept");
    assert_eq!(step(&again, "register")["epoch"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn supervise_is_not_implied_and_a_refusal_says_what_to_do() {
    let host = Host::start().await;
    let machine = Machine::signed_in(&host).await;
    host.grant(&["spawn", "admin"]);
    let said = machine.check(&host, &[]).refused();
    assert!(said.starts_with("prepare: the host refuses:") && said.contains("supervise"), "{said}");
    let said = machine.check(&host, &["--agent", ACTOR]).refused();
    assert!(said.contains("--agent"), "{said}");
}
