//! The broker of a root: its configuration, its process and what a space keeps in it.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
};

use cotal_broker::{
    CredsConnector,
    connection::Connection,
    connector::{Connector, Lifetime},
    custody::Custody,
    provision::{AuthorityStores, look_at_authority_stores, provision_space},
    sys::AccountPublisher,
};
use cotal_ledger::Ledger;
use cotal_trust::{bundle::BrokerTrust, creds};
use cotal_wire::{
    Account, Nkey, Space,
    grants::{accounts::PUBLISHER_INBOX, infra},
    names::InfraRole,
};
use cotal_workspace::{
    broker_config::{
        self, AccountResolver, BrokerConfig, BrokerPolicy, DEFAULT_HOST, DEFAULT_PORT, Difference,
        keeps_accounts_in_memory, render,
    },
    file, trust_files,
};
use futures::future::join_all;

use super::{
    Started,
    daemon_creds::{self, BrokerState},
    trust::{Accounts, Trust},
};
use crate::{
    broker_lock,
    context::Context,
    daemon::{Daemon, Running},
    nats_server::NatsServer,
    outcome::CliError,
    progress::Progress,
    ready, space_broker, space_daemons,
};

/// Lifetime of the one credential that provisions a space, in seconds (contract 01 §3.4).
const PROVISIONER_TTL_SECS: u64 = 300;

/// Connection name of the run that tells a broker of accounts.
const PUBLISHER_LABEL: &str = "cotal:account-publisher";
/// How the broker names the file of an account.
const ACCOUNT_SUFFIX: &str = ".jwt";

/// The broker, before this run has touched it.
pub(super) struct Broker {
    daemon: Daemon,
    running: Option<Running>,
    config_path: PathBuf,
    /// The text that the process last started with.
    config: Option<String>,
    port: u16,
}

impl Broker {
    /// Looks at what there is and decides on the port.
    pub(super) fn plan(ctx: &Context, nats: &NatsServer, port: Option<u16>) -> Result<Self, CliError> {
        let daemon = space_daemons::broker(ctx, &nats.path);
        let running = daemon.running()?;
        let config_path = space_daemons::broker_config_path(&ctx.root);
        let config = file::read_text(&config_path)?.map(|text| text.to_string());
        let known = config.as_deref().and_then(space_daemons::broker_port);
        let port = match choose_port(port, known, running.is_some()).map_err(CliError::Failed)? {
            Some(port) => port,
            None => free_port()?,
        };
        Ok(Self { daemon, running, config_path, config, port })
    }

    /// Whether it was running when this run began, and can then be told of accounts.
    pub(super) fn state(&self) -> BrokerState {
        match (&self.running, self.config.as_deref()) {
            (None, _) => BrokerState::Stopped,
            (Some(_), Some(config)) if !keeps_accounts_in_memory(config) => BrokerState::TakesAccounts,
            (Some(_), _) => BrokerState::Running,
        }
    }

    /// Two brokers on one store tear it: one that this root does not know of is the operator's to stop.
    pub(super) async fn refuse_unknown(&self, ctx: &Context) -> Result<(), CliError> {
        if self.running.is_some() {
            return Ok(());
        }
        broker_lock::refuse_unknown_broker(&ctx.root).await?;
        self.refuse_started_elsewhere(ctx).await
    }

    /// One that a unit or a person started holds no lock of this program's. It is asked where the root's last one
    /// listened, before another program is said to have that port: whoever takes what this root signs is its broker.
    async fn refuse_started_elsewhere(&self, ctx: &Context) -> Result<(), CliError> {
        let Some(port) = self.config.as_deref().and_then(space_daemons::broker_port) else { return Ok(()) };
        let server = format!("nats://{DEFAULT_HOST}:{port}");
        if !space_broker::listens(&server).await {
            return Ok(());
        }
        let mut connectors = Vec::new();
        for space in trust_files::inventory(&ctx.root)? {
            connectors.extend(space_broker::connector_to(ctx, &space, &server)?);
        }
        let taken = join_all(connectors.iter().map(space_broker::takes)).await;
        if taken.iter().any(Result::is_ok) {
            return Err(CliError::failed(format!(
                "a broker of this root, which `up` did not start, listens on port {port}: stop it, whoever started it (a \
                 unit, or a person), then run this command again; two brokers on one store tear it"
            )));
        }
        Ok(())
    }

