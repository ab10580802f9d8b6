//! Opens connections whose credentials the service signs itself (contract 07 §7.2, 05 §8.1).
use std::sync::Arc;
use cotal_trust::bundle::DataAccount;
use cotal_wire::{Clock, ConnId, Entropy, EpError, Permissions, Principal, Space};
use crate::{connection::Connection, custody::Custody};

/// Lifetime of a self-minted user JWT, in seconds (contract 07 §7.2).
pub const INFRA_TTL_SECS: u64 = 900;

/// How long a connection's credential lives and whether it is renewed.
#[derive(Debug, Clone)]
pub enum Lifetime {
    /// 900 s, re-signed at 450 s, reconnecting for ever.
    Renewing,
    /// One call: no reconnect, this TTL in seconds, optional principal tags.
    OneShot {
        /// Lifetime in seconds.
        ttl_secs: u64,
        /// Tags for eviction by principal.
        principal: Option<Principal>,
    },
    /// No `exp`, no reconnect; the server and client ids are proved (contract 07 §7.3).
    PlaneOwned,
}

/// Opens connections of one space's data account.
#[derive(Clone)]
pub struct Connector { _private: () }

impl Connector {
    /// A connector. `servers` is one or more comma-separated NATS URLs.
    pub fn new(_servers: &str, _space: Space, _account: DataAccount, _custody: Custody, _clock: Arc<dyn Clock>, _entropy: Arc<dyn Entropy>) -> Self { todo!() }
    /// The space.
    pub fn space(&self) -> &Space { todo!() }
    /// Opens a self-minted connection: fresh user nkey, name = label, inbox prefix `_INBOX_<nkey>`.
    pub async fn open(&self, _label: String, _grants: &(dyn Fn(&ConnId) -> Permissions + Send + Sync), _lifetime: Lifetime) -> Result<Connection, EpError> { todo!() }
    /// Opens a connection with creds text (the callout connection).
    pub async fn open_creds(&self, _label: String, _creds: &str) -> Result<Connection, EpError> { todo!() }
}
