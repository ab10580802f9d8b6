//! Where the tour plays: a workspace and a machine home of its own, and the commands run in it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use cotal_trust::system::SystemClock;
use cotal_wire::Clock;
use cotal_workspace::{
    material::{Discovery, load_idp_pin},
    registry::MeshRegistry,
    root::{Home, Root},
};

const SPACE: &str = "main";
/// How long the tour waits for the login's code and for its end.
const LOGIN_WITHIN: Duration = Duration::from_secs(30);

/// A tour's own corner of the disk.
pub(crate) struct Stage {
    cotal: PathBuf,
    dir: tempfile::TempDir,
}

/// The space of the tour, once it is up.
pub(crate) struct Space {
    pub(crate) name: String,
    pub(crate) server: String,
    pub(crate) sentinel: String,
    pub(crate) state_dir: PathBuf,
    idp: String,
    discovery: Discovery,
}

/// A bearer that the exchange answered.
pub(crate) struct Bearer {
    pub(crate) token: String,
    pub(crate) owner: String,
    exp: u64,
}

impl Bearer {
    pub(crate) fn seconds_left(&self) -> u64 {
        self.exp.saturating_sub(SystemClock.now_secs().0)
    }
}

/// Announces the next step.
pub(crate) fn step(what: &str) {
    println!("\n## {what}");
}

/// Says what happened.
pub(crate) fn say(what: &str) {
    println!("   {what}");
}

