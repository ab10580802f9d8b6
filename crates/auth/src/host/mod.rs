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

use std::{future::Future, path::PathBuf, pin::pin, sync::Arc};

use tokio::time::Instant;

use self::{
    lane::OpenLane,
    lanes::{Lanes, RETRY_AFTER},
    manifest::ManifestError,
    watch::{Applied, BACKSTOP, Reading, Reread, Sole, Watched},
};
use crate::{daemon::DaemonError, files};

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
        let mut watched = Watched::start(self.manifest.clone(), reread).await;
        let (text, entries) = self.read(watched.reading()).map_err(DaemonError)?;
        files::make_room(entries.len()).map_err(DaemonError)?;
        let _sole = Sole::follower_of(&self.manifest).await.map_err(DaemonError)?;
        let mut adopted = Adopted::first(Applied::beside(&self.manifest), text).await?;
        let mut lanes = Lanes::new(opener);
        lanes.want(entries);
        lanes.act();
        let mut announced = false;
        loop {
            adopted.acknowledge(&lanes).await;
            if !announced && lanes.are_settled() {
                announced = true;
                (self.announce)(&format!("auth-service: {} on {}", lanes.standing(), self.servers));
            }
            tokio::select! {
                () = lanes.next() => {}
                () = watched.changed() => self.adopt(watched.reading(), &mut lanes, &mut adopted).await,
                () = adopted.retry() => {}
                () = adopted.look_due() => adopted.look().await,
                () = shutdown.as_mut() => break,
            }
            lanes.act();
        }
        let unclosed = lanes.stop().await;
        if unclosed.is_empty() { Ok(()) } else { Err(DaemonError(unclosed.join("; "))) }
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
    use super::*;

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
