//! The file in which a context notes how far the past of its operations is over.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use cotal_authority::past::RememberPast;
use cotal_wire::Space;
use cotal_workspace::file;

/// A note on disk, private, replaced at once. It may be removed at any time: the next start then looks at everything.
pub(crate) struct PastNote {
    path: PathBuf,
}

impl PastNote {
    /// The note of a space in a directory of the service's own.
    pub(crate) fn in_dir(dir: &Path, space: &Space) -> Self {
        Self { path: dir.join(format!("past-operations-{}.json", space.token())) }
    }
}

#[async_trait]
impl RememberPast for PastNote {
    async fn load(&self) -> Option<Vec<u8>> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || file::read_regular(&path)).await.ok()?;
        match read {
            Ok(bytes) => bytes.map(|bytes| bytes.to_vec()),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the note of past operations cannot be read");
                None
            }
        }
    }

    async fn save(&self, note: Vec<u8>) {
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || file::write_atomic(&path, &note)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(path = %self.path.display(), %error, "the note of past operations cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_note_is_kept_privately_and_no_symlink_is_followed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let space = Space::parse("demo").unwrap();
        let note = PastNote::in_dir(dir.path(), &space);
        assert_eq!(note.load().await, None);
        note.save(b"{}".to_vec()).await;
        assert_eq!(note.load().await.as_deref(), Some(&b"{}"[..]));
        let mode = std::fs::metadata(&note.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, b"its own").unwrap();
        std::fs::remove_file(&note.path).unwrap();
        symlink(&elsewhere, &note.path).unwrap();
        assert_eq!(note.load().await, None);
        note.save(b"{}".to_vec()).await;
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"its own");
    }
}
