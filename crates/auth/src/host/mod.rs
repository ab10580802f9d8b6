//! Many spaces in one process, a lane each (contract 08 §5, 10 §6).
//!
//! [`manifest`] says which spaces there are, [`watch`] follows it on disk, [`lanes`] opens and closes what has changed,
//! and [`lane`] is all that they know of a lane. [`full`] is the lane that is a whole service,
//! [`callout`] the one that is a replica.

pub(crate) mod callout;
pub(crate) mod full;
mod json;
pub(crate) mod lane;
mod lanes;
pub(crate) mod manifest;
pub(crate) mod watch;

use std::{convert::Infallible, future::Future, path::PathBuf, pin::pin, sync::Arc};

use tokio::time::Instant;

use self::{
    lane::OpenLane,
    lanes::{Lanes, RETRY_AFTER},
    manifest::ManifestError,
    watch::{Applied, BACKSTOP, Reading, Reread, Sole, Watched},
};
use crate::{
    daemon::{DaemonError, unless_told},
    files,
};

/// A host, apart from how it opens a lane.
pub(crate) struct Host<E> {
    /// The manifest's file.
    pub(crate) manifest: PathBuf,
    /// Reads it.
    pub(crate) parse: fn(&str) -> Result<Vec<E>, ManifestError>,
    /// What the ready line says the spaces are on.
    pub(crate) servers: String,
    /// Where that line goes.
    pub(crate) announce: Arc<dyn Fn(&str) + Send + Sync>,
}

impl<E: Clone + Eq + Send + Sync + 'static> Host<E> {
    /// Serves what the manifest names until `shutdown` resolves, then closes every lane. Only a first manifest that
    /// cannot be adopted, or that another host follows, ends it by itself: a lane that fails is retried, and the others serve.
    pub(crate) async fn run<O: OpenLane<Entry = E>>(
        self,
        opener: O,
        reread: Reread,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), DaemonError> {
        let mut shutdown = pin!(shutdown);
        let Some(first) = unless_told(shutdown.as_mut(), self.first(reread)).await else { return Ok(()) };
        let First { mut watched, entries, mut adopted, _sole } = first?;
        let mut lanes = Lanes::new(opener);
        lanes.want(entries);
        lanes.act();
        // Whatever the host does with the manifest's disk, it hears that it is to stop.
        tokio::select! {
            never = self.follow(&mut watched, &mut lanes, &mut adopted) => match never {},
            () = shutdown.as_mut() => {}
        }
        let unclosed = lanes.stop().await;
        if unclosed.is_empty() { Ok(()) } else { Err(DaemonError(unclosed.join("; "))) }
    }

    /// Reads the manifest a first time, and takes it for this host alone.
    async fn first(&self, reread: Reread) -> Result<First<E>, DaemonError> {
        let mut watched = Watched::start(self.manifest.clone(), reread).await;
        let (text, entries) = self.read(watched.reading()).map_err(DaemonError)?;
        files::make_room(entries.len()).map_err(DaemonError)?;
        let sole = Sole::follower_of(&self.manifest).await.map_err(DaemonError)?;
        let adopted = Adopted::first(Applied::beside(&self.manifest), text).await?;
        Ok(First { watched, entries, adopted, _sole: sole })
    }

    /// Keeps the lanes as the manifest says.
    async fn follow<O: OpenLane<Entry = E>>(
        &self,
        watched: &mut Watched,
        lanes: &mut Lanes<O>,
        adopted: &mut Adopted,
    ) -> Infallible {
        let mut announced = false;
        loop {
            adopted.acknowledge(lanes).await;
            if !announced && lanes.are_settled() {
                announced = true;
                (self.announce)(&format!("auth-service: {} on {}", lanes.standing(), self.servers));
            }
            tokio::select! {
                () = lanes.next() => {}
                () = watched.changed() => self.adopt(watched.reading(), lanes, adopted).await,
                () = adopted.retry() => {}
                () = adopted.look_due() => adopted.look().await,
            }
            lanes.act();
        }
    }

    /// The entries of a reading, or one sentence that names the file.
    fn read(&self, reading: Reading) -> Result<(Arc<str>, Vec<E>), String> {
        let text = reading?;
        match (self.parse)(&text) {
            Ok(entries) => Ok((text, entries)),
            Err(error) => Err(format!("{}: {error}", self.manifest.display())),
        }
    }

    /// Takes a manifest over whole, or changes nothing.
    async fn adopt<O: OpenLane<Entry = E>>(
        &self,
        reading: Reading,
        lanes: &mut Lanes<O>,
        adopted: &mut Adopted,
    ) {
        let (text, entries) = match self.read(reading) {
            Ok(read) => read,
            Err(why) => {
                tracing::error!("the manifest is not adopted, and the lanes stay as they are: {why}");
                return;
            }
        };
        if *text == *adopted.text {
            return;
        }
        let named = entries.len();
        // Not refused: what was taken out of the manifest must leave, whether or not there is room for what came.
        if let Err(why) = files::make_room(named) {
            tracing::error!("not every lane may find room: {why}");
        }
        lanes.want(entries);
        // Before a lane opens of it: an older acknowledgment must not stand for lanes that it does not know.
        adopted.replace(text, lanes).await;
        tracing::info!("the manifest is adopted; it names {named} spaces");
    }
}

/// What a host has before its first lane.
struct First<E> {
    watched: Watched,
    entries: Vec<E>,
    adopted: Adopted,
    _sole: Sole,
}

