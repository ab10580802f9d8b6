//! The bridge and the issuer as parts, with a host's own ledger behind them (contract 04 §4.2, §4.3).

use std::sync::Arc;

use async_trait::async_trait;
use cotal_auth::{
    Actor, AuthorizedGrant, Clock, CredentialId, DerivedOwner, IssuerKeySet, LifecycleUid, OwnerSecret,
    Space, SystemClock, SystemEntropy,
    bridge::{
        BearerRequest, BridgeConfigError, BridgeHooks, BridgeRefusal, IdpBridge, IdpBridgeParts, PinnedIdp,
    },
    create_idp_bridge, create_user_token_issuer, pinned_jwks_resolver,
    sessions::NoSessions,
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_trust::bearer;
use parking_lot::Mutex;

/// A host's own ledger: one grant, and what it was asked.
struct HostLedger {
    scope: Vec<String>,
    uid: LifecycleUid,
    /// Answers for this actor, whoever is asked for.
    answers_for: Option<Actor>,
    refuses_credentials: bool,
    asked: Mutex<Vec<&'static str>>,
}

impl HostLedger {
    fn new() -> Self {
        Self {
            scope: vec!["spawn".to_owned()],
            uid: LifecycleUid::mint(&SystemEntropy),
            answers_for: None,
            refuses_credentials: false,
            asked: Mutex::default(),
        }
    }
}

#[async_trait]
impl BridgeHooks for HostLedger {
    async fn authorize_actor(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<AuthorizedGrant, BridgeRefusal> {
        self.asked.lock().push("authorize");
        let actor = self.answers_for.clone().unwrap_or_else(|| actor.clone());
        let mut grant = AuthorizedGrant::decided_by_host(owner.clone(), actor, self.uid.clone());
        grant.scope.clone_from(&self.scope);
        Ok(grant)
    }

    async fn mint_connect_credential(
        &self,
        _owner: &DerivedOwner,
        _actor: &Actor,
        uid: &LifecycleUid,
    ) -> Result<CredentialId, BridgeRefusal> {
        self.asked.lock().push("credential");
        if self.refuses_credentials {
            return Err(BridgeRefusal("the vault is sealed".to_owned()));
        }
        CredentialId::parse(uid.as_str()).map_err(|error| BridgeRefusal(error.to_string()))
    }
}

struct Rig {
    idp: DevIdp,
    space: Space,
    keys: Arc<IssuerKeySet>,
    secret: OwnerSecret,
}

impl Rig {
    async fn start() -> Self {
        let idp = DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy));
        let space = Space::parse("demo").unwrap();
        Self {
            idp: idp.await.unwrap(),
            keys: Arc::new(IssuerKeySet::create(&space, &SystemEntropy)),
            secret: OwnerSecret::generate(&SystemEntropy),
            space,
        }
    }

    fn pinned(&self, issuer: &str, audience: &str) -> Result<PinnedIdp, BridgeConfigError> {
        let uri = format!("{}/jwks", self.idp.base_url());
        PinnedIdp::new(issuer, audience, pinned_jwks_resolver(&uri, Arc::new(SystemClock)).unwrap())
    }

    fn bridge(&self, ledger: &Arc<HostLedger>) -> IdpBridge {
        self.bridge_pinned_to(&self.idp.origin(), ledger)
    }

    fn bridge_pinned_to(&self, audience: &str, ledger: &Arc<HostLedger>) -> IdpBridge {
        create_idp_bridge(IdpBridgeParts {
            space: self.space.clone(),
            idp: self.pinned(&self.idp.origin(), audience).unwrap(),
            space_secret: self.secret.clone(),
            issuer: create_user_token_issuer(&self.space, Arc::clone(&self.keys)).unwrap(),
            hooks: Arc::clone(ledger) as _,
            sessions: Arc::new(NoSessions),
            clock: Arc::new(SystemClock),
        })
        .unwrap()
    }
}

async fn refusal(bridge: &IdpBridge, token: &str, actor: &str, view: Option<&str>) -> String {
    bridge
        .exchange(token, actor, view, BearerRequest::default())
        .await
        .err()
        .expect("it is refused")
        .to_string()
}

