//! Where the repository lies.

use std::path::{Path, PathBuf};

/// The repository's root, of which this crate is a direct child.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
