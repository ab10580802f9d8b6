//! The lock that a broker holds for as long as it lives, whatever became of its pid file: two brokers on one store
//! tear it, and nothing of the broker's own stops the second one.
//!
//! `detach` takes it and lets the broker inherit it, so that the system lets go of it when the broker ends, however it
//! ends. Its content is the holder's pid, for the sentence that says what to stop.

use std::path::{Path, PathBuf};

use cotal_workspace::{file, lock_file::LockFile, root::Root};
use rustix::{
    fs::ftruncate,
    io::{FdFlags, fcntl_setfd, write},
};

use crate::outcome::CliError;

/// Beside the store, in which every entry is the broker's.
const LOCK_FILE: &str = "jetstream.lock";

/// `<root>/.cotal/jetstream.lock`.
pub fn path(root: &Root) -> PathBuf {
    root.cotal_dir().join(LOCK_FILE)
}

/// Takes the lock for this process and the program that it becomes.
pub fn take_for_good(path: &Path) -> Result<LockFile, CliError> {
    let lock = take(path)?.ok_or_else(|| still_runs(path))?;
    let pid = format!("{}\n", std::process::id());
    let left = ftruncate(&lock, 0)
        .and_then(|()| write(&lock, pid.as_bytes()))
        .and_then(|_| fcntl_setfd(&lock, FdFlags::empty()));
    left.map_err(|e| cannot(path, &e.into()))?;
    Ok(lock)
}

/// Refuses while a broker holds the lock; asked when no broker of the root is known to run.
pub async fn refuse_unknown_broker(root: &Root) -> Result<(), CliError> {
    let path = path(root);
    file::blocking(move || take(&path)?.map(drop).ok_or_else(|| still_runs(&path))).await?
}

/// `None` while another process has it.
fn take(path: &Path) -> Result<Option<LockFile>, CliError> {
    LockFile::take(path).map_err(|e| cannot(path, &e))
}

fn still_runs(path: &Path) -> CliError {
    let pid = file::read_text(path).ok().flatten().and_then(|text| text.trim().parse::<u32>().ok());
    let (which, stop) = match pid {
        Some(pid) => (format!(" as process {pid}"), format!("`kill {pid}`")),
        None => (String::new(), format!("`fuser -k -TERM {}`", path.display())),
    };
    CliError::failed(format!(
        "a broker of this root still runs{which}, though its pid file does not say so (it holds {}): stop it with \
         {stop}, then run this command again",
        path.display()
    ))
}

fn cannot(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("{} cannot be locked: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_held_lock_refuses_and_names_its_holder_until_it_is_let_go() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        file::ensure_private_dir(&root.cotal_dir()).unwrap();
        let held = take_for_good(&path(&root)).unwrap();
        let told = refuse_unknown_broker(&root).await.unwrap_err().to_string();
        assert!(told.contains(&format!("kill {}", std::process::id())), "{told}");
        drop(held);
        refuse_unknown_broker(&root).await.unwrap();
    }
}
