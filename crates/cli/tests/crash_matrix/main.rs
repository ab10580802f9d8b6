//! The crash matrix: every barrier, saga and ceremony, killed between any two of its durable writes.
//!
//! The process under test is the real one (`cotal auth-service`, `cotal reconcile-gate`, `cotal deregister-instance`),
//! over a real broker and a real delivery daemon; what has no entry in the binary runs in a process of this test's own.
//! Each operation runs once uncut, which tells its n durable writes. Then it is run n times more, and the process is
//! killed with SIGKILL right after write 1, 2, … n; it is started again, the operation is asked for again, and what it
//! left must be the terminal state, with no key written more often than the contract allows over both runs.
//!
//! The failpoint is a feature of `cotal-authority` that only tests enable; a binary without it fails every row.
//! `COTAL_CRASH_MATRIX_ROWS=takeover,later` runs the rows whose names begin so.

mod acts;
mod caller;
mod child;
mod debts;
mod endpoint;
mod house;
mod journal;
mod managed_agents;
mod manager;
mod member;
mod minting;
mod plane;
mod runs;
mod service;

use std::{fmt, time::Instant};

use anyhow::Result;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};

/// Names the rows to run; all of them without it.
const ROWS: &str = "COTAL_CRASH_MATRIX_ROWS";
/// Rows that run at the same time, each in a space of its own.
const AT_ONCE: usize = 3;

/// What became of one operation.
struct Row {
    operation: &'static str,
    /// Durable writes of an uncut run.
    writes: usize,
    /// Processes killed, one after each of them.
    kills: usize,
    /// Operations that the next run ended.
    resumed: usize,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, writes, kills, resumed } = self;
        write!(f, "{operation:<48} | {writes:>6} | {kills:>5} | {resumed:>7}")
    }
}

type Running = BoxFuture<'static, Result<Row>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_is_ended_after_a_kill_between_any_two_of_its_writes() {
    let began = Instant::now();
    // The longest first.
    let rows: Vec<(&str, Running)> = vec![
        ("owing retirement", service::row(service::Retire::owing()).boxed()),
        ("first start", plane::first_start().boxed()),
        ("later start", plane::later_start().boxed()),
        ("release", plane::release().boxed()),
        ("interactive retirement", service::row(service::Retire::interactive()).boxed()),
        ("managed retirement", service::row(service::Retire::managed()).boxed()),
        ("exchange", service::row(service::Exchange).boxed()),
        ("exchange of a person", service::row(service::Login).boxed()),
        ("connect", service::connect_row().boxed()),
        ("caller", caller::row().boxed()),
        ("activate", service::row(service::Activate).boxed()),
        ("enrollment", service::row(managed_agents::Enroll).boxed()),
        ("preparation", service::row(managed_agents::Prepare).boxed()),
        ("manager activation", service::row(manager::Duties { renewed: false }).boxed()),
        ("manager renewal", service::row(manager::Duties { renewed: true }).boxed()),
        ("run admission", service::row(runs::Run::Admission).boxed()),
        ("run submission", service::row(runs::Run::Submission).boxed()),
        ("run cancellation", service::row(runs::Run::Cancel).boxed()),
        ("takeover", child::row(acts::Takeover).boxed()),
        ("handle revocation", child::row(acts::RevokeHandle).boxed()),
        ("deprovision", child::row(acts::Deprovision).boxed()),
        ("mint from a handle", child::row(minting::FromHandle).boxed()),
        ("serve mint", child::row(minting::Serve).boxed()),
        ("issue", child::row(minting::Issue).boxed()),
        ("reconcile, undone", endpoint::row(endpoint::Reconcile { committed: false }).boxed()),
        ("reconcile, completed", endpoint::row(endpoint::Reconcile { committed: true }).boxed()),
        ("deregister", endpoint::row(endpoint::Deregister).boxed()),
    ];
    let chosen = std::env::var(ROWS).ok();
    let chosen =
        |name: &str| chosen.as_deref().is_none_or(|rows| rows.split(',').any(|row| name.starts_with(row)));
    let ended: Vec<(usize, &str, Result<Row>)> = stream::iter(rows.into_iter().enumerate())
        .filter(|(_, (name, _))| std::future::ready(chosen(name)))
        .map(|(at, (name, row))| async move {
            let ended = tokio::spawn(row).await.unwrap_or_else(|panic| Err(panic.into()));
            (at, name, ended)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;

    let mut table =
        vec![format!("{:<48} | {:>6} | {:>5} | {:>7}", "operation", "writes", "kills", "resumed")];
    let mut failures = Vec::new();
    let mut ended = ended;
    ended.sort_by_key(|(at, ..)| *at);
    let mut total = Row { operation: "all", writes: 0, kills: 0, resumed: 0 };
    for (_, name, row) in ended {
        match row {
            Ok(row) => {
                total.writes += row.writes;
                total.kills += row.kills;
                total.resumed += row.resumed;
                table.push(row.to_string());
            }
            Err(error) => failures.push(format!("{name}: {error:#}")),
        }
    }
    table.push(total.to_string());
    eprintln!("{}\nin {} s", table.join("\n"), began.elapsed().as_secs());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
