//! A development identity provider (contract 04 §17): device login, sessions, EdDSA tokens, a JWKS; loopback only.
//!
//! It has the shape of a Better Auth server with the bearer, jwt and device authorization plugins, so that a login
//! against it and a login against the real thing take the same path. It signs in any user name, which is why it
//! listens on 127.0.0.1 and nowhere else. **Not for production.**

mod devices;
mod http;
mod page;
mod sessions;
mod signer;
mod state_file;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use cotal_wire::{Clock, Entropy, UnixSecs};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

pub use devices::{DEVICE_CODE_TTL_SECS, POLL_INTERVAL_SECS};
pub use sessions::SESSION_TTL_SECS;

use crate::{http::Shared, state_file::StateFile};

/// The port that a development IdP listens on unless told otherwise (contract 04 §17).
pub const DEFAULT_PORT: u16 = 4780;
/// The only client that it knows (contract 04 §17).
pub const CLIENT_ID: &str = "cotal-cli";
/// Who signs in when nobody names a user: codes that are approved automatically, and bodies without a user.
pub const DEFAULT_USER: &str = "dev";
/// Where the provider's routes hang below its origin.
pub(crate) const BASE_PATH: &str = "/api/auth";

/// How long a stop waits for open requests.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How the development IdP runs.
#[derive(Debug, Clone, Default)]
pub struct DevIdpOptions {
    /// Port on 127.0.0.1; 0 for an ephemeral one.
    pub port: u16,
    /// Approve every device code by itself, for [`DEFAULT_USER`].
    pub auto_approve: bool,
    /// Where the signing key and the sessions outlive a restart, 0600; in memory only when absent. Its directory
    /// must exist.
    pub state_file: Option<PathBuf>,
}

/// A running development IdP. Dropping it ends it at once; [`DevIdp::stop`] lets open requests finish.
pub struct DevIdp {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<io::Result<()>>,
}

impl DevIdp {
    /// Binds and serves; refuses anything but loopback.
    pub async fn start(
        options: DevIdpOptions,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> io::Result<Self> {
        let (signer, sessions, file) = match options.state_file {
            Some(path) => StateFile::open(path, entropy.as_ref())?,
            None => StateFile::in_memory(entropy.as_ref()),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let addr = listener.local_addr()?;
        if !addr.ip().is_loopback() {
            return Err(io::Error::other("the development identity provider serves loopback only"));
        }
        let shared =
            Arc::new(Shared::new(addr, options.auto_approve, signer, sessions, file, clock, entropy));
        let (stop, stopped) = oneshot::channel::<()>();
        let service = axum::serve(listener, http::router(shared.clone())).with_graceful_shutdown(async {
            // A dropped sender is a stop as well.
            let _ = stopped.await;
        });
        let server = tokio::spawn(async move { service.await });
        Ok(Self { addr, shared, stop: Some(stop), server })
    }

    /// `http://127.0.0.1:<port>`: issuer and audience of its tokens.
    pub fn origin(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// `<origin>/api/auth`: the base URL for `--idp`.
    pub fn base_url(&self) -> String {
        format!("{}{BASE_PATH}", self.origin())
    }

    /// A token for a user without the device flow, for tests and the demo.
    pub fn mint_token(&self, sub: &str, ttl_secs: u64) -> String {
        let now = self.shared.clock.now_secs();
        self.shared.signer.mint(&self.origin(), sub, now, now.plus(ttl_secs))
    }

    /// Approves a pending device code for a user, as its page would; `false` when there is no such pending code.
    pub fn approve(&self, user_code: &str, user: &str) -> bool {
        self.shared.decide(user_code, devices::Decision::Approve(user.to_owned())).is_ok()
    }

    /// Stops serving.
    pub async fn stop(mut self) {
        self.stop.take();
        if tokio::time::timeout(STOP_GRACE, &mut self.server).await.is_err() {
            self.server.abort();
        }
    }
}

impl Drop for DevIdp {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// `now + ttl`, the one way in which lifetimes become instants here.
pub(crate) fn expiry(now: UnixSecs, ttl_secs: u64) -> UnixSecs {
    now.plus(ttl_secs)
}
