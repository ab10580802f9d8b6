//! Both faces of one space on real listeners, with a real ledger, real keys and a clock of the test's own.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use cotal_callout::{ConnectLimits, Limiter};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_trust::{idp::IdpPin, issuer::IssuerKeySet, nkey::Seed, owner::OwnerSecret, system::SystemEntropy};
use cotal_wire::{Account, Actor, Clock, DerivedOwner, LifecycleUid, Nkey, Space, UnixMillis};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    call::{Answer, Call, FaceName, raw},
    stand_ins::{Authority, Credentials, Managers, Plane},
};
use crate::{
    authority::ExchangeAuthority,
    bridge::{IdpBridgeParts, PinnedIdp, create_idp_bridge, pinned_jwks_resolver},
    capability::Capability,
    http::{
        doors::Doors,
        exchange::Exchange,
        face::{Face, Service},
        listener::Listener,
        seats::Seats,
    },
    managers::SelectionRefusal,
    sessions::NoSessions,
    user_tokens::create_user_token_issuer,
};

pub(super) const START_MS: u64 = 1_800_000_000_000;
pub(super) const ACTOR: &str = "worker";

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub(super) struct HandClock(AtomicU64);

impl HandClock {
    pub(super) fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now_millis(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::SeqCst))
    }
}

/// An account that the rig does not serve.
pub(super) const OTHER_ACCOUNT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Both faces and what they stand on.
pub(super) struct Rig {
    pub clock: Arc<HandClock>,
    pub ledger: Ledger,
    pub limiter: Arc<Limiter>,
    pub issuer: Arc<IssuerKeySet>,
    pub space: Space,
    pub credentials: Arc<Credentials>,
    pub managers: Arc<Managers>,
    pub plane: Arc<Plane>,
    pub authority: Arc<Authority>,
    pub data_account: Nkey<Account>,
    pub cap: Capability,
    pub loopback: Listener,
    pub public: Listener,
    pub origin: String,
    pub idp: Option<DevIdp>,
    pub owner_secret: OwnerSecret,
    dir: tempfile::TempDir,
}

impl Rig {
    /// Agents only: nothing answers at the pinned IdP.
    pub(super) async fn start() -> Self {
        Self::of(false, false, Self::seats()).await
    }

    /// Agents only, the public face behind a trusted proxy.
    pub(super) async fn behind_a_proxy() -> Self {
        Self::of(true, false, Self::seats()).await
    }

    /// With an IdP.
    pub(super) async fn with_people() -> Self {
        Self::of(false, true, Self::seats()).await
    }

    /// Agents only, with the seats that both faces share.
    pub(super) async fn with_seats(seats: Arc<Seats>) -> Self {
        Self::of(false, false, seats).await
    }

    /// More than any test takes.
    fn seats() -> Arc<Seats> {
        Arc::new(Seats::bound_by(|_| 100_000))
    }

