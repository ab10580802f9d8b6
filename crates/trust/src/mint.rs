//! Static credentials: how long each kind lives, how one is minted, and how healthy one is (contract 01 §3.3-3.4).

use std::{fmt, num::NonZeroU64};

use cotal_wire::{
    Account, Actor, Entropy, LifecycleUid, Nkey, Owner, Permissions, Principal, Rules, Space, UnixSecs, User,
    grants::{self, ConnectPrincipal, MAX_USER_JWT},
};
use zeroize::Zeroizing;

use crate::{
    bundle::{BrokerTrust, DataAccount},
    creds::{self, Creds},
    jwt::{self, UserClaims, principal_tags},
    nkey::Seed,
};

/// Default and longest lifetime of a standing credential, in seconds.
pub const STANDING_RENEWABLE_TTL_SECS: u64 = 86_400;
/// Lifetime of a credential that is renewed by rotating the system account, in seconds: 30 days.
pub const ROTATION_RENEWED_TTL_SECS: u64 = 2_592_000;
const ONE_SHOT_TTL_SECS: u64 = 300;
const SHORT_ONE_SHOT_TTL_SECS: u64 = 60;
const SESSION_TTL_SECS: u64 = 86_400;

/// How a kind of credential lives and who renews it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialClass {
    /// Static or minted at connect, as the space is set up.
    Mixed,
    /// Static, in the operator's hands.
    StaticOperatorManaged,
    /// Used for one thing and let expire.
    OneShot,
    /// Renewed before it expires by the host that holds it.
    StandingRenewable,
    /// Renewed by rotating the system account.
    RotationRenewed,
}

macro_rules! kinds {
    ($($name:ident $label:literal $class:ident $ttl:expr;)+) => {
        /// A profile that a credential is minted for: its label is the user JWT's `name`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the contract's profile names")]
        pub enum CredentialKind { $($name,)+ }

        impl CredentialKind {
            /// Every kind: those of contract 01 §3.4 in its order, then the transfer reader of chapter 06 §4.7, and the account
            /// publisher, which is this service's own.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The profile's label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// The class.
            pub const fn class(self) -> CredentialClass {
                match self { $(Self::$name => CredentialClass::$class,)+ }
            }

            /// The lifetime when none is asked for, in seconds; `None` is unbounded.
            pub const fn default_ttl(self) -> Option<u64> {
                match self { $(Self::$name => $ttl,)+ }
            }
        }
    };
}

kinds! {
    Agent "agent" Mixed None;
    Observer "observer" StaticOperatorManaged None;
    Admin "admin" StaticOperatorManaged None;
    ChannelPurger "channel-purger" Mixed None;
    Teardown "teardown" OneShot None;
    Deployer "deployer" OneShot None;
    Supervisor "supervisor" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    Delivery "delivery" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    MembershipRw "membership-rw" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    EndpointServe "endpoint-serve" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    GoalWriter "goal-writer" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    SessionLedger "session-ledger" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RunDriver "run-driver" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RunMediator "run-mediator" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RemoteManager "remote-manager" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    Provisioner "provisioner" OneShot Some(ONE_SHOT_TTL_SECS);
    Deprovisioner "deprovisioner" OneShot Some(ONE_SHOT_TTL_SECS);
    RetirementRequester "retirement-requester" OneShot Some(ONE_SHOT_TTL_SECS);
    LifecycleExecutor "lifecycle-executor" OneShot Some(ONE_SHOT_TTL_SECS);
    EndpointServeExecutor "endpoint-serve-executor" OneShot Some(ONE_SHOT_TTL_SECS);
    Operator "operator" OneShot Some(ONE_SHOT_TTL_SECS);
    Purger "purger" OneShot Some(ONE_SHOT_TTL_SECS);
    Backup "backup" OneShot Some(ONE_SHOT_TTL_SECS);
    Restore "restore" OneShot Some(ONE_SHOT_TTL_SECS);
    ChannelWriter "channel-writer" OneShot Some(ONE_SHOT_TTL_SECS);
    ControlCallerPrivileged "control-caller-privileged" OneShot Some(ONE_SHOT_TTL_SECS);
    ControlCallerAdmin "control-caller-admin" OneShot Some(ONE_SHOT_TTL_SECS);
    Issuer "issuer" OneShot Some(ONE_SHOT_TTL_SECS);
    TransferWriter "transfer-writer" OneShot Some(ONE_SHOT_TTL_SECS);
    SessionCaller "session-caller" OneShot Some(SESSION_TTL_SECS);
    SessionServing "session-serving" OneShot Some(SESSION_TTL_SECS);
    Probe "probe" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    RunOperator "run-operator" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    RunAdmitter "run-admitter" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    EndpointEvictor "endpoint-evictor" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    MembershipObserver "membership-observer" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
    ConnectionEvictor "connection-evictor" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
    TransferReader "transfer-reader" OneShot Some(ONE_SHOT_TTL_SECS);
    AccountPublisher "account-publisher" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
}

