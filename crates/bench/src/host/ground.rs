//! Many spaces on one root and one broker, as an operator of a host has them.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_broker::{Connector, Custody, Lifetime, provision};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_testkit::broker::NatsServer;
use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, InfraRole, Space, grants::infra};
use cotal_workspace::{
    broker_config::{self, AccountResolver, BrokerConfig, BrokerPolicy},
    material::{self, Discovery},
    root::Root,
    secret_store::FsSecretStore,
    trust_files,
};
use futures::{StreamExt, TryStreamExt, stream};
use tempfile::TempDir;

use crate::{
    loadgen::Ticket,
    population::{Ground, static_user},
    proc::open_files,
    progress,
};

/// What the broker may reserve, in bytes.
const ROOM: u64 = 1 << 40;
/// Spaces that are provisioned at once.
const PROVISIONED_AT_ONCE: usize = 8;
/// How long the broker may take to close the files of streams that it has just made.
const FILES_WITHIN: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) struct HostGround {
    pub(super) lanes: Vec<Ground>,
    pub(super) server: NatsServer,
    pub(super) idp: DevIdp,
    pub(super) root: Root,
    dir: TempDir,
    waited: AtomicBool,
}

impl HostGround {
    pub(super) async fn build(lanes: usize) -> Result<Self> {
        let idp =
            DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        let dir = tempfile::Builder::new().prefix("cotal-host-").tempdir()?;
        let root = Root::at(dir.path());
        let now = SystemClock.now_secs();
        let trust = BrokerTrust::create("host", &SystemEntropy, now);
        trust_files::save_broker(&root, &trust)?;
        let store = FsSecretStore::open(&root)?;
        let (mut accounts, mut grounds, mut callouts) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..lanes {
            let space = Space::parse(&format!("lane{n}"))?;
            let account = SpaceAccount::create(&trust, &space, &SystemEntropy, now);
            trust_files::save_account(&root, &account)?;
            let state_dir = root.user_auth_state_dir(&space)?;
            let material = material::prepare(
                &store,
                &state_dir,
                &space,
                Some(&idp.base_url()),
                &trust.operator,
                &account.data_account(),
                &SystemClock,
                &SystemEntropy,
            )
            .await?;
            callouts.push((material.callout.account.public().clone(), material.callout.jwt.clone()));
            grounds.push(Ground { space, state_dir, material: Arc::new(material) });
            accounts.push(account);
        }
        let config = |port, store_dir: PathBuf| {
            broker_config::render(&BrokerConfig {
                host: "127.0.0.1",
                port,
                store_dir,
                // Reserved and not used: some streams of a space reserve what they may hold.
                max_file_store: Some(ROOM),
                tls: None,
                websocket: None,
                policy: BrokerPolicy::default(),
                resolver: AccountResolver::Memory,
                trust: &trust,
                spaces: &accounts,
                extra_accounts: &callouts,
            })
        };
        config(1, dir.path().join("probe"))?;
        let server =
            NatsServer::start_with(|port, store| config(port, store.to_path_buf()).unwrap_or_default()).await;
        let ground = Self { lanes: grounds, server, idp, root, dir, waited: AtomicBool::new(false) };
        stream::iter(&ground.lanes)
            .map(async |lane| ground.provision(lane).await)
            .buffer_unordered(PROVISIONED_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(ground)
    }

    async fn provision(&self, lane: &Ground) -> Result<()> {
        let connector = Connector::new(
            &self.server.url(),
            lane.space.clone(),
            lane.material.data_account.clone(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        self.spare_files().await?;
        let token = lane.space.token();
        let label = InfraRole::PROVISIONER.label(&lane.space);
        let provisioner =
            connector.open(label, &|inbox| infra::provisioner(&token, inbox), Lifetime::Renewing).await?;
        provision::provision_space(&provisioner, &lane.space)
            .await
            .with_context(|| format!("provisioning {}", lane.space))?;
        Ok(provisioner.close().await?)
    }

    /// Waits until the broker has files to spare: it keeps those of a new stream open for a while, about 25 a space, and
    /// refuses streams once it may open no more.
    pub(super) async fn spare_files(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let (open, most) = open_files(self.server.pid())?;
            if open < most / 10 * 7 {
                return Ok(());
            }
            if !self.waited.swap(true, Ordering::Relaxed) {
                progress(&format!(
                    "the broker has {open} of {most} files open; waiting until it closes some"
                ));
            }
            ensure!(
                began.elapsed() < FILES_WITHIN,
                "the broker keeps {open} of {most} files open: run it where `ulimit -Hn` says more"
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn addr(&self) -> Result<SocketAddr> {
        Ok(format!("127.0.0.1:{}", self.server.port()).parse()?)
    }

    /// Where the lane serves, once it does.
    pub(super) fn discovery(&self, lane: usize) -> Result<Option<Discovery>> {
        Ok(Discovery::load(&self.lanes[lane].state_dir)?)
    }

    /// A manifest of the first lanes.
    pub(super) fn manifest(&self, lanes: usize) -> Result<PathBuf> {
        let spaces: Vec<_> = self.lanes[..lanes]
            .iter()
            .map(|lane| serde_json::json!({ "space": lane.space.as_str() }))
            .collect();
        let path = self.dir.path().join(format!("spaces-{lanes}.json"));
        std::fs::write(&path, serde_json::json!({ "version": 2, "spaces": spaces }).to_string())?;
        Ok(path)
    }

    /// A user of the lane's account that needs no callout.
    pub(super) fn static_user(&self, lane: usize) -> Arc<Ticket> {
        Arc::new(Ticket { creds: static_user(&self.lanes[lane].material.data_account), bearers: vec![] })
    }
}
