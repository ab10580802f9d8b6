//! `start_auth_service`: one space's service inside a host (contract 05 §15.1).
//!
//! Two contexts in one process share nothing: keys, connections, limits, capability and listeners are each one's own. All
//! that the process has one of is the queue in front of its standard error, which [`AuthServiceInputs::callout_log`]
//! replaces.

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
    composition::CompositionRequest,
    context::{self, CalloutLog, ContextInputs, NATIVE_ISSUANCE_PRUNE, StartError},
    handle::AuthService,
    host::lane::Threshold,
    platform::{PlatformControl, PlatformSupervision},
    public_face::PublicFaceRequest,
};

/// Which assignment of a space a host serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedContext {
    /// The data account that the host was assigned; the stored material must be this account's.
    pub account_public_key: Nkey<Account>,
    /// The assignment's lifecycle.
    pub lifecycle_uid: LifecycleUid,
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

/// What a hosted context starts from. A hosted context installs no signal handler, has no local manager, and never ends
/// the process.
///
/// What a type checks is checked when it is made: account, lifecycle and space come first here as they do in the contract.
/// The rest is text as the host has it, and [`start_auth_service`] checks it in the contract's order before it does
/// anything.
pub struct AuthServiceInputs {
    context: HostedContext,
    space: Space,
    servers: String,
    store: Arc<dyn SecretStore>,
    store_identity: String,
    state_dir: PathBuf,
    port: u16,
    platform_control: Option<PlatformControl>,
    platform_supervisor: Option<Arc<dyn PlatformSupervision>>,
    public_face: Option<PublicFaceRequest>,
    composition: CompositionRequest,
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
            platform_control: None,
            platform_supervisor: None,
            public_face: None,
            composition: CompositionRequest::default(),
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

    /// The platform that embeds the service: gives the handle [`AuthService::platform_control`], and with a host
    /// [`AuthService::host`].
    #[must_use]
    pub fn platform_control(mut self, platform: PlatformControl) -> Self {
        self.platform_control = Some(platform);
        self
    }

    /// The platform supervises managers for its users: gives the handle [`AuthService::platform_supervisor`].
    #[must_use]
    pub fn platform_supervisor(mut self, platform: Arc<dyn PlatformSupervision>) -> Self {
        self.platform_supervisor = Some(platform);
        self
    }

    /// Adds a public face: a [`crate::PublicFace`] that is checked already, or a [`PublicFaceRequest`] that the start checks.
    #[must_use]
    pub fn public_face(mut self, face: impl Into<PublicFaceRequest>) -> Self {
        self.public_face = Some(face.into());
        self
    }

    /// Which manager an unpinned interactive caller is bound to. It takes `local-primary` alone, see
    /// [`crate::InteractiveManagerSelection`]; a hosted context has no local manager, so that every such exchange then
    /// refuses.
    #[must_use]
    pub fn interactive_manager_selection(mut self, selection: impl Into<String>) -> Self {
        self.composition.selection = Some(selection.into());
        self
    }

    /// Lifetime of the standing renewable credentials that this context signs, in seconds: 5 to 86 400, which is also the
    /// default.
    #[must_use]
    pub fn standing_renewable_ttl_seconds(mut self, seconds: u64) -> Self {
        self.composition.standing_ttl_secs = Some(seconds);
        self
    }

    /// Lifetime of the credential of the held issuer session, in seconds: 5 to 300, which is also the default. The
    /// session is replaced before that.
    #[must_use]
    pub fn issuer_session_ttl_seconds(mut self, seconds: u64) -> Self {
        self.composition.issuer_ttl_secs = Some(seconds);
        self
    }

    /// Deadlines and admission of the callout; `auth_timeout` must equal the broker's `authorization { timeout }`.
    #[must_use]
    pub fn callout_limits(mut self, limits: CalloutLimits) -> Self {
        self.callout_limits = limits;
        self
    }

    /// Connects a minute, per actor, owner and host; each at least 1.
    #[must_use]
    pub fn connect_limits(mut self, limits: ConnectLimits) -> Self {
        self.connect_limits = limits;
        self
    }

    /// How long after a prune of issuance rows the next one starts: more than nothing, default 60 s.
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

