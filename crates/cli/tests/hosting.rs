//! `cotal auth-service --spaces` as a real process: it serves its manifest and follows it, and ends in order.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, ensure};
use cotal_testkit::{
    daemons::DAEMON_WITHIN,
    process::Process,
    spaces::{AUTH_TIMEOUT_SECS, TestSpaces},
};
use cotal_workspace::material::Discovery;

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
const BOTH: &str = r#"{"version": 2, "spaces": [{"space": "acme"}, {"space": "zoo"}]}"#;
const ONE: &str = r#"{"version": 2, "spaces": [{"space": "acme"}]}"#;

fn host(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(COTAL);
    command.args(["auth-service", "--spaces", "spaces.json"]).args(arguments);
    command.current_dir(directory).env("COTAL_HOME", directory.join("home"));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_serves_its_manifest_takes_a_change_over_on_sighup_and_ends_in_order_on_sigterm() -> Result<()>
{
    let spaces = TestSpaces::start(&["acme", "zoo"], "http://127.0.0.1:9/api/auth").await;
    let directory = spaces.scratch();
    fs::write(directory.join("spaces.json"), BOTH)?;
    let (server, timeout) = (spaces.server.url(), AUTH_TIMEOUT_SECS.to_string());
    let log = directory.join("host.log");
    let mut command = host(directory, &["--server", &server, "--auth-timeout", &timeout]);
    let mut host = Process::spawn(&mut command, &log)?;
    let answers = |space: &str, pid: u32| -> Result<bool> {
        Ok(Discovery::load(&spaces.of(space).state_dir)?.is_some_and(|discovery| discovery.pid == pid))
    };
    host.until(DAEMON_WITHIN, |pid| Ok(answers("acme", pid)? && answers("zoo", pid)?)).await?;
    for space in ["acme", "zoo"] {
        ensure!(host.said().contains(&format!("[{space}] auth callout: ")), "{}", host.said());
    }

    fs::write(directory.join("next"), ONE)?;
    fs::rename(directory.join("next"), directory.join("spaces.json"))?;
    host.hang_up()?;
    let applied = directory.join("spaces.json.applied");
    host.until(DAEMON_WITHIN, |_| Ok(fs::read_to_string(&applied).is_ok_and(|text| text == ONE))).await?;
    ensure!(Discovery::load(&spaces.of("zoo").state_dir)?.is_none());

    let status = host.terminate(DAEMON_WITHIN).await?;
    ensure!(status.success(), "{status}: {}", host.said());
    ensure!(Discovery::load(&spaces.of("acme").state_dir)?.is_none());
    Ok(())
}

#[test]
fn a_host_that_cannot_start_says_why_and_ends_with_one() -> Result<()> {
    let directory = tempfile::tempdir()?;
    fs::create_dir(directory.path().join(".cotal"))?;
    let refusal = |arguments: &[&str]| -> Result<String> {
        let output = host(directory.path(), arguments).output()?;
        ensure!(output.status.code() == Some(1), "{}", output.status);
        Ok(String::from_utf8(output.stderr)?)
    };
    let server = ["--server", "nats://127.0.0.1:1"];
    let absent = refusal(&server)?;
    ensure!(absent.contains("spaces.json does not exist"), "{absent}");
    fs::write(
        directory.path().join("spaces.json"),
        r#"{"version": 2, "spaces": [{"space": "a", "port": 1}]}"#,
    )?;
    let unknown = refusal(&server)?;
    ensure!(unknown.contains("spaces.json: spaces[0] has no field \"port\""), "{unknown}");
    let port = refusal(&[&server[..], &["--port", "0"]].concat())?;
    ensure!(port.contains("--port is not taken beside --spaces"), "{port}");
    let nowhere = refusal(&[])?;
    ensure!(nowhere.contains("--server is required"), "{nowhere}");
    Ok(())
}
