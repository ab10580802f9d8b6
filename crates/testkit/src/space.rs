//! A space on disk with its broker running: trust, user-auth material, and the broker's own rendered configuration.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use cotal_broker::{Connector, Custody, Lifetime, provision};
use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, InfraRole, Space, grants::infra};
use cotal_workspace::{
    broker_config::{self, AccountResolver, BrokerConfig, BrokerPolicy},
    material::{self, UserAuthMaterial},
    root::Root,
    secret_store::FsSecretStore,
    trust_files,
};
use tempfile::TempDir;

use crate::broker::NatsServer;

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
    pub state_dir: PathBuf,
    /// Where the material lies.
    pub store: FsSecretStore,
    _dir: TempDir,
}

impl TestSpace {
    /// A fresh space named `name`, pinned to `idp_url`, with every stream and bucket provisioned.
    pub async fn start(name: &str, idp_url: &str) -> Self {
        Self::start_with_policy(name, idp_url, BrokerPolicy::default()).await
    }

    /// As [`Self::start`], with bounds of the broker's own.
    pub async fn start_with_policy(name: &str, idp_url: &str, policy: BrokerPolicy) -> Self {
        Self::start_bounded(name, idp_url, policy, None).await
    }

    /// As [`Self::start_with_policy`], on a broker that stores at most this many bytes.
    #[allow(clippy::panic, reason = "a test without its space cannot go on")]
    pub async fn start_bounded(
        name: &str,
        idp_url: &str,
        policy: BrokerPolicy,
        max_file_store: Option<u64>,
    ) -> Self {
        match Self::try_start(name, idp_url, policy, max_file_store).await {
            Ok(space) => space,
            Err(error) => panic!("the test space {name} did not start: {error:#}"),
        }
    }

    async fn try_start(
        name: &str,
        idp_url: &str,
        policy: BrokerPolicy,
        max_file_store: Option<u64>,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-space-").tempdir()?;
        let (space, root) = (Space::parse(name)?, Root::at(dir.path()));
        let now = SystemClock.now_secs();
        let trust = BrokerTrust::create(name, &SystemEntropy, now);
        let account = SpaceAccount::create(&trust, &space, &SystemEntropy, now);
        trust_files::save_broker(&root, &trust).context("the broker's trust")?;
        trust_files::save_account(&root, &account).context("the space's account")?;

        let store = FsSecretStore::open(&root).context("the secret store")?;
        let state_dir = root.user_auth_state_dir(&space).context("the state dir")?;
        let material = material::prepare(
            &store,
            &state_dir,
            &space,
            Some(idp_url),
            &trust.operator,
            &account.data_account(),
            &SystemClock,
            &SystemEntropy,
        )
        .await
        .context("the user-auth material")?;

        let config = |port, store_dir: PathBuf| {
            broker_config::render(&BrokerConfig {
                host: "127.0.0.1",
                port,
                store_dir,
                max_file_store,
                tls: None,
                websocket: None,
                resolver: AccountResolver::Memory,
                policy,
                trust: &trust,
                spaces: std::slice::from_ref(&account),
                extra_accounts: &[(material.callout.account.public().clone(), material.callout.jwt.clone())],
            })
        };
        // Refused here, where it can be told; the port is the only thing that changes below.
        config(1, dir.path().join("probe"))?;
        let server =
            NatsServer::start_with(|port, store| config(port, store.to_path_buf()).unwrap_or_default()).await;
        let connector = Connector::new(
            &server.url(),
            space.clone(),
            account.data_account(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let token = space.token();
        let label = InfraRole::PROVISIONER.label(&space);
        let provisioner =
            connector.open(label, &|inbox| infra::provisioner(&token, inbox), Lifetime::Renewing).await?;
        provision::provision_space(&provisioner, &space).await?;
        provisioner.close().await?;
        let material = Arc::new(material);
        Ok(Self { space, root, server, trust, account, material, state_dir, store, _dir: dir })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{ConnectOutcome, RawClient};

    #[tokio::test]
    async fn a_test_space_admits_the_callout_user_and_its_material_loads_again() {
        let test = TestSpace::start("main", "http://127.0.0.1:1").await;
        let creds = test.material.callout.callout_creds.to_string();
        let (client, outcome) = RawClient::connect(&test.server.url(), Some(&creds), None, None).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        let mut client = client.unwrap();
        client.try_subscribe("$SYS.REQ.USER.AUTH", Some("cotal-auth-callout")).await.unwrap();
        let denied = client.try_subscribe("anything.else", None).await.unwrap_err();
        assert!(denied.contains("Permissions Violation for Subscription"), "{denied}");

        let loaded = UserAuthMaterial::load(&test.store, &test.state_dir, &test.space).await.unwrap();
        assert_eq!(loaded.callout.account.public(), test.material.callout.account.public());
        assert!(test.root.is_user_auth(&test.space).unwrap());
    }

    #[tokio::test]
    async fn a_sentinel_alone_is_refused_while_nobody_serves_the_callout() {
        let test = TestSpace::start_with_policy(
            "main",
            "http://127.0.0.1:1",
            BrokerPolicy { auth_timeout_secs: Some(1), ..BrokerPolicy::default() },
        )
        .await;
        let creds = test.material.callout.sentinel_creds.to_string();
        let (_, outcome) = RawClient::connect(&test.server.url(), Some(&creds), Some("x"), None).await;
        assert!(matches!(outcome, ConnectOutcome::Refused(_)), "{outcome:?}");
    }
}
