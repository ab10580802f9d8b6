//! The secrets of this machine's agents, as files (contract 08 §2.1), and what happens to them at enrollment and
//! retirement.
//!
//! A secret is written before it is asked about, and removed only once its agent is retired for good: whenever this process
//! is killed, the next one finds the same secret, whose digest names the same agent at the host.
//!
//! | file, below `.cotal/auth/creds/` | from | until |
//! |---|---|---|
//! | `<name>.actor-token` | before the enrollment is asked for | the host has named a lifecycle |
//! | `<name>.<lifecycle>.actor-token`, `.sentinel.creds` | then | the retirement is confirmed |

use std::{
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_authority::landed;
use cotal_trust::creds::{self, Creds};
use cotal_wire::{Actor, Entropy, LifecycleUid, Sha256Hex};
use cotal_workspace::{file, root::Root};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// The directory of standing secrets under `auth/`.
const CREDS_DIR: &str = "creds";
const ACTOR_TOKEN: &str = ".actor-token";
const SENTINEL: &str = ".sentinel.creds";
/// Random bytes of a secret (contract 04 §7.6).
const SECRET_BYTES: usize = 32;
/// Longest actor that is named in a file.
const MAX_NAME: usize = 64;

/// The agents' secrets of one root.
#[derive(Debug, Clone)]
pub struct AgentSecrets {
    root: Root,
    dir: PathBuf,
}

/// The secret of an agent that is enrolled, and the sentinel that goes with it.
pub struct Kept {
    /// The agent's own secret.
    pub secret: Zeroizing<String>,
    /// The space's sentinel, when it was written before this process was killed.
    pub sentinel: Option<Creds>,
}

impl AgentSecrets {
    /// Those of a root. Nothing is made.
    pub fn of(root: &Root) -> Self {
        Self { dir: root.auth_dir().join(CREDS_DIR), root: root.clone() }
    }

    /// Removes what writers left half-written when they were killed.
    pub fn tidy(&self) -> io::Result<()> {
        file::remove_left_siblings(&self.dir)
    }

    fn path(&self, base: &str, suffix: &str) -> PathBuf {
        self.dir.join(format!("{base}{suffix}"))
    }

    fn incarnation(actor: &Actor, uid: &LifecycleUid) -> String {
        format!("{actor}.{uid}")
    }

    /// The secret to enrol an agent with: the one of an enrollment that was cut off, or a fresh one, on disk before it is
    /// answered.
    pub fn to_enroll(&self, actor: &Actor, entropy: &dyn Entropy) -> io::Result<Zeroizing<String>> {
        if actor.as_str().len() > MAX_NAME {
            return Err(io::Error::other(format!("an agent's name has at most {MAX_NAME} characters")));
        }
        self.root.ensure_auth_dir()?;
        file::ensure_private_dir(&self.dir)?;
        let path = self.path(actor.as_str(), ACTOR_TOKEN);
        if let Some(kept) = read_secret(&path)? {
            return Ok(kept);
        }
        let mut bytes = Zeroizing::new([0u8; SECRET_BYTES]);
        entropy.fill(bytes.as_mut_slice());
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()));
        if file::create_exclusive(&path, secret.as_bytes())? {
            landed("agent-secret");
            return Ok(secret);
        }
        read_secret(&path)?
            .ok_or_else(|| io::Error::other(format!("{} was made and removed", path.display())))
    }

    /// Files a secret under the lifecycle that the host chose. The standing file goes last: a process that is killed in
    /// between finds it, asks again, and is told the same lifecycle.
    pub fn enrolled(
        &self,
        actor: &Actor,
        uid: &LifecycleUid,
        secret: &Zeroizing<String>,
        sentinel: &Zeroizing<String>,
    ) -> io::Result<()> {
        let base = Self::incarnation(actor, uid);
        write(&self.path(&base, SENTINEL), sentinel)?;
        write(&self.path(&base, ACTOR_TOKEN), secret)?;
        remove(&self.path(actor.as_str(), ACTOR_TOKEN))
    }

    /// What is kept of an incarnation.
    pub fn kept(&self, actor: &Actor, uid: &LifecycleUid) -> io::Result<Option<Kept>> {
        let base = Self::incarnation(actor, uid);
        let Some(secret) = read_secret(&self.path(&base, ACTOR_TOKEN))? else { return Ok(None) };
        let sentinel = file::read_text(&self.path(&base, SENTINEL))?;
        Ok(Some(Kept { secret, sentinel: sentinel.and_then(|text| creds::parse(&text).ok()) }))
    }

    /// The incarnations of a name that were enrolled from here and are not known to be retired.
    pub fn incarnations(&self, actor: &Actor) -> io::Result<Vec<LifecycleUid>> {
        if !file::is_real_dir(&self.dir)? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let uid = name
                .to_str()
                .and_then(|name| name.strip_suffix(ACTOR_TOKEN))
                .and_then(|base| base.strip_prefix(actor.as_str()))
                .and_then(|rest| rest.strip_prefix('.'))
                .and_then(|uid| LifecycleUid::parse(uid).ok());
            found.extend(uid);
        }
        found.sort();
        Ok(found)
    }

    /// Forgets a retired incarnation.
    pub fn retired(&self, actor: &Actor, uid: &LifecycleUid) -> io::Result<()> {
        let base = Self::incarnation(actor, uid);
        let standing = self.path(actor.as_str(), ACTOR_TOKEN);
        let (own, asked) = (read_secret(&self.path(&base, ACTOR_TOKEN))?, read_secret(&standing)?);
        // Left by a process that was killed while it filed the secret: the next agent of this name gets its own.
        if own.is_some() && own == asked {
            remove(&standing)?;
        }
        // The secret last: while it is there, the incarnation is found and retired again.
        remove(&self.path(&base, SENTINEL))?;
        remove(&self.path(&base, ACTOR_TOKEN))
    }
}