impl Stage {
    pub(crate) fn new(cotal: PathBuf) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-demo-").tempdir()?;
        std::fs::create_dir_all(dir.path().join("work/.cotal"))?;
        Ok(Self { cotal, dir })
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cotal);
        command.args(arguments).current_dir(self.root()).env("COTAL_HOME", self.home()).stdin(Stdio::null());
        command
    }

    /// Shows a command, runs it, shows what it printed.
    pub(crate) fn cotal(&self, arguments: &[&str]) -> Result<()> {
        println!("$ cotal {}", shown(arguments));
        let output = self.command(arguments).output().context("cotal")?;
        for line in String::from_utf8_lossy(&output.stdout)
            .lines()
            .chain(String::from_utf8_lossy(&output.stderr).lines())
        {
            say(line);
        }
        ensure!(output.status.success(), "cotal {} failed ({})", arguments.join(" "), output.status);
        Ok(())
    }

    /// What the running space left on disk.
    pub(crate) async fn space(&self) -> Result<Space> {
        let space = cotal_wire::Space::parse(SPACE)?;
        let root = Root::at(self.root());
        let state_dir = root.user_auth_state_dir(&space)?;
        let entry =
            MeshRegistry::new(Home::at(self.home())).get(&space)?.context("the space is not registered")?;
        let callout = cotal_workspace::file::read_regular(&state_dir.join("callout.json"))?
            .context("no callout.json")?;
        let callout =
            cotal_trust::callout_account::CalloutAuth::from_document(std::str::from_utf8(&callout)?)?;
        Ok(Space {
            name: SPACE.into(),
            server: entry.server,
            sentinel: callout.sentinel_creds.to_string(),
            idp: load_idp_pin(&state_dir)?.context("no IdP pin")?.url,
            discovery: Discovery::load(&state_dir)?.context("the auth service is not ready")?,
            state_dir,
        })
    }

    /// Runs `cotal login` and approves its code as `user`; returns the subject.
    pub(crate) async fn login_approved(&self, space: &Space, user: &str) -> Result<String> {
        println!("$ cotal login --idp {}", space.idp);
        let printed = self.dir.path().join("login.out");
        let file = std::fs::File::create(&printed)?;
        let mut login = self
            .command(&["login", "--idp", &space.idp])
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("cotal login")?;
        let http = cotal_trust::idp::http_client(Duration::from_secs(10))?;
        let started = std::time::Instant::now();
        let mut approved = false;
        let status = loop {
            if let Some(status) = login.try_wait()? {
                break status;
            }
            if !approved && let Some(code) = user_code(&std::fs::read_to_string(&printed)?) {
                approve(&http, space, &code, user).await?;
                approved = true;
            }
            if started.elapsed() > LOGIN_WITHIN {
                let _ = login.kill();
                bail!("the login did not end: {}", std::fs::read_to_string(&printed)?);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        for line in std::fs::read_to_string(&printed)?.lines() {
            say(line);
        }
        ensure!(status.success(), "cotal login failed ({status})");
        let session = self.session(space)?;
        session["sub"].as_str().map(str::to_owned).context("the session names no subject")
    }

    fn session(&self, space: &Space) -> Result<serde_json::Value> {
        let cache: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.home().join("idp-sessions.json"))?)?;
        Ok(cache["sessions"][&space.idp].clone())
    }

    /// Exchanges the person's login on the loopback face; the inner error is the service's refusal.
    pub(crate) async fn exchange_human(&self, space: &Space, actor: &str) -> Result<Result<Bearer, String>> {
        let http = cotal_trust::idp::http_client(Duration::from_secs(10))?;
        let session = self.session(space)?;
        let token: serde_json::Value = http
            .get(format!("{}/token", space.idp))
            .bearer_auth(session["token"].as_str().context("no session token")?)
            .send()
            .await?
            .json()
            .await?;
        let answer = http
            .post(format!("{}/exchange", space.discovery.url))
            .bearer_auth(space.discovery.cap.as_str())
            .json(&serde_json::json!({ "idpToken": token["token"], "actor": actor }))
            .send()
            .await?;
        let status = answer.status().as_u16();
        let body: serde_json::Value = answer.json().await?;
        Ok(match (body["token"].as_str(), body["owner"].as_str(), body["exp"].as_u64()) {
            (Some(token), Some(owner), Some(exp)) => {
                Ok(Bearer { token: token.to_owned(), owner: owner.to_owned(), exp })
            }
            _ => Err(format!("{status} {}", body["error"].as_str().unwrap_or("without a reason"))),
        })
    }

    /// Runs `cotal agent-bearer`; the bearer is not shown.
    pub(crate) fn agent_bearer(
        &self,
        space: &Space,
        owner: &str,
        actor: &str,
        secret: &Path,
    ) -> Result<String> {
        let (dir, secret) = (space.state_dir.display().to_string(), secret.display().to_string());
        let arguments = [
            "agent-bearer",
            "--dir",
            &dir,
            "--space",
            &space.name,
            "--owner",
            owner,
            "--actor",
            actor,
            "--token-file",
            &secret,
        ];
        println!(
            "$ cotal agent-bearer --space {} --owner {owner} --actor {actor} --token-file ...",
            space.name
        );
        let output = self.command(&arguments).output()?;
        ensure!(output.status.success(), "agent-bearer: {}", String::from_utf8_lossy(&output.stderr));
        say("printed a bearer (not shown)");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The callout's newest line in the auth service's log.
    pub(crate) fn last_callout_line(&self, space: &Space) -> Result<String> {
        let space = cotal_wire::Space::parse(&space.name)?;
        let log = Root::at(self.root()).daemon_files("auth-service", Some(&space)).log;
        let text = std::fs::read_to_string(&log)?;
        text.lines()
            .rev()
            .find(|l| l.starts_with("auth callout: "))
            .map(str::to_owned)
            .context("no callout line")
    }

    /// Leaves everything running and says where.
    pub(crate) fn keep(self) {
        let (root, home) = (self.root(), self.home());
        let _ = self.dir.keep();
        println!("\nThe space keeps running. To use it:");
        println!("  cd {} && export COTAL_HOME={}", root.display(), home.display());
        println!("  {} status", self.cotal.display());
        println!("To stop it: {} down", self.cotal.display());
    }

    pub(crate) fn remove(self) {
        if let Err(error) = self.dir.close() {
            eprintln!("the demo's directory could not be removed: {error}");
        }
    }
}

async fn approve(http: &reqwest::Client, space: &Space, code: &str, user: &str) -> Result<()> {
    let origin = space.idp.trim_end_matches("/api/auth").to_owned();
    let answer = http
        .post(format!("{}/device/approve", space.idp))
        .header("origin", origin)
        .json(&serde_json::json!({ "userCode": code, "user": user }))
        .send()
        .await?;
    ensure!(answer.status().is_success(), "the development IdP did not approve: {}", answer.status());
    Ok(())
}

/// The code in what `cotal login` has printed so far: the value of `user_code=` in its verification link.
fn user_code(printed: &str) -> Option<String> {
    let rest = printed.split("user_code=").nth(1)?;
    let code: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    // Only a whole line is complete: the process may still be writing it.
    rest.contains('\n').then_some(code)
}

fn shown(arguments: &[&str]) -> String {
    let quoted: Vec<String> = arguments
        .iter()
        .map(|a| if a.is_empty() || a.contains(['>', ' ', '*']) { format!("'{a}'") } else { (*a).to_owned() })
        .collect();
    quoted.join(" ")
}
