//! Roots, segments and paths (contract 01 §9.1, 04 §6.1, 08 §2.1).
use cotal_wire::Space;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A workspace root: the directory that holds `.cotal/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// A root at exactly this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
    /// The nearest ancestor of `cwd` that holds `.cotal/`, else `cwd`.
    pub fn discover(_cwd: &Path) -> io::Result<Self> {
        todo!()
    }
    /// The root directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// `<root>/.cotal`.
    pub fn cotal_dir(&self) -> PathBuf {
        self.0.join(".cotal")
    }
    /// `<root>/.cotal/auth`.
    pub fn auth_dir(&self) -> PathBuf {
        self.cotal_dir().join("auth")
    }
    /// The user-auth state dir of a space, adopting a legacy directory once (contract 04 §6.1).
    pub fn user_auth_state_dir(&self, _space: &Space) -> io::Result<PathBuf> {
        todo!()
    }
    /// Whether the space is user-auth enabled: the state dir holds `idp.json` or `callout.json`.
    pub fn is_user_auth(&self, _space: &Space) -> io::Result<bool> {
        todo!()
    }
    /// `<root>/.cotal/auth-service.<space key>.pid` and `.log` (contract 08 §4), likewise for other daemons.
    pub fn daemon_files(&self, _daemon: &str, _space: Option<&Space>) -> DaemonFiles {
        todo!()
    }
}

/// Where a detached daemon leaves its pid and its log.
#[derive(Debug, Clone)]
pub struct DaemonFiles {
    /// The pid file.
    pub pid: PathBuf,
    /// The log file.
    pub log: PathBuf,
}

/// Lower-case hex of the space's UTF-8 name.
pub fn space_key(space: &Space) -> String {
    hex::encode(space.as_str())
}
/// `space.<hex>`.
pub fn space_segment(space: &Space) -> String {
    format!("space.{}", space_key(space))
}
/// The space of a canonical segment, only when it round-trips.
pub fn space_of_segment(_segment: &str) -> Option<Space> {
    todo!()
}

/// The machine home: `$COTAL_HOME`, else `~/.cotal` (contract 08 §2.1).
#[derive(Debug, Clone)]
pub struct Home(PathBuf);

impl Home {
    /// A home at exactly this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
    /// From the value of `COTAL_HOME` and of `HOME`.
    pub fn from_env(_cotal_home: Option<&str>, _home: Option<&str>) -> io::Result<Self> {
        todo!()
    }
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}
