//! A load generator of raw sockets: a client library would be the bottleneck.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::creds::Creds;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use crate::{figures::percentile, progress};

/// How long one connect may take before it counts as a timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What every connect presents.
pub(crate) struct Ticket {
    /// Static creds: the user itself, or the sentinel.
    pub(crate) creds: Creds,
    /// Bearers to present in turn; empty for a connect without callout.
    pub(crate) bearers: Vec<String>,
}

/// How one connect ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// PONG after this long.
    Connected(Duration),
    /// The broker said no.
    Refused,
    /// Nothing came.
    TimedOut,
}

/// What a closed loop measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) total: usize,
    pub(crate) per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) refused: usize,
}

/// Connects, before anything is counted.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    outcomes: Vec<Outcome>,
    lasted: Duration,
}

impl Offered {
    /// These and those are one load.
    pub(crate) fn join(&mut self, other: Self) {
        self.outcomes.extend(other.outcomes);
        self.lasted += other.lasted;
    }

    /// What came of it.
    pub(crate) fn measured(&self) -> Measured {
        summarise(&self.outcomes, self.lasted)
    }
}

impl Measured {
    /// Tells it as it comes.
    pub(crate) fn say(&self, what: &str) {
        let Self { total, per_s, p50_ms, p99_ms, refused } = self;
        progress(&format!(
            "{what}: {total} at {per_s:.0}/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, refused {refused}"
        ));
    }
}

/// Connects `total` times with `in_flight` at once.
pub(crate) async fn closed_loop(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    in_flight: usize,
    total: usize,
) -> Result<Measured> {
    Ok(closed_loop_until(addr, ticket, in_flight, move |turn| turn >= total).await?.measured())
}

/// Connects `total` times, one after another: a part of a load that goes on later.
pub(crate) async fn one_by_one(addr: SocketAddr, ticket: &Arc<Ticket>, total: usize) -> Result<Offered> {
    closed_loop_until(addr, ticket, 1, move |turn| turn >= total).await
}

/// Connects with `in_flight` at once for `lasting`.
pub(crate) async fn closed_loop_for(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    in_flight: usize,
    lasting: Duration,
) -> Result<Measured> {
    let until = Instant::now() + lasting;
    Ok(closed_loop_until(addr, ticket, in_flight, move |_| Instant::now() >= until).await?.measured())
}

/// Connects with `in_flight` at once until it is over before a turn.
async fn closed_loop_until(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    in_flight: usize,
    over: impl Fn(usize) -> bool + Copy + Send + 'static,
) -> Result<Offered> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (next, ticket) = (next.clone(), ticket.clone());
            tokio::spawn(async move {
                let mut outcomes = Vec::new();
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if over(turn) {
                        return outcomes;
                    }
                    outcomes.push(connect(addr, &ticket, turn).await);
                }
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for worker in workers {
        outcomes.extend(worker.await?);
    }
    Ok(Offered { outcomes, lasted: started.elapsed() })
}

/// Offers `per_s` connects a second for `lasting`, whatever comes back.
pub(crate) async fn open_loop(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    per_s: f64,
    lasting: Duration,
) -> Result<Offered> {
    let started = Instant::now();
    open_loop_while(addr, ticket, per_s, || started.elapsed() < lasting).await
}

/// Offers few connects a second for as long as `going`, whatever comes back, from a thread of its own: a connect that waits
/// for its turn behind other work of this process would be measured as one that takes long.
pub(crate) fn open_loop_apart(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    per_s: f64,
    going: impl Fn() -> bool + Send + 'static,
) -> JoinHandle<Result<Offered>> {
    let ticket = Arc::clone(ticket);
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(open_loop_while(addr, &ticket, per_s, going))
    })
}

/// Offers `per_s` connects a second for as long as `going`, whatever comes back.
async fn open_loop_while(
    addr: SocketAddr,
    ticket: &Arc<Ticket>,
    per_s: f64,
    going: impl Fn() -> bool,
) -> Result<Offered> {
    let started = Instant::now();
    let mut running = Vec::new();
    let mut sent = 0usize;
    while going() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of connects")]
        let due = (started.elapsed().as_secs_f64() * per_s) as usize;
        while sent < due {
            let ticket = ticket.clone();
            let turn = sent;
            running.push(tokio::spawn(async move { connect(addr, &ticket, turn).await }));
            sent += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lasted = started.elapsed();
    let mut outcomes = Vec::with_capacity(running.len());
    for task in running {
        outcomes.push(task.await?);
    }
    Ok(Offered { outcomes, lasted })
}

/// One connect, the `turn`-th of its run.
pub(crate) async fn connect(addr: SocketAddr, ticket: &Ticket, turn: usize) -> Outcome {
    let started = Instant::now();
    match tokio::time::timeout(CONNECT_TIMEOUT, handshake(addr, ticket, turn)).await {
        Err(_) => Outcome::TimedOut,
        Ok(Ok(true)) => Outcome::Connected(started.elapsed()),
        Ok(Ok(false) | Err(_)) => Outcome::Refused,
    }
}

async fn handshake(addr: SocketAddr, ticket: &Ticket, turn: usize) -> Result<bool> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.set_nodelay(true)?;
    // Reset on close: thousands of sockets in TIME_WAIT would measure the kernel.
    stream.set_zero_linger()?;
    let mut lines = Lines::default();
    let info = lines.next(&mut stream).await?;
    let info: serde_json::Value = serde_json::from_str(info.strip_prefix("INFO ").context("no INFO")?)?;
    let nonce = info["nonce"].as_str().context("no nonce")?;
    let mut options = serde_json::json!({
        "verbose": false, "pedantic": false, "lang": "raw", "version": "1", "protocol": 1, "headers": true,
        "no_responders": true,
        "jwt": ticket.creds.jwt,
        "sig": URL_SAFE_NO_PAD.encode(ticket.creds.seed.sign(nonce.as_bytes())),
        "name": format!("bench-{turn:08}"),
    });
    if !ticket.bearers.is_empty() {
        options["auth_token"] = ticket.bearers[turn % ticket.bearers.len()].clone().into();
    }
    stream.write_all(format!("CONNECT {options}\r\nPING\r\n").as_bytes()).await?;
    loop {
        let line = lines.next(&mut stream).await?;
        if line == "PONG" {
            return Ok(true);
        }
        if line.starts_with("-ERR") {
            return Ok(false);
        }
    }
}

#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
}

impl Lines {
    async fn next(&mut self, stream: &mut TcpStream) -> Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Ok(line);
            }
            if stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("closed");
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn summarise(outcomes: &[Outcome], elapsed: Duration) -> Measured {
    let mut latencies: Vec<f64> = outcomes
        .iter()
        .filter_map(|o| if let Outcome::Connected(d) = o { Some(d.as_secs_f64() * 1000.0) } else { None })
        .collect();
    latencies.sort_by(f64::total_cmp);
    Measured {
        total: outcomes.len(),
        per_s: latencies.len() as f64 / elapsed.as_secs_f64(),
        p50_ms: percentile(&latencies, 50),
        p99_ms: percentile(&latencies, 99),
        refused: outcomes.len() - latencies.len(),
    }
}
