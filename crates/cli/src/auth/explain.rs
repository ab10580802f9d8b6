//! `cotal auth explain`: the walk of `cotal_auth::explain`, as a table or as one document.

use std::{path::PathBuf, sync::Arc};

use cotal_auth::explain::{
    Boundary, Check, ExplainInputs, Explanation, Verdict, Whose, explain, minted_views,
};
use cotal_wire::{Actor, DerivedOwner, Space};
use cotal_workspace::{file, printed, root::space_segment, secret_store::FsSecretStore};

use crate::{
    actor::OwnerFlags,
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    outcome::CliError,
    progress::if_slow,
    space_broker,
    terminal::{escaped, printable},
};

/// `cotal auth explain`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal auth explain --sub <subject> --actor cli
  cotal auth explain --owner <u_...> --actor cli --view channel-writer
  cotal auth explain --space main --sub <subject> --actor cli --json

Each check says ok, refused, not-reached (an earlier one refuses and it has nothing to look at) or remark (something that
only the request or the running service knows decides it). Exit code 0 when nothing refuses, 1 when something does.")]
pub struct ExplainArgs {
    /// Whose.
    #[command(flatten)]
    pub owner: OwnerFlags,
    /// The actor.
    #[arg(long)]
    pub actor: String,
    /// The view.
    #[arg(long, help = view_help())]
    pub view: Option<String>,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// What `--view` takes. Another name is walked too, and refused by the check that refuses it at an exchange.
fn view_help() -> String {
    format!("The view that the exchange would ask for, none by default: {}", minted_views())
}

/// Walks, prints, and refuses when something refuses.
pub(super) async fn run(args: ExplainArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    let actor = Actor::parse(&args.actor).map_err(|e| CliError::usage(format!("--actor is {e}")))?;
    if !printed::has_space(&ctx.root, &space) {
        return Err(CliError::failed(printed::no_such_space(&ctx.root, &space)));
    }
    let inputs = ExplainInputs {
        whose: whose(&args.owner)?,
        actor,
        view: args.view,
        state_dir: state_dir(ctx, &space)?,
        store: Arc::new(FsSecretStore::open(&ctx.root)?),
        servers: space_broker::server(ctx, &space)?,
        clock: Arc::clone(&ctx.clock),
        entropy: Arc::clone(&ctx.entropy),
        space,
    };
    let waits = "waiting for what does not answer, 15 s at most for each check";
    let explanation = if_slow(ctx, waits, explain(&inputs)).await;
    ctx.report(&explanation, || table(&explanation))?;
    match explanation.refusal() {
        None => Ok(()),
        Some(check) => Err(CliError::Reported(format!(
            "{} refuses the {}: {}",
            check.check.as_str(),
            check.boundary.as_str(),
            printable(&check.says)
        ))),
    }
}

fn whose(flags: &OwnerFlags) -> Result<Whose, CliError> {
    match (&flags.sub, &flags.owner) {
        (Some(sub), None) => Ok(Whose::Subject(sub.clone())),
        (None, Some(owner)) => DerivedOwner::parse(owner)
            .map(Whose::Owner)
            .map_err(|e| CliError::usage(format!("--owner is {e}"))),
        (Some(_), Some(_)) => Err(CliError::usage("name the owner by --sub or by --owner, not by both")),
        (None, None) => Err(CliError::usage("name the owner by --sub <subject> or by --owner <u_…>")),
    }
}

/// Where the space keeps its state. A directory of an older version is renamed by whoever adopts it, and this changes
/// nothing: until then the space has none.
fn state_dir(ctx: &Context, space: &Space) -> Result<PathBuf, CliError> {
    let canonical = ctx.root.auth_dir().join(space_segment(space));
    if file::is_real_dir(&ctx.root.cotal_dir())?
        && file::is_real_dir(&ctx.root.auth_dir())?
        && file::is_real_dir(&canonical)?
    {
        return Ok(ctx.root.user_auth_state_dir(space)?);
    }
    Ok(canonical)
}

fn table(explanation: &Explanation) -> String {
    let mut lines = Vec::new();
    let mut at = None;
    for check in &explanation.checks {
        if at != Some(check.boundary) {
            at = Some(check.boundary);
            lines.push(heading(explanation, check.boundary));
        }
        lines.push(row(check));
        if let Some(mend) = &check.mend {
            // A command that is shown altered would be another command.
            let mend = match escaped(mend) {
                None => format!("mend: {mend}"),
                Some(_) => "mend: a command that a terminal cannot show as it is; --json holds it".to_owned(),
            };
            lines.push(format!("{:INDENT$}{mend}", ""));
        }
    }
    lines.push(match explanation.refusal() {
        None => "Nothing refuses.".to_owned(),
        Some(check) => format!("Refused by {}.", check.check.as_str()),
    });
    lines.join("\n")
}

/// Where the sentences begin.
const INDENT: usize = 36;

fn heading(explanation: &Explanation, boundary: Boundary) -> String {
    let owner = explanation.owner.as_ref().map_or("?", |owner| owner.as_str());
    let view = explanation.view.as_deref().map(|view| format!(" as {}", printable(view)));
    format!(
        "{} of {owner}.{}{} in space {}",
        boundary.as_str(),
        explanation.actor,
        view.unwrap_or_default(),
        printable(explanation.space.as_str())
    )
}

fn row(check: &Check) -> String {
    let mark = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Refused => "REFUSED",
        Verdict::NotReached => "not-reached",
        Verdict::Remark => "remark",
    };
    format!("  {:<20} {mark:<12} {} ({})", check.check.as_str(), printable(&check.says), check.contract)
}

