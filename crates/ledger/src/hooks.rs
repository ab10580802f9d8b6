//! What the rows allow at each boundary: mint, connect, permission build (contract 04 §7.8).

use cotal_wire::{Actor, BearerClaims, DerivedOwner, LifecycleUid, Principal, view::SCOPE_RUN};
use subtle::ConstantTimeEq;

use crate::{
    Ledger, LedgerError,
    envelope::{Boundary, parse_parent},
    regrant::RegrantLine,
    row::{ActorRow, RowKind, TaggedRow},
    secret,
};

/// What every unauthenticated agent hears, whatever was wrong (contract 04 §7.8): which actors exist, and whether the
/// ledger can be read, is nothing that a stranger may learn.
pub const AGENT_EXCHANGE_REFUSAL: &str = "agent exchange refused: unknown agent or wrong secret";

/// What an exchange may sign (contract 04 §4.3, §7.8). Only the ledger's hooks build one, and a host that decides in the
/// ledger's place.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuthorizedGrant {
    /// Owner.
    pub owner: DerivedOwner,
    /// Actor.
    pub actor: Actor,
    /// Capabilities.
    pub scope: Vec<String>,
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// Label.
    pub label: Option<String>,
    /// Parent.
    pub parent: Option<Principal>,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
}

/// The ACL that a connect's permissions are built from (contract 04 §7.8 `ledgerAclResolver`).
#[derive(Debug, Clone)]
pub struct Acl {
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// The bearer's lifecycle uid, equal to the row's.
    pub lifecycle_uid: LifecycleUid,
    /// The row's current scope.
    pub scope: Vec<String>,
    /// The row's kind.
    pub kind: RowKind,
    /// Whether the row's direct parent currently holds `run`.
    pub parent_has_run: bool,
}

impl AuthorizedGrant {
    /// The grant of a host that keeps a ledger of its own: of exactly this incarnation, with no scope, no channel and no
    /// parent until the host adds them. Whatever it adds, it answers for: nothing looks at a row again.
    pub fn decided_by_host(owner: DerivedOwner, actor: Actor, lifecycle_uid: LifecycleUid) -> Self {
        Self {
            owner,
            actor,
            scope: Vec::new(),
            allow_subscribe: Vec::new(),
            allow_publish: Vec::new(),
            role: None,
            label: None,
            parent: None,
            lifecycle_uid,
        }
    }

    /// The re-grant command line with one more capability: what a refused view prints (contract 04 §4.3 step 5).
    pub fn regrant_command_with(&self, capability: &str) -> String {
        let mut scope = self.scope.clone();
        if !scope.iter().any(|s| s == capability) {
            scope.push(capability.to_owned());
        }
        RegrantLine {
            owner: &self.owner,
            actor: &self.actor,
            scope: &scope,
            allow_subscribe: &self.allow_subscribe,
            allow_publish: &self.allow_publish,
            role: self.role.as_deref(),
            label: self.label.as_deref(),
        }
        .render()
    }

    fn of(row: ActorRow) -> Result<Self, LedgerError> {
        let lifecycle_uid = lifecycle_uid(&row)?;
        let parent = row
            .parent
            .as_deref()
            .map(|parent| parse_parent(&row, parent))
            .transpose()?
            .map(|(owner, actor)| Principal::new(owner, actor));
        Ok(Self {
            owner: row.owner,
            actor: row.actor,
            scope: row.scope,
            allow_subscribe: row.allow_subscribe,
            allow_publish: row.allow_publish,
            role: row.role,
            label: row.label,
            parent,
            lifecycle_uid,
        })
    }
}

