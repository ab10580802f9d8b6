//! The login sessions of this machine: `<home>/idp-sessions.json` (contract 04 §11.1).

use std::{collections::BTreeMap, fmt, path::PathBuf};

use cotal_wire::{Object, UnixSecs};
use cotal_workspace::{file, root::Home};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, flock},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::outcome::CliError;

const FILE_NAME: &str = "idp-sessions.json";
/// Held by whoever changes the cache: two logins at once would otherwise lose one.
const LOCK_FILE: &str = "idp-sessions.lock";
const VERSION: u64 = 1;

/// One session.
#[derive(Clone)]
pub struct CachedSession {
    /// The opaque session token.
    pub token: Zeroizing<String>,
    /// When it ends, as the IdP said; advisory, never enforced here.
    pub expires_at: UnixSecs,
    /// The subject, when it was proved.
    pub sub: Option<String>,
}

/// The cache of a home.
pub struct SessionCache {
    home: Home,
}

/// The file. What another version wrote beside the sessions stays.
#[derive(Serialize, Deserialize)]
struct Document {
    ver: u64,
    sessions: BTreeMap<String, Value>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    token: String,
    expires_at: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sub: Option<String>,
}

/// The token is left out.
impl fmt::Debug for CachedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedSession")
            .field("expires_at", &self.expires_at)
            .field("sub", &self.sub)
            .finish_non_exhaustive()
    }
}

impl SessionCache {
    /// The cache of a home; nothing is read.
    pub fn of(home: &Home) -> Self {
        Self { home: home.clone() }
    }

    /// Where it lies.
    pub fn path(&self) -> PathBuf {
        self.home.path().join(FILE_NAME)
    }

    /// The session at a normalised IdP URL.
    pub fn get(&self, idp_url: &str) -> Result<Option<CachedSession>, CliError> {
        let Some(mut document) = self.read()? else { return Ok(None) };
        let Some(entry) = document.sessions.remove(idp_url) else { return Ok(None) };
        entry_of(entry).map(Some).ok_or_else(|| {
            self.refuse(&format!("holds a malformed session for {idp_url}; run: cotal login --idp {idp_url}"))
        })
    }

    /// Stores the session at a normalised IdP URL, in place of the one before.
    pub fn put(&self, idp_url: &str, session: &CachedSession) -> Result<(), CliError> {
        self.home.ensure()?;
        let _lock = self.lock()?;
        let mut document = self.read()?.unwrap_or_else(|| Document {
            ver: VERSION,
            sessions: BTreeMap::new(),
            other: Map::new(),
        });
        let entry = Entry {
            token: session.token.as_str().to_owned(),
            // Seconds of this millennium are exact in a double.
            #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
            expires_at: session.expires_at.0 as f64,
            sub: session.sub.clone(),
        };
        let mut value = serde_json::to_value(&entry).map_err(|_| self.refuse("cannot be encoded"))?;
        value["expiresAt"] = session.expires_at.0.into();
        document.sessions.insert(idp_url.to_owned(), value);
        self.write(&document)
    }

    /// Forgets the session at a normalised IdP URL; `false` when there was none.
    pub fn remove(&self, idp_url: &str) -> Result<bool, CliError> {
        if self.read()?.is_none() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let Some(mut document) = self.read()? else { return Ok(false) };
        let found = document.sessions.remove(idp_url).is_some();
        if found {
            self.write(&document)?;
        }
        Ok(found)
    }

    /// Waits for whoever else changes the cache, which takes one small write; the system lets go of the lock when its
    /// holder ends, however it ends.
    fn lock(&self) -> Result<OwnedFd, CliError> {
        let path = self.home.path().join(LOCK_FILE);
        let lock = file::open_lock(&path)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| {
            CliError::failed(format!("{} cannot be locked: {}", path.display(), std::io::Error::from(e)))
        })?;
        Ok(lock)
    }

    fn read(&self) -> Result<Option<Document>, CliError> {
        let Some(bytes) = file::read_regular(&self.path())? else { return Ok(None) };
        let document: Option<Document> = serde_json::from_slice(&bytes).ok();
        document
            .filter(|document| document.ver == VERSION)
            .map(Some)
            .ok_or_else(|| self.refuse("is not a version 1 session cache; move it away and log in again"))
    }

    fn write(&self, document: &Document) -> Result<(), CliError> {
        let bytes = serde_json::to_vec_pretty(document).map_err(|_| self.refuse("cannot be encoded"))?;
        file::write_atomic(&self.path(), &Zeroizing::new(bytes))?;
        Ok(())
    }

    fn refuse(&self, what: &str) -> CliError {
        CliError::failed(format!("{} {what}", self.path().display()))
    }
}

