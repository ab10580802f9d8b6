//! Who this manager is: made once, by an exclusive create, and kept (contract 08 §8.2).
//!
//! A second identity would be a second manager: its registration, its epochs and its agents would start anew beside the
//! first one's. So what does not read is refused, never replaced, and of two first starts the loser takes the winner's.

use std::{fmt, path::PathBuf};

use cotal_authority::landed;
use cotal_trust::nkey::Seed;
use cotal_wire::{
    Entropy, InstanceId, LifecycleUid, Nkey, Object, Space, User,
    manager_authority::{Holder, Identities, StandingRole},
};
use cotal_workspace::{
    file,
    root::{Root, space_key},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Version of the document.
const VERSION: u64 = 1;
/// More than a document has: a space, two tokens, and five keys with their seeds.
const DOCUMENT_CAPACITY: usize = 8 * 1024;

/// An identity that cannot be used. Never carries what is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("manager identity: {0}")]
pub struct IdentityError(pub String);

/// Who a remote manager is, in one space, on one root.
#[derive(Clone)]
pub struct ManagerIdentity {
    space: Space,
    instance: InstanceId,
    lifecycle: LifecycleUid,
    /// In the order of [`StandingRole::ALL`].
    seeds: [Seed<User>; 5],
}

/// Whether an identity was there, or is this call's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was made now.
    Made,
    /// It was there.
    Kept,
}

/// As it is stored. Text is borrowed, so that no copy of a seed is left behind.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document<'a> {
    v: u64,
    space: Space,
    instance_id: InstanceId,
    lifecycle_uid: LifecycleUid,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    identities: Keys<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Keys<'a> {
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    supervisor: Key<'a>,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    executor: Key<'a>,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    serve: Key<'a>,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    goal_writer: Key<'a>,
    #[serde(borrow, deserialize_with = "cotal_wire::object::read")]
    session_ledger: Key<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key<'a> {
    id: Nkey<User>,
    seed: &'a str,
}

impl ManagerIdentity {
    /// Where the identity of a space lies on a root.
    pub fn path(root: &Root, space: &Space) -> PathBuf {
        root.cotal_dir().join(format!("remote-manager.{}.json", space_key(space)))
    }

    /// The identity kept on this root, made when there is none: the directory 0700, the file 0600, no symlink followed.
    pub fn load_or_create(
        root: &Root,
        space: &Space,
        entropy: &dyn Entropy,
    ) -> Result<(Self, Origin), IdentityError> {
        if let Some(kept) = Self::load(root, space)? {
            return Ok((kept, Origin::Kept));
        }
        let path = Self::path(root, space);
        let unusable = |why: std::io::Error| IdentityError(why.to_string());
        file::ensure_private_dir(&root.cotal_dir()).map_err(unusable)?;
        let fresh = Self::mint(space, entropy);
        if file::create_exclusive(&path, fresh.document()?.as_bytes()).map_err(unusable)? {
            landed("manager-identity");
            return Ok((fresh, Origin::Made));
        }
        match Self::load(root, space)? {
            Some(winner) => Ok((winner, Origin::Kept)),
            None => Err(IdentityError(format!(
                "identity-record-create-lost: another process made {} first, and it cannot be read; look at it, then \
                 start again",
                path.display()
            ))),
        }
    }

    /// The identity kept on this root, if there is one.
    pub fn load(root: &Root, space: &Space) -> Result<Option<Self>, IdentityError> {
        let path = Self::path(root, space);
        let text = file::read_text(&path).map_err(|why| IdentityError(why.to_string()))?;
        text.map(|text| Self::parse(&text, space, &path.display())).transpose()
    }

    fn mint(space: &Space, entropy: &dyn Entropy) -> Self {
        Self {
            space: space.clone(),
            instance: InstanceId::mint(entropy),
            lifecycle: LifecycleUid::mint(entropy),
            seeds: std::array::from_fn(|_| Seed::generate(entropy)),
        }
    }

