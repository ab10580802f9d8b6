//! Whole-or-absent files: 0600 in 0700 directories, written by temp and rename, read without following a symlink.
use std::{io, path::Path};
use zeroize::Zeroizing;

/// Creates a directory (and its parents) with mode 0700; an existing symlink or non-directory refuses.
pub fn ensure_private_dir(_dir: &Path) -> io::Result<()> { todo!() }
/// Reads a regular file, refusing symlinks and everything that is not a regular file. `None` only when absent.
pub fn read_regular(_path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> { todo!() }
/// Replaces a file atomically: a 0600 sibling, fsync, rename; the sibling is removed on failure.
pub fn write_atomic(_path: &Path, _bytes: &[u8]) -> io::Result<()> { todo!() }
/// Creates a file that did not exist, whole or not at all; `false` when it exists (untouched).
pub fn create_exclusive(_path: &Path, _bytes: &[u8]) -> io::Result<bool> { todo!() }
/// Removes a file; `false` when it was absent.
pub fn remove_if_present(_path: &Path) -> io::Result<bool> { todo!() }
/// Whether the path is a real directory: absent is `false`, a symlink or another type is an error.
pub fn is_real_dir(_path: &Path) -> io::Result<bool> { todo!() }