    async fn of(trusted_proxy: bool, people: bool, seats: Arc<Seats>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(HandClock(AtomicU64::new(START_MS)));
        let dyn_clock: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let idp = if people {
            let options = DevIdpOptions::default();
            Some(DevIdp::start(options, Arc::clone(&dyn_clock), Arc::new(SystemEntropy)).await.unwrap())
        } else {
            None
        };
        let base = idp.as_ref().map_or_else(|| "http://127.0.0.1:9/api/auth".to_owned(), DevIdp::base_url);
        let pin = IdpPin::from_url(&base).unwrap();
        let origin = pin.issuer.clone();
        let space = Space::parse("demo").unwrap();
        let issuer = Arc::new(IssuerKeySet::create(&space, &SystemEntropy));
        let owner_secret = OwnerSecret::generate(&SystemEntropy);
        let ledger = Ledger::at(dir.path());
        let credentials = Arc::new(Credentials::default());
        let managers = Arc::new(Managers {
            answer: Mutex::new(Err(SelectionRefusal::NoLiveManager("no live manager here".to_owned()))),
            asked: AtomicUsize::new(0),
            arms: Mutex::default(),
            listed: Mutex::new(Ok(Vec::new())),
            listed_for: Mutex::default(),
        });
        let limiter = Arc::new(Limiter::new(ConnectLimits::default(), Arc::clone(&dyn_clock)));
        let authority = ExchangeAuthority::new(ledger.clone(), Arc::clone(&credentials) as _);
        let keys = pinned_jwks_resolver(&pin.jwks_uri, Arc::clone(&dyn_clock)).unwrap();
        let tokens = create_user_token_issuer(&space, Arc::clone(&issuer)).unwrap();
        let bridge = create_idp_bridge(IdpBridgeParts {
            space: space.clone(),
            idp: PinnedIdp::new(&pin.issuer, &pin.audience, keys).unwrap(),
            space_secret: owner_secret.clone(),
            issuer: tokens.clone(),
            hooks: Arc::new(authority.clone()),
            sessions: Arc::new(NoSessions),
            clock: Arc::clone(&dyn_clock),
        })
        .unwrap();
        let answerer = Arc::new(Authority::default());
        let service = Arc::new(Service {
            issuer: issuer.issuer().to_owned(),
            jwks: Bytes::from(issuer.jwks()),
            exchange: Exchange {
                issuer: tokens,
                bridge,
                authority,
                limiter: Arc::clone(&limiter),
                managers: Arc::clone(&managers) as _,
                clock: Arc::clone(&dyn_clock),
            },
            manager: Arc::clone(&answerer) as _,
            entered: Arc::default(),
            clock: dyn_clock,
        });
        let cap = Capability::mint(&SystemEntropy);
        let plane = Arc::new(Plane::default());
        let data_account = Seed::<Account>::generate(&SystemEntropy).public().clone();
        let doors = Doors {
            plane: Arc::clone(&plane) as _,
            ledger: ledger.clone(),
            data_account: data_account.clone(),
            grants: service.exchange.authority.clone(),
            manager: Arc::clone(&answerer) as _,
        };
        let face = Face::loopback(Arc::clone(&service), cap.clone(), doors);
        let loopback = Listener::bind(0, Arc::new(face), Arc::clone(&seats)).await.unwrap();
        let bundle = Bytes::from_static(b"{\"space\":\"demo\"}");
        let public =
            Listener::bind(0, Arc::new(Face::public(service, trusted_proxy, bundle)), seats).await.unwrap();
        Self {
            clock,
            ledger,
            limiter,
            issuer,
            space,
            credentials,
            managers,
            plane,
            authority: answerer,
            data_account,
            cap,
            loopback,
            public,
            origin,
            idp,
            owner_secret,
            dir,
        }
    }

    pub(super) fn addr(&self, face: FaceName) -> SocketAddr {
        match face {
            FaceName::Loopback => self.loopback.addr(),
            FaceName::Public => self.public.addr(),
        }
    }

    /// An agent with a parent that may spawn; its exchange body.
    pub(super) fn agent(&self) -> Value {
        let owner = self.owner_of("spawner");
        self.grant_human("spawner", "boss", &["admin"]);
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        let input = GrantInput {
            parent: Some(format!("{owner}.boss")),
            lifecycle_uid: Some(LifecycleUid::mint(&SystemEntropy)),
            ..grant_input(&owner, ACTOR, &[])
        };
        self.ledger.grant_managed(&input, &hash, &*self.clock).unwrap();
        json!({"owner": owner.as_str(), "actor": ACTOR, "actorToken": secret.as_str()})
    }

    pub(super) fn owner_of(&self, sub: &str) -> DerivedOwner {
        self.owner_secret.derive(&self.origin, sub).unwrap()
    }

    pub(super) fn grant_human(&self, sub: &str, actor: &str, scope: &[&str]) {
        self.ledger
            .grant_interactive(&grant_input(&self.owner_of(sub), actor, scope), &*self.clock, &SystemEntropy)
            .unwrap();
    }

