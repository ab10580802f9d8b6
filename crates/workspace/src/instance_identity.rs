//! The identity of the plane's own endpoint instance: made once, by an exclusive create, and kept (contract 08 §3.1,
//! releases 0.70.0 and 0.78.0). Beside it lies, where one runs, the one of the root's manager, which the manager makes.
//!
//! A second identity would be a second instance: its gate, its epochs and its registration would start anew beside the
//! first one's. So what does not read is refused, never replaced, and of two first starts the loser takes the winner's.

use std::path::Path;

use cotal_trust::nkey::Seed;
use cotal_wire::{Entropy, InstanceId, Nkey, Object, Space, User};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{file, root::space_segment, secret_store::SecretStore};

/// The file of the auth plane's identity, in `<root>/.cotal/space.<hex>/`.
pub const AUTH_INSTANCE_FILE: &str = "auth-instance.json";

/// The file of the identity of a root's own manager, beside [`AUTH_INSTANCE_FILE`]. Where the reference keeps it is not
/// published; its document is the same.
pub const MANAGER_INSTANCE_FILE: &str = "manager-instance.json";

/// More than a document has: two tokens and a seed.
const DOCUMENT_CAPACITY: usize = 1024;

/// An identity that is not there, or cannot be used. Never carries what is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(pub String);

/// Who an endpoint instance is.
#[derive(Clone)]
pub struct InstanceIdentity {
    /// The instance.
    pub instance: InstanceId,
    /// The key of its serving principal.
    pub serve: Seed<User>,
}

/// As it is stored.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document<'a> {
    instance_id: InstanceId,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    serve_identity: ServeIdentity<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServeIdentity<'a> {
    id: Nkey<User>,
    /// Borrowed, so that no copy of it is left behind.
    seed: &'a str,
}

impl InstanceIdentity {
    /// A fresh identity.
    fn mint(entropy: &dyn Entropy) -> Self {
        Self { instance: InstanceId::mint(entropy), serve: Seed::generate(entropy) }
    }

    /// The identity kept in this directory, made when there is none. The directory is made 0700, the file 0600.
    pub fn load_or_create(identity_root: &Path, entropy: &dyn Entropy) -> Result<Self, IdentityError> {
        let path = identity_root.join(AUTH_INSTANCE_FILE);
        if let Some(identity) = Self::read(&path)? {
            return Ok(identity);
        }
        file::ensure_private_dir(identity_root).map_err(|why| unusable(&why))?;
        let fresh = Self::mint(entropy);
        if file::create_exclusive(&path, fresh.document()?.as_bytes()).map_err(|why| unusable(&why))? {
            return Ok(fresh);
        }
        Self::read(&path)?.ok_or_else(|| create_lost(&path.display()))
    }

    fn read(path: &Path) -> Result<Option<Self>, IdentityError> {
        let text = file::read_text(path).map_err(|why| unusable(&why))?;
        text.map(|text| Self::parse(&text, &path.display())).transpose()
    }

    /// As [`Self::load_or_create`], in a secret store: where a hosted context keeps it.
    pub async fn load_or_create_in(
        store: &dyn SecretStore,
        space: &Space,
        entropy: &dyn Entropy,
    ) -> Result<Self, IdentityError> {
        let key = auth_instance_key(space);
        let unusable =
            |why: &dyn std::fmt::Display| IdentityError(format!("instance identity: {key}: {why}"));
        if let Some(text) = store.get(&key).await.map_err(|why| unusable(&why))? {
            return Self::parse(&text, &key);
        }
        let fresh = Self::mint(entropy);
        if store.create(&key, &fresh.document()?).await.map_err(|why| unusable(&why))? {
            return Ok(fresh);
        }
        let winner = store.get(&key).await.map_err(|why| unusable(&why))?;
        Self::parse(&winner.ok_or_else(|| create_lost(&key))?, &key)
    }

