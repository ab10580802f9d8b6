//! Several spaces of one root on one broker: what a host of many spaces stands on.

use std::path::Path;

use anyhow::{Context, Result};
use cotal_trust::{
    bundle::BrokerTrust,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, Space};
use cotal_workspace::{
    broker_config::{self, AccountResolver, BrokerConfig, BrokerPolicy},
    root::Root,
    secret_store::FsSecretStore,
    trust_files,
};
use tempfile::TempDir;

use crate::{broker::NatsServer, space::SpaceParts};

/// The broker's `authorization { timeout }`, for the services too: long enough for a machine that does much else.
pub const AUTH_TIMEOUT_SECS: u64 = 10;

/// User-auth spaces, each ready for an auth service.
pub struct TestSpaces {
    /// Their root, in a temp dir removed on drop.
    pub root: Root,
    /// Their broker, configured with every account.
    pub server: NatsServer,
    /// Operator and system account.
    pub trust: BrokerTrust,
    /// Where the material lies.
    pub store: FsSecretStore,
    /// The spaces, in the order of their names as given.
    pub spaces: Vec<SpaceParts>,
    dir: TempDir,
}

impl TestSpaces {
    /// Fresh spaces of these names, all pinned to `idp_url`, with every stream and bucket provisioned.
    #[allow(clippy::panic, reason = "a test without its spaces cannot go on")]
    pub async fn start(names: &[&str], idp_url: &str) -> Self {
        match Self::try_start(names, idp_url).await {
            Ok(spaces) => spaces,
            Err(error) => panic!("the test spaces did not start: {error:#}"),
        }
    }

    async fn try_start(names: &[&str], idp_url: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-spaces-").tempdir()?;
        let root = Root::at(dir.path());
        let trust = BrokerTrust::create("test", &SystemEntropy, SystemClock.now_secs());
        trust_files::save_broker(&root, &trust).context("the broker's trust")?;
        let store = FsSecretStore::open(&root).context("the secret store")?;
        let mut spaces = Vec::with_capacity(names.len());
        for name in names {
            spaces.push(SpaceParts::make(&root, &store, &trust, name, idp_url).await?);
        }
        let all: Vec<&SpaceParts> = spaces.iter().collect();
        // Refused here, where it can be told; the port is the only thing that changes below.
        config(&trust, &all, 1, dir.path())?;
        let server =
            NatsServer::start_with(|port, store| config(&trust, &all, port, store).unwrap_or_default()).await;
        for space in &spaces {
            space.provision(&server.url()).await?;
        }
        Ok(Self { root, server, trust, store, spaces, dir })
    }

    /// A directory for files of the test's own.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// The space of this name.
    #[allow(clippy::panic, reason = "a test that asks for a space that it did not make is wrong")]
    pub fn of(&self, name: &str) -> &SpaceParts {
        let found = self.spaces.iter().find(|parts| parts.space.as_str() == name);
        found.unwrap_or_else(|| panic!("no test space is called {name}"))
    }

    /// Has the broker know the accounts of these spaces and of no other: whoever is connected to another is cut off.
    pub async fn admit_only(&self, spaces: impl Fn(&Space) -> bool) {
        let admitted: Vec<&SpaceParts> = self.spaces.iter().filter(|parts| spaces(&parts.space)).collect();
        self.server
            .reload_with(|port, store| config(&self.trust, &admitted, port, store).unwrap_or_default())
            .await;
    }
}

fn config(trust: &BrokerTrust, spaces: &[&SpaceParts], port: u16, store_dir: &Path) -> Result<String> {
    let accounts: Vec<_> = spaces.iter().map(|parts| parts.account.clone()).collect();
    let callouts: Vec<_> = spaces.iter().map(|parts| parts.callout_account()).collect();
    Ok(broker_config::render(&BrokerConfig {
        host: "127.0.0.1",
        port,
        store_dir: store_dir.to_path_buf(),
        max_file_store: None,
        resolver: AccountResolver::Memory,
        tls: None,
        websocket: None,
        policy: BrokerPolicy { auth_timeout_secs: Some(AUTH_TIMEOUT_SECS), ..BrokerPolicy::default() },
        trust,
        spaces: &accounts,
        extra_accounts: &callouts,
    })?)
}
