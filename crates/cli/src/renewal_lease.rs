//! The renewal lease of a space: key `renewal` of the manager bucket, held by the one process that re-signs the delivery
//! daemon's credentials (contract 01 §4.3, 08 §7.4 item 3).
//!
//! The bucket forgets a row that nobody renews for ten seconds. So a row that stands still belongs to a process that is
//! gone, and is waited out; one that moves belongs to a live owner, and refuses at once.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_broker::{
    Connection,
    kv::{Bucket, LeaderRead, WriteOutcome},
};
use cotal_wire::{Clock, EpError, Names, Revision, Space, UnixMillis, names::RENEWAL_KEY};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

/// How long a row lives that nobody renews (contract 08 §7.3).
const LEASE_TTL: Duration = Duration::from_secs(10);
/// For how much of that it is believed: a write that the lease protects must also end within it.
const BELIEVED: Duration = Duration::from_secs(8);
/// How often the holder renews it.
const RENEW_EVERY: Duration = Duration::from_millis(2_500);
/// How often a row of another holder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a row that stands still is waited out: its life, and room for a slow broker.
const WAIT_OUT: Duration = Duration::from_secs(12);
/// What kind of process holds it.
const RUNTIME: &str = "cotal";

/// The row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRow {
    /// The holder's principal.
    pub holder: String,
    /// What kind of process it is.
    pub runtime: String,
    /// Its workspace root.
    pub root: String,
    /// Its process id.
    pub pid: u32,
    /// Since when, in milliseconds.
    pub since: u64,
}

/// Why the lease was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    /// A live process has it.
    Held(LeaseRow),
    /// It could not be read or written.
    Unavailable(String),
}

/// The lease, held and renewed until it is released or dropped. Dropped, it lapses.
pub struct RenewalLease {
    bucket: Bucket,
    clock: Arc<dyn Clock>,
    state: watch::Receiver<State>,
    stop: watch::Sender<bool>,
    heart: JoinHandle<()>,
}

#[derive(Debug, Clone)]
enum State {
    Held(Revision, Confirmed),
    Lost(String),
}

/// When a renewal that landed was sent. Of the two clocks, one stands still while the machine sleeps and the other may be
/// set; the one that says more counts.
#[derive(Debug, Clone, Copy)]
struct Confirmed {
    at: Instant,
    wall: UnixMillis,
}

impl Confirmed {
    fn now(clock: &dyn Clock) -> Self {
        Self { at: Instant::now(), wall: clock.now_millis() }
    }

    fn age(self, now: Self) -> Duration {
        let slept = Duration::from_millis(now.wall.0.saturating_sub(self.wall.0));
        now.at.saturating_duration_since(self.at).max(slept)
    }
}

impl State {
    /// Whether it is held at this moment: a process that was stopped for longer than the row lives has heard of no loss.
    fn check(&self, now: Confirmed) -> Result<(), String> {
        match self {
            Self::Held(_, confirmed) if confirmed.age(now) < BELIEVED => Ok(()),
            Self::Held(_, confirmed) => {
                Err(format!("it was not renewed for {} s", confirmed.age(now).as_secs()))
            }
            Self::Lost(why) => Err(why.clone()),
        }
    }
}