    /// As [`Self::load_or_create_in`], for a host whose identity may still lie in a directory from before: the first start
    /// moves it in. Different identities in both places refuse, naming both: one of them is another instance's.
    pub async fn adopt_into(
        store: &dyn SecretStore,
        space: &Space,
        identity_root: &Path,
        entropy: &dyn Entropy,
    ) -> Result<Self, IdentityError> {
        let path = identity_root.join(AUTH_INSTANCE_FILE);
        let filed_at = path.clone();
        let Some(filed) = on_disk(move || Self::read(&filed_at)).await? else {
            return Self::load_or_create_in(store, space, entropy).await;
        };
        let key = auth_instance_key(space);
        let created = store.create(&key, &filed.document()?).await;
        created.map_err(|why| unusable(&format!("{key}: {why}")))?;
        let stored = store.get(&key).await.map_err(|why| unusable(&format!("{key}: {why}")))?;
        let stored = Self::parse(&stored.ok_or_else(|| create_lost(&key))?, &key)?;
        if stored.instance != filed.instance || stored.serve.public() != filed.serve.public() {
            return Err(unusable(&format!(
                "the secret store holds instance {} under {key} and {} holds instance {}; remove the one that is not this \
                 space's",
                stored.instance,
                path.display(),
                filed.instance
            )));
        }
        // The store has it for good; a crash before this leaves both, and both the same.
        on_disk(move || file::remove_if_present(&path).map_err(|why| unusable(&why))).await?;
        Ok(stored)
    }

    fn parse(text: &str, place: &dyn std::fmt::Display) -> Result<Self, IdentityError> {
        let refuse = |why: &str| {
            IdentityError(format!(
                "instance identity: {place} {why}; put it back from a backup, for a fresh one would be another instance"
            ))
        };
        let Object(Document { instance_id, serve_identity }) =
            serde_json::from_str(text).map_err(|_| refuse("is not an instance identity"))?;
        let serve = Seed::parse(serve_identity.seed).map_err(|_| refuse("holds a seed that is none"))?;
        if *serve.public() != serve_identity.id {
            return Err(refuse("holds a seed of another key than it names"));
        }
        Ok(Self { instance: instance_id, serve })
    }

    fn document(&self) -> Result<Zeroizing<String>, IdentityError> {
        let seed = self.serve.expose();
        let serve_identity = ServeIdentity { id: self.serve.public().clone(), seed: &seed };
        let document = Document { instance_id: self.instance.clone(), serve_identity };
        // Large enough never to move: what it moved from would not be wiped.
        let mut text = Zeroizing::new(Vec::with_capacity(DOCUMENT_CAPACITY));
        let written = serde_json::to_writer_pretty(&mut *text, &document);
        written.map_err(|why| IdentityError(format!("the identity cannot be written down: {why}")))?;
        text.push(b'\n');
        let text = String::from_utf8(std::mem::take(&mut *text));
        text.map(Zeroizing::new).map_err(|_| IdentityError("the identity is no text".into()))
    }
}

impl std::fmt::Debug for InstanceIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InstanceIdentity({}, {})", self.instance, self.serve.public())
    }
}