#[tokio::test]
async fn a_hosts_own_ledger_decides_and_the_bearer_says_what_it_said() {
    let rig = Rig::start().await;
    let ledger = Arc::new(HostLedger::new());
    let token = rig.idp.mint_token("alice", 60);
    let bridged = rig.bridge(&ledger).exchange(&token, "cli", None, BearerRequest::default()).await.unwrap();
    assert_eq!(*ledger.asked.lock(), ["authorize", "credential"]);
    let now = SystemClock.now_secs();
    let claims = bearer::validate(&bridged.bearer.token, &rig.keys, &rig.space, now).unwrap();
    assert_eq!(claims.act.actor.as_str(), "cli");
    assert_eq!(claims.act.lifecycle_uid.as_ref(), Some(&ledger.uid));
    assert_eq!(bridged.owner, rig.secret.derive(&rig.idp.origin(), "alice").unwrap());
    assert!(bridged.bearer.exp <= now.plus(60), "it never outlives the proof");
}

#[tokio::test]
async fn no_hook_is_asked_about_what_was_refused_before_it() {
    let rig = Rig::start().await;
    let good = rig.idp.mint_token("alice", 600);
    let asked_after = async |ledger: HostLedger, token: &str, actor: &str, view: Option<&str>| {
        let ledger = Arc::new(ledger);
        let refusal = refusal(&rig.bridge(&ledger), token, actor, view).await;
        (ledger.asked.lock().clone(), refusal)
    };
    let nothing: Vec<&str> = Vec::new();
    assert_eq!(asked_after(HostLedger::new(), &good, "not an actor", None).await.0, nothing);
    assert_eq!(asked_after(HostLedger::new(), "a.b.c", "cli", None).await.0, nothing);
    // Within the clock's tolerance it still verifies; nothing is minted for it any more.
    let (asked, text) = asked_after(HostLedger::new(), &rig.idp.mint_token("alice", 0), "cli", None).await;
    assert_eq!(asked, ["authorize"], "{text}");
    assert!(text.contains("expired"), "{text}");
    let (asked, text) = asked_after(HostLedger::new(), &good, "cli", Some("admin")).await;
    assert_eq!(asked, ["authorize"], "{text}");
    assert!(text.contains("needs scope \"admin\""), "{text}");
    let other = HostLedger { answers_for: Some(Actor::parse("other").unwrap()), ..HostLedger::new() };
    assert_eq!(asked_after(other, &good, "cli", None).await.0, ["authorize"], "the grant of another actor");
    let sealed = HostLedger { refuses_credentials: true, ..HostLedger::new() };
    let (asked, text) = asked_after(sealed, &good, "cli", None).await;
    assert_eq!((asked, text.as_str()), (vec!["authorize", "credential"], "the vault is sealed"));
}

#[tokio::test]
async fn no_pin_can_be_left_open() {
    let rig = Rig::start().await;
    let origin = rig.idp.origin();
    assert_eq!(rig.pinned("", &origin).err(), Some(BridgeConfigError::EmptyIssuer));
    assert_eq!(rig.pinned(&origin, "").err(), Some(BridgeConfigError::EmptyAudience));
    for loose in ["", "http://idp.example/jwks", "http://localhost:1/jwks", "file:///jwks"] {
        assert!(pinned_jwks_resolver(loose, Arc::new(SystemClock)).is_err(), "{loose}");
    }
    let ledger = Arc::new(HostLedger::new());
    let elsewhere = rig.bridge_pinned_to("https://another.example", &ledger);
    refusal(&elsewhere, &rig.idp.mint_token("alice", 600), "cli", None).await;
    assert!(ledger.asked.lock().is_empty(), "a token for another audience asks nobody");

    let other = Space::parse("other").unwrap();
    let refused = create_user_token_issuer(&other, Arc::clone(&rig.keys)).err();
    assert_eq!(refused, Some(BridgeConfigError::OtherIssuer));
    let parts = IdpBridgeParts {
        space: other,
        idp: rig.pinned(&origin, &origin).unwrap(),
        space_secret: rig.secret.clone(),
        issuer: create_user_token_issuer(&rig.space, Arc::clone(&rig.keys)).unwrap(),
        hooks: ledger,
        sessions: Arc::new(NoSessions),
        clock: Arc::new(SystemClock),
    };
    assert_eq!(create_idp_bridge(parts).err(), Some(BridgeConfigError::OtherIssuer));
}
