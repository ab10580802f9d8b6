//! No secret, bearer, seed or capability appears in any log, output or process list while a space is used.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_testkit::{raw::RawClient, stage::Stage};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid};
use serde_json::Value;

/// A named secret and its text.
type Secret = (String, String);

/// Collects every string of a document that lies under one of these member names.
fn collect(document: &Value, names: &[&str], from: &str, into: &mut Vec<Secret>) {
    match document {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(text) if names.contains(&name.as_str()) => {
                        into.push((format!("{from}:{name}"), text.into()));
                    }
                    _ => collect(value, names, from, into),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, names, from, into)),
        _ => {}
    }
}

/// Every secret that lies on disk under `.cotal/auth` and the machine home.
fn secrets_on_disk(dirs: &[&Path], into: &mut Vec<Secret>) -> Result<()> {
    const MEMBERS: [&str; 8] =
        ["seed", "signingSeed", "d", "secretB64", "cap", "token", "session", "calloutCreds"];
    let mut pending: Vec<_> = dirs.iter().map(|d| d.to_path_buf()).collect();
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "json")
                && let Ok(document) = serde_json::from_slice::<Value>(&std::fs::read(&path)?)
            {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                collect(&document, &MEMBERS, &name, into);
            }
        }
    }
    Ok(())
}

/// How long the process list is left alone between two looks: a command lives for longer.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What the process list shows of this stage's commands and daemons, from now on until it is asked.
struct ProcessList {
    stop: Arc<AtomicBool>,
    seen: Option<JoinHandle<BTreeSet<(&'static str, String)>>>,
}

impl ProcessList {
    /// Watches the processes whose machine home this is. That home is in the environment of every command of a stage
    /// and of every daemon that a command has left, whoever its parent is by now; it is not in the test runner's own.
    fn watch(home: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mark) = (stop.clone(), format!("COTAL_HOME={}", home.display()));
        let seen = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stopped.load(Ordering::Relaxed) {
                look(&mark, &mut seen);
                std::thread::sleep(LOOK_EVERY);
            }
            seen
        });
        Self { stop, seen: Some(seen) }
    }

    /// Every command line and environment that was seen.
    fn seen(mut self) -> BTreeSet<(&'static str, String)> {
        self.stop.store(true, Ordering::Relaxed);
        self.seen.take().and_then(|seen| seen.join().ok()).unwrap_or_default()
    }
}