    /// Every check of the inputs, in the contract's order (05 §15.1), without any effect. What the contract has no place
    /// for comes last: the composition's choices as the plane's open orders them (05 §8.2 step 0), then the limits.
    fn check(self) -> Result<ContextInputs, StartError> {
        let refuse = |sentence: String| StartError::Input(sentence);
        let servers = check_place(&self.servers, &self.state_dir, &*self.store, &self.store_identity)?;
        let platform = self.platform_control.map(PlatformControl::check).transpose()?;
        let public_face = self
            .public_face
            .map(PublicFaceRequest::check)
            .transpose()
            .map_err(|why| refuse(format!("publicFace: {why}")))?;
        let composition = self.composition.check()?;
        check_limits(&self.callout_limits, self.connect_limits, self.native_issuance_prune)?;
        let state_dir = resolved(&self.state_dir)?;
        Ok(ContextInputs {
            space: self.space,
            servers,
            store: self.store,
            identity_root: state_dir.clone(),
            state_dir,
            context: Some(self.context),
            composition,
            platform,
            supervision: self.platform_supervisor,
            port: self.port,
            public_face,
            callout_limits: self.callout_limits,
            crowd: None,
            connect_limits: self.connect_limits,
            native_issuance_prune: self.native_issuance_prune,
            expected_server_ids: self.expected_server_ids,
            callout_log: self.callout_log,
            threshold: Threshold::default(),
            clock: self.clock,
            entropy: self.entropy,
        })
    }
}

/// Starts one space's service (contract 05 §15).
///
/// Inputs are checked before anything is touched, and [`StartError::Input`] names the first that is unusable. Then the
/// material is loaded, the broker reached, the plane claimed, the callout and both listeners opened; the service is ready
/// when this resolves. Everything that was opened is closed again when a step fails, and when the future is dropped before
/// it resolves: the start then runs on to its next end, and closes.
pub async fn start_auth_service(inputs: AuthServiceInputs) -> Result<AuthService, StartError> {
    context::start(inputs.check()?).await
}

/// Servers that can be dialled; a refusal calls them `what`.
pub(crate) fn check_servers(what: &str, servers: &str) -> Result<Servers, StartError> {
    Servers::parse(servers).map_err(|why| StartError::Input(format!("{what} cannot be dialled: {why}")))
}

/// Where a context lives, in the contract's order (05 §15.1): its servers, its state directory, its store.
pub(crate) fn check_place(
    servers: &str,
    state_dir: &Path,
    store: &dyn SecretStore,
    store_identity: &str,
) -> Result<Servers, StartError> {
    let servers = check_servers("servers", servers)?;
    if state_dir.as_os_str().is_empty() {
        let sentence = "stateDir must name the space's user-auth state directory";
        return Err(StartError::Input(sentence.to_owned()));
    }
    check_store(store, store_identity)?;
    Ok(servers)
}

/// The state directory, whatever the process's working directory becomes.
pub(crate) fn resolved(state_dir: &Path) -> Result<PathBuf, StartError> {
    std::path::absolute(state_dir)
        .map_err(|error| StartError::Input(format!("stateDir cannot be resolved: {error}")))
}

