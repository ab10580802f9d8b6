//! Who sits at the faces: so many connections at one, so many at all of them together (contract 05 §2.1).
//!
//! A descriptor that a silent client holds is one that a broker connection or a ledger read may need: what is full takes
//! its room from the oldest guest without a request in progress.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::files;

/// How often a failed accept is told, whichever face it was.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// One open connection, as the accept loops know it.
#[derive(Default)]
pub(super) struct Guest {
    /// It has a request in progress.
    pub(super) busy: AtomicBool,
    /// Tells it to leave.
    pub(super) cut: Notify,
    leaving: AtomicBool,
}

/// Guests by the order in which they came.
#[derive(Default)]
pub(super) struct Row(Mutex<BTreeMap<u64, Arc<Guest>>>);

impl Row {
    fn is_full(&self, most: usize) -> bool {
        self.0.lock().len() >= most
    }

    /// Cuts the oldest guest without a request in progress; `false` when there is none.
    fn make_room(&self) -> bool {
        let mut guests = self.0.lock();
        let idle = |guest: &Guest| {
            !guest.busy.load(Ordering::Acquire) && !guest.leaving.swap(true, Ordering::AcqRel)
        };
        let Some(oldest) = guests.iter().find_map(|(came, guest)| idle(guest).then_some(*came)) else {
            return false;
        };
        if let Some(guest) = guests.remove(&oldest) {
            guest.cut.notify_one();
        }
        true
    }
}

/// The seats that several faces share.
pub(crate) struct Seats {
    /// How many there are, by the lanes that are open.
    most: Box<dyn Fn(u64) -> u64 + Send + Sync>,
    lanes: AtomicU64,
    came: AtomicU64,
    all: Arc<Row>,
    told: Mutex<Told>,
}

/// What is known of failed accepts.
#[derive(Default)]
struct Told {
    last: Option<Instant>,
    since: u64,
}

impl Seats {
    /// Those of the process, whose limit of open files is one for every context in it.
    pub(crate) fn of_process() -> Arc<Self> {
        static SEATS: LazyLock<Arc<Seats>> = LazyLock::new(|| Arc::new(Seats::bound_by(files::for_faces)));
        Arc::clone(&SEATS)
    }

    /// As many as this says, of the number of open lanes.
    pub(crate) fn bound_by(most: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        Self {
            most: Box::new(most),
            lanes: AtomicU64::new(0),
            came: AtomicU64::new(0),
            all: Arc::default(),
            told: Mutex::default(),
        }
    }

    /// Counts a lane, whose own connections no guest may crowd out, until the answer is dropped.
    pub(super) fn lane(self: &Arc<Self>) -> OpenLane {
        self.lanes.fetch_add(1, Ordering::AcqRel);
        OpenLane(Arc::clone(self))
    }

    /// A seat in a face's row of at most `most`, for which an idle guest may have to leave; `None` when all are busy.
    pub(super) fn take(&self, row: &Arc<Row>, most: usize) -> Option<Seat> {
        if row.is_full(most) && !row.make_room() {
            return None;
        }
        let of_all = usize::try_from((self.most)(self.lanes.load(Ordering::Acquire))).unwrap_or(usize::MAX);
        if self.all.is_full(of_all) && !self.all.make_room() {
            return None;
        }
        let guest = Arc::new(Guest::default());
        let came = self.came.fetch_add(1, Ordering::Relaxed);
        let rows = [Arc::clone(row), Arc::clone(&self.all)];
        for row in &rows {
            row.0.lock().insert(came, Arc::clone(&guest));
        }
        Some(Seat { guest, came, rows })
    }

    /// For a process that is out of files already: the oldest idle guest of any face leaves.
    pub(super) fn make_room(&self) -> bool {
        self.all.make_room()
    }

    /// How many accepts have failed since it was last told, when it is time to tell it again.
    pub(super) fn failed(&self) -> Option<u64> {
        let mut told = self.told.lock();
        told.since += 1;
        if told.last.is_some_and(|last| last.elapsed() < SAID_EVERY) {
            return None;
        }
        told.last = Some(Instant::now());
        Some(std::mem::take(&mut told.since))
    }
}

/// A lane that is open.
pub(super) struct OpenLane(Arc<Seats>);

impl Drop for OpenLane {
    fn drop(&mut self) {
        self.0.lanes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A guest's place, free again when dropped.
pub(super) struct Seat {
    pub(super) guest: Arc<Guest>,
    came: u64,
    rows: [Arc<Row>; 2],
}

impl Drop for Seat {
    fn drop(&mut self) {
        for row in &self.rows {
            row.0.lock().remove(&self.came);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_accepts_are_told_once_in_an_interval_with_their_number() {
        let seats = Seats::bound_by(|_| 1);
        assert_eq!(seats.failed(), Some(1));
        assert_eq!((seats.failed(), seats.failed()), (None, None));
        tokio::time::advance(SAID_EVERY).await;
        assert_eq!(seats.failed(), Some(3));
    }

    #[test]
    fn a_full_room_takes_from_whichever_face_has_the_oldest_idle_guest() {
        let seats = Arc::new(Seats::bound_by(|lanes| 4 - lanes));
        let (one, two) = (Arc::new(Row::default()), Arc::new(Row::default()));
        let busy = seats.take(&one, 9).unwrap();
        busy.guest.busy.store(true, Ordering::Release);
        let mut held: Vec<_> = (0..3).map(|_| seats.take(&one, 9).unwrap()).collect();
        held.push(seats.take(&two, 9).unwrap());
        let leaving = |seat: &Seat| seat.guest.leaving.load(Ordering::Acquire);
        assert_eq!(held.iter().map(leaving).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(!leaving(&busy));
        drop(held);
        let lane = seats.lane();
        let two_busy: Vec<_> = (0..2).map(|_| seats.take(&two, 9).unwrap()).collect();
        for seat in &two_busy {
            seat.guest.busy.store(true, Ordering::Release);
        }
        assert!(seats.take(&two, 9).is_none(), "the lane's own connections count, and nobody is idle");
        drop(lane);
        assert!(seats.take(&two, 9).is_some());
    }
}