impl fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long a credential is to live: one of the three, never two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// The kind's default.
    #[default]
    OfKind,
    /// Until this instant.
    Until(UnixSecs),
    /// For this many seconds from the mint.
    For(NonZeroU64),
}

impl Lifetime {
    /// The expiry of a credential of this kind that is minted now.
    pub fn expiry(self, kind: CredentialKind, now: UnixSecs) -> Option<UnixSecs> {
        match self {
            Self::OfKind => kind.default_ttl().map(|ttl| now.plus(ttl)),
            Self::Until(at) => Some(at),
            Self::For(ttl) => Some(now.plus(ttl.get())),
        }
    }
}

/// Whom a static user stands for; what is left out takes the contract's default.
#[derive(Debug, Clone, Default)]
pub struct StaticHolder {
    /// `local` when absent.
    pub owner: Option<Owner>,
    /// The user nkey when absent.
    pub actor: Option<Actor>,
    /// Absent where the profile needs none.
    pub lifecycle_uid: Option<LifecycleUid>,
}

/// A minted user.
pub struct MintedUser {
    /// The creds text.
    pub creds: Zeroizing<String>,
    /// The user JWT and its seed.
    pub user: Creds,
    /// Whom it stands for, its nkey as inbox nonce.
    pub holder: ConnectPrincipal,
    /// When it expires.
    pub exp: Option<UnixSecs>,
}

impl fmt::Debug for MintedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedUser")
            .field("holder", &self.holder)
            .field("exp", &self.exp)
            .finish_non_exhaustive()
    }
}

/// Why a static user was not minted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StaticMintError(pub String);

/// Mints a user of a space's data account, in the order of contract 01 §3.3: principal, permissions, expiry, JWT,
/// creds text.
///
/// `permissions` is told the principal, the user's own nkey being its inbox nonce. Grants that name nothing in a
/// direction refuse, because the broker would read them as everything.
pub fn mint_static_user<E: fmt::Display>(
    data: &DataAccount,
    kind: CredentialKind,
    holder: &StaticHolder,
    lifetime: Lifetime,
    permissions: impl FnOnce(&ConnectPrincipal) -> Result<Permissions, E>,
    entropy: &dyn Entropy,
    now: UnixSecs,
) -> Result<MintedUser, StaticMintError> {
    remint_static_user(data, kind, Seed::generate(entropy), holder, lifetime, permissions, now)
}

/// The same for a user that has its nkey already: what a renewal mints (contract 08 §7.4 item 4).
pub fn remint_static_user<E: fmt::Display>(
    data: &DataAccount,
    kind: CredentialKind,
    seed: Seed<User>,
    holder: &StaticHolder,
    lifetime: Lifetime,
    permissions: impl FnOnce(&ConnectPrincipal) -> Result<Permissions, E>,
    now: UnixSecs,
) -> Result<MintedUser, StaticMintError> {
    if kind.class() == CredentialClass::RotationRenewed {
        return Err(StaticMintError(format!("{kind} is a user of the system account, not of a space")));
    }
    let holder = resolve(holder, &seed)?;
    let permissions = permissions(&holder).map_err(|error| StaticMintError(error.to_string()))?;
    let signer = (&data.account, &data.signing);
    let tags = principal_tags(&holder.principal);
    sign(kind, signer, seed, holder, permissions, tags, lifetime.expiry(kind, now), now)
}

