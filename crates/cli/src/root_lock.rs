//! One `up` or `down` of a root at a time.

use cotal_workspace::{file, lock_file::LockFile, root::Root};

use crate::outcome::CliError;

const LOCK_FILE: &str = "up.lock";

/// Held until dropped; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct RootLock {
    _file: LockFile,
}

impl RootLock {
    /// Takes the lock, making `.cotal/` when it is not there.
    pub fn take(root: &Root) -> Result<Self, CliError> {
        file::ensure_private_dir(&root.cotal_dir())?;
        let path = root.cotal_dir().join(LOCK_FILE);
        match LockFile::take(&path) {
            Ok(Some(file)) => Ok(Self { _file: file }),
            Ok(None) => Err(CliError::failed(format!(
                "another up or down is at work in {}: wait for it",
                root.path().display()
            ))),
            Err(e) => Err(CliError::failed(format!("{} cannot be locked: {e}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_until_the_first_lets_go() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        let first = RootLock::take(&root).unwrap();
        assert!(RootLock::take(&root).unwrap_err().to_string().contains("wait for it"));
        drop(first);
        RootLock::take(&root).unwrap();
    }
}
