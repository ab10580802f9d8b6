//! `start_auth_service`: one space's service inside a host (contract 05 §15.1).
//!
//! Two contexts in one process share no key, connection, limit, capability, listener or file. What the process has once
//! they share, each within its part: the queue in front of standard error, which `callout_log` replaces, the seats of the
//! HTTP faces, the threads for disk work, and the root certificates.

use std::sync::Arc;

use cotal_authority::issued::ISSUER_TTL_DEFAULT_SECS;
use cotal_callout::ConnectLimits;

use crate::{
    composition::{Composition, check_issuer_ttl},
    context::{self, ContextInputs, StartError},
    handle::AuthService,
    hosted::HostedSpace,
    platform::{PlatformControl, PlatformSupervision},
    public_face::PublicFaceRequest,
};

/// What a hosted context starts from: its space, and what a service of it has that a replica has not. A hosted context
/// installs no signal handler, has no local manager, and never ends the process.
///
/// [`start_auth_service`] checks it in the contract's order before it does anything.
pub struct AuthServiceInputs {
    hosted: HostedSpace,
    port: u16,
    platform_control: Option<PlatformControl>,
    platform_supervisor: Option<Arc<dyn PlatformSupervision>>,
    public_face: Option<PublicFaceRequest>,
    composition: Composition,
    issuer_ttl_secs: u64,
    connect_limits: ConnectLimits,
}

impl From<HostedSpace> for AuthServiceInputs {
    fn from(hosted: HostedSpace) -> Self {
        Self::new(hosted)
    }
}

impl AuthServiceInputs {
    /// A service of this space, on an ephemeral loopback port and with the usual limits.
    pub fn new(hosted: HostedSpace) -> Self {
        Self {
            hosted,
            port: 0,
            platform_control: None,
            platform_supervisor: None,
            public_face: None,
            composition: Composition::new(),
            issuer_ttl_secs: ISSUER_TTL_DEFAULT_SECS,
            connect_limits: ConnectLimits::default(),
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

    /// What the context's plane is told beyond where it is. A hosted context has no local manager, so that a composition
    /// which selects it refuses every unpinned interactive caller.
    #[must_use]
    pub fn composition(mut self, composition: Composition) -> Self {
        self.composition = composition;
        self
    }

    /// Lifetime of the credential of the held issuer session, in seconds: 5 to 300, which is also the default. The
    /// session is replaced before that.
    #[must_use]
    pub fn issuer_session_ttl_seconds(mut self, seconds: u64) -> Self {
        self.issuer_ttl_secs = seconds;
        self
    }

    /// Connects a minute, per actor, owner and host; each at least 1.
    #[must_use]
    pub fn connect_limits(mut self, limits: ConnectLimits) -> Self {
        self.connect_limits = limits;
        self
    }

    /// Every check of the inputs, in the contract's order (05 §15.1), without any effect. What the contract has no place
    /// for comes last: the composition's choices as the plane's open orders them (05 §8.2 step 0), then the limits.
    async fn check(self) -> Result<ContextInputs, StartError> {
        let servers = self.hosted.check_place().await?;
        let platform = self.platform_control.map(PlatformControl::check).transpose()?;
        let public_face = self
            .public_face
            .map(PublicFaceRequest::check)
            .transpose()
            .map_err(|why| StartError::Input(format!("publicFace: {why}")))?;
        let composition = self.composition.check()?;
        check_issuer_ttl(self.issuer_ttl_secs)?;
        let member = self.hosted.into_member(servers)?;
        check_connect_limits(self.connect_limits)?;
        Ok(ContextInputs {
            identity_root: member.state_dir.clone(),
            member,
            composition,
            issuer_ttl_secs: self.issuer_ttl_secs,
            platform,
            supervision: self.platform_supervisor,
            port: self.port,
            public_face,
            connect_limits: self.connect_limits,
        })
    }
}

/// Starts one space's service (contract 05 §15), from [`AuthServiceInputs`], or from a [`HostedSpace`] alone.
///
/// Inputs are checked before anything is touched, and [`StartError::Input`] names the first that is unusable. Then the
/// material is loaded, the broker reached, the plane claimed, the callout and both listeners opened; the service is ready
/// when this resolves. Everything that was opened is closed again when a step fails, and when the future is dropped before
/// it resolves: the start then runs on to its next end, and closes.
pub async fn start_auth_service(inputs: impl Into<AuthServiceInputs>) -> Result<AuthService, StartError> {
    let checked = inputs.into().check().await?;
    context::start(checked).await
}

fn check_connect_limits(limits: ConnectLimits) -> Result<(), StartError> {
    let ConnectLimits { per_actor_per_minute, per_owner_per_minute, per_host_per_minute } = limits;
    if [per_actor_per_minute, per_owner_per_minute, per_host_per_minute].contains(&0) {
        let sentence = "connectLimits: each is a positive number of connects a minute";
        return Err(StartError::Input(sentence.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use cotal_callout::CalloutLimits;
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::{Account, LifecycleUid, Nkey, Space, canonical::VOID_CLOSURE_DIGEST};
    use cotal_workspace::secret_store::{SecretStore, StoreError, StoreIdentity};
    use serde_json::json;
    use zeroize::Zeroizing;

    use super::*;
    use crate::{
        hosted::{HostedContext, SpaceAt},
        platform::{ObserveAssignment, PlatformAssignment, PlatformHost},
    };

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
    const ORDER: [(&str, &str); 15] = [
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
        ("prune", "nativeIssuancePruneMs must be more than nothing"),
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
        let at = SpaceAt::new(Space::parse("demo").unwrap(), pick("servers", "nats://127.0.0.1:4222", ""));
        let hosted =
            HostedSpace::new(context, at, Arc::new(Store(identity)), "vault", pick("stateDir", "state", ""))
                .callout_limits(limits);
        let composition = Composition::new()
            .interactive_manager_selection(pick("selection", "local-primary", "remote"))
            .standing_renewable_ttl_seconds(if wrong("standing ttl") { 4 } else { 5 })
            .native_issuance_prune(Duration::from_secs(u64::from(!wrong("prune"))));
        AuthServiceInputs::new(hosted)
            .platform_control(PlatformControl::new(Arc::new(NoAssignments)).host(host))
            .public_face(
                PublicFaceRequest::on_port(0)
                    .url(pick("public url", "https://auth.example", "http://auth.example"))
                    .advertised_server(pick(
                        "advertised server",
                        "tls://broker.example",
                        "http://broker.example",
                    ))
                    .agent_provisioning_url(pick(
                        "provisioning url",
                        "https://p.example",
                        "http://p.example",
                    )),
            )
            .composition(composition)
            .issuer_session_ttl_seconds(if wrong("issuer ttl") { 4 } else { 5 })
            .connect_limits(connects)
    }

    #[tokio::test]
    async fn the_inputs_are_checked_in_the_contracts_order_and_nothing_is_touched() {
        for (first, (name, word)) in ORDER.iter().enumerate() {
            let refusal = wrong_from(first).check().await.err().unwrap().to_string();
            assert!(refusal.contains(word), "{name}: {refusal}");
        }
        let right = wrong_from(ORDER.len()).check().await.unwrap();
        let state_dir = &right.member.state_dir;
        assert!(state_dir.is_absolute() && right.identity_root == *state_dir);
    }
}