    /// A running broker takes a further space only when it can be told of one; else nothing is begun.
    pub(super) fn refuse_new_space(&self, ctx: &Context, space: &Space) -> Result<(), CliError> {
        if self.running.is_none() || trust_files::load_account(&ctx.root, space)?.is_some() {
            return Ok(());
        }
        let why = match (self.state(), trust_files::load_broker(&ctx.root)?) {
            (BrokerState::TakesAccounts, Some(broker)) => {
                let publisher = daemon_creds::publisher_state(ctx, &broker)?;
                if publisher.holds() {
                    return Ok(());
                }
                let path = space_daemons::account_publisher_path(&ctx.root);
                format!("{} is {}", path.display(), publisher.as_str())
            }
            _ => "it was started with its accounts in memory".to_owned(),
        };
        Err(CliError::failed(format!(
            "the broker of {} runs without space {:?} and cannot be told of it ({why}): stop it with `cotal down \
             --space <each of its spaces>`, then bring each of them up again",
            ctx.root.path().display(),
            space.as_str()
        )))
    }

    /// Writes the configuration and starts the process, or makes sure that the running one has this configuration:
    /// accounts that it does not know yet it is told of, which ends no connection. The text is written last, so that
    /// a run that is cut short leaves the telling to the next one. Answers the broker's URL, and whether the process is a new one.
    pub(super) async fn start(
        self,
        ctx: &Context,
        trust: &BrokerTrust,
        accounts: &Accounts,
        policy: BrokerPolicy,
        started: &mut Started,
        progress: &Progress<'_>,
    ) -> Result<(String, bool), CliError> {
        let text = render(&BrokerConfig {
            host: DEFAULT_HOST,
            port: self.port,
            store_dir: space_daemons::broker_store_dir(&ctx.root),
            max_file_store: None,
            tls: None,
            websocket: None,
            resolver: self.resolver(ctx),
            policy,
            trust,
            spaces: &accounts.spaces,
            extra_accounts: &accounts.callouts,
        })?;
        progress.wait("waiting for the broker", ready::MOST);
        let fresh = self.running.is_none();
        let server = format!("nats://{DEFAULT_HOST}:{}", self.port);
        if let Some(mut running) = self.running {
            let known = self.config.as_deref().unwrap_or_default();
            match Difference::between(known, &text) {
                Difference::None => ready::broker(&mut running, DEFAULT_HOST, self.port).await?,
                Difference::Accounts(told) => {
                    ready::broker(&mut running, DEFAULT_HOST, self.port).await?;
                    progress.step("telling the broker of the space");
                    tell(ctx, &server, &told).await?;
                    file::write_atomic(&self.config_path, text.as_bytes())?;
                }
                Difference::Settings => {
                    return Err(CliError::failed(
                        "the broker runs with another configuration: `cotal down --space <each of its spaces>`, then this \
                         command, changes it",
                    ));
                }
            }
        } else {
            file::ensure_private_dir(&space_daemons::broker_store_dir(&ctx.root))?;
            lay_out(&space_daemons::broker_accounts_dir(&ctx.root), trust, accounts)?;
            file::write_atomic(&self.config_path, text.as_bytes())?;
            refuse_taken_port(self.port)?;
            ready::broker(started.start(&self.daemon, ctx)?, DEFAULT_HOST, self.port).await?;
        }
        Ok((server, fresh))
    }

    /// Where the accounts are: in a directory, unless the broker runs and was started otherwise.
    fn resolver(&self, ctx: &Context) -> AccountResolver {
        match self.state() {
            BrokerState::Running => AccountResolver::Memory,
            BrokerState::Stopped | BrokerState::TakesAccounts => {
                AccountResolver::Directory(space_daemons::broker_accounts_dir(&ctx.root))
            }
        }
    }
}

