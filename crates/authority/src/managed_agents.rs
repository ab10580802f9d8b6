//! The one writer of managed agents: their grants in the ledger and what they find on the broker (contract 05 §9-10).
//!
//! What is written here was decided before: [`crate::manager`] says who may. Enrollment and preparation of one name go one
//! after another in the whole process, and neither stops when its caller does: a grant without durables, or a footprint
//! half gone, is left by a crash alone, and then the same request ends it.

use std::sync::Arc;

use cotal_broker::Connector;
use cotal_ledger::{ActorRow, AuthorizedGrant, Boundary, GrantInput, Ledger, LedgerError};
use cotal_wire::{
    Actor, Channel, ChannelPattern, Clock, DerivedOwner, Entropy, EpError, LifecycleUid, Principal, Role,
    ScopeEntry, Sha256Hex, manager_authority::EnrollmentTarget,
};
use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::RwLock;
use zeroize::Zeroizing;

use crate::{
    agent_durables::{AgentDurables, provision_agent},
    delivery_admin::DeliveryAdmin,
    deprovision::{Footprint, deprovision_agent, release_footprint},
    turns::alias_turn,
};

/// What a caller is told when trusted state cannot be read: which file it is, the log says.
const LEDGER_UNREADABLE: &str = "the actor ledger cannot be read here; ask the operator of the space";

/// Whether what a write was decided on still stands: the plane is open, and the manager's registration is the one that asked.
/// Asked once a write's turn has come, which may be long after the decision, and again before a grant is revoked.
pub type StillStands = Arc<dyn Fn() -> BoxFuture<'static, Result<(), EpError>> + Send + Sync>;
/// Whether the plane is open. Asked before each write of the ledger: another process may own the space by then.
pub type PlaneOpen = Arc<dyn Fn() -> Result<(), EpError> + Send + Sync>;

/// The writer of one space; clones are one writer.
#[derive(Clone)]
pub struct ManagedAgents {
    parts: Arc<Parts>,
    /// Read-locked by each write that is under way.
    writing: Arc<RwLock<()>>,
}

struct Parts {
    ledger: Ledger,
    connector: Connector,
    delivery: DeliveryAdmin,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    open: PlaneOpen,
}

/// A name that a manager's owner gives or gave an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The owner.
    pub owner: DerivedOwner,
    /// The agent's actor.
    pub actor: Actor,
}

/// An enrolled agent: its grant as it stands, whether or not this call wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// What it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write.
    pub allow_publish: Vec<ChannelPattern>,
}

/// What a preparation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preparation {
    /// The footprint was released, then the grant revoked.
    Prepared,
    /// The name has no grant, or one of a successor, which was not touched: an earlier call had prepared it.
    Over,
}

// === impl ManagedAgents ===

impl ManagedAgents {
    /// The writer of this ledger, over connections that `connector` opens, for as long as `open` says.
    pub fn new(
        ledger: Ledger,
        connector: Connector,
        delivery: DeliveryAdmin,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        open: PlaneOpen,
    ) -> Self {
        let parts = Parts { ledger, connector, delivery, clock, entropy, open };
        Self { parts: Arc::new(parts), writing: Arc::default() }
    }

    /// Enrolls an agent under `spawner`, an actor of the same owner.
    ///
    /// A name that is held with another token digest is `conflict`. Held with this one, it answers the same incarnation
    /// as long as the spawner's present grant covers it; otherwise the refusal is a fresh enrollment's. A fresh one gets
    /// an incarnation of the host's choosing, and is within its spawner's grant before anything of it is durable.
    pub async fn enroll(
        &self,
        owner: &DerivedOwner,
        spawner: &Actor,
        target: &EnrollmentTarget,
        still: StillStands,
    ) -> Result<Enrolled, EpError> {
        let (parts, owner) = (Arc::clone(&self.parts), owner.clone());
        let (spawner, target) = (spawner.clone(), target.clone());
        self.to_its_end(async move { parts.enroll(owner, spawner, target, still).await }.boxed()).await
    }

    /// What an agent's standing token opens now, as its exchange would find it: its digest, then the envelope. Nothing is
    /// written or minted. Every refusal of the token is one sentence, which says nothing about the name.
    pub async fn authorize(
        &self,
        alias: &Alias,
        token: Zeroizing<String>,
    ) -> Result<AuthorizedGrant, EpError> {
        let alias = alias.clone();
        let authorize =
            move |ledger: &Ledger| ledger.authorize_agent_exchange(&alias.owner, &alias.actor, &token);
        self.parts.ledger(authorize).await
    }

    /// Releases the footprint of an incarnation, then revokes its grant.
    ///
    /// Fails, and keeps the grant, while anything of the footprint may be left: see [`release_footprint`].
    pub async fn prepare_retirement(
        &self,
        alias: &Alias,
        uid: &LifecycleUid,
        still: StillStands,
    ) -> Result<Preparation, EpError> {
        let (parts, alias, uid) = (Arc::clone(&self.parts), alias.clone(), uid.clone());
        self.to_its_end(async move { parts.prepare_retirement(alias, uid, still).await }.boxed()).await
    }