fn entry_of(value: Value) -> Option<CachedSession> {
    let Object(entry): Object<Entry> = serde_json::from_value(value).ok()?;
    let token = Zeroizing::new(entry.token);
    if token.is_empty() || !entry.expires_at.is_finite() || entry.expires_at < 0.0 {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "finite and not below zero; saturates"
    )]
    let expires_at = UnixSecs(entry.expires_at.floor() as u64);
    Some(CachedSession { token, expires_at, sub: entry.sub })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const IDP: &str = "https://id.example/api/auth";

    fn cache(dir: &tempfile::TempDir) -> SessionCache {
        SessionCache::of(&Home::at(dir.path().join("home")))
    }

    fn session(token: &str) -> CachedSession {
        CachedSession {
            token: Zeroizing::new(token.to_owned()),
            expires_at: UnixSecs(1_767_323_045),
            sub: Some("zoe".into()),
        }
    }

    fn plant(cache: &SessionCache, text: &str) {
        std::fs::create_dir_all(cache.home.path()).unwrap();
        std::fs::write(cache.path(), text).unwrap();
    }

    #[test]
    fn sessions_are_private_and_kept_apart_by_url() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        assert!(cache.get(IDP).unwrap().is_none() && !cache.remove(IDP).unwrap());
        cache.put(IDP, &session("one")).unwrap();
        cache.put("https://other.example", &session("two")).unwrap();
        let read = cache.get(IDP).unwrap().unwrap();
        assert_eq!(
            (read.token.as_str(), read.expires_at, read.sub.as_deref()),
            ("one", UnixSecs(1_767_323_045), Some("zoe"))
        );
        assert_eq!(std::fs::metadata(cache.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(cache.home.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let text = std::fs::read_to_string(cache.path()).unwrap();
        assert!(text.starts_with("{\n  \"ver\": 1,\n  \"sessions\": {\n    \"https://"), "{text}");
        assert!(text.contains("\"expiresAt\": 1767323045,"), "{text}");
        assert!(cache.remove(IDP).unwrap() && cache.get(IDP).unwrap().is_none());
        assert_eq!(cache.get("https://other.example").unwrap().unwrap().token.as_str(), "two");
    }

    #[test]
    fn a_cache_that_does_not_parse_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        for text in [
            "",
            "{",
            "[]",
            "null",
            "{\"ver\":1}",
            "{\"ver\":2,\"sessions\":{}}",
            "{\"ver\":1,\"sessions\":[]}",
            "{\"ver\":\"1\",\"sessions\":{}}",
            "{\"sessions\":{}}",
        ] {
            plant(&cache, text);
            assert!(
                cache.get(IDP).is_err()
                    && cache.put(IDP, &session("x")).is_err()
                    && cache.remove(IDP).is_err()
            );
            assert_eq!(std::fs::read_to_string(cache.path()).unwrap(), text);
        }
    }

    #[test]
    fn logins_at_the_same_time_lose_no_session() {
        let dir = tempfile::tempdir().unwrap();
        let home = cache(&dir).home;
        std::thread::scope(|scope| {
            for n in 0..8 {
                let home = &home;
                scope.spawn(move || {
                    let cache = SessionCache::of(home);
                    for m in 0..8 {
                        cache.put(&format!("https://{n}.example/{m}"), &session("x")).unwrap();
                        assert!(m == 0 || cache.remove(&format!("https://{n}.example/{}", m - 1)).unwrap());
                    }
                });
            }
        });
        let left = cache(&dir).read().unwrap().unwrap().sessions;
        let expected: Vec<_> = (0..8).map(|n| format!("https://{n}.example/7")).collect();
        assert_eq!(left.into_keys().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_malformed_entry_is_refused_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        for entry in [
            "null",
            "\"hidden\"",
            "{\"token\":\"hidden\"}",
            "{\"token\":\"\",\"expiresAt\":1}",
            "{\"token\":\"hidden\",\"expiresAt\":\"1\"}",
            "{\"token\":\"hidden\",\"expiresAt\":-1}",
            "{\"token\":\"hidden\",\"expiresAt\":1,\"sub\":7}",
            "[\"hidden\",1,\"zoe\"]",
        ] {
            plant(&cache, &format!("{{\"ver\":1,\"sessions\":{{\"{IDP}\":{entry}}}}}"));
            let error = cache.get(IDP).unwrap_err().to_string();
            assert!(error.contains("cotal login") && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn a_symlinked_cache_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        plant(&cache, "");
        std::fs::remove_file(cache.path()).unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "{\"ver\":1,\"sessions\":{}}").unwrap();
        symlink(&target, cache.path()).unwrap();
        assert!(cache.get(IDP).is_err() && cache.put(IDP, &session("x")).is_err());
        assert_eq!(std::fs::read_to_string(target).unwrap(), "{\"ver\":1,\"sessions\":{}}");
    }

    #[test]
    fn what_another_version_wrote_beside_the_sessions_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&dir);
        plant(&cache, "{\"ver\":1,\"sessions\":{\"https://x\":{\"later\":1}},\"spaces\":[1]}");
        cache.put(IDP, &session("x")).unwrap();
        let text = std::fs::read_to_string(cache.path()).unwrap();
        assert!(text.contains("\"spaces\"") && text.contains("\"later\""), "{text}");
        assert!(!format!("{:?}", session("hidden")).contains("hidden"));
    }
}
