//! Roots, segments and paths (contract 01 §9.1, 04 §6.1, 08 §2.1).
//!
//! A workspace root is the directory that holds `.cotal/`. Everything below that directory is this program's, so each
//! directory on the way to a file must be a real one; what lies above it is the operator's choice.

use std::{
    io,
    path::{Path, PathBuf},
};

use cotal_wire::Space;

use crate::file;

/// The one directory of a root that this program writes.
const COTAL_DIR: &str = ".cotal";
/// Trust records and user-auth state.
const AUTH_DIR: &str = "auth";
/// The directory of standing secrets under `auth/`: never the legacy state of a space of that name.
const CREDS_DIR: &str = "creds";
/// What a canonical segment starts with.
const SEGMENT_PREFIX: &str = "space.";
/// A state directory that holds one of these is user-auth enabled.
const MARKERS: [&str; 2] = ["idp.json", "callout.json"];

/// A workspace root: the directory that holds `.cotal/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// A root at exactly this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The nearest ancestor of `cwd` that holds `.cotal/`, else `cwd`.
    pub fn discover(cwd: &Path) -> io::Result<Self> {
        for dir in cwd.ancestors() {
            if file::is_real_dir(&dir.join(COTAL_DIR))? {
                return Ok(Self(dir.to_owned()));
            }
        }
        Ok(Self(cwd.to_owned()))
    }

    /// The root directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `<root>/.cotal`.
    pub fn cotal_dir(&self) -> PathBuf {
        self.0.join(COTAL_DIR)
    }

    /// `<root>/.cotal/auth`.
    pub fn auth_dir(&self) -> PathBuf {
        self.cotal_dir().join(AUTH_DIR)
    }

    /// Creates `<root>/.cotal` and `<root>/.cotal/auth`, both 0700; neither may be a symlink.
    pub fn ensure_auth_dir(&self) -> io::Result<PathBuf> {
        file::ensure_private_dir(&self.cotal_dir())?;
        file::ensure_private_dir(&self.auth_dir())?;
        Ok(self.auth_dir())
    }

    /// `<root>/.cotal/space.<hex>`: what the daemons of a space keep (contract 01 §9.1).
    pub fn space_dir(&self, space: &Space) -> PathBuf {
        self.cotal_dir().join(space_segment(space))
    }

    /// The user-auth state dir of a space, adopting a legacy directory once (contract 04 §6.1). The directory itself
    /// may not exist yet.
    ///
    /// A legacy directory is `auth/<encodeURIComponent(space)>` holding a marker. It is renamed when nothing stands at
    /// the canonical name; it refuses when something does, and when its name is the canonical segment of another
    /// space, whose state it may be.
    pub fn user_auth_state_dir(&self, space: &Space) -> io::Result<PathBuf> {
        let auth = self.auth_dir();
        let canonical = auth.join(space_segment(space));
        if !self.has_auth_dir()? {
            return Ok(canonical);
        }
        let exists = file::is_real_dir(&canonical)?;
        let Some(legacy) = legacy_dir(&auth, space)? else { return Ok(canonical) };
        if let Some(other) = legacy.file_name().and_then(|n| n.to_str()).and_then(space_of_segment) {
            // Once the canonical directory exists, nothing is left to adopt and the other space keeps its own.
            return if exists { Ok(canonical) } else { Err(ambiguous(&legacy, &canonical, &other)) };
        }
        if exists {
            return Err(io::Error::other(format!(
                "the space has two user-auth state directories, {} and the older {}: keep the one that is in use and \
                 move the other out of {}",
                canonical.display(),
                legacy.display(),
                auth.display()
            )));
        }
        std::fs::rename(&legacy, &canonical)?;
        Ok(canonical)
    }

    /// Whether the space is user-auth enabled: the state dir holds `idp.json` or `callout.json` as a regular file.
    /// Only absence is "no"; whatever cannot be examined is an error (contract 08 §2.1).
    pub fn is_user_auth(&self, space: &Space) -> io::Result<bool> {
        let dir = self.user_auth_state_dir(space)?;
        Ok(file::is_real_dir(&dir)? && has_marker(&dir)?)
    }

    /// `<root>/.cotal/auth-service.<space key>.pid` and `.log` (contract 08 §4), likewise for other daemons.
    pub fn daemon_files(&self, daemon: &str, space: Option<&Space>) -> DaemonFiles {
        let base = match space {
            Some(space) => format!("{daemon}.{}", space_key(space)),
            None => daemon.to_owned(),
        };
        let dir = self.cotal_dir();
        DaemonFiles { pid: dir.join(format!("{base}.pid")), log: dir.join(format!("{base}.log")) }
    }

    /// Whether `.cotal/auth` exists, both steps of it real directories.
    pub(crate) fn has_auth_dir(&self) -> io::Result<bool> {
        Ok(file::is_real_dir(&self.cotal_dir())? && file::is_real_dir(&self.auth_dir())?)
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
    format!("{SEGMENT_PREFIX}{}", space_key(space))
}

