//! The mesh registry of a machine: which spaces were entered from here, and how (contract 08 §3).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use cotal_wire::{Object, Space, object};
use serde::{Deserialize, Serialize};

use crate::{
    broker_config::BrokerPolicy,
    file,
    lock_file::LockFile,
    root::{Home, Root, space_of_segment, space_segment},
};

const MESHES_DIR: &str = "meshes";
const RECORD_SUFFIX: &str = ".json";
const LOCK_SUFFIX: &str = ".lock";
/// What a record says of itself that somebody wrote by hand (contract 08 §3).
const MANUAL: &str = "manual";
/// The copy that a root keeps of its own record. Private to this project.
const OWN_COPY: &str = "mesh.json";
/// What `up` decided for the broker, kept for the next `up`.
const BROKER_POLICY: &str = "brokerPolicy";
const AUTH_TIMEOUT: &str = "authTimeout";
const MAX_CONNECTIONS: &str = "maxConnections";

/// How a mesh is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeshMode {
    /// Static creds.
    Auth,
    /// No auth.
    Open,
    /// Login and bearer.
    User,
}

/// `userAuth` of a registry entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshUserAuth {
    /// Provider name.
    pub provider: String,
    /// IdP pins.
    #[serde(deserialize_with = "object::read")]
    pub idp: MeshIdp,
    /// Convenience endpoints.
    #[serde(default, deserialize_with = "object::read_optional", skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<MeshEndpoints>,
}

/// The IdP pins of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshIdp {
    /// Base URL.
    pub url: String,
    /// Issuer.
    pub issuer: String,
    /// Audience.
    pub audience: String,
}

/// The endpoints of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshEndpoints {
    /// The public exchange URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// One record of `<home>/meshes/space.<hex>.json`. Unknown members are kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshEntry {
    /// The space.
    pub space: Space,
    /// Broker URL.
    pub server: String,
    /// Absolute root.
    pub root: String,
    /// How it is entered.
    pub mode: MeshMode,
    /// With `mode: user`.
    #[serde(default, deserialize_with = "object::read_optional", skip_serializing_if = "Option::is_none")]
    pub user_auth: Option<MeshUserAuth>,
    /// `up` or `manual`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// When it was written, ISO.
    pub ts: String,
    /// Members this version does not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// The registry of a home: one file per space in `<home>/meshes`.
pub struct MeshRegistry {
    home: Home,
}

impl MeshEntry {
    /// Whether the record holds together: `userAuth` exactly with mode `user` and without a blank, an absolute root.
    pub fn check(&self) -> Result<(), &'static str> {
        match (&self.mode, &self.user_auth) {
            (MeshMode::User, None) => return Err("mode \"user\" without userAuth"),
            (MeshMode::Auth | MeshMode::Open, Some(_)) => return Err("userAuth without mode \"user\""),
            (MeshMode::User, Some(user)) => {
                let members = [&user.provider, &user.idp.url, &user.idp.issuer, &user.idp.audience];
                if members.iter().any(|member| member.is_empty()) {
                    return Err("an empty member of userAuth");
                }
            }
            (MeshMode::Auth | MeshMode::Open, None) => {}
        }
        if self.server.is_empty() {
            return Err("an empty server");
        }
        if !Path::new(&self.root).is_absolute() {
            return Err("a root that is not absolute");
        }
        Ok(())
    }

    /// Whether it was entered by hand: then only an act that names it takes it away (contract 08 §3).
    pub fn is_manual(&self) -> bool {
        self.origin.as_deref() == Some(MANUAL)
    }

    /// Keeps a copy in the record's own root, for when a root with a space of the same name takes its place in the
    /// registry: there is one record a space on a machine.
    pub fn keep_copy(&self) -> io::Result<()> {
        let dir = Root::at(&self.root).space_dir(&self.space);
        file::ensure_private_dir(&dir)?;
        file::write_atomic(&dir.join(OWN_COPY), serde_json::to_string_pretty(self)?.as_bytes())
    }

    /// The copy that a root keeps of its record of a space. One that does not read, or is not of this very root and
    /// space, is none.
    pub fn kept_copy(root: &Root, space: &Space) -> io::Result<Option<Self>> {
        let copy = file::read_regular(&root.space_dir(space).join(OWN_COPY))?;
        let copy = copy.and_then(|bytes| Self::parse(&bytes));
        Ok(copy.filter(|copy| copy.space == *space && Path::new(&copy.root) == root.path()))
    }

    /// A record that reads and holds together.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let Object(entry) = serde_json::from_slice::<Object<Self>>(bytes).ok()?;
        entry.check().is_ok().then_some(entry)
    }

    /// What the broker of this mesh was last told (`brokerPolicy`).
    pub fn broker_policy(&self) -> BrokerPolicy {
        let bound = |name| self.other.get(BROKER_POLICY)?.get(name)?.as_u64();
        BrokerPolicy { auth_timeout_secs: bound(AUTH_TIMEOUT), max_connections: bound(MAX_CONNECTIONS) }
    }

    /// Records the policy of this mesh's broker; bounds that are the broker's own are left out.
    pub fn set_broker_policy(&mut self, policy: BrokerPolicy) {
        let bounds: serde_json::Map<_, _> =
            [(AUTH_TIMEOUT, policy.auth_timeout_secs), (MAX_CONNECTIONS, policy.max_connections)]
                .into_iter()
                .filter_map(|(name, bound)| Some((name.to_owned(), bound?.into())))
                .collect();
        if bounds.is_empty() {
            self.other.remove(BROKER_POLICY);
        } else {
            self.other.insert(BROKER_POLICY.to_owned(), bounds.into());
        }
    }
}

