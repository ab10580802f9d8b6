//! A steady load of connects: alone, and beside something else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;

use crate::{
    door::Door,
    loadgen::{Offered, Ticket, open_loop, open_loop_while},
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
        let alone = open_loop(self.addr, &self.ticket, PER_S, lasting).await?;
        alone.measured().say("connects alone");
        Ok(alone)
    }

    /// The load for as long as `work` takes, and what came of that.
    pub(crate) async fn beside<T>(&self, work: impl Future<Output = Result<T>>) -> Result<(T, Offered)> {
        let going = Arc::new(AtomicBool::new(true));
        let load = tokio::spawn({
            let (addr, ticket, going) = (self.addr, self.ticket.clone(), going.clone());
            async move { open_loop_while(addr, &ticket, PER_S, || going.load(Ordering::Relaxed)).await }
        });
        let done = work.await;
        going.store(false, Ordering::Relaxed);
        let during = load.await??;
        let done = done?;
        during.measured().say("connects meanwhile");
        Ok((done, during))
    }
}