    /// Waits for the writes that are under way, whoever asked for them: before the connections are closed.
    pub async fn settled(&self) {
        drop(self.writing.write().await);
    }

    /// Runs on when the caller goes away.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: BoxFuture<'static, Result<T, EpError>>,
    ) -> Result<T, EpError> {
        let writing = Arc::clone(&self.writing).read_owned().await;
        let work = async move {
            let _writing = writing;
            work.await
        };
        tokio::spawn(work).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a write for a managed agent did not run to its end");
            Err(EpError::unavailable("the write for this agent did not run to its end; ask again"))
        })
    }
}

// === impl Alias ===

impl Alias {
    /// Its principal.
    pub fn principal(&self) -> Principal {
        Principal::new(&self.owner, self.actor.clone())
    }
}

// === impl Parts ===

/// A grant as it stands, and whether this call wrote it.
struct Standing {
    row: ActorRow,
    uid: LifecycleUid,
    written: bool,
}

impl Parts {
    async fn enroll(
        self: Arc<Self>,
        owner: DerivedOwner,
        spawner: Actor,
        target: EnrollmentTarget,
        still: StillStands,
    ) -> Result<Enrolled, EpError> {
        let alias = Alias { owner, actor: target.actor.clone() };
        let _turn = alias_turn(self.ledger.state_dir(), &alias.principal()).await?;
        still().await?;
        let Some(digest) = target.token_hash.clone() else {
            return Err(EpError::bad_request("an enrollment names the digest of the agent's token"));
        };
        let held = {
            let alias = alias.clone();
            self.ledger(move |ledger| ledger.read_managed(&alias.owner, &alias.actor)).await?
        };
        let parent = Principal::new(&alias.owner, spawner).key();
        let (standing, durables) = match held {
            Some(row) => self.hold(row, &alias, parent, &digest, &target).await?,
            None => self.grant(&alias, parent, digest, &target).await?,
        };
        let enrolled = Enrolled {
            lifecycle_uid: standing.uid.clone(),
            allow_subscribe: patterns(&standing.row.allow_subscribe)?,
            allow_publish: patterns(&standing.row.allow_publish)?,
        };
        if let Err(refusal) = provision_agent(&self.connector, &*self.clock, &durables).await {
            if standing.written {
                self.take_back(&alias, &standing.uid).await;
            }
            return Err(refusal);
        }
        Ok(enrolled)
    }

    /// A name that is held: the same enrollment again, or a conflict.
    async fn hold(
        &self,
        row: ActorRow,
        alias: &Alias,
        parent: String,
        digest: &Sha256Hex,
        target: &EnrollmentTarget,
    ) -> Result<(Standing, AgentDurables), EpError> {
        if !row.holds_secret_of(digest) {
            return Err(EpError::conflict(format!(
                "{} is held by an agent with another token; prepare that lifecycle's retirement first",
                alias.principal()
            )));
        }
        let uid = row.lifecycle_uid.as_deref().and_then(|uid| LifecycleUid::parse(uid).ok());
        let uid = uid.ok_or_else(|| {
            EpError::failed_precondition(format!(
                "the grant of {} names no incarnation; revoke it, then enroll again",
                alias.principal()
            ))
        })?;
        let walked = row.clone();
        self.ledger(move |ledger| {
            ledger.assert_within_spawner_grant(&walked, Boundary::Spawn)?;
            if walked.parent.as_deref() == Some(parent.as_str()) {
                return Ok(());
            }
            // Another actor of the owner asks: it gets no more than it could have enrolled itself.
            let as_asked = ActorRow { parent: Some(parent), ..walked };
            ledger.assert_within_spawner_grant(&as_asked, Boundary::Spawn)
        })
        .await?;
        let durables = durables(alias, &uid, target, &row)?;
        Ok((Standing { row, uid, written: false }, durables))
    }

    /// A free name: the whole request is checked before its grant is written.
    async fn grant(
        &self,
        alias: &Alias,
        parent: String,
        digest: Sha256Hex,
        target: &EnrollmentTarget,
    ) -> Result<(Standing, AgentDurables), EpError> {
        let uid = LifecycleUid::mint(&*self.entropy);
        let input = grant_input(alias, parent, uid.clone(), target);
        let clock = Arc::clone(&self.clock);
        let checked = {
            let (input, digest, clock) = (input.clone(), digest.clone(), Arc::clone(&clock));
            self.ledger(move |ledger| ledger.check_managed(&input, digest.as_str(), &*clock)).await?
        };
        let durables = durables(alias, &uid, target, &checked)?;
        (self.open)()?;
        let row = self.ledger(move |ledger| ledger.grant_managed(&input, digest.as_str(), &*clock)).await?;
        landed(alias);
        Ok((Standing { row, uid, written: true }, durables))
    }