#[cfg(test)]
mod tests {
    use cotal_auth::explain::CheckName;

    use super::*;

    fn check(check: CheckName, verdict: Verdict, says: &str, mend: Option<&str>) -> Check {
        Check {
            boundary: check.boundary(),
            check,
            contract: check.contract(),
            verdict,
            says: says.to_owned(),
            mend: mend.map(str::to_owned),
        }
    }

    #[test]
    fn a_table_shows_each_check_under_its_boundary_and_the_command_below_its_refusal() {
        let explanation = Explanation {
            space: Space::parse("main").unwrap(),
            owner: None,
            actor: Actor::parse("cli").unwrap(),
            view: None,
            ok: false,
            refuses: Some(CheckName::LedgerRow),
            checks: vec![
                check(CheckName::Service, Verdict::Ok, "it answers", None),
                check(CheckName::LedgerRow, Verdict::Refused, "no\u{1b}[2J row", Some("cotal actor grant")),
                check(CheckName::View, Verdict::Refused, "no scope", Some("cotal --label '\u{1b}'")),
                check(CheckName::Bearer, Verdict::NotReached, "no bearer", None),
            ],
        };
        let table = table(&explanation);
        assert_eq!(
            table,
            "exchange of ?.cli in space main\n\
             \x20 service              ok           it answers (05 §3.3)\n\
             \x20 ledger-row           REFUSED      no\u{fffd}[2J row (04 §7.3, §7.8)\n\
             \x20                                   mend: cotal actor grant\n\
             \x20 view                 REFUSED      no scope (05 §4.3)\n\
             \x20                                   mend: a command that a terminal cannot show as it is; --json holds it\n\
             connect of ?.cli in space main\n\
             \x20 bearer               not-reached  no bearer (04 §2.4, §8.4)\n\
             Refused by ledger-row."
        );
    }

    #[test]
    fn exactly_one_of_subject_and_owner_names_the_owner() {
        let flags = |sub: Option<&str>, owner: Option<&str>| OwnerFlags {
            sub: sub.map(str::to_owned),
            owner: owner.map(str::to_owned),
        };
        assert!(matches!(whose(&flags(Some("ada"), None)), Ok(Whose::Subject(_))));
        assert!(matches!(whose(&flags(None, Some("u_aaaaaaaaaaaaaaaaaaaaaaaaaa"))), Ok(Whose::Owner(_))));
        for (sub, owner) in [(None, None), (Some("ada"), Some("u_x")), (None, Some("ada"))] {
            assert!(matches!(whose(&flags(sub, owner)), Err(CliError::Usage(_))));
        }
    }
}
