//! Closing, in the contract's order, and again from where it failed (contract 05 §8.10).

use cotal_wire::EpError;
use futures::future::join_all;
use tokio::{sync::watch, task::JoinHandle};

use super::Plane;
use crate::{plane_claim::ClaimRefusal, scanner::ScannerConnection};

/// What of the plane is still to be closed. A part that closed is not closed again by a retry.
pub(super) struct Closing {
    /// The pruner, what runs owed operations again, what removes sessions that are over, and what notes which operations are.
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    rail: bool,
    ledger: Option<ScannerConnection>,
    records: Option<ScannerConnection>,
    reader: bool,
    released: bool,
    barrier: bool,
    writer: bool,
}

impl Closing {
    pub(super) fn new(
        tasks: Vec<JoinHandle<()>>,
        stop: watch::Sender<bool>,
        ledger: ScannerConnection,
        records: ScannerConnection,
    ) -> Self {
        Self {
            tasks,
            stop,
            rail: true,
            ledger: Some(ledger),
            records: Some(records),
            reader: true,
            released: false,
            barrier: true,
            writer: true,
        }
    }
}

impl Plane {
    /// Closes: refuse, await the barriers that run, stop the timers and await their flights, rail, reader and scanners,
    /// release the claim, then what wrote.
    ///
    /// A barrier is over before the claim is given back: what it found under this claim must not be used under another.
    /// It ends at its next step, which is refused from here on.
    ///
    /// A claim that cannot be released because the broker does not answer keeps the barrier and the writer open, and
    /// the close may be tried again; so may one in which a part failed, and it closes what is left.
    pub async fn close(&self) -> Result<(), EpError> {
        self.fence.begin_closing();
        let mut closing = self.closing.lock().await;
        self.hold.end_scans();
        closing.stop.send_replace(true);
        self.barriers.end().await;
        while let Some(task) = closing.tasks.last_mut() {
            // The pruner's own failures are the fence's; here it only has to be over.
            let _ = task.await;
            closing.tasks.pop();
        }
        self.close_readers(&mut closing).await?;
        let released = self.release(&mut closing).await;
        if let Err(refusal) = &released
            && ClaimRefusal::of(refusal) == Some(ClaimRefusal::ReleaseUnreachable)
        {
            return released;
        }
        released.and(self.close_writers(&mut closing).await)
    }

    /// What can enumerate, and what reads for connects: all of them are over before the claim is given back.
    async fn close_readers(&self, closing: &mut Closing) -> Result<(), EpError> {
        let mut result = Ok(());
        if closing.rail {
            match self.rail.close().await {
                Ok(()) => closing.rail = false,
                Err(refusal) => result = Err(refusal),
            }
        }
        if closing.reader {
            match self.reader.close().await {
                Ok(()) => closing.reader = false,
                Err(refusal) => result = result.and(Err(refusal)),
            }
        }
        let scanners = [&mut closing.records, &mut closing.ledger];
        let ended = join_all(scanners.into_iter().map(async |slot| match slot {
            Some(connection) => connection.close().await.map(|()| *slot = None),
            None => Ok(()),
        }))
        .await;
        ended.into_iter().fold(result, Result::and)
    }

    async fn release(&self, closing: &mut Closing) -> Result<(), EpError> {
        if closing.released {
            return Ok(());
        }
        let released = self.hold.release().await;
        // Only an unreachable broker is worth another try; a claim that was lost stays lost.
        closing.released = !matches!(
            &released,
            Err(refusal) if ClaimRefusal::of(refusal) == Some(ClaimRefusal::ReleaseUnreachable)
        );
        released
    }

    async fn close_writers(&self, closing: &mut Closing) -> Result<(), EpError> {
        let (barrier, writer) = futures::join!(
            async { if closing.barrier { self.barrier.close().await } else { Ok(()) } },
            async { if closing.writer { self.writer.close().await } else { Ok(()) } },
        );
        closing.barrier &= barrier.is_err();
        closing.writer &= writer.is_err();
        barrier.and(writer)
    }
}