/// What the host gets of a secret: the SHA-256 of its text.
pub fn digest_of(secret: &Zeroizing<String>) -> Sha256Hex {
    Sha256Hex::of_digest(&Sha256::digest(secret.as_bytes()).into())
}

fn write(path: &Path, secret: &Zeroizing<String>) -> io::Result<()> {
    file::write_atomic(path, secret.as_bytes())?;
    landed("agent-secret");
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    if file::remove_if_present(path)? {
        landed("agent-secret");
    }
    Ok(())
}

fn read_secret(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let Some(text) = file::read_text(path)? else { return Ok(None) };
    let secret = Zeroizing::new(text.trim_end().to_owned());
    if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(io::Error::other(format!("{} holds no agent secret; move it away", path.display())));
    }
    Ok(Some(secret))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use cotal_trust::{nkey::Seed, system::SystemEntropy};

    use super::*;

    fn sentinel() -> Zeroizing<String> {
        let seed = Seed::generate(&SystemEntropy);
        let account = Seed::<cotal_wire::Account>::generate(&SystemEntropy);
        let claims = cotal_trust::jwt::UserClaims {
            name: "sentinel".into(),
            subject: seed.public().clone(),
            issuer_account: account.public().clone(),
            permissions: cotal_wire::Permissions::default(),
            tags: vec![],
            exp: None,
        };
        let jwt = cotal_trust::jwt::encode_user(&claims, &account, cotal_wire::UnixSecs(1));
        creds::format(&Creds { jwt, seed })
    }

    #[test]
    fn a_secret_is_kept_from_before_the_enrollment_until_after_the_retirement() {
        let tmp = tempfile::tempdir().unwrap();
        let secrets = AgentSecrets::of(&Root::at(tmp.path()));
        let actor = Actor::parse("scout").unwrap();
        let uid = LifecycleUid::mint(&SystemEntropy);
        assert_eq!(secrets.incarnations(&actor).unwrap(), []);

        let secret = secrets.to_enroll(&actor, &SystemEntropy).unwrap();
        assert_eq!(secret.len(), 43);
        assert_eq!(*secrets.to_enroll(&actor, &SystemEntropy).unwrap(), *secret, "killed and asked again");
        let is_asked_for = || secrets.path("scout", ACTOR_TOKEN).exists();
        assert!(is_asked_for());
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&secrets.dir), 0o700);
        assert_eq!(mode(&secrets.path("scout", ACTOR_TOKEN)), 0o600);

        secrets.enrolled(&actor, &uid, &secret, &sentinel()).unwrap();
        assert!(!is_asked_for());
        assert_eq!(secrets.incarnations(&actor).unwrap(), std::slice::from_ref(&uid));
        let kept = secrets.kept(&actor, &uid).unwrap().unwrap();
        assert_eq!(*kept.secret, *secret);
        assert!(kept.sentinel.is_some());
        for file in std::fs::read_dir(&secrets.dir).unwrap() {
            assert_eq!(mode(&file.unwrap().path()), 0o600);
        }
        assert_eq!(secrets.incarnations(&Actor::parse("sco").unwrap()).unwrap(), [], "another name");

        secrets.retired(&actor, &uid).unwrap();
        secrets.retired(&actor, &uid).unwrap();
        assert_eq!(secrets.incarnations(&actor).unwrap(), []);
        assert_ne!(
            *secrets.to_enroll(&actor, &SystemEntropy).unwrap(),
            *secret,
            "the next one is another secret"
        );
    }

    #[test]
    fn what_the_host_gets_is_the_digest_of_the_text() {
        let digest = digest_of(&Zeroizing::new(String::new()));
        assert_eq!(digest.as_str(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn a_secret_behind_a_symlink_is_not_read() {
        let tmp = tempfile::tempdir().unwrap();
        let secrets = AgentSecrets::of(&Root::at(tmp.path()));
        let actor = Actor::parse("scout").unwrap();
        secrets.to_enroll(&actor, &SystemEntropy).unwrap();
        let path = secrets.path("scout", ACTOR_TOKEN);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(secrets.to_enroll(&actor, &SystemEntropy).is_err());
    }
}
