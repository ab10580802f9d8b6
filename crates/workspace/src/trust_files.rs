//! `auth/broker.json` and `auth/account.<hex>.json` (contract 01 §9, 08 §2.1).
//!
//! These records are what a root *is*: an operator that signed nothing else, and the accounts it signed. A write is
//! refused when it would leave an account without its operator, or a space with another account.

use std::path::PathBuf;

use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    jwt,
};
use cotal_wire::Space;

use crate::{
    file,
    root::{Root, space_key, space_of_key},
};

const BROKER_FILE: &str = "broker.json";
const LEGACY_FILE: &str = "auth.json";
const ACCOUNT_PREFIX: &str = "account.";
const ACCOUNT_SUFFIX: &str = ".json";

/// A trust file that is refused. Names the key and the expected space, never a stored value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TrustFileError(pub String);

impl From<std::io::Error> for TrustFileError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The broker's trust, or `None` when absent.
pub fn load_broker(root: &Root) -> Result<Option<BrokerTrust>, TrustFileError> {
    if !root.has_auth_dir()? {
        return Ok(None);
    }
    let path = root.auth_dir().join(BROKER_FILE);
    if let Some(text) = file::read_text(&path)? {
        return BrokerTrust::from_document(&text).map(Some).map_err(|e| garbled(BROKER_FILE, &e));
    }
    // A second operator beside the one of a single-file bundle would orphan its space.
    if file::is_regular(&root.auth_dir().join(LEGACY_FILE))? {
        return Err(TrustFileError(format!(
            "auth/{LEGACY_FILE} holds this root's trust in one file, which this version does not read: split it with \
             an earlier `cotal up`, or move it away to start afresh"
        )));
    }
    Ok(None)
}

/// Saves the broker's trust, refusing to go sideways or back (contract 01 §9.2).
pub fn save_broker(root: &Root, broker: &BrokerTrust) -> Result<(), TrustFileError> {
    let text = broker.to_document();
    BrokerTrust::from_document(&text).map_err(|e| garbled(BROKER_FILE, &e))?;
    let path = root.ensure_auth_dir()?.join(BROKER_FILE);
    let Some(stored) = load_broker(root)? else {
        for space in inventory(root)? {
            let account = load_account(root, &space)?.ok_or_else(|| changed(&account_file(&space)))?;
            account.check_signed_by(broker).map_err(|_| {
                TrustFileError(format!(
                    "auth/{BROKER_FILE}: the account of space {:?} was signed by another operator; restore that \
                     operator's record from a backup",
                    space.as_str()
                ))
            })?;
        }
        return if file::create_exclusive(&path, text.as_bytes())? {
            Ok(())
        } else {
            Err(changed(BROKER_FILE))
        };
    };
    check_succession(&stored, broker)?;
    file::write_atomic(&path, text.as_bytes()).map_err(Into::into)
}

/// Whether `next` may stand where `stored` stands.
fn check_succession(stored: &BrokerTrust, next: &BrokerTrust) -> Result<(), TrustFileError> {
    let refuse = |what: &str| Err(TrustFileError(format!("auth/{BROKER_FILE}: {what}")));
    if stored.operator.public() != next.operator.public() {
        return refuse("the record is of another operator; a root keeps the operator it began with");
    }
    if stored.sys != next.sys {
        return match stored.generation.checked_add(1) {
            Some(successor) if successor == next.generation => Ok(()),
            _ => refuse(
                "the system account changes only to the direct successor generation; load the record again",
            ),
        };
    }
    if stored.generation != next.generation {
        return refuse("the generation moved without its system account; load the record again");
    }
    if issued_at(&next.sys_jwt)? < issued_at(&stored.sys_jwt)? {
        return refuse("the system account JWT is older than the stored one; load the record again");
    }
    Ok(())
}

fn issued_at(token: &str) -> Result<u64, TrustFileError> {
    jwt::decode_verified(token).ok().and_then(|claims| claims.get("iat")?.as_u64()).ok_or_else(|| {
        TrustFileError(format!("auth/{BROKER_FILE}: the system account JWT has no issue time"))
    })
}

/// A space's account, or `None` when absent.
pub fn load_account(root: &Root, space: &Space) -> Result<Option<SpaceAccount>, TrustFileError> {
    if !root.has_auth_dir()? {
        return Ok(None);
    }
    let Some(text) = file::read_text(&account_path(root, space))? else { return Ok(None) };
    SpaceAccount::from_document(&text, space).map(Some).map_err(|e| garbled_account(space, &e))
}

