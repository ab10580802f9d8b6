//! `cotal auth watch`: the callout's line of each answered connect, as it comes (contract 04 §8.7).

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use cotal_callout::{
    denial::fold,
    line::{Answered, Outcome, Said},
    progress::Step,
};
use cotal_wire::Space;
use cotal_workspace::{
    material::Discovery,
    printed::{at, shell_quote},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::Follow;
use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE, not_here, space_flag},
    loopback,
    outcome::CliError,
    space_daemons,
};

/// How often the log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After how many rows a person sees the heading again.
const HEADING_EVERY: usize = 40;

/// `cotal auth watch`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal auth watch                            of the space `main`, until Ctrl-C
  cotal auth watch --space main --last 100
  cotal auth watch | grep denied              one line a connect, without a heading
  cotal auth watch --json                     one JSON document a connect, a line each
  cotal auth watch --file replica.log         the log of a service that another supervisor keeps

Times are milliseconds. The reason of a denial is on this line and in the broker's log alone: the client hears
`Authorization Violation`.")]
pub struct WatchArgs {
    /// The space, whose service's log under .cotal/ is followed [default: main]; with --file, the one space of that log
    /// that is shown.
    #[arg(long)]
    pub space: Option<String>,
    /// Another log: of every space in it.
    #[arg(long, value_name = "LOG")]
    pub file: Option<PathBuf>,
    /// How many connects of the log come first; of the last 1 MiB of it at the most.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub last: usize,
    /// How to print: with --json one document a connect.
    #[command(flatten)]
    pub output: Output,
}

/// Follows the log until a signal, or until nobody reads any more.
pub(super) async fn run(args: WatchArgs, ctx: &Context) -> Result<(), CliError> {
    let only = args.space.as_deref().map(space_flag).transpose()?;
    let (path, only) = match (args.file, only) {
        (Some(path), only) => {
            if !is_there(&path)? {
                return Err(CliError::failed(format!(
                    "there is no log {}: give --file the file that the service's supervisor writes its stderr to",
                    path.display()
                )));
            }
            (path, only)
        }
        (None, only) => {
            let space = only.map_or_else(|| space_flag(DEFAULT_SPACE), Ok)?;
            (log_of(ctx, &space)?, Some(space))
        }
    };
    let only = only.map(|space| fold(space.as_str()));
    let of_space = |line: &String| {
        Said::parse(line).filter(|said| only.as_deref().is_none_or(|only| said.space() == only))
    };
    let cannot = |e: std::io::Error| CliError::failed(format!("{} cannot be followed: {e}", path.display()));
    // Watched from here on: one that comes between two looks is not lost.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let (mut follow, before) = Follow::open(&path, usize::MAX).map_err(cannot)?;
    let before: Vec<_> = before.iter().filter_map(of_space).collect();
    let mut screen = Screen::over(ctx, std::io::stdout().is_terminal(), only.is_none());
    screen.begin(&path);
    let skipped = before.len().saturating_sub(args.last);
    let mut readers = before.iter().skip(skipped).try_for_each(|said| screen.show(said));
    while readers.is_ok() {
        // There is more already behind a full stretch.
        let pause = if follow.is_behind() { Duration::ZERO } else { LOOK_EVERY };
        tokio::select! {
            _ = interrupted.recv() => break,
            _ = terminated.recv() => break,
            () = tokio::time::sleep(pause) => {}
        }
        let lines = follow.look().map_err(cannot)?;
        readers = lines.iter().filter_map(of_space).try_for_each(|said| screen.show(&said));
    }
    screen.end();
    Ok(())
}

/// The log of a space's service, which `up` keeps. One that a host or a unit started writes to another, and says so here.
fn log_of(ctx: &Context, space: &Space) -> Result<PathBuf, CliError> {
    let path = ctx.root.daemon_files("auth-service", Some(space)).log;
    let there = is_there(&path)?;
    let elsewhere = served_elsewhere(ctx, space).map(|pid| {
        format!(
            "space {:?} is served by pid {pid}, which a host or a unit started: it does not write to {}; follow its log \
             with --file <log> --space {}",
            space.as_str(),
            path.display(),
            shell_quote(space.as_str())
        )
    });
    match (there, elsewhere) {
        (true, elsewhere) => {
            if let Some(told) = elsewhere {
                ctx.note(told);
            }
            Ok(path)
        }
        (false, Some(told)) => Err(CliError::Failed(told)),
        (false, None) => Err(not_here(ctx, space, || {
            format!(
                "no auth service of space {:?} has written a log here, {}: start one with `cotal up --user-auth{}`, or name \
                 another log with --file",
                space.as_str(),
                path.display(),
                at(space)
            )
        })),
    }
}

