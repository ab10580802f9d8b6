//! The broker's configuration text (contract 01 §3.5).
use cotal_trust::bundle::{BrokerTrust, SpaceAccount};
use cotal_wire::{Account, Nkey};
use std::path::PathBuf;

/// What the text is rendered from.
pub struct BrokerConfig<'a> {
    /// Listen host, default `127.0.0.1`.
    pub host: &'a str,
    /// Listen port, default 4222.
    pub port: u16,
    /// JetStream directory.
    pub store_dir: PathBuf,
    /// JetStream file store cap in bytes.
    pub max_file_store: Option<u64>,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Websocket host and port.
    pub websocket: Option<(&'a str, u16)>,
    /// `authorization { timeout }`, in whole seconds.
    pub auth_timeout_secs: Option<u64>,
    /// Operator and system account.
    pub trust: &'a BrokerTrust,
    /// The spaces' data accounts, at least one.
    pub spaces: &'a [SpaceAccount],
    /// Callout accounts: public key and JWT.
    pub extra_accounts: &'a [(Nkey<Account>, String)],
}

/// A configuration that is refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BrokerConfigError(pub String);

/// The text, in the contract's order.
pub fn render(_config: &BrokerConfig<'_>) -> Result<String, BrokerConfigError> {
    todo!()
}