/// The manifest that the lanes follow, and whether the file beside it says so.
struct Adopted {
    applied: Applied,
    text: Arc<str>,
    acknowledged: bool,
    /// The last write of the acknowledgment failed, and is tried again then.
    retry: Option<Instant>,
    /// When it is looked at again.
    look: Instant,
}

impl Adopted {
    /// The manifest of a start, which has no lane to wait for. Where it cannot be acknowledged, nobody could ever tell
    /// when a space that was taken out is served no more, so the start refuses.
    async fn first(applied: Applied, text: Arc<str>) -> Result<Self, DaemonError> {
        applied.write(Arc::clone(&text)).await.map_err(|error| {
            DaemonError(format!(
                "the manifest cannot be acknowledged: {error}; put it into a directory that this user can write to"
            ))
        })?;
        Ok(Self { applied, text, acknowledged: true, retry: None, look: Instant::now() + BACKSTOP })
    }

    async fn replace<O: OpenLane>(&mut self, text: Arc<str>, lanes: &Lanes<O>) {
        self.text = text;
        self.acknowledged = false;
        self.retry = None;
        if lanes.hold_nothing_else() {
            self.acknowledge(lanes).await;
        } else if let Err(error) = self.applied.withdraw().await {
            tracing::error!("the acknowledgment of the manifest before this one cannot be removed: {error}");
        }
    }

    /// Writes the acknowledgment once the lanes are as the manifest says.
    async fn acknowledge<O: OpenLane>(&mut self, lanes: &Lanes<O>) {
        let is_due = self.retry.is_none_or(|retry| retry <= Instant::now());
        if self.acknowledged || !is_due || !lanes.hold_nothing_else() {
            return;
        }
        match self.applied.write(Arc::clone(&self.text)).await {
            Ok(()) => {
                self.acknowledged = true;
                self.retry = None;
            }
            Err(error) => {
                let again = RETRY_AFTER.as_secs();
                tracing::error!("the manifest cannot be acknowledged: {error}; tried again in {again} s");
                self.retry = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }

    /// Resolves when the acknowledgment is to be looked at. Cancel safe.
    async fn look_due(&self) {
        tokio::time::sleep_until(self.look).await;
    }

    /// What somebody else removed or wrote over is not there to be waited for: it is written again.
    async fn look(&mut self) {
        self.look = Instant::now() + BACKSTOP;
        if self.acknowledged && !self.applied.says(&self.text).await {
            tracing::warn!("the manifest's acknowledgment was removed or changed; it is written again");
            self.acknowledged = false;
        }
    }

    /// Resolves when a failed write is to be tried again. Cancel safe.
    async fn retry(&self) {
        match self.retry {
            Some(retry) => tokio::time::sleep_until(retry).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use async_trait::async_trait;
    use cotal_testkit::hung_disk::HungDisk;
    use cotal_wire::Space;
    use futures::{StreamExt as _, stream};

    use super::{
        lane::{Lane, LaneRefusal, Threshold},
        *,
    };

    struct NoLanes;

    #[async_trait]
    impl OpenLane for NoLanes {
        type Entry = Space;

        fn space<'e>(&self, entry: &'e Space) -> &'e Space {
            entry
        }

        async fn open(&self, _: &Space, _: &Threshold) -> Result<Box<dyn Lane>, LaneRefusal> {
            Err(LaneRefusal::of("there are none"))
        }
    }

    thread_local! {
        static DISK: RefCell<Option<HungDisk>> = const { RefCell::new(None) };
    }

    /// Reads no space, and the disk hangs from the second manifest on.
    #[allow(clippy::unnecessary_wraps, reason = "the shape of a parser")]
    fn reads_the_second_last(text: &str) -> Result<Vec<Space>, ManifestError> {
        if text == "second" {
            DISK.set(Some(HungDisk::hang()));
        }
        Ok(Vec::new())
    }

    #[test]
    fn a_host_whose_manifests_disk_hangs_is_stopped_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("spaces.json");
        std::fs::write(&manifest, "first").unwrap();
        HungDisk::runtime().unwrap().block_on(async {
            let host = Host {
                manifest: manifest.clone(),
                parse: reads_the_second_last,
                servers: "nowhere".to_owned(),
                announce: Arc::new(|_| ()),
            };
            // It is told once it must write what it has adopted.
            let told = async {
                tokio::fs::write(&manifest, "second").await.unwrap();
                while DISK.with_borrow(Option::is_none) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let running = host.run(NoLanes, stream::pending().boxed(), told);
            tokio::time::timeout(Duration::from_secs(60), running).await.expect("it is heard").unwrap();
            DISK.take().unwrap().heal().await;
        });
    }

    #[tokio::test]
    async fn an_acknowledgment_that_somebody_removed_or_changed_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("spaces.json");
        let applied = Applied::beside(&manifest);
        let mut adopted = Adopted::first(applied.clone(), Arc::from("{}")).await.unwrap();
        adopted.look().await;
        assert!(adopted.acknowledged, "it stands");
        applied.withdraw().await.unwrap();
        adopted.look().await;
        assert!(!adopted.acknowledged, "it is owed again");
        applied.write(Arc::from("{ }")).await.unwrap();
        adopted.acknowledged = true;
        adopted.look().await;
        assert!(!adopted.acknowledged, "another text is no acknowledgment of this one");
    }
}
