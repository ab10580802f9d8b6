//! A development identity provider (contract 04 §17): device login, sessions, EdDSA tokens, a JWKS; loopback only.
use std::{net::SocketAddr, sync::Arc};
use cotal_wire::{Clock, Entropy};

/// How the development IdP runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct DevIdpOptions {
    /// Port on 127.0.0.1; 0 for an ephemeral one.
    pub port: u16,
    /// Approve every device code by itself.
    pub auto_approve: bool,
}

/// A running development IdP.
pub struct DevIdp { addr: SocketAddr }

impl DevIdp {
    /// Binds and serves; refuses anything but loopback.
    pub async fn start(_options: DevIdpOptions, _clock: Arc<dyn Clock>, _entropy: Arc<dyn Entropy>) -> std::io::Result<Self> { todo!() }
    /// `http://127.0.0.1:<port>`: issuer and audience of its tokens.
    pub fn origin(&self) -> String { format!("http://{}", self.addr) }
    /// `<origin>/api/auth`: the base URL for `--idp`.
    pub fn base_url(&self) -> String { format!("{}/api/auth", self.origin()) }
    /// A token for a user without the device flow, for tests and the demo.
    pub fn mint_token(&self, _sub: &str, _ttl_secs: u64) -> String { todo!() }
    /// Stops serving.
    pub async fn stop(self) { todo!() }
}
