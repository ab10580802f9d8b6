//! `cotal actor`: the ledger of a space, from the machine that provisioned it (contract 04 §13.1).

use std::fmt::Write as _;

use clap::Subcommand;
use cotal_ledger::{ActorRow, GrantInput, Ledger, RowKind, TaggedRow};
use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Space};
use cotal_workspace::{
    material::{load_idp_pin, load_owner_secret},
    secret_store::FsSecretStore,
};
use serde_json::{Value, json};

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    outcome::CliError,
    terminal::printable,
};

/// What `--full` grants where nothing else is named (contract 04 §13.1).
const FULL_SCOPE: &str = "spawn,role:default";
/// Every channel.
const FULL_CHANNELS: &str = ">";
/// What a re-grant says until a lifecycle can be retired from here.
const REGRANT_NOTE: &str = "The incarnation stays the same, because retiring it is not available yet: connections that \
    are live keep what they were given until their bearers expire, 15 minutes at most.";
/// What a revocation says until a lifecycle can be retired from here.
const REVOKE_NOTE: &str = "The incarnation is not retired, because that is not available yet: connections that are live \
    stay until their bearers expire, 15 minutes at most, and a new grant of this actor cannot connect before that \
    incarnation is retired.";

/// `cotal actor`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cotal actor grant cli --sub <subject> --full\n  cotal actor list")]
pub struct ActorArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ActorVerb,
}

/// The verbs of `cotal actor`.
#[derive(Debug, Subcommand)]
pub enum ActorVerb {
    /// Write the whole row of an actor.
    Grant(GrantArgs),
    /// Take an actor's row away.
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
  cotal actor grant cli --sub <subject> --full
  cotal actor grant reader --sub <subject> --scope '' --allow-subscribe 'general,team.>' --allow-publish ''")]
pub struct GrantArgs {
    /// The actor.
    pub actor: String,
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// Capabilities, separated by commas; '' for none.
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
    let before = ledger.read_interactive(&owner, &actor)?;
    let input = GrantInput {
        owner,
        actor,
        scope,
        allow_subscribe,
        allow_publish,
        role: args.role,
        label: args.label,
        parent: args.parent,
        // A rotated uid could not be activated while its predecessor lives, and nothing here can retire that yet.
        lifecycle_uid: before.as_ref().and_then(incarnation),
    };
    let row = ledger.grant_interactive(&input, ctx.clock.as_ref(), ctx.entropy.as_ref())?;
    let note = before.map(|_| REGRANT_NOTE);
    let mut document = json!({ "space": space, "granted": row_document(RowKind::Interactive, &row) });
    if let Some(note) = note {
        document["note"] = note.into();
    }
    ctx.report(&document, || {
        let mut text = format!("Granted in {}: {}", space, row_line(RowKind::Interactive, &row));
        if let Some(note) = note {
            let _ = write!(text, "\n{note}");
        }
        text
    })
}

async fn revoke(args: RevokeArgs, ctx: &Context) -> Result<(), CliError> {
    let actor = actor_argument(&args.actor)?;
    let space = space_flag(&args.space)?;
    let owner = owner(&args.owner, &space, ctx).await?;
    let ledger = ledger(&space, ctx)?;
    let key = format!("{owner}.{actor}");
    // A row that cannot be read can still be taken away.
    let absent = matches!(ledger.read_interactive(&owner, &actor), Ok(None));
    if absent && ledger.read_managed(&owner, &actor)?.is_some() {
        return Err(CliError::failed(format!(
            "{key} is a managed agent: stop it where it runs; only a person's grant is revoked here"
        )));
    }
    if absent || !ledger.revoke_interactive(&owner, &actor)? {
        let document = json!({ "space": space, "principal": key, "revoked": false });
        return ctx.report(&document, || format!("{key} is not granted in {space}: nothing to revoke"));
    }
    let document = json!({ "space": space, "principal": key, "revoked": true, "note": REVOKE_NOTE });
    ctx.report(&document, || {
        format!("Revoked in {space}: {key}\nIt can no longer exchange or connect. {REVOKE_NOTE}")
    })
}

fn list(args: &ListArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    if !ctx.root.is_user_auth(&space)? {
        return Err(not_provisioned(&space));
    }
    let mut rows = ledger(&space, ctx)?.list()?;
    rows.sort_by_cached_key(|tagged| tagged.row.key());
    let documents: Vec<_> = rows.iter().map(|TaggedRow { kind, row }| row_document(*kind, row)).collect();
    ctx.report(&json!({ "space": space, "actors": documents }), || {
        if rows.is_empty() {
            return format!(
                "Nobody is granted in {space} yet. Grant with: cotal actor grant cli --sub <subject> --full"
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
    let pin = load_idp_pin(&ctx.root.user_auth_state_dir(space)?)?.ok_or_else(|| not_provisioned(space))?;
    let store = FsSecretStore::open(&ctx.root)?;
    let secret = load_owner_secret(&store, space).await?.ok_or_else(|| not_provisioned(space))?;
    match (sub, owner) {
        (Some(sub), _) => Ok(secret.derive(&pin.issuer, sub)?),
        (None, owner) => DerivedOwner::parse(owner.as_deref().unwrap_or_default())
            .map_err(|e| CliError::usage(format!("--owner is {e}"))),
    }
}

fn not_provisioned(space: &Space) -> CliError {
    CliError::failed(format!(
        "space {:?} has no user auth here: run this on the machine and in the directory that ran `cotal up --user-auth`",
        space.as_str()
    ))
}

fn ledger(space: &Space, ctx: &Context) -> Result<Ledger, CliError> {
    Ok(Ledger::at(ctx.root.user_auth_state_dir(space)?))
}

fn incarnation(row: &ActorRow) -> Option<LifecycleUid> {
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