    /// Undoes a grant of this call's own whose durables could not be made. What cannot be undone is told in the log: the
    /// incarnation is nobody's any more, and no other one finds its footprint.
    async fn take_back(&self, alias: &Alias, uid: &LifecycleUid) {
        let principal = alias.principal();
        match self.revoke(alias, uid).await {
            Ok(_) => {}
            Err(refusal) => {
                tracing::error!(%principal, %uid, %refusal, "an enrollment that failed left its grant");
                return;
            }
        }
        let footprint = Footprint::new(principal.clone(), uid.clone(), []);
        if let Err(error) = deprovision_agent(&self.connector, &footprint).await {
            tracing::warn!(%principal, %uid, %error, "an enrollment that failed left a part of its footprint");
        }
    }

    async fn prepare_retirement(
        self: Arc<Self>,
        alias: Alias,
        uid: LifecycleUid,
        still: StillStands,
    ) -> Result<Preparation, EpError> {
        let principal = alias.principal();
        let _turn = alias_turn(self.ledger.state_dir(), &principal).await?;
        still().await?;
        let row = {
            let alias = alias.clone();
            self.ledger(move |ledger| ledger.read_managed(&alias.owner, &alias.actor)).await?
        };
        let Some(row) = row.filter(|row| row.is_at(&uid)) else { return Ok(Preparation::Over) };
        // A pattern has no membership row of its own; what it let in, the inventory lists.
        let granted = row.allow_subscribe.iter().filter_map(|entry| Channel::parse(entry).ok()).collect();
        release_footprint(&self.connector, &self.delivery, &*self.clock, &principal, &uid, granted).await?;
        // The delivery daemon may have taken its time over the footprint.
        still().await?;
        self.revoke(&alias, &uid).await?;
        Ok(Preparation::Prepared)
    }

    async fn revoke(&self, alias: &Alias, uid: &LifecycleUid) -> Result<bool, EpError> {
        (self.open)()?;
        let (of, uid) = (alias.clone(), uid.clone());
        let revoked = self.ledger(move |ledger| ledger.revoke_managed_at(&of.owner, &of.actor, &uid)).await?;
        if revoked {
            landed(alias);
        }
        Ok(revoked)
    }

    /// Rows are files, so they are read and written off the async threads.
    async fn ledger<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, EpError> {
        let ledger = self.ledger.clone();
        let outcome = tokio::task::spawn_blocking(move || act(&ledger)).await.map_err(|error| {
            tracing::error!(%error, "the ledger was not read or written to the end");
            EpError::internal(LEDGER_UNREADABLE)
        })?;
        outcome.map_err(|error| match error {
            LedgerError::Refused(sentence) => EpError::permission_denied(sentence),
            LedgerError::Broken(detail) => {
                tracing::error!(%detail, "the actor ledger is broken");
                EpError::internal(LEDGER_UNREADABLE)
            }
        })
    }
}

/// A grant was written or revoked: a file, and no key of a store.
fn landed(alias: &Alias) {
    crate::landed(&format!("managed-actors/{}", alias.principal()));
}

fn grant_input(alias: &Alias, parent: String, uid: LifecycleUid, target: &EnrollmentTarget) -> GrantInput {
    let texts = |list: Option<&Vec<ChannelPattern>>| {
        list.map(|list| list.iter().map(ToString::to_string).collect()).unwrap_or_default()
    };
    let capabilities = target.capabilities.as_ref();
    GrantInput {
        owner: alias.owner.clone(),
        actor: alias.actor.clone(),
        scope: capabilities.map(|list| list.iter().map(ScopeEntry::to_string).collect()).unwrap_or_default(),
        allow_subscribe: texts(target.allow_subscribe.as_ref()),
        allow_publish: texts(target.allow_publish.as_ref()),
        role: target.role.as_ref().map(Role::to_string),
        label: target.label.clone(),
        parent: Some(parent),
        lifecycle_uid: Some(uid),
    }
}

/// What the request joins, within what the row lets it read.
fn durables(
    alias: &Alias,
    uid: &LifecycleUid,
    target: &EnrollmentTarget,
    row: &ActorRow,
) -> Result<AgentDurables, EpError> {
    let role = row.role.as_deref().map(Role::parse).transpose().map_err(|error| garbled(&error))?;
    let subscribe = target.subscribe.as_deref().unwrap_or_default();
    AgentDurables::new(alias.principal(), uid.clone(), subscribe, patterns(&row.allow_subscribe)?, role)
}

fn patterns(stored: &[String]) -> Result<Vec<ChannelPattern>, EpError> {
    ChannelPattern::parse_all(stored).map_err(|error| garbled(&error))
}

fn garbled(error: &cotal_wire::TokenError) -> EpError {
    tracing::error!(%error, "a managed grant holds what no grant writes");
    EpError::internal(LEDGER_UNREADABLE)
}