/// Who serves a space that this root's `up` did not start.
fn served_elsewhere(ctx: &Context, space: &Space) -> Option<u32> {
    let ours = space_daemons::auth_service(ctx, space, Vec::new()).running();
    let state_dir = ctx.root.user_auth_state_dir(space).ok()?;
    let announced = Discovery::load(&state_dir).ok()??;
    let alive = loopback::is_alive(&state_dir, announced.pid) == Some(true);
    (matches!(ours, Ok(None)) && alive).then_some(announced.pid)
}

fn is_there(log: &Path) -> Result<bool, CliError> {
    log.try_exists().map_err(|e| CliError::failed(format!("{} cannot be looked for: {e}", log.display())))
}

/// Whoever read this went away.
struct NobodyReads;

/// Where the rows go: a table with a line of sums below it for a person, else a line each.
struct Screen<'a> {
    ctx: &'a Context,
    sums: Sums,
    table: Option<ProgressBar>,
    /// Each row names its space.
    spaces: bool,
    rows: usize,
}

/// What was seen since the command began.
#[derive(Default)]
struct Sums {
    minted: u64,
    denied: u64,
    timeout: u64,
    shed: u64,
    notes: u64,
    slowest: Duration,
}

impl<'a> Screen<'a> {
    fn over(ctx: &'a Context, terminal: bool, spaces: bool) -> Self {
        let table = (terminal && !ctx.json).then(|| {
            let table = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                table.set_style(style);
            }
            table
        });
        Self { ctx, sums: Sums::default(), table, spaces, rows: 0 }
    }

    fn begin(&self, path: &Path) {
        match &self.table {
            Some(table) => table.set_message(format!("watching {}; Ctrl-C ends", path.display())),
            None => self.ctx.note(format!("watching {}", path.display())),
        }
    }

    fn show(&mut self, said: &Said) -> Result<(), NobodyReads> {
        self.sums.add(said);
        let shown = match &self.table {
            Some(table) => {
                if self.rows.is_multiple_of(HEADING_EVERY) {
                    table.println(heading());
                }
                table.println(row(said, self.spaces));
                table.set_message(self.sums.to_string());
                Ok(())
            }
            None if self.ctx.json => self.ctx.say(document(said)),
            None => self.ctx.say(row(said, self.spaces)),
        };
        self.rows += 1;
        shown.map_err(|_| NobodyReads)
    }

    /// The sums stay on a person's screen.
    fn end(&self) {
        if let Some(table) = &self.table {
            table.abandon_with_message(self.sums.to_string());
        }
    }
}

impl Sums {
    fn add(&mut self, said: &Said) {
        match said {
            Said::Note { .. } => self.notes += 1,
            Said::Answered(answered) => {
                *match answered.outcome {
                    Outcome::Minted => &mut self.minted,
                    Outcome::Denied { .. } => &mut self.denied,
                    Outcome::Timeout { .. } => &mut self.timeout,
                    Outcome::Shed { .. } => &mut self.shed,
                } += 1;
                self.slowest = self.slowest.max(answered.total);
            }
        }
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} minted, {} denied, {} timed out, {} shed, {} notes; slowest {} ms",
            self.minted,
            self.denied,
            self.timeout,
            self.shed,
            self.notes,
            self.slowest.as_millis()
        )
    }
}

/// How wide the column of an actor is: an owner is 28.
const ACTOR: usize = 34;

fn heading() -> String {
    let steps = columns(|step| step.as_str().to_owned());
    format!("{:<8} {:>7}{steps} {:>8}  {:<ACTOR$} reason", "outcome", "total", "cid", "actor")
}

/// One column a step.
fn columns(of: impl Fn(Step) -> String) -> String {
    Step::ALL.map(|step| format!(" {:>6}", of(step))).concat()
}

