//! A second space on a root whose broker runs: it joins, and nobody who is connected notices.

use std::{
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cotal_testkit::{
    raw::{ConnectOutcome, RawClient},
    stage::{RunningSpace, Stage},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TWO: &str = "two";
/// Longer than any of these commands takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

/// A root whose space `main` is up, with a person of it connected.
struct House {
    stage: Stage,
    main: RunningSpace,
    live: RawClient,
}

impl House {
    async fn new() -> Result<Self> {
        let stage = Stage::new(env!("CARGO_BIN_EXE_cotal"))?;
        stage.ok(&["up", "--user-auth", "--dev-idp", "--port", "0"])?;
        let main = stage.space().await?;
        let bearer = person(&stage, &main, "ada").await?;
        let (live, outcome) = connect(&main, &bearer, "second-space-live").await;
        ensure!(outcome == ConnectOutcome::Connected, "{outcome:?}");
        Ok(Self { stage, main, live: live.context("no connection")? })
    }

    fn cotal(&self) -> PathBuf {
        self.stage.root().join(".cotal")
    }

    fn config(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.cotal().join("nats-server.conf"))?)
    }

    fn broker(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.cotal().join("nats-server.pid"))?)
    }

    fn up_two(&self) -> Result<Value> {
        let told = self.stage.ok(&["up", "--user-auth", "--dev-idp", "--space", TWO, "--json"])?;
        Ok(serde_json::from_str(&told)?)
    }

    fn status(&self, space: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.stage.ok(&["status", "--space", space, "--json"])?)?)
    }

    fn refused(&self, line: &[&str]) -> Result<String> {
        let output = self.stage.run(line)?;
        ensure!(output.status.code() == Some(1), "{line:?} was not refused");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// `up` of the second space stops at one of its five pieces: a directory stands where that piece goes.
    fn leave_half(&self, secrets: &Path, piece: &str) -> Result<PathBuf> {
        let path = secrets.join(piece);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        self.refused(&["up", "--user-auth", "--dev-idp", "--space", TWO])?;
        Ok(path)
    }

    /// The connection of the person of `main` is the one that it was.
    async fn undisturbed(&mut self) -> Result<()> {
        self.live.ping().await.map_err(anyhow::Error::msg)
    }
}

/// Somebody who is logged in and granted `cli`; answers their bearer.
async fn person(stage: &Stage, space: &RunningSpace, name: &str) -> Result<String> {
    let (sub, _) = stage.login_at_dev_idp(&space.idp, name).await?;
    let lists = ["--scope", "", "--allow-subscribe", "general", "--allow-publish", "general"];
    stage.ok(
        &[&["actor", "grant", "cli", "--sub", &sub, "--space", space.name.as_str()][..], &lists].concat()
    )?;
    let bearer = stage.exchange_human(space, "cli").await?.map_err(anyhow::Error::msg)?;
    Ok(bearer.token)
}

