//! A storm of connects from a process of its own, which gives way to everything that is measured: real clients storm
//! from machines of their own.

use std::{io::Read, net::SocketAddr, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use cotal_trust::{creds::Creds, nkey::Seed};
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::STORM_WIDTH;
use crate::loadgen::{Measured, Ticket, closed_loop_for};

/// How far the storm gives way: as far as there is.
const NICE: i32 = 19;

#[derive(Serialize, Deserialize)]
struct Order {
    addr: SocketAddr,
    jwt: String,
    seed: String,
    bearers: Vec<String>,
    millis: u64,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stormed {
    pub(super) per_s: f64,
    pub(super) refused: usize,
}

/// Storms for this long, with [`STORM_WIDTH`] connects in flight.
pub(super) async fn run(addr: SocketAddr, ticket: &Arc<Ticket>, lasting: Duration) -> Result<Stormed> {
    let order = Order {
        addr,
        jwt: ticket.creds.jwt.clone(),
        seed: ticket.creds.seed.expose().to_string(),
        bearers: ticket.bearers.clone(),
        millis: u64::try_from(lasting.as_millis())?,
    };
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .arg("storm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(&serde_json::to_vec(&order)?).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "the storm ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What the process does first, while it has one thread.
pub(crate) fn give_way() -> Result<()> {
    Ok(setpriority_process(None, NICE)?)
}

/// The process: its order on standard input, what came of it on standard output.
pub(crate) async fn serve() -> Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let order: Order = serde_json::from_str(&text)?;
    let ticket = Arc::new(Ticket {
        creds: Creds { jwt: order.jwt, seed: Seed::parse(&order.seed)? },
        bearers: order.bearers,
    });
    let lasting = Duration::from_millis(order.millis);
    let Measured { per_s, refused, .. } = closed_loop_for(order.addr, &ticket, STORM_WIDTH, lasting).await?;
    println!("{}", serde_json::to_string(&Stormed { per_s, refused })?);
    Ok(())
}