/// Saves a space's account, refusing to overwrite another space's record, or the same space's with another account.
pub fn save_account(root: &Root, account: &SpaceAccount) -> Result<(), TrustFileError> {
    let text = account.to_document();
    SpaceAccount::from_document(&text, &account.space).map_err(|e| garbled_account(&account.space, &e))?;
    root.ensure_auth_dir()?;
    let path = account_path(root, &account.space);
    match load_account(root, &account.space)? {
        None if file::create_exclusive(&path, text.as_bytes())? => Ok(()),
        None => Err(changed(&account_file(&account.space))),
        Some(stored) if stored.account.public() == account.account.public() => {
            file::write_atomic(&path, text.as_bytes()).map_err(Into::into)
        }
        Some(_) => Err(TrustFileError(format!(
            "auth/{}: space {:?} already has another account; remove the space before it is made anew",
            account_file(&account.space),
            account.space.as_str()
        ))),
    }
}

/// Every space of this root, by name; a corrupt entry is an error, so that no verb of the whole broker counts one
/// space too few.
pub fn inventory(root: &Root) -> Result<Vec<Space>, TrustFileError> {
    if !root.has_auth_dir()? {
        return Ok(Vec::new());
    }
    let mut spaces = Vec::new();
    for entry in std::fs::read_dir(root.auth_dir())? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let Some(key) = name.strip_prefix(ACCOUNT_PREFIX).and_then(|rest| rest.strip_suffix(ACCOUNT_SUFFIX))
        else {
            continue;
        };
        let corrupt = || TrustFileError(format!("auth/{name} is not the record of a space; move it away"));
        let space = space_of_key(key).ok_or_else(corrupt)?;
        load_account(root, &space)?.ok_or_else(corrupt)?;
        spaces.push(space);
    }
    spaces.sort();
    Ok(spaces)
}

/// The name of a space's account record in `auth/`.
pub fn account_file(space: &Space) -> String {
    format!("{ACCOUNT_PREFIX}{}{ACCOUNT_SUFFIX}", space_key(space))
}

fn account_path(root: &Root, space: &Space) -> PathBuf {
    root.auth_dir().join(account_file(space))
}

fn garbled(file: &str, error: &dyn std::fmt::Display) -> TrustFileError {
    TrustFileError(format!("auth/{file} cannot be used ({error}); restore it from a backup"))
}

fn garbled_account(space: &Space, error: &dyn std::fmt::Display) -> TrustFileError {
    TrustFileError(format!(
        "auth/{} cannot be used for space {:?} ({error}); restore it from a backup",
        account_file(space),
        space.as_str()
    ))
}