/// A user of a space that holds its own key: only the public half came here, and only the JWT goes back
/// (contract 01 §3.2, `mintPublicUserJwt`).
#[derive(Debug, Clone)]
pub struct PublicUser<'a> {
    /// The profile.
    pub kind: CredentialKind,
    /// The key, which is the inbox nonce too.
    pub key: &'a Nkey<User>,
    /// Whom it stands for.
    pub principal: &'a Principal,
    /// What it may do.
    pub permissions: Permissions,
    /// When it ends: such a user is always bounded.
    pub exp: UnixSecs,
}

impl CredentialKind {
    /// Whether it is ever minted for a key that somebody else holds.
    pub const fn is_public(self) -> bool {
        matches!(
            self,
            Self::RemoteManager
                | Self::EndpointServe
                | Self::GoalWriter
                | Self::SessionLedger
                | Self::SessionServing
                | Self::RetirementRequester
                | Self::RunDriver
                | Self::RunMediator
                | Self::RunOperator
                | Self::TransferReader
        )
    }
}

/// Mints the JWT of a [`PublicUser`]. Grants that name nothing in a direction refuse, and so does a JWT that is longer than
/// a user's may be.
pub fn mint_public_user(
    data: &DataAccount,
    user: PublicUser<'_>,
    now: UnixSecs,
) -> Result<String, StaticMintError> {
    let PublicUser { kind, key, principal, permissions, exp } = user;
    if !kind.is_public() {
        return Err(StaticMintError(format!("{kind} is never minted for a key that somebody else holds")));
    }
    if names_nothing(&permissions.publish) || names_nothing(&permissions.subscribe) {
        return Err(StaticMintError(format!("the grant of {kind} names nothing in one direction")));
    }
    let claims = UserClaims {
        name: kind.as_str().to_owned(),
        subject: key.clone(),
        issuer_account: data.account.clone(),
        permissions,
        tags: principal_tags(principal),
        exp: Some(exp),
    };
    let jwt = jwt::encode_user(&claims, &data.signing, now);
    if jwt.len() > MAX_USER_JWT {
        return Err(StaticMintError(format!(
            "the grant of {kind} makes a JWT of {} bytes, and one has at most {MAX_USER_JWT}",
            jwt.len()
        )));
    }
    Ok(jwt)
}

/// Mints a user of the system account: signed by the account key itself, or by a signing key that was added to it,
/// without principal tags (contract 01 §3.2).
///
/// Possible only in the process that created, rotated or extended the system account, which alone has the seed.
pub fn mint_system_user(
    broker: &BrokerTrust,
    kind: CredentialKind,
    permissions: impl FnOnce(&ConnectPrincipal) -> Permissions,
    entropy: &dyn Entropy,
    now: UnixSecs,
) -> Result<MintedUser, StaticMintError> {
    if kind.class() != CredentialClass::RotationRenewed {
        return Err(StaticMintError(format!("{kind} is a user of a space, not of the system account")));
    }
    let Some(key) = &broker.sys_signing_seed else {
        return Err(StaticMintError(format!(
            "{kind} needs the system account's seed, which is never stored; rotate the system account to mint one"
        )));
    };
    let seed = Seed::<User>::generate(entropy);
    let holder = resolve(&StaticHolder::default(), &seed)?;
    let permissions = permissions(&holder);
    let exp = Lifetime::OfKind.expiry(kind, now);
    sign(kind, (&broker.sys, key), seed, holder, permissions, Vec::new(), exp, now)
}

/// Mints the one-shot credential that provisions a space's streams and buckets (contract 01 §6.8).
pub fn mint_provisioner(
    data: &DataAccount,
    space: &Space,
    entropy: &dyn Entropy,
    now: UnixSecs,
) -> Result<MintedUser, StaticMintError> {
    let token = space.token();
    let grant = |holder: &ConnectPrincipal| {
        Ok::<_, StaticMintError>(grants::infra::provisioner(&token, &holder.conn_id))
    };
    let holder = StaticHolder::default();
    mint_static_user(data, CredentialKind::Provisioner, &holder, Lifetime::OfKind, grant, entropy, now)
}

