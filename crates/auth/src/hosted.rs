//! A space that a host was assigned: what a service and a callout replica of it both start from (contract 05 §15.1, 08 §5).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cotal_authority::NoLocalManager;
use cotal_broker::Servers;
use cotal_callout::CalloutLimits;
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Account, Clock, Entropy, LifecycleUid, Nkey, Space};
use cotal_workspace::{
    file,
    secret_store::{SecretStore, StoreIdentity},
};

use crate::{
    context::StartError,
    host::lane::Threshold,
    member::{CalloutLog, Member},
};

/// Which assignment of a space a host serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedContext {
    /// The data account that the host was assigned; the stored material must be this account's.
    pub account_public_key: Nkey<Account>,
    /// The assignment's lifecycle.
    pub lifecycle_uid: LifecycleUid,
}

/// A space at its broker, and whose time and randomness serves it: where everything that a host starts begins.
#[derive(Clone)]
pub struct SpaceAt {
    pub(crate) space: Space,
    pub(crate) servers: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// A space that a host was assigned, with its secrets, its state, and how its connects are answered.
///
/// [`crate::start_auth_service`] serves it whole, and [`crate::CalloutReplica::start`] answers its connects beside that
/// service: both take this value. What a type checks is checked when it is made: account, lifecycle and space come first
/// here as they do in the contract. The rest is text as the host has it, and a start checks it in the contract's order
/// before it does anything.
#[derive(Clone)]
pub struct HostedSpace {
    context: HostedContext,
    at: SpaceAt,
    store: Arc<dyn SecretStore>,
    store_identity: String,
    state_dir: PathBuf,
    callout_limits: CalloutLimits,
    expected_server_ids: Option<Vec<String>>,
    callout_log: Option<CalloutLog>,
}

impl HostedContext {
    /// Reads an assignment that came as text: the account first, then the lifecycle.
    pub fn parse(account_public_key: &str, lifecycle_uid: &str) -> Result<Self, StartError> {
        let refuse = |member: &str, why: &dyn std::fmt::Display| {
            StartError::Input(format!("context.{member} is unusable: {why}"))
        };
        let account_public_key =
            Nkey::parse(account_public_key).map_err(|why| refuse("accountPublicKey", &why))?;
        let lifecycle_uid = LifecycleUid::parse(lifecycle_uid).map_err(|why| refuse("lifecycleUid", &why))?;
        Ok(Self { account_public_key, lifecycle_uid })
    }
}

impl SpaceAt {
    /// A space; `servers` is one or more comma-separated NATS URLs, without credentials.
    pub fn new(space: Space, servers: impl Into<String>) -> Self {
        Self {
            space,
            servers: servers.into(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// Another clock and another source of randomness than the operating system's.
    #[must_use]
    pub fn clock_and_entropy(mut self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        self.clock = clock;
        self.entropy = entropy;
        self
    }

    pub(crate) fn check_servers(&self) -> Result<Servers, StartError> {
        check_servers("servers", &self.servers)
    }
}

impl HostedSpace {
    /// What has no default. `store_identity` is the coordinate that the injected store must declare; `state_dir` holds the
    /// IdP pin and the actor ledger.
    pub fn new(
        context: HostedContext,
        at: SpaceAt,
        store: Arc<dyn SecretStore>,
        store_identity: impl Into<String>,
        state_dir: impl AsRef<Path>,
    ) -> Self {
        Self {
            context,
            at,
            store,
            store_identity: store_identity.into(),
            state_dir: state_dir.as_ref().to_owned(),
            callout_limits: CalloutLimits::default(),
            expected_server_ids: None,
            callout_log: None,
        }
    }

    /// Deadlines and admission of the callout; `auth_timeout` must equal the broker's `authorization { timeout }`, in every
    /// service and replica of the space.
    #[must_use]
    pub fn callout_limits(mut self, limits: CalloutLimits) -> Self {
        self.callout_limits = limits;
        self
    }

    /// The only servers whose connects are answered, by the `server_id` of their INFO (contract 04 §8.2). By default
    /// every server that holds the callout account is.
    #[must_use]
    pub fn expected_server_ids(mut self, ids: impl IntoIterator<Item = String>) -> Self {
        self.expected_server_ids = Some(ids.into_iter().collect());
        self
    }

    /// Where the callout's line for each answered connect goes; it must not block. The default is standard error,
    /// behind a bounded queue and flushed by a close.
    #[must_use]
    pub fn callout_log(mut self, log: CalloutLog) -> Self {
        self.callout_log = Some(log);
        self
    }

    /// Where the space is, in the contract's order (05 §15.1): its servers, its state directory, its store.
    pub(crate) async fn check_place(&self) -> Result<Servers, StartError> {
        let servers = self.at.check_servers()?;
        if self.state_dir.as_os_str().is_empty() {
            let sentence = "stateDir must name the space's user-auth state directory";
            return Err(StartError::Input(sentence.to_owned()));
        }
        check_store(&self.store, &self.store_identity).await?;
        Ok(servers)
    }

    /// What the contract gives no place in its order, once the place is checked: how connects are answered. The state
    /// directory is then the same whatever the process's working directory becomes.
    pub(crate) fn into_member(self, servers: Servers) -> Result<Member, StartError> {
        if let Err(error) = self.callout_limits.check() {
            return Err(StartError::Input(format!("calloutLimits: {}", error.message)));
        }
        let state_dir = std::path::absolute(&self.state_dir)
            .map_err(|error| StartError::Input(format!("stateDir cannot be resolved: {error}")))?;
        Ok(Member {
            space: self.at.space,
            servers,
            store: self.store,
            state_dir,
            context: Some(self.context),
            local_manager: Arc::new(NoLocalManager),
            callout_limits: self.callout_limits,
            crowd: None,
            expected_server_ids: self.expected_server_ids,
            callout_log: self.callout_log,
            threshold: Threshold::default(),
            clock: self.at.clock,
            entropy: self.at.entropy,
        })
    }
}

/// Servers that can be dialled; a refusal calls them `what`.
pub(crate) fn check_servers(what: &str, servers: &str) -> Result<Servers, StartError> {
    Servers::parse(servers).map_err(|why| StartError::Input(format!("{what} cannot be dialled: {why}")))
}

/// An injected store must say which store it is, and be the one that the host named. It may have to look where it lies.
async fn check_store(store: &Arc<dyn SecretStore>, expected: &str) -> Result<(), StartError> {
    let refuse = |sentence: &str| Err(StartError::Input(sentence.to_owned()));
    let asked = Arc::clone(store);
    let identity = file::blocking(move || asked.identity()).await.map_err(|error| {
        StartError::Input(format!("the injected SecretStore did not say which store it is: {error}"))
    })?;
    match identity {
        None => refuse("an injected SecretStore must declare its identity"),
        Some(StoreIdentity::Fs { .. }) => {
            refuse("a hosted context needs an injected SecretStore, not the filesystem store of a root")
        }
        Some(StoreIdentity::Injected { coordinate }) if coordinate != expected => {
            refuse("the injected SecretStore is not the one that storeIdentity names")
        }
        Some(StoreIdentity::Injected { .. }) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_testkit::{hung_disk::HungDisk, injected::Injected};
    use cotal_trust::nkey::Seed;
    use cotal_workspace::{root::Root, secret_store::FsSecretStore};

    use super::*;

    #[test]
    fn an_assignment_as_text_is_read_account_first() {
        let account = Seed::<Account>::generate(&SystemEntropy).public().to_string();
        let uid = LifecycleUid::mint(&SystemEntropy).to_string();
        assert!(HostedContext::parse(&account, &uid).is_ok());
        let text = |account: &str, uid: &str| HostedContext::parse(account, uid).unwrap_err().to_string();
        assert!(text("", "").contains("context.accountPublicKey"));
        assert!(text(&account, "").contains("context.lifecycleUid"));
        let user = Seed::<cotal_wire::User>::generate(&SystemEntropy).public().to_string();
        assert!(text(&user, &uid).contains("context.accountPublicKey"), "another kind of key");
    }

    #[test]
    fn a_store_is_asked_which_it_is_off_the_runtimes_threads() {
        let dir = tempfile::tempdir().unwrap();
        let store = FsSecretStore::open(&Root::at(dir.path())).unwrap();
        let context = HostedContext {
            account_public_key: Seed::<Account>::generate(&SystemEntropy).public().clone(),
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        };
        let at = SpaceAt::new(Space::parse("demo").unwrap(), "nats://127.0.0.1:4222");
        let hosted =
            HostedSpace::new(context, at, Arc::new(Injected::over(store, "vault")), "vault", dir.path());
        HungDisk::runtime().unwrap().block_on(async {
            let disk = HungDisk::hang();
            let checking = hosted.check_place();
            tokio::pin!(checking);
            assert!(futures::poll!(checking.as_mut()).is_pending());
            disk.heal().await;
            checking.await.unwrap();
        });
    }
}
