//! A steady load of connects: alone, and beside something else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::task::JoinHandle;

use crate::{
    door::Door,
    loadgen::{Offered, Ticket, open_loop_apart},
    population::Population,
    stack::Stack,
};

const PER_S: f64 = 25.0;
/// Actors that make it.
const CONNECTING: usize = 120;

/// Who makes it, and where.
pub(crate) struct Steady {
    addr: SocketAddr,
    ticket: Arc<Ticket>,
}

impl Steady {
    /// Grants those who connect.
    pub(crate) async fn of(stack: &Stack, door: &Door) -> Result<Self> {
        let connecting = Population::grant(&stack.ground, door, "connecting", CONNECTING).await?;
        let ticket = Arc::new(Ticket {
            creds: cotal_trust::creds::parse(&stack.running.sentinel)?,
            bearers: connecting.bearers(&stack.ground)?,
        });
        Ok(Self { addr: stack.running.server.trim_start_matches("nats://").parse()?, ticket })
    }

    /// The load alone, for so long.
    pub(crate) async fn alone(&self, lasting: Duration) -> Result<Offered> {
        let started = Instant::now();
        let alone = self.offer(move || started.elapsed() < lasting).await??;
        alone.measured().say("connects alone");
        Ok(alone)
    }

    /// The load for as long as `work` takes, and what came of that.
    pub(crate) async fn beside<T>(&self, work: impl Future<Output = Result<T>>) -> Result<(T, Offered)> {
        let going = Arc::new(AtomicBool::new(true));
        let load = self.offer({
            let going = Arc::clone(&going);
            move || going.load(Ordering::Relaxed)
        });
        let done = work.await;
        going.store(false, Ordering::Relaxed);
        let during = load.await??;
        let done = done?;
        during.measured().say("connects meanwhile");
        Ok((done, during))
    }

    fn offer(&self, going: impl Fn() -> bool + Send + 'static) -> JoinHandle<Result<Offered>> {
        open_loop_apart(self.addr, &self.ticket, PER_S, going)
    }
}
