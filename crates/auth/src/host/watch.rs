//! Watches a manifest on disk: it is read again when it has changed, when the host is told to, and by the backstop
//! (contract 10 §6.2, 12 D11).

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cotal_workspace::{file, lock_file::LockFile};
use futures::{StreamExt as _, stream::BoxStream};
use tokio::{sync::watch, time::MissedTickBehavior};

/// How often the file is looked at. A look is one `lstat`, which unlike a notification also works where the file lies
/// on a network or comes through a mount. A symlink has no look of what it points to, and the read refuses one.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After this long it is read whether it seems changed or not (contract 12 D11).
pub(super) const BACKSTOP: Duration = Duration::from_secs(30);

/// The manifest's text, or why it cannot be read.
pub(super) type Reading = Result<Arc<str>, String>;

/// What tells the host to read its manifest now: SIGHUP, for a process.
pub(crate) type Reread = BoxStream<'static, ()>;

/// A file that is being watched, as it was read last.
pub(super) struct Watched {
    readings: watch::Receiver<Reading>,
}

/// What a file was when it was looked at: a rename over it, a write into it and a touch all show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Watched {
    /// Reads it a first time, and watches it from then on.
    pub(super) async fn start(path: PathBuf, reread: Reread) -> Self {
        let (look, first) = look_and_read(path.clone()).await;
        let (told, readings) = watch::channel(first);
        tokio::spawn(follow(path, look, reread, told));
        Self { readings }
    }

    /// The last reading.
    pub(super) fn reading(&mut self) -> Reading {
        self.readings.borrow_and_update().clone()
    }

    /// Resolves when there is another one. Of several in a row only the last is one. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.readings.changed().await.is_err() {
            // The watching task ends only with its receiver.
            std::future::pending::<()>().await;
        }
    }
}

/// Runs until nobody listens any more.
async fn follow(path: PathBuf, mut seen: Option<Look>, mut reread: Reread, told: watch::Sender<Reading>) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let mut backstop = tokio::time::interval(BACKSTOP);
    for interval in [&mut looks, &mut backstop] {
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.reset();
    }
    let mut told_to = true;
    loop {
        tokio::select! {
            () = told.closed() => return,
            _ = looks.tick() => {
                let path = path.clone();
                if file::blocking(move || look_at(&path)).await.is_ok_and(|look| look == seen) {
                    continue;
                }
            }
            _ = backstop.tick() => {}
            asked = reread.next(), if told_to => {
                told_to = asked.is_some();
                if !told_to {
                    continue;
                }
            }
        }
        let (look, reading) = look_and_read(path.clone()).await;
        seen = look;
        told.send_if_modified(|last| {
            let modified = *last != reading;
            *last = reading;
            modified
        });
    }
}

/// The look comes first: what changes after it shows at the next one.
async fn look_and_read(path: PathBuf) -> (Option<Look>, Reading) {
    let read = file::blocking(move || (look_at(&path), read(&path))).await;
    read.unwrap_or_else(|error| (None, Err(format!("the manifest was not read to its end: {error}"))))
}

fn look_at(path: &Path) -> Option<Look> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some(Look {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn read(path: &Path) -> Reading {
    match file::read_text(path) {
        Ok(Some(text)) => Ok(Arc::from(text.as_str())),
        Ok(None) => Err(format!("{} does not exist", path.display())),
        Err(error) => Err(error.to_string()),
    }
}

/// The acknowledgment beside a manifest, `<manifest>.applied` (contract 10 §6.3, 12 D10).
#[derive(Debug, Clone)]
pub(super) struct Applied(PathBuf);

/// What is appended to the manifest's name for it.
const APPLIED_SUFFIX: &str = ".applied";
/// And for the lock of the one host that follows the manifest.
const LOCK_SUFFIX: &str = ".lock";

fn beside(manifest: &Path, suffix: &str) -> PathBuf {
    let mut name = manifest.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Held by the one host that follows a manifest: an acknowledgment says what one host did, and of two that write the same
/// file neither would speak for the other. The kernel lets go of it when the process ends, however it ends.
pub(super) struct Sole {
    _lock: LockFile,
}

impl Sole {
    pub(super) async fn follower_of(manifest: &Path) -> Result<Self, String> {
        let path = beside(manifest, LOCK_SUFFIX);
        let tried = path.clone();
        match file::blocking(move || LockFile::take(&tried)).await.flatten() {
            Ok(Some(lock)) => Ok(Self { _lock: lock }),
            Ok(None) => Err(format!(
                "another host already follows {}; give each host a copy of its own of the manifest, because \
                 <manifest>{APPLIED_SUFFIX} can speak for one alone",
                manifest.display()
            )),
            Err(error) => Err(format!(
                "the manifest's lock {} cannot be taken: {error}; put the manifest into a directory that this user can \
                 write to",
                path.display()
            )),
        }
    }
}

impl Applied {
    pub(super) fn beside(manifest: &Path) -> Self {
        Self(beside(manifest, APPLIED_SUFFIX))
    }

    /// Says that the lanes are as this text says.
    pub(super) async fn write(&self, text: Arc<str>) -> io::Result<()> {
        let path = self.0.clone();
        file::blocking(move || file::write_atomic_readable(&path, text.as_bytes())).await?
    }

    /// Whether it says this. A file that cannot be read says nothing.
    pub(super) async fn says(&self, text: &Arc<str>) -> bool {
        let (path, text) = (self.0.clone(), Arc::clone(text));
        let says = move || matches!(file::read_text(&path), Ok(Some(said)) if said.as_str() == &*text);
        file::blocking(says).await.unwrap_or(true)
    }

    /// Says nothing any more.
    pub(super) async fn withdraw(&self) -> io::Result<()> {
        let path = self.0.clone();
        file::blocking(move || file::remove_if_present(&path).map(drop)).await?
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// As where a file system's clock is too coarse to tell a change from what was there before it.
    #[tokio::test(start_paused = true)]
    async fn a_change_that_no_look_shows_is_read_by_the_backstop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spaces.json");
        std::fs::write(&path, "before").unwrap();
        let (_, first) = look_and_read(path.clone()).await;
        std::fs::write(&path, "after!").unwrap();
        let (told, readings) = watch::channel(first);
        let began = Instant::now();
        tokio::spawn(follow(path.clone(), look_at(&path), stream::pending().boxed(), told));
        let mut watched = Watched { readings };
        assert_eq!(watched.reading().as_deref(), Ok("before"));
        timeout(10 * BACKSTOP, watched.changed()).await.expect("it is read whether it seems changed or not");
        assert_eq!(watched.reading().as_deref(), Ok("after!"));
        let took = began.elapsed();
        assert!((BACKSTOP..BACKSTOP + LOOK_EVERY).contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn an_acknowledgment_that_is_gone_or_another_one_says_nothing_of_this_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let applied = Applied::beside(&dir.path().join("spaces.json"));
        let text: Arc<str> = Arc::from("{}");
        assert!(!applied.says(&text).await);
        applied.write(Arc::clone(&text)).await.unwrap();
        assert!(applied.says(&text).await);
        assert!(!applied.says(&Arc::from("{ }")).await);
        applied.withdraw().await.unwrap();
        assert!(!applied.says(&text).await);
    }
}