/// The identity of the manager of this root, read now: `None` when it has never run here. It is made by the manager
/// alone.
pub fn read_manager(identity_root: &Path) -> Result<Option<InstanceIdentity>, IdentityError> {
    InstanceIdentity::read(&identity_root.join(MANAGER_INSTANCE_FILE))
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, IdentityError> {
    file::blocking(work).await.map_err(|why| unusable(&why))?
}

fn unusable(why: &dyn std::fmt::Display) -> IdentityError {
    IdentityError(format!("instance identity: {why}"))
}

/// The secret store's key of the auth plane's identity.
pub fn auth_instance_key(space: &Space) -> String {
    format!("{}/{AUTH_INSTANCE_FILE}", space_segment(space))
}

fn create_lost(place: &dyn std::fmt::Display) -> IdentityError {
    IdentityError(format!(
        "identity-record-create-lost: another process made {place} first, and it cannot be read; look at it, then start \
         again"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use cotal_trust::system::SystemEntropy;

    use super::*;
    use crate::{root::Root, secret_store::FsSecretStore};

    fn made(dir: &Path) -> InstanceIdentity {
        InstanceIdentity::load_or_create(dir, &SystemEntropy).unwrap()
    }

    #[test]
    fn an_identity_is_made_once_and_kept_private() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("space.6d61696e");
        let (first, second) = (made(&dir), made(&dir));
        assert_eq!((&first.instance, first.serve.public()), (&second.instance, second.serve.public()));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(AUTH_INSTANCE_FILE))), (0o700, 0o600));
        assert!(!format!("{first:?}").contains(first.serve.expose().as_str()));
    }

    #[test]
    fn a_roots_manager_is_read_as_it_is_and_never_made() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(MANAGER_INSTANCE_FILE);
        assert!(read_manager(tmp.path()).unwrap().is_none());
        assert!(!path.exists());
        let manager = InstanceIdentity::mint(&SystemEntropy);
        std::fs::write(&path, manager.document().unwrap().as_str()).unwrap();
        let read = read_manager(tmp.path()).unwrap().unwrap();
        assert_eq!((&read.instance, read.serve.public()), (&manager.instance, manager.serve.public()));
        std::fs::write(&path, "{}").unwrap();
        assert!(read_manager(tmp.path()).unwrap_err().0.contains(MANAGER_INSTANCE_FILE));
    }

    // #1263: two first starts made two identities.
    #[test]
    fn concurrent_first_starts_yield_one_identity() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("identity");
        let start = std::sync::Barrier::new(8);
        let made: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        made(&dir)
                    })
                })
                .collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|one| one.instance == made[0].instance));
        assert!(made.iter().all(|one| one.serve.public() == made[0].serve.public()));
    }

    #[tokio::test]
    async fn an_identity_in_a_directory_moves_into_the_store_once_and_a_second_one_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let store = FsSecretStore::open(&Root::at(tmp.path().join("store"))).unwrap();
        let space = Space::parse("main").unwrap();
        let (dir, path) = (tmp.path().join("state"), tmp.path().join("state").join(AUTH_INSTANCE_FILE));
        let adopt = async || InstanceIdentity::adopt_into(&store, &space, &dir, &SystemEntropy).await;

        let filed = made(&dir);
        let text = std::fs::read_to_string(&path).unwrap();
        for _ in 0..2 {
            let adopted = adopt().await.unwrap();
            assert_eq!((&adopted.instance, adopted.serve.public()), (&filed.instance, filed.serve.public()));
            assert!(!path.exists(), "moved");
        }
        // A crash after the store has it.
        std::fs::write(&path, &text).unwrap();
        assert_eq!(adopt().await.unwrap().instance, filed.instance);
        assert!(!path.exists());

        let other = made(&dir);
        let refusal = adopt().await.unwrap_err();
        for named in [filed.instance.as_str(), other.instance.as_str(), &auth_instance_key(&space)] {
            assert!(refusal.0.contains(named), "{refusal}");
        }
        for seed in [filed.serve.expose(), other.serve.expose()] {
            assert!(!refusal.0.contains(seed.as_str()), "no seed in a refusal");
        }
        assert!(path.exists(), "untouched");
    }

    #[test]
    fn what_does_not_read_is_refused_and_never_replaced() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(AUTH_INSTANCE_FILE);
        let good = InstanceIdentity::mint(&SystemEntropy);
        let other = InstanceIdentity::mint(&SystemEntropy);
        let text = good.document().unwrap();
        assert!(text.capacity() == DOCUMENT_CAPACITY, "it was written where it lies");
        for bad in [
            String::new(),
            "{}".to_owned(),
            "[]".to_owned(),
            text.replace(good.instance.as_str(), "short"),
            text.replace(good.serve.public().as_str(), other.serve.public().as_str()),
            text.replace(good.serve.expose().as_str(), ""),
            text.replace("\"serveIdentity\"", "\"v\": 1, \"serveIdentity\""),
        ] {
            std::fs::write(&path, &bad).unwrap();
            let refusal = InstanceIdentity::load_or_create(tmp.path(), &SystemEntropy).unwrap_err();
            assert!(refusal.0.contains(AUTH_INSTANCE_FILE), "{refusal}");
            assert!(!refusal.0.contains(good.serve.expose().as_str()), "no seed in a refusal");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), bad, "untouched");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(
            InstanceIdentity::load_or_create(tmp.path(), &SystemEntropy).is_err(),
            "no symlink is followed"
        );
    }
}
