//! What Linux says of a process.

use std::time::Duration;

use anyhow::{Context, Result};

/// Resident memory in KiB.
pub(crate) fn rss_kib(pid: u32) -> Result<u64> {
    status(pid, "VmRSS:")
}

pub(crate) fn threads(pid: u32) -> Result<u64> {
    status(pid, "Threads:")
}

fn status(pid: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let figure = status.lines().find_map(|line| line.strip_prefix(name));
    let figure = figure.and_then(|figure| figure.split_whitespace().next());
    Ok(figure.with_context(|| format!("no {name} of process {pid}"))?.parse()?)
}

/// How many files a process has open, and how many it may.
pub(crate) fn open_files(pid: u32) -> Result<(usize, usize)> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).context("no limit of open files")?;
    Ok((open, soft.parse().unwrap_or(usize::MAX)))
}

/// Processor time that a process has taken so far.
pub(crate) fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("no command in the stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // utime and stime are fields 14 and 15; the state, field 3, is the first here.
    let ticks: u64 = fields.get(11).context("no utime")?.parse::<u64>()?
        + fields.get(12).context("no stime")?.parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Whether a process runs; one that nobody has waited for does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
