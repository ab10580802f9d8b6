//! One `cotal actor grant` or `revoke` of a name at a time: an incarnation is retired, and then the row changes that
//! named it, with nobody in between.

use std::path::Path;

use cotal_wire::Principal;
use cotal_workspace::{file, lock_file::LockFile, printed::at_state_dir};

use crate::outcome::{CliError, Outcome};

/// Directory of the locks in a space's state directory. An empty file a name stays behind: one that is taken away could
/// be held by two.
const LOCKS: &str = "actor-locks";
const SUFFIX: &str = ".lock";

/// Held until dropped; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct ActorLock {
    _file: LockFile,
}

impl ActorLock {
    /// Takes the lock of a name, or refuses when another command has it.
    pub fn take(state_dir: &Path, principal: &Principal) -> Result<Self, CliError> {
        let locks = state_dir.join(LOCKS);
        file::ensure_private_dir(&locks)?;
        let path = locks.join(format!("{principal}{SUFFIX}"));
        match LockFile::take(&path) {
            Ok(Some(file)) => Ok(Self { _file: file }),
            Ok(None) => Err(CliError::Undone(
                format!(
                    "another `cotal actor grant` or `cotal actor revoke` of {principal} is at work: wait for it, then \
                     look at `cotal actor list{}`",
                    at_state_dir(state_dir)
                ),
                Outcome::NotExecuted,
            )),
            Err(e) => Err(CliError::failed(format!("{} cannot be locked: {e}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_changed_by_one_command_at_a_time_and_other_names_do_not_wait() {
        let tmp = tempfile::tempdir().unwrap();
        let name = |actor: &str| Principal::parse_key(&format!("u_{}.{actor}", "a".repeat(26))).unwrap();
        let first = ActorLock::take(tmp.path(), &name("cli")).unwrap();
        let error = ActorLock::take(tmp.path(), &name("cli")).unwrap_err();
        assert!(
            matches!(&error, CliError::Undone(text, Outcome::NotExecuted) if text.contains("wait for it"))
        );
        ActorLock::take(tmp.path(), &name("web")).unwrap();
        drop(first);
        ActorLock::take(tmp.path(), &name("cli")).unwrap();
    }
}