fn changed(file: &str) -> TrustFileError {
    TrustFileError(format!("auth/{file} changed while it was written; run the command again"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use cotal_trust::system::SystemEntropy;
    use cotal_wire::UnixSecs;

    use super::*;

    const NOW: UnixSecs = UnixSecs(1_767_225_600);

    fn root() -> (tempfile::TempDir, Root) {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        (tmp, root)
    }

    fn broker() -> BrokerTrust {
        BrokerTrust::create("main", &SystemEntropy, NOW)
    }

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    fn account(broker: &BrokerTrust, name: &str) -> SpaceAccount {
        SpaceAccount::create(broker, &space(name), &SystemEntropy, NOW)
    }

    #[test]
    fn records_read_back_and_the_system_accounts_seed_never_lands() {
        let (_tmp, root) = root();
        assert!(load_broker(&root).unwrap().is_none() && inventory(&root).unwrap().is_empty());
        let broker = broker();
        save_broker(&root, &broker).unwrap();
        save_account(&root, &account(&broker, "main")).unwrap();
        save_account(&root, &account(&broker, "a b")).unwrap();
        let read = load_broker(&root).unwrap().unwrap();
        assert_eq!(read.operator.public(), broker.operator.public());
        assert!(broker.sys_signing_seed.is_some() && read.sys_signing_seed.is_none());
        assert!(root.auth_dir().join("account.6d61696e.json").is_file());
        assert_eq!(inventory(&root).unwrap(), [space("a b"), space("main")]);
        load_account(&root, &space("main")).unwrap().unwrap().check_signed_by(&read).unwrap();
    }

    #[test]
    fn the_same_record_is_saved_again() {
        let (_tmp, root) = root();
        let broker = broker();
        let account = account(&broker, "main");
        for _ in 0..2 {
            save_broker(&root, &broker).unwrap();
            save_account(&root, &account).unwrap();
        }
    }

    #[test]
    fn a_broker_record_goes_neither_sideways_nor_back() {
        let (_tmp, root) = root();
        let stored = broker();
        save_broker(&root, &stored).unwrap();
        let before = std::fs::read(root.auth_dir().join("broker.json")).unwrap();
        // Same operator, another system account: as a rotation leaves it, but for the generation.
        let rotated = |generation: u64| {
            let mut next = stored.clone();
            let sys = cotal_trust::nkey::Seed::generate(&SystemEntropy);
            next.operator_jwt = jwt::encode_operator("cotal-main", &next.operator, sys.public(), NOW);
            let claims = jwt::AccountClaims {
                name: "SYS".into(),
                subject: sys.public().clone(),
                signing_keys: vec![],
                jetstream: false,
                authorization: None,
            };
            next.sys_jwt = jwt::encode_account(&claims, &next.operator, NOW);
            next.sys = sys.public().clone();
            next.generation = generation;
            next
        };
        let mut moved_generation = stored.clone();
        moved_generation.generation = 1;
        let mut older = stored.clone();
        let claims = jwt::AccountClaims {
            name: "SYS".into(),
            subject: stored.sys.clone(),
            signing_keys: vec![],
            jetstream: false,
            authorization: None,
        };
        older.sys_jwt = jwt::encode_account(&claims, &stored.operator, UnixSecs(NOW.0 - 1));
        for (what, next) in [
            ("another operator", broker()),
            ("same generation", rotated(0)),
            ("a generation skipped", rotated(2)),
            ("generation alone", moved_generation),
            ("an older JWT", older),
        ] {
            assert!(save_broker(&root, &next).is_err(), "{what}");
            assert_eq!(std::fs::read(root.auth_dir().join("broker.json")).unwrap(), before, "{what}");
        }
        save_broker(&root, &rotated(1)).unwrap();
        assert!(save_broker(&root, &stored).is_err(), "back");
    }

    #[test]
    fn a_first_broker_record_must_have_signed_every_account_that_is_there() {
        let (_tmp, root) = root();
        let (first, second) = (broker(), broker());
        save_broker(&root, &first).unwrap();
        save_account(&root, &account(&first, "main")).unwrap();
        std::fs::remove_file(root.auth_dir().join("broker.json")).unwrap();
        assert!(save_broker(&root, &second).is_err());
        std::fs::write(root.auth_dir().join("account.zz.json"), "{}").unwrap();
        assert!(save_broker(&root, &first).is_err());
        std::fs::remove_file(root.auth_dir().join("account.zz.json")).unwrap();
        save_broker(&root, &first).unwrap();
    }

    #[test]
    fn an_account_record_keeps_its_space_and_its_account() {
        let (_tmp, root) = root();
        let broker = broker();
        save_broker(&root, &broker).unwrap();
        save_account(&root, &account(&broker, "main")).unwrap();
        assert!(save_account(&root, &account(&broker, "main")).is_err());
        std::fs::copy(root.auth_dir().join("account.6d61696e.json"), root.auth_dir().join("account.61.json"))
            .unwrap();
        let error = load_account(&root, &space("a")).unwrap_err().0;
        assert!(error.contains("account.61.json") && !error.contains("main"), "{error}");
        assert!(save_account(&root, &account(&broker, "a")).is_err());
    }

    #[test]
    fn one_corrupt_entry_refuses_the_inventory() {
        let broker = broker();
        for name in [
            "account.json.json",
            "account.6D61.json",
            "account.6d61696e.json",
            "account..json",
            "account.61.json",
        ] {
            let (_tmp, root) = root();
            save_account(&root, &account(&broker, "ok")).unwrap();
            std::fs::write(root.auth_dir().join(name), "{\"space\":\"secret\"}").unwrap();
            let error = inventory(&root).unwrap_err().0;
            assert!(!error.contains("secret"), "{error}");
        }
        let (_tmp, root) = root();
        save_account(&root, &account(&broker, "ok")).unwrap();
        symlink(root.auth_dir().join("account.6f6b.json"), root.auth_dir().join("account.61.json")).unwrap();
        assert!(inventory(&root).is_err());
        std::fs::remove_file(root.auth_dir().join("account.61.json")).unwrap();
        std::fs::write(root.auth_dir().join("account.61.json.1.2.tmp"), "a write that was interrupted")
            .unwrap();
        assert_eq!(inventory(&root).unwrap(), [space("ok")]);
    }

    #[test]
    fn a_trust_record_that_is_no_regular_file_is_refused_not_absent() {
        let (tmp, root) = root();
        root.ensure_auth_dir().unwrap();
        symlink(tmp.path().join("nowhere"), root.auth_dir().join("broker.json")).unwrap();
        assert!(load_broker(&root).is_err());
        assert!(save_broker(&root, &broker()).is_err());
        std::fs::create_dir(root.auth_dir().join("account.61.json")).unwrap();
        assert!(load_account(&root, &space("a")).is_err());
    }

    #[test]
    fn a_single_file_bundle_is_not_overlooked() {
        let (_tmp, root) = root();
        root.ensure_auth_dir().unwrap();
        std::fs::write(root.auth_dir().join("auth.json"), "{}").unwrap();
        assert!(load_broker(&root).unwrap_err().0.contains("auth.json"));
        assert!(save_broker(&root, &broker()).is_err());
    }

    #[test]
    fn a_garbled_record_is_refused_without_its_content() {
        let (_tmp, root) = root();
        root.ensure_auth_dir().unwrap();
        std::fs::write(root.auth_dir().join("broker.json"), "{\"operator\": \"SOSECRET\"}").unwrap();
        let error = load_broker(&root).err().unwrap().0;
        assert!(error.contains("broker.json") && !error.contains("SOSECRET"), "{error}");
    }
}
