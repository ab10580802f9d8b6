//! Static credentials: how long each kind lives, how one is minted, and how healthy one is (contract 01 §3.3-3.4).

mod health;
mod kind;
#[cfg(test)]
mod tests;

use std::fmt;

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

pub use health::{Health, HealthState, SignedBy};
pub use kind::{
    CredentialClass, CredentialKind, Lifetime, ROTATION_RENEWED_TTL_SECS, STANDING_RENEWABLE_TTL_SECS,
};

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
