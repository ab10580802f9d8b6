//! The secret store seam and its filesystem implementation (contract 01 §9.3, 08 §2.2).

use std::{
    io,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use cotal_trust::system::SystemEntropy;
use cotal_wire::Entropy;
use rustix::{fs, io::Errno};
use zeroize::Zeroizing;

use crate::{file, root::Root};

/// The file that names a store. No key may name it.
const ID_FILE: &str = "store.id";
/// Where the hyphens of an id stand.
const ID_HYPHENS: [usize; 4] = [8, 13, 18, 23];
/// Length of an id.
const ID_LEN: usize = 36;

/// A store that did not answer or refused a key. Never carries a value.
#[derive(Debug, thiserror::Error)]
#[error("secret store: {0}")]
pub struct StoreError(pub String);

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Which store this is: equal identities are one store.
#[derive(Debug, Clone)]
pub enum StoreIdentity {
    /// The filesystem store of a root.
    Fs {
        /// The workspace root.
        root: String,
        /// The random id of `store.id`.
        id: String,
    },
    /// A store injected by a host.
    Injected {
        /// The host's stable coordinate.
        coordinate: String,
    },
}

/// Whole secrets under opaque keys.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// The value, or `None` when absent.
    async fn get(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError>;
    /// Replaces the whole value atomically.
    async fn put(&self, key: &str, value: &str) -> Result<(), StoreError>;
    /// Deletes; idempotent.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;
    /// Stores only while absent, in one atomic step: `true` when it stored, `false` when the key exists.
    async fn create(&self, key: &str, value: &str) -> Result<bool, StoreError>;
    /// The declared identity, if any. It may read where the store lies: ask for it off the async threads.
    fn identity(&self) -> Option<StoreIdentity>;
}

/// The store under `<root>/.cotal`.
#[derive(Debug, Clone)]
pub struct FsSecretStore {
    root: Root,
}

impl StoreIdentity {
    /// The identity that a host declares for its store; a blank coordinate refuses.
    pub fn injected(coordinate: &str) -> Result<Self, StoreError> {
        if coordinate.trim().is_empty() {
            return Err(StoreError(
                "an injected SecretStore must declare its identity: its coordinate is blank".into(),
            ));
        }
        Ok(Self::Injected { coordinate: coordinate.to_owned() })
    }
}

impl PartialEq for StoreIdentity {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fs { root: a, id: x }, Self::Fs { root: b, id: y }) => {
                let trimmed = |root: &str| root.trim_end_matches(['/', '\\']).to_owned();
                trimmed(a) == trimmed(b) && x == y
            }
            (Self::Injected { coordinate: a }, Self::Injected { coordinate: b }) => a == b,
            _ => false,
        }
    }
}

impl Eq for StoreIdentity {}

impl FsSecretStore {
    /// The store of a root. A `store.id` that holds anything but an id refuses; an absent one is made when the store
    /// is first named or first written.
    pub fn open(root: &Root) -> Result<Self, StoreError> {
        let store = Self { root: root.clone() };
        if file::is_real_dir(&store.dir())? {
            store.read_id()?;
        }
        Ok(store)
    }

    fn dir(&self) -> PathBuf {
        self.root.cotal_dir()
    }

    fn id_path(&self) -> PathBuf {
        self.dir().join(ID_FILE)
    }

    fn read_id(&self) -> Result<Option<String>, StoreError> {
        let Some(text) = file::read_text(&self.id_path())? else { return Ok(None) };
        if is_store_id(&text) {
            return Ok(Some(text.to_string()));
        }
        Err(StoreError(format!(
            "{} does not hold a store id; restore it from a backup",
            self.id_path().display()
        )))
    }

    /// The store's id, made once: a creator that lost the race takes the winner's.
    fn ensure_id(&self) -> Result<String, StoreError> {
        file::ensure_private_dir(&self.dir())?;
        if let Some(id) = self.read_id()? {
            return Ok(id);
        }
        file::create_exclusive(&self.id_path(), fresh_id(&SystemEntropy).as_bytes())?;
        self.read_id()?
            .ok_or_else(|| StoreError(format!("{} vanished as it was made", self.id_path().display())))
    }