async fn connect(space: &RunningSpace, bearer: &str, nonce: &str) -> (Option<RawClient>, ConnectOutcome) {
    RawClient::connect(&space.server, Some(&space.sentinel), Some(bearer), Some(nonce)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_space_joins_a_running_broker_and_no_connection_ends() -> Result<()> {
    let mut house = House::new().await?;
    let (broker, before) = (house.broker()?, house.config()?);
    house.up_two()?;
    house.undisturbed().await?;
    assert_eq!(house.broker()?, broker);

    // Every account of the root is in the configuration that the next start reads.
    let after = house.config()?;
    let accounts = |text: &str| text.lines().filter(|line| line.starts_with("  A")).count();
    assert_eq!((accounts(&before), accounts(&after)), (3, 5));

    // Both take their own and refuse each other's.
    let two = house.stage.space_named(TWO).await?;
    assert_eq!(two.server, house.main.server);
    let bearer = person(&house.stage, &two, "bob").await?;
    assert_eq!(connect(&two, &bearer, "second-space-two").await.1, ConnectOutcome::Connected);
    let crossed = connect(&house.main, &bearer, "second-space-crossed").await.1;
    assert!(matches!(crossed, ConnectOutcome::Refused(_)), "{crossed:?}");
    let own = house.stage.exchange_human(&house.main, "cli").await?.map_err(anyhow::Error::msg)?;
    assert_eq!(connect(&house.main, &own.token, "second-space-main").await.1, ConnectOutcome::Connected);

    // A second time it is a look; and a look at one shows the other.
    let again = house.up_two()?;
    assert_eq!((again["started"].clone(), house.config()?), (serde_json::json!([]), after));
    for (space, other) in [("main", TWO), (TWO, "main")] {
        let status = house.status(space)?;
        assert_eq!(
            (&status["authService"]["answers"], &status["delivery"]["ready"]),
            (&true.into(), &true.into())
        );
        let others = status["otherSpaces"].as_array().context("no other spaces")?;
        assert_eq!(others.len(), 1);
        assert_eq!(
            (&others[0]["space"], &others[0]["authService"]["answers"]),
            (&other.into(), &true.into())
        );
        let text = house.stage.ok(&["status", "--space", space])?;
        assert!(text.contains(&format!("also here      {other}: up")), "{text}");
    }

    // What retires in one space is proved with credentials of its own.
    house.stage.ok(&["actor", "revoke", "cli", "--sub", "bob", "--space", TWO])?;

    // One goes, the other stays.
    house.stage.ok(&["down", "--space", TWO])?;
    house.undisturbed().await?;
    assert_eq!(house.status(TWO)?["authService"]["running"], false);
    assert_eq!(house.status("main")?["otherSpaces"][0]["authService"]["answers"], false);

    // And the broker that is started anew knows both.
    house.stage.ok(&["down", "--space", "main"])?;
    house.up_two()?;
    house.stage.ok(&["up", "--user-auth"])?;
    let two = house.stage.space_named(TWO).await?;
    let bearer = person(&house.stage, &two, "bob").await?;
    assert_eq!(connect(&two, &bearer, "second-space-anew").await.1, ConnectOutcome::Connected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joining_that_is_cut_short_is_ended_by_the_next_up() -> Result<()> {
    let mut house = House::new().await?;
    let before = house.config()?;

    // Killed once it has its credentials, and before or while the broker is told.
    let signed = house.cotal().join("space.74776f/connection-evictor.creds");
    let mut up = house.stage.command(&["up", "--user-auth", "--dev-idp", "--space", TWO]).spawn()?;
    let began = std::time::Instant::now();
    while !signed.exists() {
        ensure!(began.elapsed() < WITHIN, "no credentials were signed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill_process(Pid::from_child(&up), Signal::KILL)?;
    up.wait()?;
    assert_eq!(house.config()?, before, "the kill came too late: the configuration was written");
    house.undisturbed().await?;
    house.up_two()?;
    house.undisturbed().await?;
    let after = house.config()?;
    assert_ne!(after, before);

    // Killed after the broker was told, and before the text was written: by whichever space the next one is.
    std::fs::write(house.cotal().join("nats-server.conf"), &before)?;
    house.stage.ok(&["up", "--user-auth"])?;
    house.undisturbed().await?;
    assert_eq!(house.config()?, after);
    let two = house.stage.space_named(TWO).await?;
    let bearer = person(&house.stage, &two, "bob").await?;
    assert_eq!(connect(&two, &bearer, "second-space-cut").await.1, ConnectOutcome::Connected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_is_half_made_stops_no_other_once_it_has_its_callout_account() -> Result<()> {
    let mut house = House::new().await?;
    let secrets = house.cotal().join("auth/space.74776f");
    // Without its callout account the broker cannot be told of the space: whoever asks hears what makes it.
    std::fs::remove_dir(house.leave_half(&secrets, "callout.json")?)?;
    assert!(secrets.join("idp.json").exists() && !secrets.join("callout.json").exists());
    let told = house.refused(&["up", "--user-auth"])?;
    assert!(
        told.contains("lacks its callout account") && told.contains("cotal up --user-auth --space 'two'"),
        "{told}"
    );
    house.undisturbed().await?;

    // All but the last of its five pieces.
    let last = house.leave_half(&secrets, "service-keys.json")?;
    assert!(secrets.join("callout.json").exists());
    house.stage.ok(&["up", "--user-auth"])?;
    house.undisturbed().await?;

    std::fs::remove_dir(last)?;
    house.up_two()?;
    house.stage.ok(&["up", "--user-auth"])?;
    house.undisturbed().await?;
    let two = house.stage.space_named(TWO).await?;
    let bearer = person(&house.stage, &two, "bob").await?;
    assert_eq!(connect(&two, &bearer, "second-space-half").await.1, ConnectOutcome::Connected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_told_keeps_what_it_serves_and_nothing_is_begun() -> Result<()> {
    let mut house = House::new().await?;
    let creds = house.cotal().join("auth/broker-accounts.creds");
    std::fs::remove_file(&creds)?;
    let told = house.refused(&["up", "--user-auth", "--dev-idp", "--space", TWO])?;
    assert!(told.contains("is missing") && told.contains("cotal down --space"), "{told}");
    assert!(!house.cotal().join("auth/account.74776f.json").exists());
    house.undisturbed().await?;

    // The next start makes it again.
    house.stage.ok(&["down"])?;
    house.stage.ok(&["up", "--user-auth"])?;
    assert!(creds.exists());
    house.up_two()?;
    Ok(())
}
