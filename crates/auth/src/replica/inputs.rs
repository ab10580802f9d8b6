//! What a replica starts from.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cotal_authority::{NoLocalManager, ReadLocalManager};
use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, Crowd};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Clock, Entropy, Space};
use cotal_workspace::secret_store::SecretStore;

use crate::{
    context::{CalloutLog, StartError},
    host::lane::Threshold,
    hosted::{HostedContext, check_place, resolved},
};

/// What a hosted callout replica starts from. It installs no signal handler and never ends the process. Its connect
/// limits are the defaults, and no input sets them (contract 08 §5).
pub struct CalloutReplicaInputs {
    context: HostedContext,
    space: Space,
    servers: String,
    store: Arc<dyn SecretStore>,
    store_identity: String,
    state_dir: PathBuf,
    callout_limits: CalloutLimits,
    expected_server_ids: Option<Vec<String>>,
    callout_log: Option<CalloutLog>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

/// The same, checked.
pub(crate) struct ReplicaInputs {
    pub space: Space,
    pub servers: Servers,
    pub store: Arc<dyn SecretStore>,
    pub state_dir: PathBuf,
    /// The assignment of a hosted replica.
    pub context: Option<HostedContext>,
    /// The manager of this host, as the full service of the same root sees it.
    pub local_manager: Arc<dyn ReadLocalManager>,
    pub callout_limits: CalloutLimits,
    /// The host's lanes, when it is one of them.
    pub crowd: Option<Crowd>,
    pub expected_server_ids: Option<Vec<String>>,
    /// Standard error when absent.
    pub callout_log: Option<CalloutLog>,
    /// Crossed right before the callout starts.
    pub threshold: Threshold,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl CalloutReplicaInputs {
    /// The inputs that have no default. `servers` is one or more comma-separated NATS URLs; `store_identity` is the
    /// coordinate that the injected store must declare; `state_dir` holds the space's actor ledger.
    pub fn new(
        context: HostedContext,
        space: Space,
        servers: impl Into<String>,
        store: Arc<dyn SecretStore>,
        store_identity: impl Into<String>,
        state_dir: impl AsRef<Path>,
    ) -> Self {
        Self {
            context,
            space,
            servers: servers.into(),
            store,
            store_identity: store_identity.into(),
            state_dir: state_dir.as_ref().to_owned(),
            callout_limits: CalloutLimits::default(),
            expected_server_ids: None,
            callout_log: None,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// Deadlines and admission of the callout; `auth_timeout` must equal the broker's `authorization { timeout }`, as
    /// that of the full service does.
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

    /// Another clock and another source of randomness than the operating system's.
    #[must_use]
    pub fn clock_and_entropy(mut self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        self.clock = clock;
        self.entropy = entropy;
        self
    }

    /// In the order in which a hosted context checks its own.
    pub(crate) fn checked(self) -> Result<ReplicaInputs, StartError> {
        let servers = check_place(&self.servers, &self.state_dir, &*self.store, &self.store_identity)?;
        let state_dir = resolved(&self.state_dir)?;
        Ok(ReplicaInputs {
            space: self.space,
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
            clock: self.clock,
            entropy: self.entropy,
        })
    }
}
