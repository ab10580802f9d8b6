//! A space on disk with its broker running: trust, user-auth material, and the broker's own rendered configuration.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use cotal_broker::{Connection, Connector, Custody, Lifetime, provision};
use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    mint::{CredentialKind, Lifetime as MintLifetime, StaticHolder, mint_static_user},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Account, Clock, ConnId, InfraRole, Nkey, Permissions, Principal, Space,
    grants::{Rules, infra},
};
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

    /// Opens connections to the space's account, signed by its key.
    pub fn connector(&self) -> Connector {
        connector(&self.server.url(), &self.space, &self.account)
    }

    /// Creds of a user of the space's account who may do this, as that principal.
    pub fn user(&self, principal: &Principal, permissions: Permissions) -> Result<String> {
        let holder = StaticHolder {
            owner: Some(principal.owner.clone()),
            actor: Some(principal.actor.clone()),
            lifecycle_uid: None,
        };
        let user = mint_static_user::<std::convert::Infallible>(
            &self.account.data_account(),
            CredentialKind::Agent,
            &holder,
            MintLifetime::OfKind,
            |_| Ok(permissions),
            &SystemEntropy,
            SystemClock.now_secs(),
        );
        Ok(user?.creds.to_string())
    }

    /// A connection to the data account that may do anything.
    pub async fn anything(&self) -> Result<Connection> {
        anything(&self.connector()).await
    }

    /// A connection of five minutes in the space's account, signed by its key, that may ask JetStream anything.
    pub async fn jetstream(&self, label: &str) -> Result<Connection> {
        let api = |conn: &ConnId| Permissions {
            publish: Rules { allow: vec!["$JS.API.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
        };
        let one_shot = Lifetime::OneShot { ttl_secs: 300, principal: None };
        Ok(self.connector().open(label.into(), &api, one_shot).await?)
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
        let root = Root::at(dir.path());
        let trust = BrokerTrust::create(name, &SystemEntropy, SystemClock.now_secs());
        trust_files::save_broker(&root, &trust).context("the broker's trust")?;
        let store = FsSecretStore::open(&root).context("the secret store")?;
        let made = SpaceParts::make(&root, &store, &trust, name, idp_url).await?;

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
                spaces: std::slice::from_ref(&made.account),
                extra_accounts: &[made.callout_account()],
            })
        };
        // Refused here, where it can be told; the port is the only thing that changes below.
        config(1, dir.path().join("probe"))?;
        let server =
            NatsServer::start_with(|port, store| config(port, store.to_path_buf()).unwrap_or_default()).await;
        made.provision(&server.url()).await?;
        let SpaceParts { space, account, material, state_dir } = made;
        Ok(Self { space, root, server, trust, account, material, state_dir, store, _dir: dir })
    }
}

/// What a space is on disk and on a broker, apart from both.
pub struct SpaceParts {
    /// The space.
    pub space: Space,
    /// The data account.
    pub account: SpaceAccount,
    /// The prepared user-auth material.
    pub material: Arc<UserAuthMaterial>,
    /// The state dir.
    pub state_dir: PathBuf,
}

impl SpaceParts {
    /// Makes a space of this root, pinned to `idp_url`.
    pub(crate) async fn make(
        root: &Root,
        store: &FsSecretStore,
        trust: &BrokerTrust,
        name: &str,
        idp_url: &str,
    ) -> Result<Self> {
        let space = Space::parse(name)?;
        let account = SpaceAccount::create(trust, &space, &SystemEntropy, SystemClock.now_secs());
        trust_files::save_account(root, &account).context("the space's account")?;
        let state_dir = root.user_auth_state_dir(&space).context("the state dir")?;
        let material = material::prepare(
            store,
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
        Ok(Self { space, account, material: Arc::new(material), state_dir })
    }

    /// The account of the space's callout, as a broker's configuration takes it.
    pub(crate) fn callout_account(&self) -> (Nkey<Account>, String) {
        (self.material.callout.account.public().clone(), self.material.callout.jwt.clone())
    }

    /// Opens connections to the space's account at this broker, signed by its key.
    pub fn connector(&self, server: &str) -> Connector {
        connector(server, &self.space, &self.account)
    }

    /// A connection to the data account that may do anything: to break what a service stores.
    pub async fn anything(&self, server: &str) -> Result<Connection> {
        anything(&self.connector(server)).await
    }

    /// Creates the space's streams and buckets on a broker that knows its accounts.
    pub(crate) async fn provision(&self, server: &str) -> Result<()> {
        let connector = self.connector(server);
        let token = self.space.token();
        let label = InfraRole::PROVISIONER.label(&self.space);
        let provisioner =
            connector.open(label, &|inbox| infra::provisioner(&token, inbox), Lifetime::Renewing).await?;
        provision::provision_space(&provisioner, &self.space).await?;
        Ok(provisioner.close().await?)
    }
}

fn connector(server: &str, space: &Space, account: &SpaceAccount) -> Connector {
    Connector::new(
        server,
        space.clone(),
        account.data_account(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    )
}

async fn anything(connector: &Connector) -> Result<Connection> {
    let all = || Rules { allow: vec![">".to_owned()], deny: Vec::new() };
    let grants = move |_: &ConnId| Permissions { publish: all(), subscribe: all() };
    let label = format!("cotal:test:{}", connector.space());
    Ok(connector.open(label, &grants, Lifetime::Renewing).await?)
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
