//! `cotal down`: stops what `up` started, in reverse order (contract 08 §4).

use std::path::Path;

use cotal_ledger::shell_quote;
use cotal_wire::Space;
use cotal_workspace::{
    file,
    material::{Discovery, load_idp_pin},
    printed::no_such_space,
    root::Root,
    trust_files,
};
use serde_json::json;

use crate::{
    broker_lock,
    cli::Output,
    context::{Context, space_flag},
    daemon::{Daemon, STOPS_WITHIN, Stopped},
    outcome::CliError,
    progress::Progress,
    root_lock::RootLock,
    space_daemons,
};

/// `cotal down`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal down --space main")]
pub struct DownArgs {
    /// The space; may be left out on a root that holds one.
    #[arg(long)]
    pub space: Option<String>,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// Stops the space, and the broker with its last space.
pub async fn run(args: DownArgs, ctx: &Context) -> Result<(), CliError> {
    let named = args.space.as_deref().map(space_flag).transpose()?;
    if !file::is_real_dir(&ctx.root.cotal_dir())? {
        choose(named, &[], &ctx.root).map_err(CliError::Failed)?;
        return report(ctx, &[]);
    }
    let _lock = RootLock::take(&ctx.root)?;
    let spaces = trust_files::inventory(&ctx.root)?;
    let space = choose(named, &spaces, &ctx.root).map_err(CliError::Failed)?;
    let progress = Progress::start(ctx);
    let broker = space_daemons::broker(ctx, Path::new("nats-server"));
    let mut stopped = Vec::new();
    let mut pin = None;
    if let Some(space) = &space {
        let state_dir = ctx.root.user_auth_state_dir(space)?;
        pin = load_idp_pin(&state_dir)?;
        let daemon = space_daemons::auth_service(ctx, space, Vec::new());
        if daemon.files.pid.exists() && matches!(broker.running(), Ok(None)) {
            progress.note("the broker is down: what was connected to it waits for its answer before it ends");
        }
        stop(&daemon, &progress, &mut stopped).await?;
        // One that was killed could not take it back. One that this root did not start serves on, and so do the broker and
        // the delivery daemon: without them nobody could be taken back while connects go on.
        if !cotal_auth::withdraw_left_discovery(&state_dir)? {
            return Err(served_elsewhere(space, &state_dir));
        }
        // After the service, whose end it may have to prove.
        stop(&space_daemons::delivery(ctx, space, None), &progress, &mut stopped).await?;
    }
    match still_up(ctx, &spaces)? {
        Some(other) if broker.running()?.is_some() => progress.note(&format!(
            "the broker stays: space {:?} is up too; `cotal down --space {}` stops both",
            other.as_str(),
            shell_quote(other.as_str())
        )),
        _ => stop(&broker, &progress, &mut stopped).await?,
    }
    if let Some(space) = &space {
        stop(&space_daemons::left_dev_idp(ctx, space, pin.as_ref()), &progress, &mut stopped).await?;
    }
    drop(progress);
    if broker.running()?.is_none() {
        broker_lock::refuse_unknown_broker(&ctx.root).await?;
    }
    report(ctx, &stopped)
}

/// The space that is meant: broker-wide only on a root with one (contract 08 §2.1).
fn choose(named: Option<Space>, spaces: &[Space], root: &Root) -> Result<Option<Space>, String> {
    match (named, spaces) {
        (Some(space), spaces) if spaces.contains(&space) => Ok(Some(space)),
        (Some(space), _) => Err(no_such_space(root, &space)),
        (None, [] | [_]) => Ok(spaces.first().cloned()),
        (None, several) => {
            let names: Vec<_> = several.iter().map(Space::as_str).collect();
            Err(format!("this root holds more than one space ({}): name one with --space", names.join(", ")))
        }
    }
}

fn served_elsewhere(space: &Space, state_dir: &Path) -> CliError {
    let announced = Discovery::load(state_dir).ok().flatten();
    let by = announced.map_or_else(|| "another process".to_owned(), |it| format!("pid {}", it.pid));
    CliError::failed(format!(
        "space {:?} is served by {by} (a host or a unit): take it out of its manifest, or stop that; nothing of it was \
         stopped here",
        space.as_str()
    ))
}

/// A space of the root that nobody has taken down. Its auth service may have crashed while its clients are connected
/// still, and what this machine cannot see counts as connected (contract 08 §2.1); so what counts is the pid that an
/// `up` has left and the readiness file of a service that a unit started, not whether either is alive.
fn still_up<'a>(ctx: &Context, spaces: &'a [Space]) -> Result<Option<&'a Space>, CliError> {
    for space in spaces {
        let pid = space_daemons::auth_service(ctx, space, Vec::new()).files.pid;
        let announced = !matches!(Discovery::load(&ctx.root.user_auth_state_dir(space)?), Ok(None));
        if announced || file::is_regular(&pid)? {
            return Ok(Some(space));
        }
    }
    Ok(None)
}

async fn stop(
    daemon: &Daemon,
    progress: &Progress<'_>,
    stopped: &mut Vec<(String, Stopped)>,
) -> Result<(), CliError> {
    if daemon.files.pid.exists() {
        progress.wait(&format!("stopping {}", daemon.name), STOPS_WITHIN);
    }
    stopped.push((daemon.name.clone(), daemon.stop().await?));
    Ok(())
}

fn report(ctx: &Context, stopped: &[(String, Stopped)]) -> Result<(), CliError> {
    let document: Vec<_> =
        stopped.iter().map(|(name, how)| json!({ "daemon": name, "outcome": how })).collect();
    ctx.report(&json!({ "root": ctx.root.path().display().to_string(), "stopped": document }), || {
        let lines: Vec<_> = stopped
            .iter()
            .filter_map(|(name, how)| match how {
                Stopped::NotRunning => None,
                Stopped::Ended => Some(format!("{name} ended")),
                Stopped::Killed => Some(format!("{name} did not end when asked and was killed")),
            })
            .collect();
        if lines.is_empty() {
            format!("nothing runs in {}", ctx.root.path().display())
        } else {
            lines.join("\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_with_several_spaces_wants_one_named() {
        let space = |name: &str| Space::parse(name).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        let choose = |named, spaces: &[Space]| choose(named, spaces, &Root::at(tmp.path()));
        let (one, two) = ([space("a")], [space("a"), space("b")]);
        assert_eq!(choose(None, &[]), Ok(None));
        assert_eq!(choose(None, &one), Ok(Some(space("a"))));
        assert!(choose(None, &two).unwrap_err().contains("a, b"));
        assert_eq!(choose(Some(space("b")), &two), Ok(Some(space("b"))));
        assert!(choose(Some(space("c")), &two).is_err());
        assert!(choose(Some(space("c")), &[]).unwrap_err().contains("no space \"c\""));
    }
}