impl MeshRegistry {
    /// The registry of a home.
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    /// Every readable record, by space; a file that does not read is skipped.
    pub fn list(&self) -> io::Result<Vec<MeshEntry>> {
        let mut found: BTreeMap<Space, (bool, MeshEntry)> = BTreeMap::new();
        for (path, entry) in self.files()? {
            let canonical = path == self.path(&entry.space);
            match found.get(&entry.space) {
                Some((true, _)) => {}
                Some((false, _)) if !canonical => {}
                _ => {
                    found.insert(entry.space.clone(), (canonical, entry));
                }
            }
        }
        Ok(found.into_values().map(|(_, entry)| entry).collect())
    }

    /// The record of a space; its canonical file beats a legacy one.
    pub fn get(&self, space: &Space) -> io::Result<Option<MeshEntry>> {
        Ok(self.list()?.into_iter().find(|entry| entry.space == *space))
    }

    /// Writes a record, sweeping legacy files of the space.
    pub fn put(&self, entry: &MeshEntry) -> io::Result<()> {
        entry.check().map_err(|what| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a mesh record of {:?} has {what}", entry.space.as_str()),
            )
        })?;
        self.home.ensure()?;
        file::ensure_private_dir(&self.dir())?;
        let text = serde_json::to_string_pretty(entry)?;
        file::write_atomic(&self.path(&entry.space), text.as_bytes())?;
        self.sweep(&entry.space)?;
        Ok(())
    }

    /// Removes a record, and every legacy file of the space.
    pub fn remove(&self, space: &Space) -> io::Result<bool> {
        let removed = file::remove_if_present(&self.path(space))?;
        Ok(self.sweep(space)? || removed)
    }

    /// Held by the one process that may change the record of a space; `None` while another has it.
    pub fn lock(&self, space: &Space) -> io::Result<Option<LockFile>> {
        self.home.ensure()?;
        file::ensure_private_dir(&self.dir())?;
        LockFile::take(&self.dir().join(format!("{}{LOCK_SUFFIX}", space_segment(space))))
    }

    fn dir(&self) -> PathBuf {
        self.home.path().join(MESHES_DIR)
    }

    fn path(&self, space: &Space) -> PathBuf {
        self.dir().join(format!("{}{RECORD_SUFFIX}", space_segment(space)))
    }

    /// Removes the files that name a space and are not its canonical one.
    fn sweep(&self, space: &Space) -> io::Result<bool> {
        let canonical = self.path(space);
        let mut swept = false;
        for (path, entry) in self.files()? {
            if entry.space == *space && path != canonical {
                swept |= file::remove_if_present(&path)?;
            }
        }
        Ok(swept)
    }

    /// Every record that reads, with its file. A canonical file that names another space is nobody's.
    fn files(&self) -> io::Result<Vec<(PathBuf, MeshEntry)>> {
        if !file::is_real_dir(&self.dir())? {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        for listed in std::fs::read_dir(self.dir())? {
            let path = listed?.path();
            let Some(stem) =
                path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(RECORD_SUFFIX))
            else {
                continue;
            };
            let Ok(Some(bytes)) = file::read_regular(&path) else { continue };
            let Some(entry) = MeshEntry::parse(&bytes) else { continue };
            if space_of_segment(stem).is_some_and(|space| space != entry.space) {
                continue;
            }
            files.push((path, entry));
        }
        files.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn registry() -> (tempfile::TempDir, MeshRegistry) {
        let tmp = tempfile::tempdir().unwrap();
        let registry = MeshRegistry::new(Home::at(tmp.path().join("home")));
        (tmp, registry)
    }

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    fn record(space: &str) -> serde_json::Value {
        serde_json::json!({
            "space": space, "server": "nats://127.0.0.1:4222", "root": "/r", "mode": "user",
            "userAuth": { "provider": "cotal", "idp": { "url": "https://i/a", "issuer": "https://i", "audience": "https://i" } },
            "origin": "up", "ts": "2026-01-01T00:00:00.000Z", "maxSessions": 4,
        })
    }

    fn entry(space: &str) -> MeshEntry {
        serde_json::from_value(record(space)).unwrap()
    }

    fn place(registry: &MeshRegistry, name: &str, value: &serde_json::Value) -> PathBuf {
        std::fs::create_dir_all(registry.dir()).unwrap();
        let path = registry.dir().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    }

    #[test]
    fn a_record_is_written_0600_in_0700_directories_and_read_back_with_what_this_version_does_not_know() {
        let (_tmp, registry) = registry();
        registry.put(&entry("main")).unwrap();
        let path = registry.dir().join("space.6d61696e.json");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&registry.dir()), mode(registry.home.path())), (0o600, 0o700, 0o700));
        let read = registry.get(&space("main")).unwrap().unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), record("main"));
        assert!(registry.get(&space("other")).unwrap().is_none());
    }

    #[test]
    fn the_brokers_policy_is_kept_in_the_record() {
        let mut entry = entry("main");
        assert_eq!(entry.broker_policy(), BrokerPolicy::default());
        for (policy, kept) in [
            (
                BrokerPolicy { auth_timeout_secs: Some(10), max_connections: None },
                serde_json::json!({ "authTimeout": 10 }),
            ),
            (
                BrokerPolicy { auth_timeout_secs: Some(10), max_connections: Some(500) },
                serde_json::json!({ "authTimeout": 10, "maxConnections": 500 }),
            ),
        ] {
            entry.set_broker_policy(policy);
            assert_eq!(serde_json::to_value(&entry).unwrap()["brokerPolicy"], kept);
            assert_eq!(entry.broker_policy(), policy);
        }
        entry.set_broker_policy(BrokerPolicy::default());
        assert_eq!(entry.broker_policy(), BrokerPolicy::default());
        assert!(serde_json::to_value(&entry).unwrap().get("brokerPolicy").is_none());
    }

    #[test]
    fn a_canonical_file_beats_a_legacy_one_and_a_write_sweeps_the_legacy_one() {
        let (_tmp, registry) = registry();
        let mut older = record("my space");
        older["server"] = "nats://old:4222".into();
        let legacy = place(&registry, "my%20space.json", &older);
        assert_eq!(registry.get(&space("my space")).unwrap().unwrap().server, "nats://old:4222");
        place(&registry, "space.6d79207370616365.json", &record("my space"));
        assert_eq!(registry.list().unwrap().len(), 1);
        assert_eq!(registry.get(&space("my space")).unwrap().unwrap().server, "nats://127.0.0.1:4222");
        registry.put(&entry("my space")).unwrap();
        assert!(!legacy.exists());
    }

    #[test]
    fn remove_takes_every_file_of_the_space_and_only_those() {
        let (_tmp, registry) = registry();
        assert!(!registry.remove(&space("main")).unwrap());
        registry.put(&entry("main")).unwrap();
        let legacy = place(&registry, "main.json", &record("main"));
        let other = place(&registry, "other.json", &record("other"));
        assert!(registry.remove(&space("main")).unwrap());
        assert!(!legacy.exists() && other.exists());
        assert!(registry.get(&space("main")).unwrap().is_none());
    }

    #[test]
    fn files_that_do_not_read_are_skipped() {
        let (_tmp, registry) = registry();
        registry.put(&entry("main")).unwrap();
        let mut no_user_auth = record("a");
        no_user_auth["userAuth"] = serde_json::Value::Null;
        let mut static_with_user_auth = record("b");
        static_with_user_auth["mode"] = "auth".into();
        let mut blank_issuer = record("c");
        blank_issuer["userAuth"]["idp"]["issuer"] = "".into();
        let mut unknown_mode = record("d");
        unknown_mode["mode"] = "closed".into();
        let mut idp_of_a_list = record("j");
        idp_of_a_list["userAuth"]["idp"] = serde_json::json!(["https://idp.example", "i", "a"]);
        let mut relative = record("e");
        relative["root"] = "r".into();
        for (name, value) in [
            ("a.json", no_user_auth),
            ("b.json", static_with_user_auth),
            ("c.json", blank_issuer),
            ("d.json", unknown_mode),
            ("e.json", relative),
            ("f.json", serde_json::json!([])),
            ("j.json", idp_of_a_list),
            // A canonical name that belongs to another space.
            ("space.66.json", record("g")),
            ("h.txt", record("h")),
        ] {
            place(&registry, name, &value);
        }
        std::os::unix::fs::symlink(registry.dir().join("h.txt"), registry.dir().join("i.json")).unwrap();
        let spaces: Vec<_> = registry.list().unwrap().into_iter().map(|e| e.space).collect();
        assert_eq!(spaces, [space("main")]);
    }

    #[test]
    fn a_root_keeps_a_copy_of_its_own_record_and_takes_nobody_elses_for_it() {
        let (tmp, registry) = registry();
        let root = Root::at(tmp.path().join("root"));
        let mut own = entry("main");
        own.root = root.path().to_str().unwrap().to_owned();
        assert!(MeshEntry::kept_copy(&root, &space("main")).unwrap().is_none());
        file::ensure_private_dir(&root.cotal_dir()).unwrap();
        own.keep_copy().unwrap();
        let kept = MeshEntry::kept_copy(&root, &space("main")).unwrap().unwrap();
        assert_eq!(serde_json::to_value(&kept).unwrap(), serde_json::to_value(&own).unwrap());
        // A root that was copied, and a space that was renamed by hand.
        let copy = root.space_dir(&space("main")).join(OWN_COPY);
        let moved = Root::at(tmp.path().join("moved"));
        for (at, name) in [(&moved, "main"), (&root, "other")] {
            file::ensure_private_dir(&at.cotal_dir()).unwrap();
            file::ensure_private_dir(&at.space_dir(&space(name))).unwrap();
            std::fs::copy(&copy, at.space_dir(&space(name)).join(OWN_COPY)).unwrap();
            assert!(MeshEntry::kept_copy(at, &space(name)).unwrap().is_none(), "{name}");
        }
        // The registry's own is untouched, and one process at a time changes it.
        assert!(registry.list().unwrap().is_empty());
        let held = registry.lock(&space("main")).unwrap().unwrap();
        assert!(registry.lock(&space("main")).unwrap().is_none());
        assert!(registry.lock(&space("other")).unwrap().is_some());
        drop(held);
        assert!(registry.lock(&space("main")).unwrap().is_some());
        assert!(registry.list().unwrap().is_empty());
    }

    #[test]
    fn a_record_that_would_not_read_is_not_written() {
        let (_tmp, registry) = registry();
        let mut entry = entry("main");
        entry.mode = MeshMode::Open;
        assert!(registry.put(&entry).is_err());
        assert!(registry.list().unwrap().is_empty());
    }
}