fn resolve(holder: &StaticHolder, seed: &Seed<User>) -> Result<ConnectPrincipal, StaticMintError> {
    let nkey = seed.public();
    let actor = match &holder.actor {
        Some(actor) => actor.clone(),
        None => Actor::parse(nkey.as_str()).map_err(|error| StaticMintError(error.to_string()))?,
    };
    let owner = holder.owner.clone().unwrap_or_else(Owner::local);
    Ok(ConnectPrincipal {
        principal: Principal::new(owner, actor),
        conn_id: nkey.conn_id(),
        lifecycle_uid: holder.lifecycle_uid.clone(),
    })
}

#[allow(clippy::too_many_arguments, reason = "the parts of one user JWT, each decided by a step of the mint")]
fn sign(
    kind: CredentialKind,
    (account, key): (&Nkey<Account>, &Seed<Account>),
    seed: Seed<User>,
    holder: ConnectPrincipal,
    permissions: Permissions,
    tags: Vec<String>,
    exp: Option<UnixSecs>,
    now: UnixSecs,
) -> Result<MintedUser, StaticMintError> {
    if names_nothing(&permissions.publish) || names_nothing(&permissions.subscribe) {
        return Err(StaticMintError(format!("the grant of {kind} names nothing in one direction")));
    }
    let claims = UserClaims {
        name: kind.as_str().to_owned(),
        subject: seed.public().clone(),
        issuer_account: account.clone(),
        permissions,
        tags,
        exp,
    };
    let user = Creds { jwt: jwt::encode_user(&claims, key, now), seed };
    Ok(MintedUser { creds: creds::format(&user), user, holder, exp })
}

fn names_nothing(rules: &Rules) -> bool {
    rules.allow.is_empty() && rules.deny.is_empty()
}

// === provenance ===

/// Who signed a credential, and for which account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBy {
    /// The key that signed it.
    pub issuer: Nkey<Account>,
    /// The account that it is a user of.
    pub account: Nkey<Account>,
}

impl SignedBy {
    /// Reads creds text whose JWT verifies; `None` for any other.
    pub fn of_creds(text: &str) -> Option<Self> {
        let claims = jwt::decode_verified(&creds::parse(text).ok()?.jwt).ok()?;
        let key = |pointer: &str| Nkey::parse(claims.pointer(pointer)?.as_str()?).ok();
        Some(Self { issuer: key("/iss")?, account: key("/nats/issuer_account")? })
    }
}

// === health ===

/// How a credential stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// Not creds text, or its JWT does not verify.
    Unreadable,
    /// It never expires.
    Unbounded,
    /// It has expired.
    Expired,
    /// Three quarters of its life are over: renew it.
    NearExpiry,
    /// It has time left.
    Healthy,
}

/// How a credential stands and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: HealthState,
    /// When it expires, where it does.
    pub exp: Option<UnixSecs>,
    /// When it is to be renewed, where it expires.
    pub renew_at: Option<UnixSecs>,
}

impl HealthState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Unbounded => "unbounded",
            Self::Expired => "expired",
            Self::NearExpiry => "near-expiry",
            Self::Healthy => "healthy",
        }
    }
}

impl Health {
    /// Reads creds text and says how it stands.
    pub fn of_creds(text: &str, now: UnixSecs) -> Self {
        let unreadable = Self { state: HealthState::Unreadable, exp: None, renew_at: None };
        let Ok(creds) = creds::parse(text) else { return unreadable };
        let Ok(claims) = jwt::decode_verified(&creds.jwt) else { return unreadable };
        let time = |name: &str| claims.get(name).map(|value| value.as_u64().map(UnixSecs));
        match (time("iat"), time("exp")) {
            (_, None) => Self { state: HealthState::Unbounded, ..unreadable },
            (Some(Some(iat)), Some(Some(exp))) => Self::of_times(iat, exp, now),
            _ => unreadable,
        }
    }