/// Tells a running broker of accounts. What it has been told it keeps; the same again changes nothing.
async fn tell(ctx: &Context, server: &str, accounts: &[(Nkey<Account>, String)]) -> Result<(), CliError> {
    let path = space_daemons::account_publisher_path(&ctx.root);
    let refused = |why: String| {
        CliError::failed(format!(
            "the broker could not be told of the space ({why}): run this command again, or `cotal down --space <each \
             of its spaces>` and bring each of them up again"
        ))
    };
    let text = file::read_text(&path)?.ok_or_else(|| refused(format!("{} is missing", path.display())))?;
    let creds = creds::parse(&text).map_err(|e| refused(format!("{}: {e}", path.display())))?;
    let publisher = CredsConnector::new(server, Custody::new())
        .open_once(PUBLISHER_LABEL.to_owned(), &creds, Some(PUBLISHER_INBOX))
        .await
        .map(AccountPublisher::new)
        .map_err(|e| refused(e.message))?;
    for (account, jwt) in accounts {
        publisher.publish(account, jwt).await.map_err(refused)?;
    }
    publisher.close().await;
    Ok(())
}

/// Leaves exactly these accounts in the directory of a broker that is about to start: one that was rotated away would
/// otherwise be known for good.
fn lay_out(dir: &Path, trust: &BrokerTrust, accounts: &Accounts) -> Result<(), CliError> {
    file::ensure_private_dir(dir)?;
    let spaces = accounts.spaces.iter().map(|space| (space.account.public(), &space.jwt));
    let callouts = accounts.callouts.iter().map(|(account, jwt)| (account, jwt));
    let known: BTreeMap<String, &String> = spaces
        .chain([(&trust.sys, &trust.sys_jwt)])
        .chain(callouts)
        .map(|(account, jwt)| (format!("{account}{ACCOUNT_SUFFIX}"), jwt))
        .collect();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !name.to_str().is_some_and(|name| known.contains_key(name)) {
            file::remove_if_present(&dir.join(name))?;
        }
    }
    for (name, jwt) in known {
        file::write_atomic(&dir.join(name), jwt.as_bytes())?;
    }
    Ok(())
}

/// The port of this run: `None` takes a free one. A running broker keeps its port.
fn choose_port(asked: Option<u16>, known: Option<u16>, running: bool) -> Result<Option<u16>, String> {
    match (asked, known) {
        (Some(0) | None, Some(known)) if running => Ok(Some(known)),
        (Some(asked), Some(known)) if running && asked != known => Err(format!(
            "the broker runs on port {known}: `cotal down --space <each of its spaces>`, then this command, moves it to \
             {asked}"
        )),
        (Some(0), _) => Ok(None),
        (Some(asked), _) => Ok(Some(asked)),
        (None, known) => Ok(Some(known.unwrap_or(DEFAULT_PORT))),
    }
}

/// A port for a process of this machine.
pub(super) fn free_port() -> Result<u16, CliError> {
    broker_config::free_port().map_err(|e| CliError::failed(format!("no free port on {DEFAULT_HOST}: {e}")))
}

/// Told here, because a broker's own words for it end up in a log.
fn refuse_taken_port(port: u16) -> Result<(), CliError> {
    match TcpListener::bind((DEFAULT_HOST, port)) {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(CliError::failed(format!(
            "port {port} of {DEFAULT_HOST} is taken by another program: pass --port <n>, or --port 0 for a free one"
        ))),
        _ => Ok(()),
    }
}

