//! `cotal actor`: the ledger of a space, from the machine that provisioned it (contract 04 §13.1).

use clap::Subcommand;
use cotal_ledger::{ActorRow, GrantInput, Ledger, RowKind, TaggedRow};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Principal, Space};
use cotal_workspace::{
    material::{load_idp_pin, load_owner_secret},
    printed::at,
    secret_store::FsSecretStore,
};
use serde_json::{Value, json};

use crate::{
    actor_lock::ActorLock,
    cli::Output,
    context::{Context, DEFAULT_SPACE, made_elsewhere, space_flag},
    grant_remarks,
    incarnation::{self, After, Ended, HeadSeen, Predecessor},
    lifecycle_door::Retired,
    outcome::{CliError, Outcome},
    terminal::printable,
};

/// What `--full` grants where nothing else is named (contract 04 §13.1).
const FULL_SCOPE: &str = "spawn,role:default";
/// Every channel.
const FULL_CHANNELS: &str = ">";
/// The lists of the narrow grant that every hint offers; `--full` is everything, and is named last.
pub const NARROW: &str = "--scope '' --allow-subscribe general --allow-publish general";

/// `cotal actor`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal actor grant cli --sub <subject> --scope '' --allow-subscribe general --allow-publish general
  cotal actor list")]
pub struct ActorArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ActorVerb,
}

/// The verbs of `cotal actor`.
#[derive(Debug, Subcommand)]
pub enum ActorVerb {
    /// Write the whole row of an actor; one that is granted already is retired first and begins anew.
    Grant(GrantArgs),
    /// Retire an actor, take its row away and end its live connections.
    Revoke(RevokeArgs),
    /// List every row.
    List(ListArgs),
}

/// Whose actor: exactly one of the two.
#[derive(Debug, clap::Args)]
pub struct OwnerFlags {
    /// The IdP subject; the owner is derived from it.
    #[arg(long, value_name = "SUBJECT")]
    pub sub: Option<String>,
    /// The owner itself (`u_…`).
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
}

/// `cotal actor grant`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal actor grant cli --sub <subject> --scope '' --allow-subscribe general --allow-publish general
  cotal actor grant reader --sub <subject> --scope '' --allow-subscribe 'general,team.>' --allow-publish ''
  cotal actor grant cli --sub <subject> --full                   everything: spawn, every channel")]
pub struct GrantArgs {
    /// The actor.
    pub actor: String,
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// Capabilities, separated by commas; '' for none. Known are spawn, admin, supervise, run and role:ROLE.
    #[arg(long, value_name = "A,B")]
    pub scope: Option<String>,
    /// Channels that it may read; '' for none.
    #[arg(long, value_name = "A,B")]
    pub allow_subscribe: Option<String>,
    /// Channels that it may post to; '' for none.
    #[arg(long, value_name = "A,B")]
    pub allow_publish: Option<String>,
    /// Everything that is not named: scope spawn,role:default, read and post everything.
    #[arg(long)]
    pub full: bool,
    /// The role.
    #[arg(long)]
    pub role: Option<String>,
    /// A label for people.
    #[arg(long)]
    pub label: Option<String>,
    /// The actor that answers for it.
    #[arg(long, value_name = "OWNER.ACTOR")]
    pub parent: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal actor revoke`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal actor revoke cli --sub <subject>")]
pub struct RevokeArgs {
    /// The actor.
    pub actor: String,
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal actor list`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal actor list --space main --json")]
pub struct ListArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

impl ActorArgs {
    /// The space.
    pub fn space(&self) -> &str {
        match &self.verb {
            ActorVerb::Grant(args) => &args.space,
            ActorVerb::Revoke(args) => &args.space,
            ActorVerb::List(args) => &args.space,
        }
    }