    /// The path of a key, after every refusal. With `make`, the directories on the way are made.
    fn path_of(&self, key: &str, make: bool) -> Result<PathBuf, StoreError> {
        let segments = segments_of(key)?;
        let (name, dirs) = segments.split_last().ok_or_else(|| refused("names the store itself"))?;
        let mut path = self.dir();
        file::is_real_dir(&path)?;
        for dir in dirs {
            path.push(dir);
            if make {
                file::ensure_private_dir(&path)?;
            } else {
                file::is_real_dir(&path)?;
            }
        }
        path.push(name);
        if path == self.id_path() || self.is_id_file(&path)? {
            return Err(refused("names the store's id"));
        }
        Ok(path)
    }

    /// Whether a path is the id file under another name: a case-folding filesystem, or a link.
    fn is_id_file(&self, path: &Path) -> Result<bool, StoreError> {
        let inode = |path: &Path| match fs::lstat(path) {
            Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(io::Error::from(e)),
        };
        let id = inode(&self.id_path())?;
        Ok(id.is_some() && inode(path)? == id)
    }

    fn read(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
        file::read_text(&self.path_of(key, false)?).map_err(Into::into)
    }

    /// The path to write a key at: nothing of a refused key is made, and the id stands before the value.
    fn writable(&self, key: &str) -> Result<PathBuf, StoreError> {
        segments_of(key)?;
        self.ensure_id()?;
        self.path_of(key, true)
    }
}

#[async_trait]
impl SecretStore for FsSecretStore {
    async fn get(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
        let (store, key) = (self.clone(), key.to_owned());
        blocking(move || store.read(&key)).await
    }

    async fn put(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let (store, key, value) = (self.clone(), key.to_owned(), Zeroizing::new(value.to_owned()));
        blocking(move || file::write_atomic(&store.writable(&key)?, value.as_bytes()).map_err(Into::into))
            .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let (store, key) = (self.clone(), key.to_owned());
        blocking(move || {
            file::remove_if_present(&store.path_of(&key, false)?).map(|_| ()).map_err(Into::into)
        })
        .await
    }

    async fn create(&self, key: &str, value: &str) -> Result<bool, StoreError> {
        let (store, key, value) = (self.clone(), key.to_owned(), Zeroizing::new(value.to_owned()));
        blocking(move || file::create_exclusive(&store.writable(&key)?, value.as_bytes()).map_err(Into::into))
            .await
    }

    /// Names the store, making its id on first use; `None` when the id cannot be read or made, so that whoever needs
    /// a name refuses instead of using a wrong one.
    fn identity(&self) -> Option<StoreIdentity> {
        match self.ensure_id() {
            Ok(id) => Some(StoreIdentity::Fs { root: self.root.path().to_str()?.to_owned(), id }),
            Err(error) => {
                tracing::warn!(%error, "the secret store cannot be named");
                None
            }
        }
    }
}

/// The normalised segments of a key, refusing what is empty, absolute, the store itself, or outside it.
fn segments_of(key: &str) -> Result<Vec<&str>, StoreError> {
    if key.is_empty() {
        return Err(refused("is empty"));
    }
    if key.contains('\0') {
        return Err(refused("contains a NUL"));
    }
    if key.starts_with('/') {
        return Err(refused("is absolute"));
    }
    let mut segments = Vec::new();
    for segment in key.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop().ok_or_else(|| refused("leads outside the store"))?;
            }
            name => segments.push(name),
        }
    }
    match segments.as_slice() {
        [] => Err(refused("names the store itself")),
        [ID_FILE] => Err(refused("names the store's id")),
        _ => Ok(segments),
    }
}