    /// How a credential of these times stands: due once three quarters of its life are over.
    pub fn of_times(iat: UnixSecs, exp: UnixSecs, now: UnixSecs) -> Self {
        let life = exp.since(iat);
        // floor(0.75 life), without overflow
        let renew_at = iat.plus(life / 4 * 3 + life % 4 * 3 / 4);
        let state = if now >= exp {
            HealthState::Expired
        } else if now >= renew_at {
            HealthState::NearExpiry
        } else {
            HealthState::Healthy
        };
        Self { state, exp: Some(exp), renew_at: Some(renew_at) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{bundle::SpaceAccount, system::SystemEntropy};

    const NOW: UnixSecs = UnixSecs(1_700_000_000);

    fn made() -> (BrokerTrust, SpaceAccount, Space) {
        let space = Space::parse("main").unwrap();
        let broker = BrokerTrust::create("main", &SystemEntropy, NOW);
        let account = SpaceAccount::create(&broker, &space, &SystemEntropy, NOW);
        (broker, account, space)
    }

    fn something(_: &ConnectPrincipal) -> Permissions {
        let one = Rules { allow: vec!["a".to_owned()], deny: Vec::new() };
        Permissions { publish: one.clone(), subscribe: one }
    }

    #[test]
    fn default_lifetimes_are_the_contracts() {
        let of = |ttl: Option<u64>| {
            let kinds = CredentialKind::ALL.iter().filter(|kind| kind.default_ttl() == ttl);
            kinds.map(|kind| kind.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(None), "agent observer admin channel-purger teardown deployer");
        assert_eq!(
            of(Some(86_400)),
            "supervisor delivery membership-rw endpoint-serve goal-writer session-ledger run-driver run-mediator \
             remote-manager session-caller session-serving"
        );
        assert_eq!(
            of(Some(300)),
            "provisioner deprovisioner retirement-requester lifecycle-executor endpoint-serve-executor operator \
             purger backup restore channel-writer control-caller-privileged control-caller-admin issuer \
             transfer-writer transfer-reader"
        );
        assert_eq!(of(Some(60)), "probe run-operator run-admitter endpoint-evictor");
        // The last one is this service's own.
        assert_eq!(of(Some(2_592_000)), "membership-observer connection-evictor account-publisher");
        assert_eq!(CredentialKind::ALL.len(), 6 + 11 + 15 + 4 + 2 + 1);
    }

    #[test]
    fn an_asked_lifetime_beats_the_kinds() {
        let kind = CredentialKind::Provisioner;
        assert_eq!(Lifetime::OfKind.expiry(kind, NOW), Some(NOW.plus(300)));
        assert_eq!(Lifetime::OfKind.expiry(CredentialKind::Agent, NOW), None);
        assert_eq!(Lifetime::Until(UnixSecs(7)).expiry(kind, NOW), Some(UnixSecs(7)));
        assert_eq!(Lifetime::For(NonZeroU64::new(9).unwrap()).expiry(kind, NOW), Some(NOW.plus(9)));
    }

    #[test]
    fn a_provisioner_is_local_bounded_tagged_and_signed_by_the_signing_key() {
        let (_, account, space) = made();
        let minted = mint_provisioner(&account.data_account(), &space, &SystemEntropy, NOW).unwrap();
        let back = creds::parse(&minted.creds).unwrap();
        let nkey = back.seed.public();
        let claims = jwt::decode_verified(&back.jwt).unwrap();
        assert_eq!(claims["name"], "provisioner");
        assert_eq!(claims["exp"], json!(NOW.0 + 300));
        assert_eq!(claims["iss"], json!(account.signing.public()));
        assert_eq!(claims["nats"]["issuer_account"], json!(account.account.public()));
        assert_eq!(
            claims["nats"]["tags"],
            json!(["owner:local", format!("actor:{nkey}"), format!("principal:local.{nkey}")])
        );
        assert_eq!(claims["nats"]["sub"]["allow"], json!([format!("_INBOX_{nkey}.>")]));
        assert!(!format!("{minted:?}").contains(&**back.seed.expose()));
    }

    #[test]
    fn grants_are_built_for_the_resolved_principal_and_before_anything_is_signed() {
        let (_, account, _) = made();
        let holder = StaticHolder { actor: Some(Actor::parse("alice").unwrap()), ..StaticHolder::default() };
        let mint = |grant: fn(&ConnectPrincipal) -> Result<Permissions, String>| {
            let data = account.data_account();
            mint_static_user(
                &data,
                CredentialKind::Agent,
                &holder,
                Lifetime::OfKind,
                grant,
                &SystemEntropy,
                NOW,
            )
        };
        let minted = mint(|who| {
            assert_eq!(who.principal.key(), "local.alice");
            Ok(something(who))
        })
        .unwrap();
        assert_eq!((minted.exp, minted.holder.conn_id), (None, minted.user.seed.public().conn_id()));
        assert_eq!(mint(|_| Err("no template".to_owned())).unwrap_err().0, "no template");
        assert!(mint(|_| Ok(Permissions::default())).unwrap_err().0.contains("names nothing"));
    }

    #[test]
    fn system_users_are_minted_only_beside_the_fresh_seed_and_carry_no_tags() {
        let (mut broker, account, _) = made();
        let minted =
            mint_system_user(&broker, CredentialKind::ConnectionEvictor, something, &SystemEntropy, NOW);
        let claims = jwt::decode_verified(&minted.unwrap().user.jwt).unwrap();
        assert_eq!(claims["name"], "connection-evictor");
        assert_eq!(
            (&claims["iss"], &claims["nats"]["issuer_account"]),
            (&json!(broker.sys), &json!(broker.sys))
        );
        assert_eq!(claims["exp"], json!(NOW.0 + 2_592_000));
        assert!(claims["nats"].get("tags").is_none());
        assert!(mint_system_user(&broker, CredentialKind::Agent, something, &SystemEntropy, NOW).is_err());
        broker.sys_signing_seed = None;
        let refusal =
            mint_system_user(&broker, CredentialKind::ConnectionEvictor, something, &SystemEntropy, NOW);
        assert!(refusal.unwrap_err().0.contains("rotate the system account"));
        let data = account.data_account();
        let refusal = mint_static_user(
            &data,
            CredentialKind::MembershipObserver,
            &StaticHolder::default(),
            Lifetime::OfKind,
            |who| Ok::<_, String>(something(who)),
            &SystemEntropy,
            NOW,
        );
        assert!(refusal.is_err());
    }

    #[test]
    fn a_renewal_keeps_the_nkey_and_says_who_signed_it() {
        let (_, account, space) = made();
        let data = account.data_account();
        let first = mint_provisioner(&data, &space, &SystemEntropy, NOW).unwrap();
        let second = remint_static_user(
            &data,
            CredentialKind::Delivery,
            first.user.seed.clone(),
            &StaticHolder::default(),
            Lifetime::OfKind,
            |who| Ok::<_, String>(something(who)),
            NOW.plus(9),
        )
        .unwrap();
        assert_eq!(second.user.seed.public(), first.user.seed.public());
        assert_eq!(second.exp, Some(NOW.plus(9 + STANDING_RENEWABLE_TTL_SECS)));
        let signed =
            SignedBy { issuer: account.signing.public().clone(), account: account.account.public().clone() };
        assert_eq!(SignedBy::of_creds(&second.creds), Some(signed));
        assert_eq!(SignedBy::of_creds("x"), None);
    }

    #[test]
    fn a_key_that_somebody_else_holds_gets_a_bounded_jwt_of_a_public_profile_and_no_seed() {
        let (_, account, _) = made();
        let data = account.data_account();
        let seed = Seed::<User>::generate(&SystemEntropy);
        let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.manager_x").unwrap();
        let one = |rows: usize| Rules { allow: vec!["a.b.c".to_owned(); rows], deny: Vec::new() };
        let mint = |kind, publish: usize, subscribe: usize| {
            let permissions = Permissions { publish: one(publish), subscribe: one(subscribe) };
            let exp = NOW.plus(5);
            let user = PublicUser { kind, key: seed.public(), principal: &principal, permissions, exp };
            mint_public_user(&data, user, NOW)
        };
        let claims = jwt::decode_verified(&mint(CredentialKind::GoalWriter, 1, 1).unwrap()).unwrap();
        assert_eq!((&claims["sub"], &claims["exp"]), (&json!(seed.public()), &json!(NOW.0 + 5)));
        assert_eq!(claims["name"], "goal-writer");
        assert_eq!(claims["nats"]["tags"], json!(principal_tags(&principal)));
        let public: Vec<_> = CredentialKind::ALL.iter().filter(|kind| kind.is_public()).collect();
        assert_eq!(public.len(), 10);
        for kind in CredentialKind::ALL {
            assert_eq!(mint(*kind, 1, 1).is_ok(), kind.is_public(), "{kind}");
        }
        for (publish, subscribe) in [(0, 1), (1, 0)] {
            assert!(
                mint(CredentialKind::GoalWriter, publish, subscribe).is_err(),
                "the broker reads it as everything"
            );
        }
        assert!(mint(CredentialKind::EndpointServe, 1, 1_000).is_ok());
        let refusal = mint(CredentialKind::EndpointServe, 1, 2_000).unwrap_err();
        assert!(refusal.0.contains("16384"), "{refusal}");
    }

    #[test]
    fn every_command_that_the_contract_names_of_a_manager_fits_one_serve_credential() {
        let named = "stop run-answer spawn despawn attach define-persona inspect run-start run-resume run-status run-ps \
                     run-submit run-cancel status ps models resolve-cwd turn purge launch resume-preserved commit-resume \
                     finalize-resume prepare-preservation commit-preservation abort-preservation transcript-receive";
        let (_, account, space) = made();
        let seed = Seed::<User>::generate(&SystemEntropy);
        let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.manager_x").unwrap();
        let surface = grants::endpoint_serve::ServeSurface {
            endpoint: cotal_wire::EndpointName::manager().token(),
            instance: cotal_wire::InstanceId::parse(&"i".repeat(26)).unwrap(),
            epoch: 1_000_000,
            commands: named
                .split_whitespace()
                .map(|name| cotal_wire::Command::parse(name).unwrap())
                .collect(),
            journal: false,
            pools: std::collections::BTreeSet::new(),
        };
        let permissions =
            grants::endpoint_serve::endpoint_serve(&space.token(), &seed.public().conn_id(), &surface);
        let kind = CredentialKind::EndpointServe;
        let user =
            PublicUser { kind, key: seed.public(), principal: &principal, permissions, exp: NOW.plus(5) };
        let jwt = mint_public_user(&account.data_account(), user, NOW).unwrap();
        assert!(jwt.len() < MAX_USER_JWT, "{} bytes", jwt.len());
    }

    #[test]
    fn health_turns_at_three_quarters_and_at_expiry() {
        let (iat, exp) = (UnixSecs(1_000), UnixSecs(1_010));
        for (now, state) in [
            (1_000, HealthState::Healthy),
            (1_006, HealthState::Healthy),
            (1_007, HealthState::NearExpiry),
            (1_009, HealthState::NearExpiry),
            (1_010, HealthState::Expired),
        ] {
            let health = Health::of_times(iat, exp, UnixSecs(now));
            assert_eq!((health.state, health.renew_at), (state, Some(UnixSecs(1_007))), "{now}");
        }
        let backwards = Health::of_times(exp, iat, UnixSecs(1_005));
        assert_eq!(backwards.state, HealthState::Expired);
    }

    #[test]
    fn health_is_read_from_creds_text() {
        let (_, account, space) = made();
        let minted = mint_provisioner(&account.data_account(), &space, &SystemEntropy, NOW).unwrap();
        assert_eq!(Health::of_creds(&minted.creds, NOW).state, HealthState::Healthy);
        assert_eq!(Health::of_creds(&minted.creds, NOW.plus(225)).state, HealthState::NearExpiry);
        assert_eq!(Health::of_creds(&minted.creds, NOW.plus(300)).state, HealthState::Expired);
        assert_eq!(Health::of_creds("", NOW).state.as_str(), "unreadable");
        let agent = mint_static_user(
            &account.data_account(),
            CredentialKind::Agent,
            &StaticHolder::default(),
            Lifetime::OfKind,
            |who| Ok::<_, String>(something(who)),
            &SystemEntropy,
            NOW,
        );
        assert_eq!(Health::of_creds(&agent.unwrap().creds, NOW).state.as_str(), "unbounded");
    }
}