    /// An interactive grant at this incarnation, whatever was there.
    pub(super) fn grant_at(&self, sub: &str, actor: &str, uid: &str) {
        self.revoke_human(sub, actor);
        let input = GrantInput {
            lifecycle_uid: Some(LifecycleUid::parse(uid).unwrap()),
            ..grant_input(&self.owner_of(sub), actor, &[])
        };
        self.ledger.grant_interactive(&input, &*self.clock, &SystemEntropy).unwrap();
    }

    /// A managed grant at this incarnation.
    pub(super) fn grant_agent_at(&self, sub: &str, actor: &str, uid: &str) {
        let owner = self.owner_of(sub);
        self.grant_human(sub, "boss", &["admin"]);
        let input = GrantInput {
            parent: Some(format!("{owner}.boss")),
            lifecycle_uid: Some(LifecycleUid::parse(uid).unwrap()),
            ..grant_input(&owner, actor, &[])
        };
        let (_, hash) = mint_agent_secret(&SystemEntropy);
        self.ledger.grant_managed(&input, &hash, &*self.clock).unwrap();
    }

    pub(super) fn revoke_human(&self, sub: &str, actor: &str) {
        self.ledger.revoke_interactive(&self.owner_of(sub), &Actor::parse(actor).unwrap()).unwrap();
    }

    /// Takes the incarnation out of an interactive row, as the oldest writers left it.
    pub(super) fn strip_uid(&self, sub: &str, actor: &str) {
        let path = self.row_path("actors", sub, actor);
        let mut row: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        row.as_object_mut().unwrap().remove("lifecycleUid").unwrap();
        std::fs::write(&path, row.to_string()).unwrap();
    }

    /// Puts what is no row in the place of one.
    pub(super) fn spoil_row(&self, kind: &str, sub: &str, actor: &str, text: &str) {
        let path = self.row_path(kind, sub, actor);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }

    fn row_path(&self, kind: &str, sub: &str, actor: &str) -> PathBuf {
        self.dir.path().join(kind).join(format!("{}.{actor}.json", self.owner_of(sub)))
    }

    /// A human's exchange body, its proof valid for an hour.
    pub(super) fn human(&self, sub: &str, actor: &str) -> Value {
        json!({"idpToken": self.proof(sub, 3_600), "actor": actor})
    }

    pub(super) fn proof(&self, sub: &str, ttl_secs: u64) -> String {
        self.idp.as_ref().unwrap().mint_token(sub, ttl_secs)
    }

    /// Exchanges on a face, as a good client does.
    pub(super) async fn exchange(&self, face: FaceName, body: &Value) -> Answer {
        self.send(face, &Call::exchange(body.to_string())).await
    }

    /// Exchanges on the public face from behind a proxy.
    pub(super) async fn exchange_from(&self, hop: &str, body: &Value) -> Answer {
        let mut call = Call::exchange(body.to_string());
        call.headers.insert("x-forwarded-for".into(), hop.into());
        self.send(FaceName::Public, &call).await
    }

    pub(super) async fn send(&self, face: FaceName, call: &Call) -> Answer {
        let mut call = call.clone();
        if face == FaceName::Loopback && !call.without_cap {
            call = self.with_cap(call);
        }
        raw(self.addr(face), &call.to_bytes()).await
    }

    /// The call with this face's capability, unless it brings an authorization of its own.
    pub(super) fn with_cap(&self, mut call: Call) -> Call {
        let bearer = || format!("Bearer {}", self.cap.expose());
        call.headers.entry("authorization".into()).or_insert_with(bearer);
        call
    }
}

fn grant_input(owner: &DerivedOwner, actor: &str, scope: &[&str]) -> GrantInput {
    GrantInput::new(owner.clone(), Actor::parse(actor).unwrap())
        .scope(scope)
        .allow_subscribe([">"])
        .allow_publish([">"])
}