impl Ledger {
    /// Human mint boundary (contract 04 §7.8 `ledgerAuthorizeGrant`).
    pub fn authorize_grant(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<AuthorizedGrant, LedgerError> {
        if let Some(row) = self.read_interactive(owner, actor)? {
            return AuthorizedGrant::of(row);
        }
        if self.read_managed(owner, actor)?.is_some() {
            return Err(LedgerError::Refused(format!(
                "{owner}.{actor} is a managed agent: it exchanges its own secret, not a person's login"
            )));
        }
        Err(LedgerError::Refused(format!(
            "{owner}.{actor} is not granted in this space: ask its operator to run `cotal actor grant {actor} \
             --owner {owner} --scope '' --allow-subscribe general --allow-publish general`, with the lists that fit, or \
             with --full instead of them for everything"
        )))
    }

    /// Agent mint boundary (contract 04 §7.8 `ledgerAuthorizeAgentExchange`); constant-time, one sentence for every
    /// unauthenticated refusal. Past the secret the caller is the agent, and refusals are specific.
    pub fn authorize_agent_exchange(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        token: &str,
    ) -> Result<AuthorizedGrant, LedgerError> {
        let row = self.read_managed(owner, actor).unwrap_or_else(|error| {
            tracing::warn!(%error, "an agent exchange met a ledger row that cannot be read");
            None
        });
        // A digest is always computed and compared, so that the answer takes its time when there is no row as well.
        let stored = row.as_ref().and_then(stored_digest).unwrap_or_default();
        let matches = bool::from(secret::digest(token).ct_eq(&stored));
        let row = row.filter(|row| matches && row.token_hash.is_some());
        let Some(row) = row else { return Err(LedgerError::Refused(AGENT_EXCHANGE_REFUSAL.to_owned())) };
        self.agent_grant(row)
    }

    /// What an agent is granted once its secret has matched: the envelope first, then the row. By itself it proves
    /// nobody, so it explains an exchange and never makes one: that is [`Self::authorize_agent_exchange`].
    pub fn agent_grant(&self, row: ActorRow) -> Result<AuthorizedGrant, LedgerError> {
        self.assert_within_spawner_grant(&row, Boundary::Exchange)?;
        AuthorizedGrant::of(row)
    }

    /// Connect boundary, file arm (contract 04 §7.8 `ledgerAuthorizeConnect`). It holds for view bearers too.
    pub fn authorize_connect(&self, claims: &BearerClaims) -> Result<(), LedgerError> {
        let TaggedRow { row, .. } = self.granted(claims)?;
        if let Some(lost) = claims.capabilities().iter().find(|capability| !row.has_scope(capability)) {
            return Err(deny(
                claims,
                &format!("the bearer's scope {lost:?} is no longer granted; exchange again"),
            ));
        }
        same_incarnation(claims, &row).map(|_| ())
    }

    /// Permission build boundary (contract 04 §7.8 `ledgerAclResolver`).
    pub fn resolve_acl(&self, claims: &BearerClaims) -> Result<Acl, LedgerError> {
        let TaggedRow { kind, row } = self.granted(claims)?;
        lifecycle_uid(&row)?;
        let lifecycle_uid = same_incarnation(claims, &row)?;
        let parent_has_run = match row.parent.as_deref() {
            None => false,
            Some(parent) => {
                let (owner, actor) = parse_parent(&row, parent)?;
                // `run` by name: a parent that is an admin does not imply it.
                self.lookup(&owner, &actor)?.is_some_and(|parent| parent.row.has_scope(SCOPE_RUN))
            }
        };
        Ok(Acl {
            allow_subscribe: row.allow_subscribe,
            allow_publish: row.allow_publish,
            role: row.role,
            lifecycle_uid,
            scope: row.scope,
            kind,
            parent_has_run,
        })
    }

    /// The bearer's row in either space, or the denial that there is none.
    fn granted(&self, claims: &BearerClaims) -> Result<TaggedRow, LedgerError> {
        self.lookup(&claims.owner, &claims.act.actor)?
            .ok_or_else(|| deny(claims, "it has no row in the ledger: it was revoked or never granted"))
    }
}

/// The row's uid; a row without one was written before incarnations existed, and can neither mint nor connect.
fn lifecycle_uid(row: &ActorRow) -> Result<LifecycleUid, LedgerError> {
    let Some(uid) = row.lifecycle_uid.as_deref().filter(|uid| !uid.is_empty()) else {
        return Err(LedgerError::Refused(format!(
            "the row of {} has no lifecycle uid: grant it again",
            row.key()
        )));
    };
    LifecycleUid::parse(uid).map_err(|_| {
        LedgerError::Broken(format!(
            "ledger: the row of {} has a malformed lifecycle uid: grant it again",
            row.key()
        ))
    })
}

/// The bearer's uid, once it is known to be the row's.
fn same_incarnation(claims: &BearerClaims, row: &ActorRow) -> Result<LifecycleUid, LedgerError> {
    let Some(uid) = &claims.act.lifecycle_uid else {
        return Err(deny(claims, "the bearer names no lifecycle uid; exchange again"));
    };
    if row.lifecycle_uid.as_deref() != Some(uid.as_str()) {
        return Err(deny(
            claims,
            "the bearer is of another incarnation than the current grant; exchange again",
        ));
    }
    Ok(uid.clone())
}

fn stored_digest(row: &ActorRow) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    hex::decode_to_slice(row.token_hash.as_deref()?, &mut digest).ok()?;
    Some(digest)
}

fn deny(claims: &BearerClaims, reason: &str) -> LedgerError {
    LedgerError::Refused(format!("{}.{} may not connect: {reason}", claims.owner, claims.act.actor))
}
