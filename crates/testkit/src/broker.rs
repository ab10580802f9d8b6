//! A real nats-server child process on an ephemeral port.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cotal_workspace::broker_config::free_port;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};

/// Names a nats-server of your own.
pub const BINARY_VARIABLE: &str = "COTAL_NATS_SERVER";
/// Chooses which installed version the tests run on (the matrix).
pub const VERSION_VARIABLE: &str = "COTAL_TEST_NATS_VERSION";
/// The version that runs when none is chosen; the default of `cargo xtask nats-server`.
pub const DEFAULT_VERSION: &str = "2.15.1";

/// A broker without accounts: anyone may do anything, and JetStream is on.
pub const OPEN_CONFIG: &str = "host: 127.0.0.1\nport: {port}\njetstream { store_dir: \"{store}\" }\n";

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Another process may take the port between its choice and the server's bind.
const START_ATTEMPTS: usize = 5;

/// The binary: `COTAL_NATS_SERVER`, else `<repo>/.tools/nats-server/<version>/nats-server`, else PATH.
///
/// The version is `COTAL_TEST_NATS_VERSION`, else [`DEFAULT_VERSION`]. A chosen version that is not installed panics
/// rather than silently testing another one.
pub fn nats_server_binary() -> PathBuf {
    if let Some(path) = env::var_os(BINARY_VARIABLE) {
        return path.into();
    }
    let chosen = env::var(VERSION_VARIABLE).ok();
    let version = chosen.as_deref().unwrap_or(DEFAULT_VERSION);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = repository.join(".tools/nats-server").join(version).join("nats-server");
    if installed.is_file() {
        return installed;
    }
    assert!(
        chosen.is_none(),
        "nats-server {version} is not installed; run: cargo xtask nats-server --version {version}"
    );
    "nats-server".into()
}

/// A running server; killed and its directory removed on drop.
pub struct NatsServer {
    child: Child,
    dir: TempDir,
    port: u16,
}

/// A cluster of servers, each named `n1`, `n2` and so on.
pub struct NatsCluster {
    /// The servers, in the order of their names.
    pub servers: Vec<NatsServer>,
}

enum NotStarted {
    PortTaken,
    Failed(String),
}

impl NatsServer {
    /// Starts with this configuration text, in which `{port}` and `{store}` are filled in; waits until it accepts.
    pub async fn start(config_template: &str) -> Self {
        Self::start_with(|port, store| {
            config_template.replace("{port}", &port.to_string()).replace("{store}", &store.to_string_lossy())
        })
        .await
    }

    /// Starts with the configuration that `render` makes of a free port and a JetStream directory.
    #[allow(clippy::panic, reason = "a test without its broker cannot go on")]
    pub async fn start_with(render: impl Fn(u16, &Path) -> String) -> Self {
        let mut last = String::new();
        for _ in 0..START_ATTEMPTS {
            match Self::try_start(&render).await {
                Ok(server) => return server,
                Err(NotStarted::PortTaken) => "its port was taken".clone_into(&mut last),
                Err(NotStarted::Failed(why)) => panic!("nats-server did not start: {why}"),
            }
        }
        panic!("nats-server did not start in {START_ATTEMPTS} attempts: {last}")
    }

    async fn try_start(render: &impl Fn(u16, &Path) -> String) -> Result<Self, NotStarted> {
        let failed = |error: std::io::Error| NotStarted::Failed(error.to_string());
        let dir = tempfile::Builder::new().prefix("cotal-nats-").tempdir().map_err(failed)?;
        let port = free_port().map_err(failed)?;
        fs::write(dir.path().join("nats.conf"), render(port, &dir.path().join("store"))).map_err(failed)?;
        let child = spawn(dir.path()).map_err(|error| {
            NotStarted::Failed(format!(
                "cannot run {}: {error}; run: cargo xtask nats-server",
                nats_server_binary().display()
            ))
        })?;
        let mut server = Self { child, dir, port };
        server.wait_ready().await?;
        Ok(server)
    }

