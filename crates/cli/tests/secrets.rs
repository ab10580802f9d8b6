//! No secret, bearer, seed or capability appears in any log, output or process list while a space is used.

use std::path::Path;

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
                        into.push((format!("{from}:{name}"), text.into()))
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

/// Command lines and environments of every process of this user.
fn process_list() -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|p| std::fs::read(p.ok()?.path().join("cmdline")).ok())
        .map(|raw| String::from_utf8_lossy(&raw).replace('\0', " "))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_a_log_an_output_or_the_process_list() -> Result<()> {
    let stage = Stage::new(env!("CARGO_BIN_EXE_cotal"))?;
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
    let input = GrantInput {
        owner: owner.clone(),
        actor: Actor::parse("scout")?,
        scope: vec![],
        allow_subscribe: vec!["general".into()],
        allow_publish: vec![],
        role: None,
        label: None,
        parent: Some(format!("{owner}.cli")),
        lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
    };
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
    seen.extend(process_list().into_iter().map(|line| ("the process list".to_owned(), line)));

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

    for (place, text) in &seen {
        for (name, secret) in &secrets {
            // A token's signature alone would also be a leak.
            let tail = secret.rsplit('.').next().unwrap_or(secret);
            assert!(tail.len() < 16 || !text.contains(tail), "{name} appears in {place}");
        }
    }
    Ok(())
}
