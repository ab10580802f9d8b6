//! `cotal auth-service --spaces` as a real process: it serves its manifest and follows it, and ends in order.

use std::{fs, os::unix::ffi::OsStrExt, path::Path, process::Command};

use anyhow::{Result, ensure};
use cotal_testkit::{
    daemons::DAEMON_WITHIN,
    process::Process,
    spaces::{AUTH_TIMEOUT_SECS, TestSpaces},
};
use cotal_workspace::material::Discovery;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

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

#[tokio::test(flavor = "multi_thread")]
async fn silent_sockets_at_one_lane_take_no_descriptor_that_another_needs() -> Result<()> {
    const FILES: usize = 320;
    let spaces = TestSpaces::start(&["acme", "zoo"], "http://127.0.0.1:9/api/auth").await;
    let directory = spaces.scratch();
    fs::write(directory.join("spaces.json"), BOTH)?;
    let (server, timeout) = (spaces.server.url(), AUTH_TIMEOUT_SECS.to_string());
    let log = directory.join("host.log");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {FILES}; exec \"$0\" \"$@\""), COTAL]);
    command.args([
        "auth-service",
        "--spaces",
        "spaces.json",
        "--server",
        &server,
        "--auth-timeout",
        &timeout,
    ]);
    command.current_dir(directory).env("COTAL_HOME", directory.join("home"));
    let mut host = Process::spawn(&mut command, &log)?;
    let url = |space: &str| -> Result<Option<String>> {
        Ok(Discovery::load(&spaces.of(space).state_dir)?.map(|discovery| discovery.url))
    };
    host.until(DAEMON_WITHIN, |_| Ok(url("acme")?.is_some() && url("zoo")?.is_some())).await?;
    let (acme, zoo) = (url("acme")?.unwrap_or_default(), url("zoo")?.unwrap_or_default());
    let mut silent = Vec::new();
    for _ in 0..2 * FILES {
        silent.push(TcpStream::connect(acme.trim_start_matches("http://")).await?);
    }
    for url in [&zoo, &acme] {
        let mut client = TcpStream::connect(url.trim_start_matches("http://")).await?;
        client.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        tokio::time::timeout(DAEMON_WITHIN, client.read_to_string(&mut answer)).await??;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{url}: {answer:?}");
    }
    ensure!(!host.said().contains("accept failed"), "{}", host.said());
    drop(silent);
    let status = host.terminate(DAEMON_WITHIN).await?;
    ensure!(status.success(), "{status}: {}", host.said());
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
    let name = std::ffi::OsStr::from_bytes(b"spaces\xff.json");
    let mut command = Command::new(COTAL);
    command.args(["auth-service", "--server", "nats://127.0.0.1:1", "--spaces"]).arg(name);
    let output =
        command.current_dir(directory.path()).env("COTAL_HOME", directory.path().join("home")).output()?;
    let garbled = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && garbled.contains("is not UTF-8"), "{garbled}");
    let nowhere = refusal(&[])?;
    ensure!(nowhere.contains("--server is required"), "{nowhere}");
    Ok(())
}
