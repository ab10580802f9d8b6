//! A real nats-server child process on an ephemeral port.
use std::path::PathBuf;

/// The binary: `COTAL_NATS_SERVER`, else `<repo>/.tools/nats-server/<version>/nats-server`, else PATH.
pub fn nats_server_binary() -> PathBuf { todo!() }

/// A running server; killed and its directory removed on drop.
pub struct NatsServer { _private: () }

impl NatsServer {
    /// Starts with this configuration text, in which `{port}` and `{store}` are filled in; waits until it accepts.
    pub async fn start(_config_template: &str) -> Self { todo!() }
    /// `nats://127.0.0.1:<port>`.
    pub fn url(&self) -> String { todo!() }
    /// The port.
    pub fn port(&self) -> u16 { todo!() }
    /// The process id.
    pub fn pid(&self) -> u32 { todo!() }
    /// What it has logged so far.
    pub fn log(&self) -> String { todo!() }
    /// SIGKILL, then start again on the same port and store.
    pub async fn restart(&mut self) { todo!() }
    /// SIGSTOP.
    pub fn pause(&self) { todo!() }
    /// SIGCONT.
    pub fn resume(&self) { todo!() }
}