/// `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
fn is_store_id(text: &str) -> bool {
    text.len() == ID_LEN
        && text.bytes().enumerate().all(|(i, b)| {
            if ID_HYPHENS.contains(&i) { b == b'-' } else { matches!(b, b'0'..=b'9' | b'a'..=b'f') }
        })
}

/// A random id in the shape of a version 4 UUID.
fn fresh_id(entropy: &dyn Entropy) -> String {
    let mut bytes = [0u8; 16];
    entropy.fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = hex::encode(bytes);
    for at in ID_HYPHENS {
        id.insert(at, '-');
    }
    id
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    file::blocking(work).await?
}

/// Keys are opaque and may be long or odd, so a refusal does not repeat them.
fn refused(what: &str) -> StoreError {
    StoreError(format!("refused a key that {what}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;

    use super::*;

    fn store() -> (tempfile::TempDir, FsSecretStore) {
        let tmp = tempfile::tempdir().unwrap();
        let store = FsSecretStore::open(&Root::at(tmp.path())).unwrap();
        (tmp, store)
    }

    #[tokio::test]
    async fn a_value_is_put_read_replaced_and_deleted_whole() {
        let (tmp, store) = store();
        assert!(store.get("auth/space.61/issuer.json").await.unwrap().is_none());
        store.put("auth/space.61/issuer.json", "one").await.unwrap();
        store.put("auth/./space.61//issuer.json", "two").await.unwrap();
        assert_eq!(*store.get("auth/space.61/issuer.json").await.unwrap().unwrap(), "two");
        let dir = tmp.path().join(".cotal/auth/space.61");
        for (path, mode) in [
            (dir.clone(), 0o700),
            (dir.join("issuer.json"), 0o600),
            (tmp.path().join(".cotal/store.id"), 0o600),
        ] {
            assert_eq!(
                std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                mode,
                "{}",
                path.display()
            );
        }
        store.delete("auth/space.61/issuer.json").await.unwrap();
        store.delete("auth/space.61/issuer.json").await.unwrap();
        store.delete("no/such/key").await.unwrap();
        assert!(store.get("auth/space.61/issuer.json").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn create_stores_only_while_absent() {
        let (_tmp, store) = store();
        assert!(store.create("a/b", "first").await.unwrap());
        assert!(!store.create("a/b", "second").await.unwrap());
        assert_eq!(*store.get("a/b").await.unwrap().unwrap(), "first");
    }

    #[tokio::test]
    async fn keys_that_name_no_value_of_this_store_are_refused_by_every_verb() {
        let (tmp, store) = store();
        store.put("x", "1").await.unwrap();
        let id = std::fs::read(tmp.path().join(".cotal/store.id")).unwrap();
        for key in [
            "",
            "/",
            "/x",
            "a\0b",
            ".",
            "./",
            "a/..",
            "..",
            "../x",
            "a/../../x",
            "../.cotal/x",
            "store.id",
            "./store.id",
            "a/../store.id",
        ] {
            assert!(store.get(key).await.is_err(), "get {key:?}");
            assert!(store.put(key, "v").await.is_err(), "put {key:?}");
            assert!(store.create(key, "v").await.is_err(), "create {key:?}");
            assert!(store.delete(key).await.is_err(), "delete {key:?}");
        }
        assert_eq!(std::fs::read(tmp.path().join(".cotal/store.id")).unwrap(), id);
    }

    #[tokio::test]
    async fn the_id_file_is_recognised_under_another_name() {
        let (tmp, store) = store();
        store.put("x", "1").await.unwrap();
        let dir = tmp.path().join(".cotal");
        std::fs::hard_link(dir.join("store.id"), dir.join("alias")).unwrap();
        assert!(store.get("alias").await.is_err());
        assert!(store.put("alias", "v").await.is_err());
        assert!(store.create("alias", "v").await.is_err());
        assert!(store.delete("alias").await.is_err());
        assert!(dir.join("alias").exists());
    }

    #[tokio::test]
    async fn a_symlink_anywhere_below_the_root_is_refused() {
        for link in [".cotal", ".cotal/a", ".cotal/a/b", ".cotal/a/b/c"] {
            let tmp = tempfile::tempdir().unwrap();
            let (elsewhere, at) = (tmp.path().join("elsewhere"), tmp.path().join("root").join(link));
            std::fs::create_dir_all(elsewhere.join("a/b")).unwrap();
            for path in ["c", "b/c", "a/b/c"] {
                let _ = std::fs::create_dir_all(elsewhere.join(path).parent().unwrap());
                std::fs::write(elsewhere.join(path), "theirs").unwrap();
            }
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            let target = if link.ends_with('c') { elsewhere.join("c") } else { elsewhere.clone() };
            symlink(target, &at).unwrap();
            let store = FsSecretStore { root: Root::at(tmp.path().join("root")) };
            assert!(store.get("a/b/c").await.is_err(), "get through {link}");
            assert!(store.put("a/b/c", "v").await.is_err(), "put through {link}");
            assert!(store.create("a/b/c", "v").await.map_or(true, |made| !made), "create through {link}");
            assert_eq!(std::fs::read(elsewhere.join("c")).unwrap(), b"theirs");
            assert_eq!(std::fs::read(elsewhere.join("a/b/c")).unwrap(), b"theirs");
        }
    }

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let (tmp, store) = store();
        let first = store.identity().unwrap();
        assert_eq!(store.identity().unwrap(), first);
        assert_eq!(FsSecretStore::open(&Root::at(tmp.path())).unwrap().identity().unwrap(), first);
        let StoreIdentity::Fs { root, id } = first else { panic!("not a filesystem store") };
        assert_eq!(root, tmp.path().to_str().unwrap());
        assert!(is_store_id(&id));
    }

    #[test]
    fn concurrent_first_namings_converge_on_one_id() {
        let (_tmp, store) = store();
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| store.identity().unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }

    #[tokio::test]
    async fn an_id_file_that_holds_anything_else_is_refused_and_never_published() {
        for text in
            ["", "x", "0123ABCD-0000-4000-8000-000000000000", "01234567-0000-4000-8000-000000000000\n"]
        {
            let (tmp, store) = store();
            std::fs::create_dir(tmp.path().join(".cotal")).unwrap();
            std::fs::write(tmp.path().join(".cotal/store.id"), text).unwrap();
            assert!(FsSecretStore::open(&Root::at(tmp.path())).is_err());
            assert_eq!(store.identity(), None);
            assert!(store.put("x", "v").await.is_err());
            assert_eq!(std::fs::read_to_string(tmp.path().join(".cotal/store.id")).unwrap(), text);
        }
    }

    #[test]
    fn identities_are_equal_by_kind_root_and_id_or_by_coordinate() {
        let fs = |root: &str, id: &str| StoreIdentity::Fs { root: root.into(), id: id.into() };
        assert_eq!(fs("/r", "1"), fs("/r/", "1"));
        assert_ne!(fs("/r", "1"), fs("/r", "2"));
        assert_ne!(fs("/r", "1"), fs("/s", "1"));
        let injected = |c: &str| StoreIdentity::injected(c).unwrap();
        assert_eq!(injected("c"), injected("c"));
        assert_ne!(injected("c"), injected("c/"));
        assert_ne!(injected("/r"), fs("/r", "1"));
        assert!(StoreIdentity::injected(" ").is_err());
    }

    proptest! {
        #[test]
        fn an_accepted_key_stays_inside_the_store(key in "(\\.|\\.\\.|a|store\\.id|/|[a-z.]{1,4}){1,8}") {
            if let Ok(segments) = segments_of(&key) {
                prop_assert!(!segments.is_empty());
                prop_assert!(segments.iter().all(|s| !matches!(*s, "" | "." | "..") && !s.contains('/')));
                prop_assert!(segments != ["store.id"]);
            }
        }
    }
}
