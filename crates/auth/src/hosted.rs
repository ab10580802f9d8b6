//! `start_auth_service`: one space's service inside a host (contract 05 §15.1).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, ConnectLimits};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Account, Clock, Entropy, LifecycleUid, Nkey, Space};
use cotal_workspace::secret_store::{SecretStore, StoreIdentity};

use crate::{
    context::{self, CalloutLog, ContextInputs, NATIVE_ISSUANCE_PRUNE, StartError},
    handle::AuthService,
    public_face::PublicFace,
};

/// Which assignment of a space a host serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedContext {
    /// The data account that the host was assigned; the stored material must be this account's.
    pub account_public_key: Nkey<Account>,
    /// The assignment's lifecycle.
    pub lifecycle_uid: LifecycleUid,
}

/// What a hosted context starts from. A hosted context installs no signal handler and never ends the process.
pub struct AuthServiceInputs {
    context: HostedContext,
    space: Space,
    servers: String,
    store: Arc<dyn SecretStore>,
    store_identity: String,
    state_dir: PathBuf,
    port: u16,
    public_face: Option<PublicFace>,
    callout_limits: CalloutLimits,
    connect_limits: ConnectLimits,
    native_issuance_prune: Duration,
    expected_server_ids: Option<Vec<String>>,
    callout_log: Option<CalloutLog>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl AuthServiceInputs {
    /// The inputs that have no default. `servers` is one or more comma-separated NATS URLs; `store_identity` is the
    /// coordinate that the injected store must declare; `state_dir` holds the IdP pin and the ledger.
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
            port: 0,
            public_face: None,
            callout_limits: CalloutLimits::default(),
            connect_limits: ConnectLimits::default(),
            native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
            expected_server_ids: None,
            callout_log: None,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// The loopback port; 0, the default, takes an ephemeral one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds a public face.
    #[must_use]
    pub fn public_face(mut self, face: PublicFace) -> Self {
        self.public_face = Some(face);
        self
    }

    /// Deadlines and admission of the callout; `auth_timeout` must equal the broker's `authorization { timeout }`.
    #[must_use]
    pub fn callout_limits(mut self, limits: CalloutLimits) -> Self {
        self.callout_limits = limits;
        self
    }

    /// Connects a minute, per actor, owner and host.
    #[must_use]
    pub fn connect_limits(mut self, limits: ConnectLimits) -> Self {
        self.connect_limits = limits;
        self
    }

    /// How long after a prune of issuance rows the next one starts; default 60 s.
    #[must_use]
    pub fn native_issuance_prune(mut self, interval: Duration) -> Self {
        self.native_issuance_prune = interval;
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
}

/// Starts one space's service. Everything that it opened is closed again when a step fails, and when the future is
/// dropped before it resolves: the start then runs on to its next end, and closes.
pub async fn start_auth_service(inputs: AuthServiceInputs) -> Result<AuthService, StartError> {
    let servers = Servers::parse(&inputs.servers)
        .map_err(|why| StartError::Input(format!("servers cannot be dialled: {why}")))?;
    if inputs.state_dir.as_os_str().is_empty() {
        return Err(StartError::Input("stateDir must name the space's user-auth state directory".to_owned()));
    }
    check_store(&*inputs.store, &inputs.store_identity)?;
    let state_dir = std::path::absolute(&inputs.state_dir)
        .map_err(|error| StartError::Input(format!("stateDir cannot be resolved: {error}")))?;
    context::start(ContextInputs {
        space: inputs.space,
        servers,
        store: inputs.store,
        identity_root: state_dir.clone(),
        state_dir,
        context: Some(inputs.context),
        port: inputs.port,
        public_face: inputs.public_face,
        callout_limits: inputs.callout_limits,
        connect_limits: inputs.connect_limits,
        native_issuance_prune: inputs.native_issuance_prune,
        expected_server_ids: inputs.expected_server_ids,
        callout_log: inputs.callout_log,
        clock: inputs.clock,
        entropy: inputs.entropy,
    })
    .await
}

/// An injected store must say which store it is, and be the one that the host named.
pub(crate) fn check_store(store: &dyn SecretStore, expected: &str) -> Result<(), StartError> {
    let refuse = |sentence: &str| Err(StartError::Input(sentence.to_owned()));
    match store.identity() {
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