/// The space of a canonical segment, only when it round-trips.
pub fn space_of_segment(segment: &str) -> Option<Space> {
    space_of_key(segment.strip_prefix(SEGMENT_PREFIX)?)
}

/// The space of a space key, only when it round-trips.
pub(crate) fn space_of_key(key: &str) -> Option<Space> {
    let name = String::from_utf8(hex::decode(key).ok()?).ok()?;
    Space::parse(&name).ok().filter(|space| space_key(space) == key)
}

/// The file name that versions before the hex segment used: `encodeURIComponent` of the name.
pub(crate) fn legacy_segment(space: &Space) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(space.as_str().len());
    for byte in space.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The legacy state directory of a space: its name byte for byte as listed (a case-folding filesystem would answer
/// for another space), a real directory, and a marker in it.
fn legacy_dir(auth: &Path, space: &Space) -> io::Result<Option<PathBuf>> {
    let name = legacy_segment(space);
    if name == CREDS_DIR {
        return Ok(None);
    }
    for entry in std::fs::read_dir(auth)? {
        let entry = entry?;
        if entry.file_name() != name.as_str() {
            continue;
        }
        let path = entry.path();
        // A trust record can bear the name of a space ("broker.json"); that is no state of it.
        if entry.file_type()?.is_file() {
            return Ok(None);
        }
        return Ok((file::is_real_dir(&path)? && has_marker(&path)?).then_some(path));
    }
    Ok(None)
}

fn has_marker(dir: &Path) -> io::Result<bool> {
    for marker in MARKERS {
        if file::is_regular(&dir.join(marker))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ambiguous(legacy: &Path, canonical: &Path, other: &Space) -> io::Error {
    io::Error::other(format!(
        "{} is the state of the space {:?}, or older state of this one: create {} to start afresh, or move the older \
         state there",
        legacy.display(),
        other.as_str(),
        canonical.display()
    ))
}

/// The machine home: `$COTAL_HOME`, else `~/.cotal` (contract 08 §2.1).
#[derive(Debug, Clone)]
pub struct Home(PathBuf);

impl Home {
    /// A home at exactly this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// From the value of `COTAL_HOME` and of `HOME`. An empty value counts as unset.
    pub fn from_env(cotal_home: Option<&str>, home: Option<&str>) -> io::Result<Self> {
        if let Some(path) = cotal_home.filter(|p| !p.is_empty()) {
            return Ok(Self(std::path::absolute(path)?));
        }
        match home.filter(|p| !p.is_empty()) {
            Some(path) => Ok(Self(std::path::absolute(path)?.join(COTAL_DIR))),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "neither COTAL_HOME nor HOME is set: set COTAL_HOME to the directory that keeps this machine's logins",
            )),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the home, 0700. One that is there keeps its mode, because `COTAL_HOME` may name a directory of somebody's
    /// own: others may look into it (every file in it is 0600), and it is refused when they could exchange a file.
    pub fn ensure(&self) -> io::Result<()> {
        file::ensure_dir_closed_to_writers(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;

    use super::*;

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    /// A root whose `auth/` holds these directories, each with these files.
    fn root_with(dirs: &[(&str, &[&str])]) -> (tempfile::TempDir, Root) {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        root.ensure_auth_dir().unwrap();
        for (dir, files) in dirs {
            std::fs::create_dir(root.auth_dir().join(dir)).unwrap();
            for name in *files {
                std::fs::write(root.auth_dir().join(dir).join(name), "{}").unwrap();
            }
        }
        (tmp, root)
    }

    #[test]
    fn a_root_is_the_nearest_ancestor_that_holds_a_cotal_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let deep = tmp.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(Root::discover(&deep).unwrap().path(), deep);
        std::fs::create_dir(tmp.path().join(".cotal")).unwrap();
        assert_eq!(Root::discover(&deep).unwrap().path(), tmp.path());
        std::fs::create_dir(tmp.path().join("a/.cotal")).unwrap();
        assert_eq!(Root::discover(&deep).unwrap().path(), tmp.path().join("a"));
        symlink(tmp.path().join(".cotal"), deep.join(".cotal")).unwrap();
        assert!(Root::discover(&deep).is_err());
    }

    #[test]
    fn a_segment_is_the_hex_of_the_name_and_decodes_only_when_it_round_trips() {
        assert_eq!(space_segment(&space("main")), "space.6d61696e");
        assert_eq!(space_of_segment("space.6d61696e"), Some(space("main")));
        for bad in [
            "space.",
            "space.6D61696E",
            "space.6d6",
            "space.zz",
            "6d61696e",
            "space.2e",
            "space.2e2e",
            "space.ff",
            "main",
        ] {
            assert_eq!(space_of_segment(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_legacy_name_is_encoded_as_ecmascript_does() {
        assert_eq!(legacy_segment(&space("a b/é-_.!~*'()")), "a%20b%2F%C3%A9-_.!~*'()");
    }

    #[test]
    fn a_legacy_directory_is_adopted_once_with_what_it_holds() {
        let (_tmp, root) = root_with(&[("my%20space", &["idp.json", "extra"])]);
        let dir = root.user_auth_state_dir(&space("my space")).unwrap();
        assert_eq!(dir, root.auth_dir().join(space_segment(&space("my space"))));
        assert!(dir.join("extra").exists() && !root.auth_dir().join("my%20space").exists());
        assert_eq!(root.user_auth_state_dir(&space("my space")).unwrap(), dir);
        assert!(root.is_user_auth(&space("my space")).unwrap());
    }

    #[test]
    fn a_legacy_directory_without_a_marker_stays() {
        let (_tmp, root) = root_with(&[("main", &["other.json"])]);
        assert!(!root.user_auth_state_dir(&space("main")).unwrap().exists());
        assert!(root.auth_dir().join("main/other.json").exists());
        assert!(!root.is_user_auth(&space("main")).unwrap());
    }

    #[test]
    fn creds_never_migrates() {
        let (_tmp, root) = root_with(&[("creds", &["idp.json"])]);
        root.user_auth_state_dir(&space("creds")).unwrap();
        assert!(root.auth_dir().join("creds/idp.json").exists());
    }

    #[test]
    fn a_legacy_directory_beside_the_canonical_one_refuses() {
        let (_tmp, root) = root_with(&[("main", &["callout.json"]), ("space.6d61696e", &[])]);
        assert!(
            root.user_auth_state_dir(&space("main")).unwrap_err().to_string().contains("two user-auth state")
        );
        assert!(root.auth_dir().join("main/callout.json").exists());
    }

    #[test]
    fn a_legacy_name_that_is_another_spaces_segment_refuses_until_the_own_directory_exists() {
        let (_tmp, root) = root_with(&[("space.6d61696e", &["idp.json"])]);
        let tricky = space("space.6d61696e");
        assert!(root.user_auth_state_dir(&tricky).is_err());
        assert!(root.is_user_auth(&space("main")).unwrap());
        std::fs::create_dir(root.auth_dir().join(space_segment(&tricky))).unwrap();
        assert!(!root.is_user_auth(&tricky).unwrap());
        assert!(root.is_user_auth(&space("main")).unwrap());
    }

    #[test]
    fn a_trust_record_that_bears_a_spaces_name_is_not_its_state() {
        let (_tmp, root) = root_with(&[]);
        std::fs::write(root.auth_dir().join("broker.json"), "{}").unwrap();
        assert!(!root.is_user_auth(&space("broker.json")).unwrap());
    }

    #[test]
    fn a_symlink_on_the_way_to_the_state_is_an_error_never_static_mode() {
        for link in [".cotal", ".cotal/auth", ".cotal/auth/space.6d61696e", ".cotal/auth/main"] {
            let tmp = tempfile::tempdir().unwrap();
            let (elsewhere, at) = (tmp.path().join("elsewhere"), tmp.path().join("root").join(link));
            std::fs::create_dir_all(elsewhere.join("auth")).unwrap();
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            symlink(&elsewhere, &at).unwrap();
            assert!(Root::at(tmp.path().join("root")).is_user_auth(&space("main")).is_err(), "{link}");
        }
    }

    #[test]
    fn a_marker_that_is_no_regular_file_is_an_error() {
        let (_tmp, root) = root_with(&[("space.6d61696e", &[])]);
        std::fs::create_dir(root.auth_dir().join("space.6d61696e/idp.json")).unwrap();
        assert!(root.is_user_auth(&space("main")).is_err());
    }

    #[test]
    fn a_home_is_made_private_kept_as_it_is_and_refused_when_others_may_write_there() {
        let tmp = tempfile::tempdir().unwrap();
        let home = Home::at(tmp.path().join("a/home"));
        let mode = || std::fs::metadata(home.path()).unwrap().permissions().mode() & 0o7777;
        home.ensure().unwrap();
        assert_eq!(mode(), 0o700);
        for (kept, usable) in [(0o755, true), (0o750, true), (0o775, false), (0o702, false), (0o1777, false)]
        {
            std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(kept)).unwrap();
            let outcome = home.ensure();
            assert_eq!((outcome.is_ok(), mode()), (usable, kept), "{kept:o}");
            if let Err(error) = outcome {
                assert!(error.to_string().contains("chmod"), "{error}");
            }
        }
    }

    #[test]
    fn daemons_leave_their_files_under_the_cotal_directory() {
        let files = Root::at("/r").daemon_files("auth-service", Some(&space("main")));
        assert_eq!(files.pid, Path::new("/r/.cotal/auth-service.6d61696e.pid"));
        assert_eq!(files.log, Path::new("/r/.cotal/auth-service.6d61696e.log"));
        assert_eq!(
            Root::at("/r").daemon_files("nats-server", None).pid,
            Path::new("/r/.cotal/nats-server.pid")
        );
    }

    #[test]
    fn the_home_is_cotal_home_else_dot_cotal_in_home() {
        assert_eq!(Home::from_env(Some("/h"), Some("/u")).unwrap().path(), Path::new("/h"));
        assert_eq!(Home::from_env(Some(""), Some("/u")).unwrap().path(), Path::new("/u/.cotal"));
        assert!(Home::from_env(None, None).is_err());
    }

    proptest! {
        #[test]
        fn every_segment_decodes_to_its_space_and_two_spaces_never_share_one(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            if let (Ok(x), Ok(y)) = (Space::parse(&a), Space::parse(&b)) {
                prop_assert_eq!(space_of_segment(&space_segment(&x)), Some(x.clone()));
                prop_assert_eq!(space_segment(&x).eq_ignore_ascii_case(&space_segment(&y)), a == b);
            }
        }

        #[test]
        fn whatever_decodes_encodes_to_itself(s in "space\\.[0-9a-fA-F]{0,12}") {
            if let Some(space) = space_of_segment(&s) {
                prop_assert_eq!(space_segment(&space), s);
            }
        }
    }
}