impl RenewalLease {
    /// Takes it over this connection, for a holder of this root.
    pub async fn take(
        connection: &Connection,
        space: &Space,
        root: &str,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, NotTaken> {
        let bucket = Bucket::new(connection, &Names::new(&space.token()).manager_bucket());
        let row = LeaseRow {
            holder: format!("local.{}", connection.user_nkey()),
            runtime: RUNTIME.to_owned(),
            root: root.to_owned(),
            pid: std::process::id(),
            since: clock.now_millis().0,
        };
        let bytes =
            Bytes::from(serde_json::to_vec(&row).map_err(|error| NotTaken::Unavailable(error.to_string()))?);
        let began = Instant::now();
        let mut seen: Option<Revision> = None;
        let (revision, confirmed) = loop {
            let confirmed = Confirmed::now(&**clock);
            match bucket.create_over_marker(RENEWAL_KEY, bytes.clone()).await {
                WriteOutcome::Written(revision) => break (revision, confirmed),
                WriteOutcome::Lost => {}
                WriteOutcome::Refused(why) | WriteOutcome::Ambiguous(why) => {
                    return Err(NotTaken::Unavailable(why));
                }
            }
            match bucket.leader_read(RENEWAL_KEY).await {
                Ok(LeaderRead::Value(entry)) => {
                    let moved = seen.is_some_and(|seen| seen != entry.revision);
                    if moved || began.elapsed() >= WAIT_OUT {
                        return Err(held(&entry.value));
                    }
                    seen = Some(entry.revision);
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok(LeaderRead::Absent | LeaderRead::Marker(_)) => {}
                Err(refusal) => return Err(NotTaken::Unavailable(refusal.message)),
            }
        };
        let (state, observed) = watch::channel(State::Held(revision, confirmed));
        let (stop, stopped) = watch::channel(false);
        let heart = tokio::spawn(beat(bucket.clone(), bytes, Arc::clone(clock), state, stopped));
        Ok(Self { bucket, clock: Arc::clone(clock), state: observed, stop, heart })
    }

    /// Whether it is still held: to be asked before each write that it protects.
    pub fn check(&self) -> Result<(), EpError> {
        let held = self.state.borrow().check(Confirmed::now(&*self.clock));
        held.map_err(|why| {
            EpError::unavailable(format!("the renewal lease was lost ({why}): run the command again"))
        })
    }

    /// Lets go of it. One that cannot be removed lapses by itself.
    pub async fn release(self) {
        self.stop.send_replace(true);
        let _ = self.heart.await;
        let state = self.state.borrow().clone();
        if let State::Held(revision, _) = state {
            let _ = self.bucket.purge(RENEWAL_KEY, revision).await;
        }
    }
}

fn held(value: &[u8]) -> NotTaken {
    serde_json::from_slice(value).map_or_else(
        |_| {
            NotTaken::Unavailable(
                "its row does not read; it is gone by itself in ten seconds unless renewed".into(),
            )
        },
        NotTaken::Held,
    )
}

/// Renews the row until told to stop; a lost row is never written over.
async fn beat(
    bucket: Bucket,
    bytes: Bytes,
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(RENEW_EVERY) => {}
        }
        let State::Held(revision, confirmed) = state.borrow().clone() else { return };
        let sent = Confirmed::now(&*clock);
        match bucket.put_pinned(RENEWAL_KEY, bytes.clone(), revision).await {
            WriteOutcome::Written(revision) => {
                state.send_replace(State::Held(revision, sent));
            }
            WriteOutcome::Lost => {
                state.send_replace(State::Lost("another process has it".into()));
            }
            // It may have landed, and what landed is not known by its revision: only a read tells.
            WriteOutcome::Ambiguous(why) | WriteOutcome::Refused(why) => {
                match bucket.leader_read(RENEWAL_KEY).await {
                    Ok(LeaderRead::Value(entry)) if *entry.value == *bytes => {
                        // An earlier one may be what stands there: only this one's own answer moves the time.
                        state.send_replace(State::Held(
                            entry.revision,
                            if entry.revision == revision { confirmed } else { sent },
                        ));
                    }
                    Ok(_) => {
                        state.send_replace(State::Lost("another process has it".into()));
                    }
                    Err(_) if confirmed.age(sent) >= LEASE_TTL => {
                        state.send_replace(State::Lost(why));
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_believed_for_less_than_its_row_lives_by_whichever_clock_says_more() {
        let (at, wall) = (Instant::now(), UnixMillis(1_000_000));
        let held = State::Held(Revision(1), Confirmed { at, wall });
        let after = |ran: u64, wall_ms: u64| {
            held.check(Confirmed { at: at + Duration::from_millis(ran), wall: UnixMillis(wall_ms) })
        };
        assert_eq!(after(0, 1_000_000), Ok(()));
        assert_eq!(after(7_999, 1_007_999), Ok(()));
        assert_eq!(after(7_999, 0), Ok(()), "a wall clock that was set back says nothing");
        for (ran, wall) in [(8_000, 1_000_000), (8_000, 0), (10, 1_008_000), (60_000, 1_060_000)] {
            assert!(after(ran, wall).unwrap_err().contains("not renewed"), "{ran} {wall}");
        }
        let lost = State::Lost("another process has it".into());
        assert!(lost.check(Confirmed { at, wall }).is_err());
    }
}
