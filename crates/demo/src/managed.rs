//! The other tour, of `cargo xtask demo --managed`: two machines, of which one holds the keys and the other none.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use cotal_testkit::{
    disk::{files, seeds_in},
    stage::Stage,
};
use cotal_workspace::broker_config::free_port;
use serde_json::Value;

use crate::{PERSON_ACTOR, cotal, say, step};

/// The name that is enrolled.
const AGENT: &str = "scout";

/// The host is `stage`; the participant is another root and another home, where nothing is but a sign-in.
pub(crate) async fn tour(stage: &Stage, binary: &Path) -> Result<()> {
    step("The host: a broker, an auth service with a public face, and every key");
    let port = free_port()?.to_string();
    cotal(stage, &["up", "--user-auth", "--dev-idp", "--port", "0", "--exchange-public-port", &port])?;
    let space = stage.space().await?;
    let face = format!("http://127.0.0.1:{port}");

    step("Another machine: a person signs in, and that is all it has");
    let machine = Stage::new(binary)?;
    let (sub, _) = machine.login_at_dev_idp(&space.idp, "ada").await?;
    let signed_in = "$ cotal login --idp <the space's identity provider>";
    println!("{signed_in}");
    say(&format!("signed in as {sub}; files on that machine: {}", names(&[machine.root(), machine.home()])?));

    step("She may not supervise agents yet: the host refuses the very first request");
    let target = ["--host", &face, "--server", &space.server, "--idp", &space.idp, "--agent", AGENT];
    let check = [&["manager", "remote-check"][..], &target].concat();
    let refused = machine.run(&check)?;
    ensure!(!refused.status.success(), "a manager that nobody granted was served");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    say(said.lines().last().context("a refusal says why")?);

    step("The host's operator grants her actor `supervise`, and `spawn` for agents of hers");
    let grant = ["actor", "grant", PERSON_ACTOR, "--sub", &sub, "--scope", "supervise,spawn"];
    let lists = ["--allow-subscribe", "general", "--allow-publish", "general"];
    cotal(stage, &[&grant[..], &lists].concat())?;

    step("Her machine is a manager now: it registers, serves, renews, and looks after an agent, twice");
    println!("$ cotal manager remote-check --host {face} --agent {AGENT} --allow-subscribe general");
    let report = machine.ok(&[&check[..], &["--allow-subscribe", "general", "--json"]].concat())?;
    let report: Value = serde_json::from_str(&report)?;
    let steps = report["steps"].as_array().context("it reports its steps")?;
    for one in steps {
        say(&told(one));
    }
    let lifecycle = |name: &str| {
        let found = steps.iter().find(|one| one["step"] == name)?;
        found["lifecycle"].as_str().map(str::to_owned)
    };
    let (first, second) = (lifecycle("enroll"), lifecycle("enroll-again"));
    ensure!(first.is_some() && first != second, "a retired lifecycle was given out again");

    step("What is left of it");
    say(&format!("on her machine: {}", names(&[machine.root(), machine.home()])?));
    ensure!(seeds_shared(&stage.root(), &machine.root())?.is_empty(), "a seed of the host is on her machine");
    say("no seed of the host is in any of these files, and no secret of the agent is left");
    let listed = stage.ok(&["actor", "list"])?;
    ensure!(!listed.contains(AGENT), "the agent's grant is still there");
    say("on the host: the agent's grant is gone, and its name is free again");
    listed.lines().for_each(say);
    Ok(())
}

/// One step of the report, on one line.
fn told(one: &Value) -> String {
    let members = one
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(member, _)| !["step", "ms"].contains(&member.as_str()));
    let rest: Vec<String> =
        members.map(|(member, value)| format!("{member} {}", value.as_str().unwrap_or_default())).collect();
    format!("{:<24} {:>5} ms  {}", one["step"].as_str().unwrap_or_default(), one["ms"], rest.join("  "))
}

fn names(dirs: &[PathBuf]) -> Result<String> {
    let mut names = Vec::new();
    for dir in dirs {
        let found = files(dir)?;
        let names_of = found.keys().filter_map(|path| path.file_name());
        names.extend(names_of.map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names.join(", "))
}

/// Seeds that lie on both machines. The sentinel's lies on neither for long: it goes with the agent.
fn seeds_shared(host: &Path, machine: &Path) -> Result<Vec<String>> {
    let seeds = |dir| -> Result<BTreeSet<String>> {
        Ok(files(dir)?.values().flat_map(|bytes| seeds_in(bytes)).collect())
    };
    Ok(seeds(machine)?.intersection(&seeds(host)?).cloned().collect())
}
