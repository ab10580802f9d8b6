//! Files that one process holds for as long as it lives: the kernel lets go of them when it ends, however it ends.

use std::{
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::file;

/// How long a process that has ended, as far as anybody can see, may still hold what it had open: its threads end after
/// it does, and one that waits for a disk ends late.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
/// How often the lock is looked at meanwhile.
const POLL: Duration = Duration::from_millis(20);

/// A lock file that is held until this is dropped.
#[derive(Debug)]
pub struct LockFile(OwnedFd);

impl LockFile {
    /// Takes it; it is made when it is not there (0600, no symlink followed). One that is just ending is waited for, two
    /// seconds at the most, on this thread. `None`: another process lives and holds it.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let lock = file::open_lock(path)?;
        let deadline = Instant::now() + LET_GO_WITHIN;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self(lock))),
                Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(None),
                Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(POLL),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether some process holds it now. `None` when there is no such file: nobody has ever held it. Nothing is made.
    pub fn is_held(path: &Path) -> io::Result<Option<bool>> {
        if !file::is_regular(path)? {
            return Ok(None);
        }
        let lock = file::open_lock(path)?;
        loop {
            // Shared, so that two who ask at once do not take one another for the holder.
            match flock(&lock, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(Some(false)),
                Err(Errno::WOULDBLOCK) => return Ok(Some(true)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_one_is_held_is_told_without_taking_it() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.lock");
        assert_eq!(LockFile::is_held(&path).unwrap(), None);
        assert!(!path.exists());
        let held = LockFile::take(&path).unwrap().unwrap();
        assert_eq!(LockFile::is_held(&path).unwrap(), Some(true));
        drop(held);
        assert_eq!(LockFile::is_held(&path).unwrap(), Some(false));
        LockFile::take(&path).unwrap().unwrap();
    }

    #[test]
    fn one_that_is_just_let_go_is_waited_for_and_one_that_is_held_is_not_for_ever() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a.lock");
        let held = LockFile::take(&path).unwrap().unwrap();
        let began = Instant::now();
        assert!(LockFile::take(&path).unwrap().is_none());
        assert!(began.elapsed() >= LET_GO_WITHIN);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(LET_GO_WITHIN / 4);
                drop(held);
            });
            LockFile::take(&path).unwrap().unwrap();
        });
    }

    #[test]
    fn what_is_no_file_of_its_own_is_refused_at_once() {
        let tmp = tempfile::tempdir().unwrap();
        let (path, link) = (tmp.path().join("a.lock"), tmp.path().join("b.lock"));
        drop(LockFile::take(&path).unwrap().unwrap());
        std::os::unix::fs::symlink(&path, &link).unwrap();
        LockFile::take(&link).unwrap_err();
        LockFile::take(&tmp.path().join("absent/a.lock")).unwrap_err();
    }
}
