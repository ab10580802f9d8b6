//! The guided tours: a space comes up, a person and an agent sign in and connect, a revoked grant bites; or the life of an
//! agent under a manager on a machine without any signing key. Every process is the real one; what a tour shows is what the
//! broker and the service answered, and it fails where that is not what it promises.

mod managed;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    stage::{RunningSpace, Stage},
};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid};

/// The actor that a person's own tools use.
const PERSON_ACTOR: &str = "cli";
/// The actor that the person hands to an agent.
const AGENT_ACTOR: &str = "scout";
/// How soon a revoke must end what is live.
const CUT_WITHIN: Duration = Duration::from_secs(2);

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tour {
    /// A person and an agent sign in, connect, and are cut off.
    Person,
    /// An agent under a manager that holds no signing key: enrolled, connected, retired.
    Managed,
}

/// Shows a tour in a space of its own, with this `cotal`, and takes the space down unless it is to be kept.
pub async fn guide(through: Tour, binary: &Path, keep: bool) -> Result<()> {
    let stage = Stage::new(binary)?;
    let outcome = tokio::select! {
        outcome = show_all(through, binary, &stage) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    if keep && outcome.is_ok() {
        let (root, home) = stage.keep();
        println!("\nThe space keeps running. To use it:");
        println!("  cd {} && export COTAL_HOME={}", root.display(), home.display());
        if let Some(broker) = std::env::var_os("COTAL_NATS_SERVER") {
            println!("  export COTAL_NATS_SERVER={}", broker.display());
        }
        println!("  {} status", binary.display());
        let left = home.with_file_name("");
        println!("To stop it: {} down; then delete {}", binary.display(), left.display());
    } else {
        step("Clean up");
        cotal(&stage, &["down"])?;
        drop(stage);
    }
    outcome?;
    println!(
        "\nThe tour is complete: everything above was answered by a real broker and a real auth service."
    );
    Ok(())
}

async fn show_all(through: Tour, binary: &Path, stage: &Stage) -> Result<()> {
    match through {
        Tour::Person => tour(stage).await,
        Tour::Managed => managed::tour(stage, binary).await,
    }
}

/// Announces the next step.
fn step(what: &str) {
    println!("\n## {what}");
}

/// Says what happened.
fn say(what: &str) {
    println!("   {what}");
}

/// Shows a command, runs it, shows what it printed.
fn cotal(stage: &Stage, arguments: &[&str]) -> Result<()> {
    let quote = |a: &&str| {
        if a.is_empty() || a.contains(['>', ' ', '*']) { format!("'{a}'") } else { (*a).to_owned() }
    };
    println!("$ cotal {}", arguments.iter().map(quote).collect::<Vec<_>>().join(" "));
    let output = stage.run(arguments)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    out.lines().chain(err.lines()).for_each(say);
    ensure!(output.status.success(), "cotal {} failed ({})", arguments.join(" "), output.status);
    Ok(())
}

async fn tour(stage: &Stage) -> Result<()> {
    step("Bring up a space: broker, auth service and a development identity provider");
    cotal(stage, &["up", "--user-auth", "--dev-idp", "--port", "0"])?;
    let space = stage.space().await?;

    step("A person logs in: device code, approved in the browser (here by the tour)");
    println!("$ cotal login --idp {}", space.idp);
    let (sub, printed) = stage.login_at_dev_idp(&space.idp, "ada").await?;
    printed.lines().for_each(say);
    say(&format!("the identity provider knows her as subject {sub}"));

    step("She has no grant yet: the exchange refuses");
    let refusal =
        stage.exchange_human(&space, PERSON_ACTOR).await?.err().context("an ungranted person was served")?;
    say(&format!("POST /exchange -> {refusal}"));

    step("An operator grants her an actor: read general and team.>, post to general, nothing else");
    cotal(
        stage,
        &[
            "actor",
            "grant",
            PERSON_ACTOR,
            "--sub",
            &sub,
            "--scope",
            "",
            "--allow-subscribe",
            "general,team.>",
            "--allow-publish",
            "general",
        ],
    )?;
    let person = stage.exchange_human(&space, PERSON_ACTOR).await?.map_err(anyhow::Error::msg)?;
    say(&format!(
        "the exchange answered a bearer for owner {}, good for {} s",
        person.owner,
        person.seconds_left()
    ));

    step("A plain NATS client connects with the deny-all sentinel creds and the bearer");
    let mut client = connect(&space, &person.token, "demo-person-1").await?;
    let me = format!("cotal.{}.chat.{}.{PERSON_ACTOR}", space.name, person.owner);
    show(
        "publish",
        &format!("{me}.general"),
        &client.try_publish(&format!("{me}.general"), b"hello").await,
        true,
    )?;
    show(
        "publish",
        &format!("{me}.secrets"),
        &client.try_publish(&format!("{me}.secrets"), b"hello").await,
        false,
    )?;
    let other = format!("cotal.{}.chat.{}.somebody.general", space.name, person.owner);
    show("publish", &other, &client.try_publish(&other, b"as somebody else").await, false)?;
    let readable = format!("cotal.{}.chat.*.*.team.>", space.name);
    show("subscribe", &readable, &client.try_subscribe(&readable, None).await, true)?;
    let everything = format!("cotal.{}.>", space.name);
    show("subscribe", &everything, &client.try_subscribe(&everything, None).await, false)?;

    step("An agent of hers does the same with its own secret (a Manager hands these out at spawn)");
    let owner = DerivedOwner::parse(&person.owner)?;
    let secret_file = grant_agent(stage, &space, &owner)?;
    println!("$ cotal agent-bearer --owner {owner} --actor {AGENT_ACTOR} --token-file scout.actor-token ...");
    let bearer = stage.agent_bearer(&space, &person.owner, AGENT_ACTOR, &secret_file)?;
    let mut agent = connect(&space, &bearer, "demo-agent-1").await?;
    let it = format!("cotal.{}.chat.{}.{AGENT_ACTOR}.general", space.name, person.owner);
    show("publish", &it, &agent.try_publish(&it, b"reporting").await, true)?;

    step("The operator takes her grant back while her client is connected");
    let began = Instant::now();
    let live = tokio::spawn(async move {
        let last = client.ended().await;
        (began.elapsed(), last)
    });
    cotal(stage, &["actor", "revoke", PERSON_ACTOR, "--sub", &sub])?;
    let (after, last) = live.await?;
    ensure!(after < CUT_WITHIN, "her connection lived on for {} ms", after.as_millis());
    say(&format!(
        "her live connections: 1 before the command, 0 after it; ended {} ms after it began{}",
        after.as_millis(),
        last.map(|error| format!(" ({error})")).unwrap_or_default()
    ));
    let refusal =
        stage.exchange_human(&space, PERSON_ACTOR).await?.err().context("a revoked person was served")?;
    say(&format!("next exchange  -> {refusal}"));
    let (_, outcome) =
        RawClient::connect(&space.server, Some(&space.sentinel), Some(&person.token), Some("demo-person-2"))
            .await;
    ensure!(outcome != ConnectOutcome::Connected, "a revoked bearer connected");
    if let ConnectOutcome::Refused(text) = outcome {
        say(&format!("next connect, with the bearer that still has time left -> {text}"));
    }
    say("and the auth service logged why:");
    say(&last_callout_line(stage, &space)?);

    step("Retired for good, and free again: the same name is granted anew, as another incarnation");
    let lists = ["--scope", "", "--allow-subscribe", "general", "--allow-publish", "general"];
    cotal(stage, &[&["actor", "grant", PERSON_ACTOR, "--sub", &sub][..], &lists].concat())?;
    let again = stage.exchange_human(&space, PERSON_ACTOR).await?.map_err(anyhow::Error::msg)?;
    connect(&space, &again.token, "demo-person-3").await?;
    let (_, outcome) =
        RawClient::connect(&space.server, Some(&space.sentinel), Some(&person.token), Some("demo-person-4"))
            .await;
    ensure!(outcome != ConnectOutcome::Connected, "a bearer of the retired incarnation connected");
    say("the bearer of the retired incarnation stays refused");
    Ok(())
}

async fn connect(space: &RunningSpace, bearer: &str, nonce: &str) -> Result<RawClient> {
    let (client, outcome) =
        RawClient::connect(&space.server, Some(&space.sentinel), Some(bearer), Some(nonce)).await;
    match (client, outcome) {
        (Some(client), ConnectOutcome::Connected) => {
            say(&format!("connected as inbox nonce {nonce}"));
            Ok(client)
        }
        (_, outcome) => anyhow::bail!("the connect was refused: {outcome:?}"),
    }
}

/// Shows what the broker answered, and holds the tour to what it promises.
fn show(verb: &str, subject: &str, answer: &Result<(), String>, allowed: bool) -> Result<()> {
    match answer {
        Ok(()) => say(&format!("{verb:<9} {subject}: allowed")),
        Err(refusal) => say(&format!("{verb:<9} {subject}: refused by the broker ({refusal})")),
    }
    ensure!(answer.is_ok() == allowed, "the broker answered {verb} {subject} otherwise than the grant says");
    Ok(())
}

/// Writes a managed row under the person's own and leaves the secret in a private file.
fn grant_agent(stage: &Stage, space: &RunningSpace, owner: &DerivedOwner) -> Result<PathBuf> {
    let (secret, hash) = mint_agent_secret(&SystemEntropy);
    let input = GrantInput {
        label: Some("a scout of the demo".into()),
        ..GrantInput::new(owner.clone(), Actor::parse(AGENT_ACTOR)?)
            .allow_subscribe(["general"])
            .allow_publish(["general"])
            .parent(format!("{owner}.{PERSON_ACTOR}"))
            .lifecycle_uid(LifecycleUid::mint(&SystemEntropy))
    };
    Ledger::at(&space.state_dir).grant_managed(&input, &hash, &SystemClock)?;
    let file = stage.root().join("scout.actor-token");
    cotal_workspace::file::write_atomic(&file, secret.as_bytes())?;
    Ok(file)
}

/// The callout's newest line in the auth service's log.
fn last_callout_line(stage: &Stage, space: &RunningSpace) -> Result<String> {
    let log = stage.log("auth-service", Some(&space.name))?;
    log.lines().rev().find(|l| l.starts_with("auth callout: ")).map(str::to_owned).context("no callout line")
}
