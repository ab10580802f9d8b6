//! Independent witnesses: a NATS client, two JOSE libraries and an identity provider that are not written in Rust.
//!
//! `cargo xtask test` fetches them and says where they lie; without them a test says that it did not run.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cotal_testkit::stage::{RunningSpace, Stage};
use cotal_trust::idp::http_client;
use serde_json::{Value, json};

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");

fn python() -> Option<PathBuf> {
    witness("COTAL_WITNESS_PYTHONPATH")
}

fn node() -> Option<PathBuf> {
    witness("COTAL_WITNESS_NODE")
}

fn witness(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        eprintln!("not run: {variable} names no witness; run `cargo xtask test`");
    }
    found
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Runs a witness with a JSON order on its stdin; its one JSON answer. Secrets travel by pipe, never by argument.
fn ask(command: &mut Command, order: &Value) -> Result<Value> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(order.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the witness failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn ask_python(packages: &Path, name: &str, order: &Value) -> Result<Value> {
    ask(Command::new("python3").arg(script("python").join(name)).env("PYTHONPATH", packages), order)
}

fn ask_node(packages: &Path, name: &str, order: &Value) -> Result<Value> {
    // Node resolves packages from the script's own directory.
    let copy = packages.join(name);
    std::fs::copy(script("node").join(name), &copy)?;
    ask(Command::new("node").arg(copy), order)
}

/// A space with a development IdP, a person logged in and granted `general` and `team.>`.
async fn space_with_ada(stage: &Stage) -> Result<(RunningSpace, String)> {
    stage.ok(&["up", "--user-auth", "--dev-idp", "--port", "0"])?;
    let space = stage.space().await?;
    let (sub, _) = stage.login_at_dev_idp(&space.idp, "ada").await?;
    grant(stage, &sub)?;
    Ok((space, sub))
}

fn grant(stage: &Stage, sub: &str) -> Result<()> {
    stage.ok(&[
        "actor",
        "grant",
        "cli",
        "--sub",
        sub,
        "--scope",
        "",
        "--allow-subscribe",
        "general,team.>",
        "--allow-publish",
        "general",
    ])?;
    Ok(())
}

fn connect_order(stage: &Stage, space: &RunningSpace, token: &str, owner: &str) -> Result<Value> {
    let creds = stage.root().join("sentinel.creds");
    cotal_workspace::file::write_atomic(&creds, space.sentinel.as_bytes())?;
    let me = format!("cotal.main.chat.{owner}.cli");
    Ok(json!({
        "server": space.server,
        "creds": creds,
        "token": token,
        "nonce": "ibxwitness00000000000000000000001",
        "publish": [format!("{me}.general"), format!("{me}.secret"), "$SYS.REQ.USER.AUTH", "$KV.cotal_auth_main.gate.x"],
        "subscribe": ["cotal.main.chat.*.*.team.>", "cotal.main.>", "cotal.main.chat.*.*.secret"],
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_is_confined_as_the_template_says_and_reads_its_own_denial() -> Result<()> {
    let Some(packages) = python() else { return Ok(()) };
    let stage = Stage::new(COTAL)?;
    let (space, sub) = space_with_ada(&stage).await?;
    let bearer = stage.exchange_human(&space, "cli").await?.map_err(anyhow::Error::msg)?;
    let order = connect_order(&stage, &space, &bearer.token, &bearer.owner)?;

    let answer = ask_python(&packages, "connect.py", &order)?;
    assert_eq!(answer["connected"], true, "{answer}");
    let me = format!("cotal.main.chat.{}.cli", bearer.owner);
    let allowed = |kind: &str, subject: &str| answer[kind][subject].is_null();
    assert!(allowed("publish", &format!("{me}.general")), "{answer}");
    assert!(allowed("subscribe", "cotal.main.chat.*.*.team.>"), "{answer}");
    for subject in [format!("{me}.secret"), "$SYS.REQ.USER.AUTH".into(), "$KV.cotal_auth_main.gate.x".into()]
    {
        let refusal = answer["publish"][&subject].as_str().context(subject.clone())?.to_lowercase();
        assert!(refusal.contains("permissions violation"), "{subject}: {refusal}");
    }
    for subject in ["cotal.main.>", "cotal.main.chat.*.*.secret"] {
        let refusal = answer["subscribe"][subject].as_str().context(subject)?.to_lowercase();
        assert!(refusal.contains("permissions violation"), "{subject}: {refusal}");
    }

    stage.ok(&["actor", "revoke", "cli", "--sub", &sub])?;
    let denied = ask_python(&packages, "connect.py", &order)?;
    assert_eq!(denied["connected"], false, "a revoked grant must bite at the next connect");
    assert!(
        denied["error"].as_str().is_some_and(|e| e.to_lowercase().contains("authorization violation")),
        "{denied}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_jose_libraries_verify_a_bearer_against_the_published_keys() -> Result<()> {
    let (python, node) = (python(), node());
    if python.is_none() && node.is_none() {
        return Ok(());
    }
    let stage = Stage::new(COTAL)?;
    let (space, _) = space_with_ada(&stage).await?;
    let bearer = stage.exchange_human(&space, "cli").await?.map_err(anyhow::Error::msg)?;
    let jwks: Value = http_client(Duration::from_secs(5))?
        .get(format!("{}/jwks", space.discovery.url))
        .send()
        .await?
        .json()
        .await?;
    let order =
        json!({ "jwks": jwks, "token": bearer.token, "issuer": "urn:cotal:auth:main", "audience": "main" });

    let mut answers = Vec::new();
    if let Some(packages) = python {
        answers.push(ask_python(&packages, "verify_bearer.py", &order)?);
    }
    if let Some(packages) = node {
        answers.push(ask_node(&packages, "verify-bearer.mjs", &order)?);
    }
    for answer in answers {
        assert_eq!(answer["header"]["alg"], "EdDSA");
        let claims = &answer["claims"];
        assert_eq!(claims["sub"], bearer.owner.as_str());
        assert_eq!(claims["act"]["owner"], bearer.owner.as_str());
        assert_eq!(claims["act"]["actor"], "cli");
        assert_eq!(claims["ver"], 1);
        assert_eq!(claims["iat"], claims["nbf"]);
    }
    Ok(())
}

/// A Better Auth server in a process of its own.
struct BetterAuth {
    child: Child,
    base: String,
    email: String,
    password: String,
}

impl BetterAuth {
    fn start(packages: &Path) -> Result<Self> {
        let copy = packages.join("better-auth.mjs");
        std::fs::copy(script("node").join("better-auth.mjs"), &copy)?;
        let mut child = Command::new("node")
            .arg(copy)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).context("Better Auth did not start")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(Self {
            child,
            base: text(&ready["base"]),
            email: text(&ready["users"][0]["email"]),
            password: text(&ready["users"][0]["password"]),
        })
    }

    /// Approves a device code as a person would: signs in, opens the code, approves it.
    async fn approve(&self, code: String) -> Result<()> {
        let http = http_client(Duration::from_secs(10))?;
        let origin = self.base.trim_end_matches("/api/auth");
        let signed_in = http
            .post(format!("{}/sign-in/email", self.base))
            .header("origin", origin)
            .json(&json!({ "email": self.email, "password": self.password }))
            .send()
            .await?
            .error_for_status()?;
        let cookies: Vec<_> = signed_in
            .headers()
            .get_all("set-cookie")
            .iter()
            .filter_map(|c| c.to_str().ok()?.split(';').next().map(str::to_owned))
            .collect();
        let cookies = cookies.join("; ");
        http.get(format!("{}/device?user_code={code}", self.base))
            .header("cookie", &cookies)
            .send()
            .await?
            .error_for_status()?;
        http.post(format!("{}/device/approve", self.base))
            .header("cookie", &cookies)
            .header("origin", origin)
            .json(&json!({ "userCode": code }))
            .send()
            .await?
            .error_for_status()?;
        Ok(())
    }
}

impl Drop for BetterAuth {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn login_exchange_and_connect_work_against_a_real_better_auth_server() -> Result<()> {
    let Some(packages) = node() else { return Ok(()) };
    let idp = BetterAuth::start(&packages)?;
    let stage = Stage::new(COTAL)?;
    stage.ok(&["up", "--user-auth", "--idp", &idp.base, "--port", "0"])?;
    let space = stage.space().await?;
    let (sub, printed) = stage.login(&idp.base, async |code| idp.approve(code).await).await?;
    assert!(printed.contains(&sub), "the login names the subject: {printed}");

    let refusal =
        stage.exchange_human(&space, "cli").await?.err().context("an ungranted person was served")?;
    assert!(refusal.starts_with("401 "), "{refusal}");
    grant(&stage, &sub)?;
    let bearer = stage.exchange_human(&space, "cli").await?.map_err(anyhow::Error::msg)?;
    let (client, outcome) = cotal_testkit::raw::RawClient::connect(
        &space.server,
        Some(&space.sentinel),
        Some(&bearer.token),
        Some("better-auth-1"),
    )
    .await;
    assert_eq!(outcome, cotal_testkit::raw::ConnectOutcome::Connected);
    let subject = format!("cotal.main.chat.{}.cli.general", bearer.owner);
    client.context("no client")?.try_publish(&subject, b"hello").await.map_err(anyhow::Error::msg)?;

    stage.ok(&["logout", "--idp", &idp.base])?;
    assert!(stage.idp_token(&idp.base).await.is_err(), "a logged-out session mints nothing");
    Ok(())
}