/// Creates or verifies the streams and buckets of the space. `pinned_before`: an earlier run had settled the space, so
/// that stores which are not there any more were lost.
pub(super) async fn provision(
    ctx: &Context,
    server: &str,
    space: &Space,
    trust: &Trust,
    pinned_before: bool,
) -> Result<(), CliError> {
    let account = trust.account.data_account();
    let connector = Connector::new(
        server,
        space.clone(),
        account,
        Custody::new(),
        ctx.clock.clone(),
        ctx.entropy.clone(),
    );
    let token = space.token();
    let lifetime = Lifetime::OneShot { ttl_secs: PROVISIONER_TTL_SECS, principal: None };
    let grants = move |conn: &cotal_wire::ConnId| infra::provisioner(&token, conn);
    let connection = connector.open(InfraRole::PROVISIONER.label(space), &grants, lifetime).await?;
    let provisioned = unless_lost(ctx, &connection, space, pinned_before).await;
    connection.close().await?;
    provisioned
}

async fn unless_lost(
    ctx: &Context,
    connection: &Connection,
    space: &Space,
    pinned_before: bool,
) -> Result<(), CliError> {
    let stores = look_at_authority_stores(connection, space).await?;
    if stores.records.is_none() || stores.auth.is_none() {
        let ledger = Ledger::at(ctx.root.user_auth_state_dir(space)?);
        let granted = !ledger.list()?.is_empty();
        if let Some(lost) = lost(stores, pinned_before, granted) {
            return Err(CliError::failed(format!(
                "the broker has lost {lost} of space {:?}, and an empty one would refuse every actor for good: `cotal \
                 down`, put {} back from a backup, then run this command again",
                space.as_str(),
                space_daemons::broker_store_dir(&ctx.root).display()
            )));
        }
    }
    Ok(provision_space(connection, space).await?)
}

/// Which store is gone that a fresh one must not replace. A first run that was cut short leaves one store, or none,
/// without a row in it and without a grant: that one is simply gone on with.
fn lost(stores: AuthorityStores, pinned_before: bool, granted: bool) -> Option<&'static str> {
    match (stores.records, stores.auth) {
        (Some(_), Some(_)) => None,
        (None, None) => (pinned_before && granted).then_some("both authority stores"),
        (Some(last), None) => (last > 0 || granted).then_some("the auth store"),
        (None, Some(last)) => (last > 0 || granted).then_some("the records store"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_broker_keeps_its_port_and_a_stopped_one_its_last() {
        for (asked, known, running, port) in [
            (None, None, false, Ok(Some(4222))),
            (None, Some(5000), false, Ok(Some(5000))),
            (None, Some(5000), true, Ok(Some(5000))),
            (Some(0), None, false, Ok(None)),
            (Some(0), Some(5000), false, Ok(None)),
            (Some(0), Some(5000), true, Ok(Some(5000))),
            (Some(5000), Some(5000), true, Ok(Some(5000))),
            (Some(6000), Some(5000), false, Ok(Some(6000))),
            (Some(6000), Some(5000), true, Err(())),
        ] {
            assert_eq!(
                choose_port(asked, known, running).map_err(|_| ()),
                port,
                "{asked:?} {known:?} {running}"
            );
        }
    }

    #[test]
    fn a_store_that_held_something_or_stands_behind_a_grant_is_lost_and_a_first_run_cut_short_is_not() {
        let stores = |records, auth| AuthorityStores { records, auth };
        for (records, auth, pinned, granted, told) in [
            (None, None, false, false, None),
            (None, None, true, false, None),
            (None, None, false, true, None),
            (None, None, true, true, Some("both authority stores")),
            (Some(0), None, true, false, None),
            (Some(0), None, true, true, Some("the auth store")),
            (Some(3), None, true, false, Some("the auth store")),
            (None, Some(0), true, false, None),
            (None, Some(1), false, false, Some("the records store")),
            (Some(9), Some(9), true, true, None),
        ] {
            assert_eq!(
                lost(stores(records, auth), pinned, granted),
                told,
                "{records:?} {auth:?} {pinned} {granted}"
            );
        }
    }

    #[test]
    fn a_taken_port_is_told_with_the_way_out() {
        let holder = TcpListener::bind((DEFAULT_HOST, 0)).unwrap();
        let error = refuse_taken_port(holder.local_addr().unwrap().port()).unwrap_err().to_string();
        assert!(error.contains("--port 0"), "{error}");
    }
}