    /// `nats://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read(self.dir.path().join("nats.log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// SIGKILL, then start again on the same port and store.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// SIGKILL; [`Self::start_again`] brings it back.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits: everything that was acknowledged is in its store then. [`Self::start_again`] brings it back.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.child.wait();
    }

    /// The directory that holds what it keeps.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Starts a killed server again, on the same port and store.
    #[allow(clippy::panic, reason = "a test without its broker cannot go on")]
    pub async fn start_again(&mut self) {
        match spawn(self.dir.path()) {
            Ok(child) => self.child = child,
            Err(error) => panic!("nats-server did not start again: {error}"),
        }
        let ready = self.wait_ready().await.is_ok();
        assert!(ready, "nats-server did not start again:\n{}", self.log());
    }

    /// SIGSTOP: it keeps its sockets and answers nothing. It has stopped when this returns: on a busy
    /// machine the signal alone leaves it time to answer.
    #[allow(clippy::expect_used, reason = "a test whose broker is not stopped proves nothing")]
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)
            .expect("wait for the stop");
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGHUP: reads its configuration again.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    /// Adds a line to its configuration and lets it read that; returns when it has.
    #[allow(clippy::expect_used, reason = "a test whose broker is not as it says proves nothing")]
    pub async fn reload_with_line(&self, line: &str) {
        let config = fs::read_to_string(self.config_path()).expect("read the broker's configuration");
        self.reload_as(&format!("{config}\n{line}\n")).await;
    }

    /// Gives it the configuration that `render` makes of its port and its JetStream directory, and lets it read that;
    /// returns when it has.
    pub async fn reload_with(&self, render: impl Fn(u16, &Path) -> String) {
        self.reload_as(&render(self.port, &self.dir.path().join("store"))).await;
    }

    fn config_path(&self) -> PathBuf {
        self.dir.path().join("nats.conf")
    }

    #[allow(clippy::expect_used, reason = "a test whose broker is not as it says proves nothing")]
    async fn reload_as(&self, config: &str) {
        fs::write(self.config_path(), config).expect("write the broker's configuration");
        let reloads = |log: &str| log.matches("Reloaded server configuration").count();
        let before = reloads(&self.log());
        self.reload();
        let deadline = Instant::now() + START_TIMEOUT;
        while reloads(&self.log()) == before {
            assert!(Instant::now() < deadline, "the broker did not take its configuration:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[allow(clippy::expect_used, reason = "a test whose signal is not delivered proves nothing")]
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal nats-server");
    }

    /// Ready once a connection is greeted with INFO by a live child.
    async fn wait_ready(&mut self) -> Result<(), NotStarted> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let log = self.log();
                return Err(if log.contains("address already in use") {
                    NotStarted::PortTaken
                } else {
                    NotStarted::Failed(format!("it ended with {status}\n{log}"))
                });
            }
            if greets(self.port).await {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(NotStarted::Failed(format!("it does not accept connections\n{}", self.log())));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl NatsCluster {
    /// Starts `size` servers of one cluster. `render` makes the configuration of one of a free port and a JetStream
    /// directory, as for a server of its own; its name and its routes are added.
    #[allow(clippy::expect_used, reason = "a test without its broker cannot go on")]
    pub async fn start(size: usize, render: impl Fn(u16, &Path) -> String) -> Self {
        // Held until all are chosen, so that they differ.
        let listeners: Vec<TcpListener> =
            (0..size).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("bind a port")).collect();
        let ports: Vec<u16> =
            listeners.iter().map(|one| one.local_addr().expect("the port").port()).collect();
        drop(listeners);
        let routes: Vec<String> = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let mut servers = Vec::with_capacity(size);
        for (n, route_port) in ports.iter().enumerate() {
            let server = NatsServer::start_with(|port, store| {
                format!(
                    "{}\nserver_name: n{}\ncluster {{ name: test, listen: \"127.0.0.1:{route_port}\", routes: [{}] }}\n",
                    render(port, store),
                    n + 1,
                    routes.join(", ")
                )
            });
            servers.push(server.await);
        }
        Self { servers }
    }

    /// The URLs of all servers, comma separated.
    pub fn urls(&self) -> String {
        self.servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(dir: &Path) -> std::io::Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("nats.log"))?;
    Command::new(nats_server_binary())
        .arg("-c")
        .arg(dir.join("nats.conf"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

async fn greets(port: u16) -> bool {
    let greeting = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.ok()?;
        Some(line)
    };
    matches!(
        tokio::time::timeout(Duration::from_secs(2), greeting).await,
        Ok(Some(line)) if line.starts_with("INFO ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_keeps_its_port_over_a_restart_and_dies_with_its_handle() {
        let mut server = NatsServer::start(OPEN_CONFIG).await;
        let (port, pid) = (server.port(), server.pid());
        server.restart().await;
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert!(server.log().contains("Server is ready"));
        let dir = server.dir.path().to_path_buf();
        drop(server);
        assert!(!greets(port).await && !dir.exists());
    }
}