    fn parse(text: &str, space: &Space, place: &dyn fmt::Display) -> Result<Self, IdentityError> {
        let refuse = |why: &str| {
            IdentityError(format!(
                "{place} {why}; put it back from a backup: a fresh one would be another manager"
            ))
        };
        let Object(document): Object<Document<'_>> =
            serde_json::from_str(text).map_err(|_| refuse("is not a remote manager's identity"))?;
        if document.v != VERSION {
            return Err(refuse("is of another version"));
        }
        if document.space != *space {
            return Err(refuse("is of another space"));
        }
        let Keys { supervisor, executor, serve, goal_writer, session_ledger } = document.identities;
        let read = |key: Key<'_>| {
            let seed = Seed::parse(key.seed).map_err(|_| refuse("holds a seed that is none"))?;
            if *seed.public() == key.id {
                Ok(seed)
            } else {
                Err(refuse("holds a seed of another key than it names"))
            }
        };
        let seeds =
            [read(supervisor)?, read(executor)?, read(serve)?, read(goal_writer)?, read(session_ledger)?];
        let distinct: std::collections::BTreeSet<_> = seeds.iter().map(Seed::public).collect();
        if distinct.len() != seeds.len() {
            return Err(refuse("uses one key twice"));
        }
        Ok(Self {
            space: document.space,
            instance: document.instance_id,
            lifecycle: document.lifecycle_uid,
            seeds,
        })
    }

    fn document(&self) -> Result<Zeroizing<String>, IdentityError> {
        let texts = self.seeds.each_ref().map(Seed::expose);
        let key = |at: usize| Key { id: self.seeds[at].public().clone(), seed: &texts[at] };
        let document = Document {
            v: VERSION,
            space: self.space.clone(),
            instance_id: self.instance.clone(),
            lifecycle_uid: self.lifecycle.clone(),
            identities: Keys {
                supervisor: key(0),
                executor: key(1),
                serve: key(2),
                goal_writer: key(3),
                session_ledger: key(4),
            },
        };
        // Large enough never to move: what it moved from would not be wiped.
        let mut text = Zeroizing::new(Vec::with_capacity(DOCUMENT_CAPACITY));
        let written = serde_json::to_writer_pretty(&mut *text, &document);
        written.map_err(|_| IdentityError("the identity cannot be written down".into()))?;
        text.push(b'\n');
        let text = String::from_utf8(std::mem::take(&mut *text));
        text.map(Zeroizing::new).map_err(|_| IdentityError("the identity is no text".into()))
    }

    /// The space that it is of.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The manager's instance.
    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// The manager's lifecycle.
    pub fn lifecycle(&self) -> &LifecycleUid {
        &self.lifecycle
    }

    /// The seed of a standing key.
    pub fn seed(&self, role: StandingRole) -> &Seed<User> {
        let at = StandingRole::ALL.iter().position(|other| *other == role);
        &self.seeds[at.unwrap_or_default()]
    }

    /// The five public keys, as a request carries them.
    pub fn identities(&self) -> Identities {
        let holder = |role| Holder { id: self.seed(role).public().clone() };
        Identities {
            supervisor: holder(StandingRole::Supervisor),
            executor: holder(StandingRole::Executor),
            serve: holder(StandingRole::Serve),
            goal_writer: holder(StandingRole::GoalWriter),
            session_ledger: holder(StandingRole::SessionLedger),
        }
    }
}

/// Public parts alone.
impl fmt::Debug for ManagerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagerIdentity({} of {})", self.instance, self.space)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use cotal_trust::system::SystemEntropy;

    use StandingRole::{Executor, Serve, Supervisor};

    use super::*;

    fn space() -> Space {
        Space::parse("main").unwrap()
    }

    fn made(root: &Root) -> (ManagerIdentity, Origin) {
        ManagerIdentity::load_or_create(root, &space(), &SystemEntropy).unwrap()
    }

    #[test]
    fn an_identity_is_made_once_in_the_contracts_shape_and_kept_private() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        let (first, origin) = made(&root);
        assert_eq!(origin, Origin::Made);
        let (second, origin) = made(&root);
        assert_eq!(origin, Origin::Kept);
        assert_eq!((first.instance(), first.lifecycle()), (second.instance(), second.lifecycle()));
        assert_eq!(first.identities(), second.identities());

        let path = root.cotal_dir().join("remote-manager.6d61696e.json");
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&root.cotal_dir()), mode(&path)), (0o700, 0o600));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\n  \"v\": 1,\n  \"space\": \"main\",\n  \"instanceId\": \""), "indent 2");
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let mut members = keys(&document["identities"]);
        members.sort();
        assert_eq!(members, ["executor", "goalWriter", "serve", "sessionLedger", "supervisor"]);
        assert_eq!(keys(&document["identities"]["serve"]), ["id", "seed"]);
        for role in StandingRole::ALL {
            assert!(!format!("{first:?}").contains(first.seed(role).expose().as_str()));
            assert_eq!(first.identities().of(role), first.seed(role).public());
        }
    }

    #[test]
    fn concurrent_first_starts_yield_one_identity() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        let start = std::sync::Barrier::new(8);
        let all: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        made(&root)
                    })
                })
                .collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|(one, _)| one.identities() == all[0].0.identities()));
        assert_eq!(all.iter().filter(|(_, origin)| *origin == Origin::Made).count(), 1);
    }

    #[test]
    fn what_does_not_read_is_refused_and_never_replaced() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        let (good, _) = made(&root);
        let path = ManagerIdentity::path(&root, &space());
        let text = std::fs::read_to_string(&path).unwrap();
        let seed = |role| good.seed(role).expose().to_string();
        let id = |role| good.seed(role).public().to_string();
        for bad in [
            String::new(),
            "{}".to_owned(),
            "[]".to_owned(),
            text.replace("\"v\": 1", "\"v\": 2"),
            text.replace("\"space\": \"main\"", "\"space\": \"other\""),
            text.replace(good.instance().as_str(), "short"),
            text.replace(good.lifecycle().as_str(), ""),
            text.replace(&id(Serve), &id(Executor)),
            text.replace(&seed(Supervisor), ""),
            // One key in two places.
            text.replace(&seed(Supervisor), &seed(Serve)).replace(&id(Supervisor), &id(Serve)),
            text.replace("\"goalWriter\"", "\"goal\""),
            text.replace("\"v\": 1", "\"v\": 1, \"more\": 1"),
        ] {
            std::fs::write(&path, &bad).unwrap();
            let refusal = ManagerIdentity::load_or_create(&root, &space(), &SystemEntropy).unwrap_err();
            for role in StandingRole::ALL {
                assert!(!refusal.0.contains(good.seed(role).expose().as_str()), "no seed in a refusal");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), bad, "untouched");
        }
        std::fs::remove_file(&path).unwrap();
        let elsewhere = tmp.path().join("elsewhere");
        std::fs::write(&elsewhere, &text).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(
            ManagerIdentity::load_or_create(&root, &space(), &SystemEntropy).is_err(),
            "no symlink is followed"
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(
            ManagerIdentity::load_or_create(&root, &space(), &SystemEntropy).is_err(),
            "no directory is read"
        );
    }
}