fn row(said: &Said, spaces: bool) -> String {
    let answered = match said {
        Said::Answered(answered) => answered,
        Said::Note { space, what } => return format!("{:<8} space {space}: {what}", "note"),
    };
    let Answered { outcome, space, cid, principal, times, total, .. } = &**answered;
    let (outcome_name, steps) = (outcome.as_str(), columns(|step| times.of(step).as_millis().to_string()));
    let at = if spaces { format!("{space}:") } else { String::new() };
    let actor = match principal {
        Some((owner, actor)) => format!("{at}{owner}.{actor}"),
        None => format!("{at}-"),
    };
    format!("{outcome_name:<8} {:>7}{steps} {cid:>8}  {actor:<ACTOR$} {}", total.as_millis(), reason(outcome))
        .trim_end()
        .to_owned()
}

fn reason(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Minted => String::new(),
        Outcome::Denied { reason } => reason.clone(),
        Outcome::Timeout { at } => format!("not answered in time, at {}", at.as_str()),
        Outcome::Shed { waited, ahead } => {
            format!("{ahead} ahead, the oldest waited {} ms", waited.as_millis())
        }
    }
}

fn document(said: &Said) -> Value {
    let answered = match said {
        Said::Answered(answered) => answered,
        Said::Note { space, what } => return json!({ "space": space, "note": what }),
    };
    let Answered { warns, outcome, space, user, cid, principal, times, total } = &**answered;
    let steps: serde_json::Map<_, _> = Step::ALL
        .into_iter()
        .map(|step| (format!("{}Ms", step.as_str()), json!(millis(times.of(step)))))
        .collect();
    let mut document = json!({
        "space": space,
        "outcome": outcome.as_str(),
        "warns": warns,
        "req": user,
        "cid": cid,
        "steps": steps,
        "totalMs": millis(*total),
    });
    if let Some((owner, actor)) = principal {
        document["owner"] = json!(owner);
        document["actor"] = json!(actor);
    }
    match outcome {
        Outcome::Minted => {}
        Outcome::Denied { reason } => document["reason"] = reason.as_str().into(),
        Outcome::Timeout { at } => document["at"] = at.as_str().into(),
        Outcome::Shed { waited, ahead } => {
            document["waitedMs"] = millis(*waited).into();
            document["ahead"] = (*ahead).into();
        }
    }
    document
}

fn millis(spent: Duration) -> u64 {
    u64::try_from(spent.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "auth callout: level=info outcome=denied space=main \
                        req=UABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRSTUVW cid=42 \
                        owner=u_aaaaaaaaaaaaaaaaaaaaaaaaaa actor=cli queue_ms=0 verify_ms=1 ledger_ms=2 policy_ms=0 \
                        sign_ms=1 total_ms=4 reason=\"no\u{1b}[2J row\"";

    #[test]
    fn a_row_stands_under_its_heading_and_sends_no_escape() {
        let said = Said::parse(LINE).unwrap();
        assert_eq!(
            heading(),
            "outcome    total  queue verify ledger policy   sign      cid  actor                              reason"
        );
        assert_eq!(
            row(&said, false),
            "denied         4      0      1      2      0      1       42  u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli   no?[2J row"
        );
        assert!(row(&said, true).contains(" main:u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli no?[2J row"));
        let shed = "auth callout: level=warn space=main dropped: \u{7}";
        assert_eq!(row(&Said::parse(shed).unwrap(), false), "note     space main: dropped: ?");
    }

    #[test]
    fn a_document_names_outcome_reason_and_each_steps_time() {
        let document = document(&Said::parse(LINE).unwrap());
        assert_eq!(
            (&document["outcome"], &document["reason"], &document["steps"]["ledgerMs"]),
            (&json!("denied"), &json!("no?[2J row"), &json!(2))
        );
        assert_eq!((&document["actor"], &document["totalMs"]), (&json!("cli"), &json!(4)));
    }

    #[test]
    fn sums_count_each_outcome_and_keep_the_slowest() {
        let mut sums = Sums::default();
        sums.add(&Said::parse(LINE).unwrap());
        sums.add(&Said::parse("auth callout: level=warn space=main x").unwrap());
        assert_eq!(sums.to_string(), "0 minted, 1 denied, 0 timed out, 0 shed, 1 notes; slowest 4 ms");
    }
}
