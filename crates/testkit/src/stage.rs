//! A workspace and a machine home of its own in which the real `cotal` binary is run: what the demo and the
//! end-to-end tests stand on. Whatever was started in it is stopped when it goes.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cotal_trust::{idp::http_client, system::SystemClock};
use cotal_wire::{Clock, Space};
use cotal_workspace::{
    material::{Discovery, load_idp_pin},
    registry::MeshRegistry,
    root::{Home, Root, space_segment},
};

/// The space that `cotal up` makes unless it is told another name.
pub const SPACE: &str = "main";
/// How long a login may take from its first line to its end.
const LOGIN_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two looks at a process that is expected to act.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A corner of the disk with nothing of the machine's own state in it.
pub struct Stage {
    cotal: PathBuf,
    dir: tempfile::TempDir,
    down_on_drop: bool,
}

/// A space that is up.
pub struct RunningSpace {
    /// Its name.
    pub name: Space,
    /// Broker URL.
    pub server: String,
    /// Creds text of the deny-all sentinel user.
    pub sentinel: String,
    /// The user-auth state dir.
    pub state_dir: PathBuf,
    /// The IdP's base URL.
    pub idp: String,
    /// Where the auth service listens, and its capability.
    pub discovery: Discovery,
}

/// A bearer that the exchange answered.
#[derive(Clone)]
pub struct Bearer {
    /// The compact JWS.
    pub token: String,
    /// The owner it speaks for.
    pub owner: String,
    /// When it expires, in Unix seconds.
    pub exp: u64,
}

impl Bearer {
    /// Seconds until it expires.
    pub fn seconds_left(&self) -> u64 {
        self.exp.saturating_sub(SystemClock.now_secs().0)
    }
}

impl Stage {
    /// A fresh stage for this `cotal` binary.
    pub fn new(cotal: impl Into<PathBuf>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-stage-").tempdir()?;
        std::fs::create_dir_all(dir.path().join("work/.cotal"))?;
        Ok(Self { cotal: cotal.into(), dir, down_on_drop: true })
    }