    /// How to print.
    pub fn output(&self) -> Output {
        match &self.verb {
            ActorVerb::Grant(args) => args.output,
            ActorVerb::Revoke(args) => args.output,
            ActorVerb::List(args) => args.output,
        }
    }
}

/// Runs one verb.
pub async fn run(args: ActorArgs, ctx: &Context) -> Result<(), CliError> {
    match args.verb {
        ActorVerb::Grant(args) => grant(args, ctx).await,
        ActorVerb::Revoke(args) => revoke(args, ctx).await,
        ActorVerb::List(args) => list(&args, ctx),
    }
}

async fn grant(args: GrantArgs, ctx: &Context) -> Result<(), CliError> {
    let actor = actor_argument(&args.actor)?;
    let [scope, allow_subscribe, allow_publish] = lists(&args)?;
    let space = space_flag(&args.space)?;
    let owner = owner(&args.owner, &space, ctx).await?;
    let ledger = ledger(&space, ctx)?;
    let input = GrantInput {
        owner,
        actor,
        scope,
        allow_subscribe,
        allow_publish,
        role: args.role,
        label: args.label,
        parent: args.parent,
        // A re-grant begins a new incarnation: the one before is retired first.
        lifecycle_uid: None,
    };
    // What would be refused must not retire anything.
    ledger.check_interactive(&input)?;
    let principal = Principal::new(&input.owner, input.actor.clone());
    let mut remarks = grant_remarks::of_scope(&input.scope);
    remarks.extend(
        input.parent.as_deref().and_then(|parent| grant_remarks::of_parent(&ledger, parent, &principal)),
    );
    let _one_at_a_time = ActorLock::take(&ctx.root.user_auth_state_dir(&space)?, &principal)?;
    let before = ledger.read_interactive(&input.owner, &input.actor)?;
    let head = incarnation::look(ctx, &space, &principal).await?;
    let own = before.as_ref().and_then(uid_of);
    let predecessors = incarnation::predecessors(own.as_ref(), &head);
    let unchanged = if before.is_some() { "its row is unchanged" } else { "nothing was granted" };
    let mut ended = retire_all(ctx, &space, &principal, &predecessors, unchanged).await?;
    let entered = ended.iter().any(|ended| ended.how != Retired::NotStarted);
    // Before the new incarnation can connect: what is ended here is the old one's.
    let mut eviction = if entered { Some(incarnation::evict(ctx, &space, &principal).await?) } else { None };
    let row = ledger.rotate_interactive(before.as_ref(), &input, ctx.clock.as_ref(), ctx.entropy.as_ref())?;
    let late = Latecomer { granted: uid_of(&row), unchanged: "its new row stands" };
    let late = late.retire(ctx, &space, &principal, &ended, &head).await?;
    if !late.ended.is_empty() {
        eviction = Some(incarnation::evict(ctx, &space, &principal).await?);
    }
    ended.extend(late.ended);

    let mut document = json!({ "space": space, "granted": row_document(RowKind::Interactive, &row) });
    let mut notes: Vec<_> = ended.iter().map(incarnation::retired_sentence).collect();
    if !ended.is_empty() {
        document["retired"] = incarnation::retired_document(&ended);
    }
    if let Some(eviction) = &eviction {
        document["eviction"] = incarnation::eviction_document(eviction.as_ref());
        notes.push(incarnation::eviction_sentence(&space, eviction.as_ref(), After::Grant));
    }
    if let Some(why) = late.unseen {
        let note = format!(
            "Whether another incarnation of this name is still active could not be seen ({why}). If the exchange says \
             that one is, run this command again once the broker is up."
        );
        document["note"] = note.as_str().into();
        notes.push(note);
    }
    if !remarks.is_empty() {
        document["remarks"] = remarks.clone().into();
        notes.extend(remarks);
    }
    ctx.report(&document, || {
        let granted = format!("Granted in {space}: {}", row_line(RowKind::Interactive, &row));
        std::iter::once(granted).chain(notes).collect::<Vec<_>>().join("\n")
    })
}

async fn revoke(args: RevokeArgs, ctx: &Context) -> Result<(), CliError> {
    let actor = actor_argument(&args.actor)?;
    let space = space_flag(&args.space)?;
    let owner = owner(&args.owner, &space, ctx).await?;
    let ledger = ledger(&space, ctx)?;
    let principal = Principal::new(&owner, actor.clone());
    let managed = ledger.read_managed(&owner, &actor)?;
    let _one_at_a_time = ActorLock::take(&ctx.root.user_auth_state_dir(&space)?, &principal)?;
    let row = ledger.read_interactive(&owner, &actor);
    if matches!(row, Ok(None)) && managed.is_some() {
        return Err(CliError::failed(format!(
            "{principal} is a managed agent: stop it where it runs; only a person's grant is revoked here"
        )));
    }
    let head = incarnation::look(ctx, &space, &principal).await?;
    if let (false, HeadSeen::Unseen(Some(why))) = (matches!(row, Ok(Some(_))) || managed.is_some(), &head) {
        return Err(not_seen(&space, &principal, why, row.is_err()));
    }
    let (revoked, predecessors) = if let Ok(row) = &row {
        let own = row.as_ref().and_then(uid_of);
        (row.is_some(), incarnation::predecessors(own.as_ref(), &head))
    } else {
        // A row that cannot be read lets nobody in, names no incarnation and can still be taken away.
        let removed = ledger.revoke_interactive(&owner, &actor)?;
        let orphans = if managed.is_some() { Vec::new() } else { incarnation::predecessors(None, &head) };
        (removed, orphans)
    };
    let unchanged = match &row {
        Ok(Some(_)) => "its row is unchanged",
        Ok(None) => "it has no row",
        Err(_) => "its unreadable row is gone",
    };
    let mut ended = retire_all(ctx, &space, &principal, &predecessors, unchanged).await?;
    if let Ok(Some(row)) = &row {
        ledger.revoke_expected_interactive(row)?;
    }
    let late = Latecomer { granted: None, unchanged: "its row is gone" };
    let late = late.retire(ctx, &space, &principal, &ended, &head).await?;
    ended.extend(late.ended);
    // Also when there was nothing: whoever asks again wants to know that nobody is connected.
    let eviction = incarnation::evict(ctx, &space, &principal).await?;
    let unverified = eviction.as_ref().is_some_and(|eviction| !eviction.verified_gone);
    let nothing = !revoked && ended.is_empty();
    let unproved = late.unseen.map(|why| {
        format!(
            "Whether another incarnation of {principal} is still active could not be seen ({why}): run this command \
             again once the broker answers."
        )
    });

    let mut document = json!({
        "space": space,
        "principal": principal.key(),
        "revoked": revoked,
        "retired": incarnation::retired_document(&ended),
        "eviction": incarnation::eviction_document(eviction.as_ref()),
    });
    if let Some(note) = &unproved {
        document["note"] = note.as_str().into();
    }
    ctx.report(&document, || {
        let mut lines = vec![if revoked {
            format!("Revoked in {space}: {principal}\nIt can no longer exchange or connect.")
        } else if nothing {
            format!("{principal} is not granted in {space}: nothing to revoke")
        } else {
            format!("{principal} had no row in {space}, but an incarnation that was still active.")
        }];
        lines.extend(ended.iter().map(incarnation::retired_sentence));
        lines.push(incarnation::eviction_sentence(&space, eviction.as_ref(), After::Revoke));
        lines.join("\n")
    })?;
    match unproved {
        Some(sentence) => Err(CliError::Reported(sentence)),
        None if nothing && unverified => Err(CliError::Reported(format!(
            "that nobody is connected as {principal} was not verified: run this command again once `cotal status{}` \
             shows the delivery daemon ready",
            at(&space)
        ))),
        None => Ok(()),
    }
}

/// An incarnation that a person's first exchange began after its row was read and before the row changed: the door had
/// found nothing to retire.
struct Latecomer {
    /// The incarnation of the new row, which is welcome.
    granted: Option<LifecycleUid>,
    /// What is true when it cannot be retired.
    unchanged: &'static str,
}

/// What the look after the write came to.
struct LookedAgain {
    /// What had to be retired after all.
    ended: Vec<Ended>,
    /// Why nobody can say that no other incarnation is active.
    unseen: Option<String>,
}

impl Latecomer {
    /// Looks at the head once more where the first look and the doors have not settled it.
    async fn retire(
        self,
        ctx: &Context,
        space: &Space,
        principal: &Principal,
        ended: &[Ended],
        before: &HeadSeen,
    ) -> Result<LookedAgain, CliError> {
        if !incarnation::in_doubt(ended, before) {
            return Ok(LookedAgain { ended: Vec::new(), unseen: None });
        }
        let head = incarnation::look(ctx, space, principal).await?;
        let others = incarnation::latecomers(self.granted.as_ref(), &head);
        let ended = retire_all(ctx, space, principal, &others, self.unchanged).await?;
        let unseen = match head {
            HeadSeen::Unseen(why) => why,
            _ => None,
        };
        Ok(LookedAgain { ended, unseen })
    }
}

fn not_seen(space: &Space, principal: &Principal, why: &str, unreadable: bool) -> CliError {
    let row = if unreadable { "its row does not read and is unchanged" } else { "it has no row" };
    CliError::Undone(
        format!(
            "whether an incarnation of {principal} is still active could not be seen ({why}): {row}, and nothing was \
             changed. See `cotal status{}`, then run this command again once the broker answers",
            at(space)
        ),
        Outcome::NotExecuted,
    )
}

async fn retire_all(
    ctx: &Context,
    space: &Space,
    principal: &Principal,
    predecessors: &[Predecessor],
    unchanged: &str,
) -> Result<Vec<Ended>, CliError> {
    let state_dir = ctx.root.user_auth_state_dir(space)?;
    let log = ctx.root.daemon_files("auth-service", Some(space)).log;
    incarnation::retire(ctx, &state_dir, &log, principal, predecessors, unchanged).await
}

fn list(args: &ListArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    if !ctx.root.is_user_auth(&space)? {
        return Err(not_provisioned(&space, ctx));
    }
    let mut rows = ledger(&space, ctx)?.list()?;
    rows.sort_by_cached_key(|tagged| tagged.row.key());
    let documents: Vec<_> = rows.iter().map(|TaggedRow { kind, row }| row_document(*kind, row)).collect();
    ctx.report(&json!({ "space": space, "actors": documents }), || {
        if rows.is_empty() {
            return format!(
                "Nobody is granted in {space} yet. Grant with: cotal actor grant cli --sub <subject> {NARROW}{}\n\
                 Everything at once: --full instead of the lists",
                at(&space)
            );
        }
        let lines: Vec<_> = rows.iter().map(|TaggedRow { kind, row }| row_line(*kind, row)).collect();
        lines.join("\n")
    })
}

/// The three lists of a grant. A grant replaces the whole row, so that none is left to chance (contract 08 §3.1).
fn lists(args: &GrantArgs) -> Result<[Vec<String>; 3], CliError> {
    let named = [
        ("--scope", &args.scope, FULL_SCOPE),
        ("--allow-subscribe", &args.allow_subscribe, FULL_CHANNELS),
        ("--allow-publish", &args.allow_publish, FULL_CHANNELS),
    ];
    let missing: Vec<_> =
        named.iter().filter(|(_, value, _)| value.is_none()).map(|(flag, ..)| *flag).collect();
    if !missing.is_empty() && !args.full {
        return Err(CliError::failed(format!(
            "refusing to grant \"{}\" with {} left off: a grant replaces the whole row, so name them ('' for none) or \
             pass --full for scope {FULL_SCOPE} and every channel",
            printable(&args.actor),
            missing.join(", ")
        )));
    }
    Ok(named.map(|(_, value, full)| csv(value.as_deref().unwrap_or(full))))
}

/// Splits at commas, trims, drops what is empty; so `''` is the empty list.
fn csv(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

fn actor_argument(raw: &str) -> Result<Actor, CliError> {
    Actor::parse(raw).map_err(|e| CliError::usage(format!("<actor> is {e}")))
}

/// Whose actor: exactly one of `--sub` and `--owner`, on the machine that holds the space's owner secret and IdP pin.
async fn owner(flags: &OwnerFlags, space: &Space, ctx: &Context) -> Result<DerivedOwner, CliError> {
    let (sub, owner) = match (&flags.sub, &flags.owner) {
        (Some(_), Some(_)) => {
            return Err(CliError::usage("name the owner by --sub or by --owner, not by both"));
        }
        (None, None) => return Err(CliError::usage("name the owner by --sub <subject> or by --owner <u_…>")),
        (sub, owner) => (sub, owner),
    };
    let pin =
        load_idp_pin(&ctx.root.user_auth_state_dir(space)?)?.ok_or_else(|| not_provisioned(space, ctx))?;
    let store = FsSecretStore::open(&ctx.root)?;
    let secret = load_owner_secret(&store, space).await?.ok_or_else(|| not_provisioned(space, ctx))?;
    match (sub, owner) {
        (Some(sub), _) => Ok(secret.derive(&pin.issuer, sub)?),
        (None, owner) => DerivedOwner::parse(owner.as_deref().unwrap_or_default())
            .map_err(|e| CliError::usage(format!("--owner is {e}"))),
    }
}

fn not_provisioned(space: &Space, ctx: &Context) -> CliError {
    made_elsewhere(ctx, space, "user auth")
}

fn ledger(space: &Space, ctx: &Context) -> Result<Ledger, CliError> {
    Ok(Ledger::at(ctx.root.user_auth_state_dir(space)?))
}

fn uid_of(row: &ActorRow) -> Option<LifecycleUid> {
    LifecycleUid::parse(row.lifecycle_uid.as_deref()?).ok()
}

/// `<owner>.<actor>  (<label>)  kind=…  role=…  scope=[…]  read=[…]  post=[…]` (contract 04 §13).
fn row_line(kind: RowKind, row: &ActorRow) -> String {
    let label = row.label.as_ref().map(|label| format!("  ({label})")).unwrap_or_default();
    printable(&format!(
        "{}{label}  kind={kind}  role={}  scope=[{}]  read=[{}]  post=[{}]",
        row.key(),
        row.role.as_deref().unwrap_or("-"),
        row.scope.join(","),
        row.allow_subscribe.join(","),
        row.allow_publish.join(",")
    ))
}

fn row_document(kind: RowKind, row: &ActorRow) -> Value {
    let mut document = json!({
        "owner": row.owner,
        "actor": row.actor,
        "kind": kind.as_str(),
        "scope": row.scope,
        "allowSubscribe": row.allow_subscribe,
        "allowPublish": row.allow_publish,
    });
    let optional = [
        ("role", &row.role),
        ("label", &row.label),
        ("parent", &row.parent),
        ("lifecycleUid", &row.lifecycle_uid),
        ("grantedAt", &row.granted_at),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            document[name] = value.as_str().into();
        }
    }
    document
}
