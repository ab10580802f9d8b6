//! A space on disk with its broker running: trust, user-auth material, provisioned streams.
use crate::broker::NatsServer;
use cotal_trust::bundle::{BrokerTrust, SpaceAccount};
use cotal_wire::Space;
use cotal_workspace::{material::UserAuthMaterial, root::Root};
use std::sync::Arc;

/// A user-auth space, ready for an auth service.
pub struct TestSpace {
    /// The space.
    pub space: Space,
    /// Its root, in a temp dir removed on drop.
    pub root: Root,
    /// Its broker, configured with every account.
    pub server: NatsServer,
    /// Operator and system account.
    pub trust: BrokerTrust,
    /// The data account.
    pub account: SpaceAccount,
    /// The prepared user-auth material (IdP pin at an unused loopback URL unless given).
    pub material: Arc<UserAuthMaterial>,
    /// The state dir.
    pub state_dir: std::path::PathBuf,
}

impl TestSpace {
    /// A fresh space named `name`, pinned to `idp_url`. Streams are NOT provisioned (use `cotal_broker::provision`).
    pub async fn start(_name: &str, _idp_url: &str) -> Self {
        todo!()
    }
}