/// A test that fails on its way leaves no thread behind.
impl Drop for ProcessList {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One look at every process of this machine that can be looked at.
fn look(mark: &str, seen: &mut BTreeSet<(&'static str, String)>) {
    let words = |path: PathBuf| {
        let raw = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&raw).replace('\0', " ")
    };
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for process in processes.flatten().map(|process| process.path()) {
        let environment = words(process.join("environ"));
        if environment.split(' ').any(|variable| variable == mark) {
            seen.insert(("a command line", words(process.join("cmdline"))));
            seen.insert(("an environment", environment));
        }
    }
}

/// The parts of a secret of which each alone would be a leak: every line of a creds file without its banners and its
/// advice, and of a token the payload and the signature. A token's header is the same for all.
fn parts(secret: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for line in secret.lines().map(str::trim) {
        let segments: Vec<_> = line.split('.').collect();
        match segments[..] {
            [header, payload, signature] if header.starts_with("eyJ") => parts.extend([payload, signature]),
            _ if line.contains(' ') || line.starts_with("---") || line.starts_with("***") => {}
            _ => parts.push(line),
        }
    }
    // Shorter than any secret of ours, long enough to be in no text by chance.
    parts.retain(|part| part.len() >= 16);
    parts
}

/// Where a secret appears, if anywhere; the secret itself is not told.
fn leak(seen: &[(String, String)], secrets: &[Secret]) -> Option<String> {
    for (name, secret) in secrets {
        for part in parts(secret) {
            if let Some((place, _)) = seen.iter().find(|(_, text)| text.contains(part)) {
                return Some(format!("{name} appears in {place}"));
            }
        }
    }
    None
}

#[test]
fn a_part_of_a_secret_is_a_leak_wherever_it_appears() {
    let creds = "-----BEGIN NATS USER JWT-----\neyJ0.eyJwYXlsb2FkLW9mLWNyZWRz.c2lnbmF0dXJlLW9mLWNyZWRz\n\
                 ------END NATS USER JWT------\n\n************************* IMPORTANT ****\nNKEYs are sensitive.\n\
                 -----BEGIN USER NKEY SEED-----\nSUAAAAAAAAAAAAAAAAAAAA\n------END USER NKEY SEED------\n";
    assert_eq!(
        parts(creds),
        ["eyJwYXlsb2FkLW9mLWNyZWRz", "c2lnbmF0dXJlLW9mLWNyZWRz", "SUAAAAAAAAAAAAAAAAAAAA"]
    );
    assert_eq!(parts("Zm9yLXRoZS1hZ2VudC1vbmx5"), ["Zm9yLXRoZS1hZ2VudC1vbmx5"]);
    let secrets = [("the creds".to_owned(), creds.to_owned())];
    let seen = |text: &str| [("a log".to_owned(), text.to_owned())];
    for text in
        ["x eyJ0.eyJwYXlsb2FkLW9mLWNyZWRz y", "c2lnbmF0dXJlLW9mLWNyZWRz", "seed=SUAAAAAAAAAAAAAAAAAAAA"]
    {
        assert_eq!(leak(&seen(text), &secrets).as_deref(), Some("the creds appears in a log"), "{text}");
    }
    for text in ["eyJ0", "NKEYs are sensitive.", "-----BEGIN USER NKEY SEED-----"] {
        assert_eq!(leak(&seen(text), &secrets), None, "{text}");
    }
}

#[test]
fn a_secret_of_a_command_is_seen_in_its_command_line_and_in_its_environment() -> Result<()> {
    let home = tempfile::tempdir()?;
    let mut child = std::process::Command::new("/bin/sh")
        .args(["-c", "read line", "in-the-command-line"])
        .env("COTAL_HOME", home.path())
        .env("LEAK", "in-the-environment")
        .stdin(std::process::Stdio::piped())
        .spawn()?;
    let mark = format!("COTAL_HOME={}", home.path().display());
    let places = [("in-the-command-line", "command line"), ("in-the-environment", "environment")];
    let looked = Instant::now();
    // A process that was just started shows its command line and its environment a moment later.
    let found = loop {
        let mut seen = BTreeSet::new();
        look(&mark, &mut seen);
        let seen: Vec<_> = seen.into_iter().map(|(place, text)| (place.to_owned(), text)).collect();
        let found = places.map(|(secret, _)| leak(&seen, &[("it".into(), secret.into())]));
        if found.iter().all(Option::is_some) || looked.elapsed() > Duration::from_secs(10) {
            break found;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    child.kill()?;
    child.wait()?;
    for ((secret, place), found) in places.into_iter().zip(found) {
        assert!(found.as_ref().is_some_and(|found| found.contains(place)), "{secret}: {found:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_a_log_an_output_or_the_process_list() -> Result<()> {
    let stage = Stage::new(env!("CARGO_BIN_EXE_cotal"))?;
    let processes = ProcessList::watch(&stage.home());
    let mut seen: Vec<(String, String)> = Vec::new();
    let run = |arguments: &[&str], seen: &mut Vec<(String, String)>| -> Result<()> {
        let output = stage.run(arguments)?;
        let what = format!("output of cotal {}", arguments.first().unwrap_or(&""));
        seen.push((what.clone(), String::from_utf8_lossy(&output.stdout).into_owned()));
        seen.push((what, String::from_utf8_lossy(&output.stderr).into_owned()));
        Ok(())
    };

    run(&["up", "--user-auth", "--dev-idp", "--port", "0"], &mut seen)?;
    let space = stage.space().await?;
    let (sub, printed) = stage.login_at_dev_idp(&space.idp, "ada").await?;
    seen.push(("output of cotal login".into(), printed));
    run(&["actor", "grant", "cli", "--sub", &sub, "--full"], &mut seen)?;
    let idp_token = stage.idp_token(&space.idp).await?;
    let bearer = stage.exchange_human(&space, "cli").await?.map_err(anyhow::Error::msg)?;

    let owner = DerivedOwner::parse(&bearer.owner)?;
    let (agent_secret, hash) = mint_agent_secret(&SystemEntropy);
    let input = GrantInput::new(owner.clone(), Actor::parse("scout")?)
        .allow_subscribe(["general"])
        .parent(format!("{owner}.cli"))
        .lifecycle_uid(LifecycleUid::mint(&SystemEntropy));
    Ledger::at(&space.state_dir).grant_managed(&input, &hash, &SystemClock)?;
    let token_file = stage.root().join("scout.actor-token");
    cotal_workspace::file::write_atomic(&token_file, agent_secret.as_bytes())?;
    let agent_bearer = stage.agent_bearer(&space, &bearer.owner, "scout", &token_file)?;

    for token in
        [bearer.token.as_str(), agent_bearer.as_str(), "garbage", &bearer.token[..bearer.token.len() - 4]]
    {
        let _ = RawClient::connect(&space.server, Some(&space.sentinel), Some(token), Some("secrets-test-1"))
            .await;
    }
    let wrong = serde_json::json!({ "owner": bearer.owner, "actor": "scout", "actorToken": format!("{}x", &*agent_secret) });
    let _ = cotal_testkit::stage::exchange(&space, &wrong).await?;
    for arguments in
        [&["status"][..], &["status", "--json"], &["actor", "list"], &["actor", "list", "--json"]]
    {
        run(arguments, &mut seen)?;
    }
    let mut secrets: Vec<Secret> = vec![
        ("idp token".into(), idp_token),
        ("bearer".into(), bearer.token.clone()),
        ("agent secret".into(), agent_secret.to_string()),
        ("agent bearer".into(), agent_bearer),
        ("capability".into(), space.discovery.cap.to_string()),
    ];
    secrets_on_disk(&[&stage.root().join(".cotal"), &stage.home()], &mut secrets)?;
    assert!(secrets.len() > 10, "the search knows too few secrets to mean anything: {}", secrets.len());

    run(&["actor", "revoke", "cli", "--sub", &sub], &mut seen)?;
    let idp = space.idp.clone();
    run(&["logout", "--idp", &idp], &mut seen)?;
    run(&["down"], &mut seen)?;
    let logs: Vec<_> = std::fs::read_dir(stage.root().join(".cotal"))?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
        .collect();
    assert!(logs.len() >= 3, "broker, auth service and IdP each leave a log: {logs:?}");
    for log in logs {
        seen.push((log.display().to_string(), String::from_utf8_lossy(&std::fs::read(&log)?).into_owned()));
    }

    let processes = processes.seen();
    // Those that live long enough to be seen on any machine; a watcher that sees nothing proves nothing.
    for what in ["cotal up ", "cotal login ", "cotal auth-service ", "cotal dev-idp ", "nats-server -c "] {
        let shown = processes.iter().any(|(place, text)| *place == "a command line" && text.contains(what));
        assert!(shown, "no process list ever showed {what:?}");
    }
    seen.extend(processes.into_iter().map(|(place, text)| (place.to_owned(), text)));
    assert_eq!(leak(&seen, &secrets), None);
    Ok(())
}