/// An injected store must say which store it is, and be the one that the host named.
fn check_store(store: &dyn SecretStore, expected: &str) -> Result<(), StartError> {
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

fn check_limits(callout: &CalloutLimits, connects: ConnectLimits, prune: Duration) -> Result<(), StartError> {
    let refuse = |sentence: String| Err(StartError::Input(sentence));
    if let Err(error) = callout.check() {
        return refuse(format!("calloutLimits: {}", error.message));
    }
    let ConnectLimits { per_actor_per_minute, per_owner_per_minute, per_host_per_minute } = connects;
    if [per_actor_per_minute, per_owner_per_minute, per_host_per_minute].contains(&0) {
        return refuse("connectLimits: each is a positive number of connects a minute".to_owned());
    }
    check_prune(prune)
}

/// The interval of the prune of issuance rows.
pub(crate) fn check_prune(interval: Duration) -> Result<(), StartError> {
    if interval.is_zero() {
        let sentence = "nativeIssuancePruneMs must be more than nothing; leave it out for 60 s";
        return Err(StartError::Input(sentence.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use cotal_trust::nkey::Seed;
    use cotal_wire::canonical::VOID_CLOSURE_DIGEST;
    use cotal_workspace::secret_store::StoreError;
    use serde_json::json;
    use zeroize::Zeroizing;

    use super::*;
    use crate::platform::{ObserveAssignment, PlatformAssignment, PlatformHost};

    /// A store of which nothing is ever read: a check has no effect.
    struct Store(Option<StoreIdentity>);

    #[async_trait]
    impl SecretStore for Store {
        async fn get(&self, _key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
            panic!("a check reads nothing")
        }
        async fn put(&self, _key: &str, _value: &str) -> Result<(), StoreError> {
            panic!("a check writes nothing")
        }
        async fn delete(&self, _key: &str) -> Result<(), StoreError> {
            panic!("a check deletes nothing")
        }
        async fn create(&self, _key: &str, _value: &str) -> Result<bool, StoreError> {
            panic!("a check creates nothing")
        }
        fn identity(&self) -> Option<StoreIdentity> {
            self.0.clone()
        }
    }

    struct NoAssignments;

    #[async_trait]
    impl ObserveAssignment for NoAssignments {
        async fn observe_assignment(
            &self,
            _space: &Space,
            _account: &Nkey<Account>,
        ) -> Result<Option<PlatformAssignment>, Box<dyn std::error::Error + Send + Sync>> {
            panic!("a check asks nobody")
        }
    }

    /// Every input that can be wrong, in the contract's order, and a word of its refusal.
    const ORDER: [(&str, &str); 14] = [
        ("servers", "servers cannot be dialled"),
        ("stateDir", "stateDir must name"),
        ("undeclared store", "must declare its identity"),
        ("filesystem store", "needs an injected SecretStore"),
        ("another store", "is not the one that storeIdentity names"),
        ("host endpoint", "platformControl.host.endpoint"),
        ("public url", "publicFace: --exchange-public-url"),
        ("advertised server", "publicFace: --advertised-server"),
        ("provisioning url", "publicFace: --agent-provisioning-url"),
        ("selection", "interactiveManagerSelection takes only"),
        (
            "standing ttl",
            "standingRenewableTtlSeconds must be an integer between 5 and 86400 seconds (got 4)",
        ),
        ("issuer ttl", "issuerSessionTtlSeconds must be an integer between 5 and 300 seconds (got 4)"),
        ("limits", "calloutLimits: "),
        ("connects", "connectLimits: "),
    ];

    /// Inputs in which everything from this place of the order on is wrong, and everything before it right.
    fn wrong_from(first: usize) -> AuthServiceInputs {
        let wrong = |name: &str| ORDER.iter().position(|(named, _)| *named == name).unwrap() >= first;
        let pick = |name: &str, right: &'static str, bad: &'static str| if wrong(name) { bad } else { right };
        let identity = if wrong("undeclared store") && first <= 2 {
            None
        } else if wrong("filesystem store") && first <= 3 {
            Some(StoreIdentity::Fs { root: "/".into(), id: "x".into() })
        } else {
            Some(StoreIdentity::injected(pick("another store", "vault", "elsewhere")).unwrap())
        };
        let document = json!({
            "urn": "com.example.host", "revision": 1, "attributes": [], "events": [],
            "commands": [{
                "name": "ping", "class": "ephemeral", "targeted": false, "capability": "host.ping",
                "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
            }],
        });
        let host =
            PlatformHost::of_document(pick("host endpoint", "com.example.host", "host"), &document).unwrap();
        let context = HostedContext {
            account_public_key: Seed::<Account>::generate(&SystemEntropy).public().clone(),
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        };
        let limits =
            CalloutLimits { max_in_flight: usize::from(!wrong("limits")), ..CalloutLimits::default() };
        let connects =
            ConnectLimits { per_owner_per_minute: u32::from(!wrong("connects")), ..ConnectLimits::default() };
        AuthServiceInputs::new(
            context,
            Space::parse("demo").unwrap(),
            pick("servers", "nats://127.0.0.1:4222", ""),
            Arc::new(Store(identity)),
            "vault",
            pick("stateDir", "state", ""),
        )
        .platform_control(PlatformControl::new(Arc::new(NoAssignments)).host(host))
        .public_face(
            PublicFaceRequest::on_port(0)
                .url(pick("public url", "https://auth.example", "http://auth.example"))
                .advertised_server(pick("advertised server", "tls://broker.example", "http://broker.example"))
                .agent_provisioning_url(pick("provisioning url", "https://p.example", "http://p.example")),
        )
        .interactive_manager_selection(pick("selection", "local-primary", "remote"))
        .standing_renewable_ttl_seconds(if wrong("standing ttl") { 4 } else { 5 })
        .issuer_session_ttl_seconds(if wrong("issuer ttl") { 4 } else { 5 })
        .callout_limits(limits)
        .connect_limits(connects)
    }

    #[test]
    fn the_inputs_are_checked_in_the_contracts_order_and_nothing_is_touched() {
        for (first, (name, word)) in ORDER.iter().enumerate() {
            let refusal = wrong_from(first).check().err().unwrap().to_string();
            assert!(refusal.contains(word), "{name}: {refusal}");
        }
        let right = wrong_from(ORDER.len()).check().unwrap();
        assert!(right.state_dir.is_absolute() && right.identity_root == right.state_dir);
        let refusal = wrong_from(ORDER.len()).native_issuance_prune(Duration::ZERO).check().err().unwrap();
        assert!(refusal.to_string().contains("nativeIssuancePruneMs"), "{refusal}");
    }

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
}