    /// The workspace root.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The machine home.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A command of the binary, run in the root with this home and no standard input.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cotal);
        command.args(arguments).current_dir(self.root()).env("COTAL_HOME", self.home()).stdin(Stdio::null());
        command.env("COTAL_NATS_SERVER", crate::broker::nats_server_binary());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments).output().with_context(|| format!("cannot run {}", self.cotal.display()))
    }

    /// Runs a command that must succeed; what it printed on stdout.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "cotal {} failed ({}): {stderr}",
            arguments.join(" "),
            output.status
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What the space that is up left on disk.
    pub async fn space(&self) -> Result<RunningSpace> {
        self.space_named(SPACE).await
    }

    /// What one of several spaces left on disk.
    pub async fn space_named(&self, name: &str) -> Result<RunningSpace> {
        let name = Space::parse(name)?;
        let state_dir = Root::at(self.root()).user_auth_state_dir(&name)?;
        let entry =
            MeshRegistry::new(Home::at(self.home())).get(&name)?.context("the space is not registered")?;
        let callout = cotal_workspace::file::read_regular(&state_dir.join("callout.json"))?
            .context("no callout.json")?;
        let callout =
            cotal_trust::callout_account::CalloutAuth::from_document(std::str::from_utf8(&callout)?)?;
        Ok(RunningSpace {
            server: entry.server,
            sentinel: callout.sentinel_creds.to_string(),
            idp: load_idp_pin(&state_dir)?.context("no IdP pin")?.url,
            discovery: self.discovery_of(&name).await?,
            state_dir,
            name,
        })
    }

    /// Waits until the auth service says that it is ready.
    async fn discovery_of(&self, space: &Space) -> Result<Discovery> {
        let state_dir = Root::at(self.root()).auth_dir().join(space_segment(space));
        let started = Instant::now();
        loop {
            if let Some(discovery) = Discovery::load(&state_dir)? {
                return Ok(discovery);
            }
            ensure!(started.elapsed() < LOGIN_WITHIN, "the auth service did not become ready");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Runs `cotal login`, approving its code by `approve(user code)`; answers the subject and what was printed.
    pub async fn login<F>(&self, idp: &str, approve: impl FnOnce(String) -> F) -> Result<(String, String)>
    where
        F: Future<Output = Result<()>>,
    {
        let printed = self.dir.path().join("login.out");
        let file = std::fs::File::create(&printed)?;
        let mut login =
            self.command(&["login", "--idp", idp]).stdout(file.try_clone()?).stderr(file).spawn()?;
        let started = Instant::now();
        let mut approve = Some(approve);
        let status = loop {
            if let Some(status) = login.try_wait()? {
                break status;
            }
            let code = user_code(&std::fs::read_to_string(&printed)?);
            if let Some((approve, code)) = code.and_then(|code| approve.take().map(|approve| (approve, code)))
            {
                approve(code).await?;
            }
            if started.elapsed() > LOGIN_WITHIN {
                let _ = login.kill();
                bail!("the login did not end: {}", std::fs::read_to_string(&printed)?);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let printed = std::fs::read_to_string(&printed)?;
        ensure!(status.success(), "cotal login failed ({status}): {printed}");
        let sub = self.session(idp)?["sub"].as_str().context("the session names no subject")?.to_owned();
        Ok((sub, printed))
    }

    /// Logs in at the development IdP as `user`.
    pub async fn login_at_dev_idp(&self, idp: &str, user: &str) -> Result<(String, String)> {
        self.login(idp, async |code| {
            let answer = http_client(Duration::from_secs(10))?
                .post(format!("{idp}/device/approve"))
                .header("origin", idp.trim_end_matches("/api/auth"))
                .json(&serde_json::json!({ "userCode": code, "user": user }))
                .send()
                .await?;
            ensure!(answer.status().is_success(), "the development IdP did not approve: {}", answer.status());
            Ok(())
        })
        .await
    }

    fn session(&self, idp: &str) -> Result<serde_json::Value> {
        let cache: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.home().join("idp-sessions.json"))?)?;
        Ok(cache["sessions"][idp].clone())
    }

    /// A fresh IdP token of the cached login.
    pub async fn idp_token(&self, idp: &str) -> Result<String> {
        let session = self.session(idp)?;
        let answer: serde_json::Value = http_client(Duration::from_secs(10))?
            .get(format!("{idp}/token"))
            .bearer_auth(session["token"].as_str().context("no session token")?)
            .send()
            .await?
            .json()
            .await?;
        answer["token"].as_str().map(str::to_owned).context("the IdP answered no token")
    }

    /// Exchanges the person's login on the loopback face; the inner error is the service's refusal.
    pub async fn exchange_human(&self, space: &RunningSpace, actor: &str) -> Result<Result<Bearer, String>> {
        let token = self.idp_token(&space.idp).await?;
        exchange(space, &serde_json::json!({ "idpToken": token, "actor": actor })).await
    }

    /// Runs `cotal agent-bearer`.
    pub fn agent_bearer(
        &self,
        space: &RunningSpace,
        owner: &str,
        actor: &str,
        secret: &Path,
    ) -> Result<String> {
        let (dir, secret) = (space.state_dir.display().to_string(), secret.display().to_string());
        let printed = self.ok(&[
            "agent-bearer",
            "--dir",
            &dir,
            "--space",
            space.name.as_str(),
            "--owner",
            owner,
            "--actor",
            actor,
            "--token-file",
            &secret,
        ])?;
        Ok(printed.trim().to_owned())
    }

    /// The log of the auth service, or of another daemon.
    pub fn log(&self, daemon: &str, space: Option<&Space>) -> Result<String> {
        let log = Root::at(self.root()).daemon_files(daemon, space).log;
        std::fs::read_to_string(&log).with_context(|| log.display().to_string())
    }

    /// Leaves everything running and on disk.
    pub fn keep(mut self) -> (PathBuf, PathBuf) {
        self.down_on_drop = false;
        self.dir.disable_cleanup(true);
        (self.root(), self.home())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.down_on_drop {
            // Best effort: the tests' own assertions have been made by now.
            for space in cotal_workspace::trust_files::inventory(&Root::at(self.root())).unwrap_or_default() {
                let mut down = self.command(&["down", "--space", space.as_str()]);
                let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
    }
}

/// One exchange on the loopback face with the capability.
pub async fn exchange(space: &RunningSpace, body: &serde_json::Value) -> Result<Result<Bearer, String>> {
    let answer = http_client(Duration::from_secs(10))?
        .post(format!("{}/exchange", space.discovery.url))
        .bearer_auth(space.discovery.cap.as_str())
        .json(body)
        .send()
        .await?;
    let status = answer.status().as_u16();
    let body: serde_json::Value = answer.json().await?;
    Ok(match (body["token"].as_str(), body["owner"].as_str(), body["exp"].as_u64()) {
        (Some(token), Some(owner), Some(exp)) => Ok(Bearer { token: token.into(), owner: owner.into(), exp }),
        _ => Err(format!("{status} {}", body["error"].as_str().unwrap_or("without a reason"))),
    })
}

/// The code in what `cotal login` has printed so far: the value of `user_code=` in its verification link.
fn user_code(printed: &str) -> Option<String> {
    let rest = printed.split("user_code=").nth(1)?;
    let code: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    // Only a whole line is complete: the process may still be writing it.
    rest.contains('\n').then_some(code)
}
