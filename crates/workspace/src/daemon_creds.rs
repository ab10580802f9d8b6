//! The delivery daemon's credentials, one directory a space: `<root>/.cotal/space.<hex>/` (contract 01 §9.1, 08 §2.1).
//!
//! Two are users of the space's data account and go through the [`SecretStore`](crate::secret_store::SecretStore): a
//! renewal replaces them while the daemon runs. Two are users of the system account and plain files, because only a
//! rotation of that account makes new ones. `membership.json` names the data account that the observer watches.
//!
//! Versions before the per-space directory kept all five beside it. They are moved by one rename on first touch, on a
//! root of one space alone: on any other nothing says whose they are.

use std::{
    io,
    path::{Path, PathBuf},
};

use cotal_wire::{Account, Nkey, Space};
use serde::{Deserialize, Serialize};

use crate::{
    file,
    root::{Root, space_segment},
    trust_files::{self, TrustFileError},
};

/// The file that names the account which the observer watches.
pub const MEMBERSHIP_FILE: &str = "membership.json";

/// A credential of the delivery daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DaemonCred {
    /// The daemon itself, on the data account.
    Delivery,
    /// The membership feed, on the data account.
    MembershipRw,
    /// Reads who is connected, on the system account.
    MembershipObserver,
    /// Ends connections, on the system account.
    ConnectionEvictor,
}

/// `membership.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MembershipDocument {
    account_id: String,
}

impl DaemonCred {
    /// Every one, in the order in which they are reported.
    pub const ALL: [Self; 4] =
        [Self::Delivery, Self::MembershipRw, Self::MembershipObserver, Self::ConnectionEvictor];

    /// The file's name, which is also the kind's.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Delivery => "delivery.creds",
            Self::MembershipRw => "membership-rw.creds",
            Self::MembershipObserver => "membership-observer.creds",
            Self::ConnectionEvictor => "connection-evictor.creds",
        }
    }

    /// Whether it is a user of the system account, which nothing but a rotation of that account renews.
    pub const fn of_system_account(self) -> bool {
        matches!(self, Self::MembershipObserver | Self::ConnectionEvictor)
    }

    /// Its key in the secret store: `space.<hex>/<kind>`.
    pub fn key(self, space: &Space) -> String {
        format!("{}/{}", space_segment(space), self.file_name())
    }

    /// Its path on a root whose store is the filesystem.
    pub fn path(self, root: &Root, space: &Space) -> PathBuf {
        root.space_dir(space).join(self.file_name())
    }
}

impl std::fmt::Display for DaemonCred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.file_name())
    }
}

/// Writes `membership.json`.
pub fn write_membership(root: &Root, space: &Space, account: &Nkey<Account>) -> io::Result<()> {
    let document = MembershipDocument { account_id: account.to_string() };
    let text = serde_json::to_vec_pretty(&document).map_err(io::Error::other)?;
    let dir = root.space_dir(space);
    file::ensure_private_dir(&root.cotal_dir())?;
    file::ensure_private_dir(&dir)?;
    file::write_atomic(&dir.join(MEMBERSHIP_FILE), &text)
}

/// The account that `membership.json` names; `None` when the file is absent.
pub fn read_membership(root: &Root, space: &Space) -> io::Result<Option<Nkey<Account>>> {
    let path = root.space_dir(space).join(MEMBERSHIP_FILE);
    let Some(text) = file::read_text(&path)? else { return Ok(None) };
    serde_json::from_str::<MembershipDocument>(&text)
        .ok()
        .and_then(|document| Nkey::parse(&document.account_id).ok())
        .map(Some)
        .ok_or_else(|| {
            io::Error::other(format!("{} names no account: remove it, then `cotal up`", path.display()))
        })
}

/// Moves root-scoped files of an earlier version into the space's directory, once.
///
/// Refuses when one of them lies in both places with another content, and when the root holds another space too. The new
/// file is private whatever the old one was, and two processes that do this at once end with the one file.
pub fn adopt_legacy(root: &Root, space: &Space) -> Result<(), TrustFileError> {
    let dir = root.space_dir(space);
    if !file::is_real_dir(&root.cotal_dir())? {
        return Ok(());
    }
    for name in DaemonCred::ALL.map(DaemonCred::file_name).into_iter().chain([MEMBERSHIP_FILE]) {
        let legacy = root.cotal_dir().join(name);
        if !file::is_regular(&legacy)? {
            continue;
        }
        let spaces = trust_files::inventory(root)?;
        if spaces.len() > 1 {
            return Err(TrustFileError(format!(
                "{} is of one of several spaces ({}), and nothing says of which: move it into that space's directory, \
                 or remove it",
                legacy.display(),
                spaces.iter().map(Space::as_str).collect::<Vec<_>>().join(", ")
            )));
        }
        // Another process may have moved it by now.
        let Some(content) = file::read_regular(&legacy)? else { continue };
        let canonical = dir.join(name);
        file::ensure_private_dir(&dir)?;
        let made = file::create_exclusive(&canonical, &content)?;
        if !made && file::read_regular(&canonical)?.is_none_or(|there| *there != *content) {
            return Err(both(&legacy, &canonical));
        }
        file::remove_if_present(&legacy)?;
    }
    Ok(())
}

fn both(legacy: &Path, canonical: &Path) -> TrustFileError {
    TrustFileError(format!(
        "{} and the older {} are both there: remove the one that is not in use",
        canonical.display(),
        legacy.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cotal_trust::{
        bundle::{BrokerTrust, SpaceAccount},
        system::SystemEntropy,
    };
    use cotal_wire::UnixSecs;

    use super::*;

    fn root_with(spaces: &[&str]) -> (tempfile::TempDir, Root) {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        let broker = BrokerTrust::create("main", &SystemEntropy, UnixSecs(1));
        trust_files::save_broker(&root, &broker).unwrap();
        for name in spaces {
            let account = SpaceAccount::create(&broker, &space(name), &SystemEntropy, UnixSecs(1));
            trust_files::save_account(&root, &account).unwrap();
        }
        (tmp, root)
    }

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    #[test]
    fn a_credential_lies_in_its_spaces_directory_under_its_kinds_name() {
        let keys = DaemonCred::ALL.map(|cred| cred.key(&space("main")));
        assert_eq!(
            keys,
            [
                "space.6d61696e/delivery.creds",
                "space.6d61696e/membership-rw.creds",
                "space.6d61696e/membership-observer.creds",
                "space.6d61696e/connection-evictor.creds",
            ]
        );
        let path = DaemonCred::Delivery.path(&Root::at("/r"), &space("main"));
        assert_eq!(path, Path::new("/r/.cotal/space.6d61696e/delivery.creds"));
        assert_eq!(DaemonCred::ALL.map(DaemonCred::of_system_account), [false, false, true, true]);
    }

    #[test]
    fn the_watched_account_reads_back_and_a_garbled_one_is_no_absent_one() {
        let (_tmp, root) = root_with(&["main"]);
        let main = space("main");
        assert_eq!(read_membership(&root, &main).unwrap(), None);
        let account = trust_files::load_account(&root, &main).unwrap().unwrap().account;
        write_membership(&root, &main, account.public()).unwrap();
        assert_eq!(read_membership(&root, &main).unwrap().as_ref(), Some(account.public()));
        let path = root.space_dir(&main).join(MEMBERSHIP_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(root.space_dir(&main)).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(&path, "{\"accountId\":\"x\"}").unwrap();
        assert!(read_membership(&root, &main).unwrap_err().to_string().contains("names no account"));
    }

    #[test]
    fn root_scoped_files_move_once_on_a_root_of_one_space() {
        let (_tmp, root) = root_with(&["main"]);
        let main = space("main");
        adopt_legacy(&root, &main).unwrap();
        for name in ["delivery.creds", MEMBERSHIP_FILE] {
            std::fs::write(root.cotal_dir().join(name), name).unwrap();
        }
        adopt_legacy(&root, &main).unwrap();
        assert_eq!(
            std::fs::read_to_string(DaemonCred::Delivery.path(&root, &main)).unwrap(),
            "delivery.creds"
        );
        assert!(!root.cotal_dir().join("delivery.creds").exists());
        // Cut off between the two steps: the same content in both places.
        let (legacy, canonical) =
            (root.cotal_dir().join("delivery.creds"), DaemonCred::Delivery.path(&root, &main));
        std::fs::copy(&canonical, &legacy).unwrap();
        std::fs::set_permissions(&legacy, std::fs::Permissions::from_mode(0o644)).unwrap();
        adopt_legacy(&root, &main).unwrap();
        assert!(!legacy.exists());
        assert_eq!(std::fs::metadata(&canonical).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&legacy, "again").unwrap();
        let told = adopt_legacy(&root, &main).unwrap_err().0;
        assert!(told.contains("both there"), "{told}");
        assert_eq!(
            std::fs::read_to_string(DaemonCred::Delivery.path(&root, &main)).unwrap(),
            "delivery.creds"
        );
    }

    #[test]
    fn a_root_of_several_spaces_never_guesses_whose_a_root_scoped_file_is() {
        let (_tmp, root) = root_with(&["main", "other"]);
        std::fs::write(root.cotal_dir().join("connection-evictor.creds"), "x").unwrap();
        let told = adopt_legacy(&root, &space("main")).unwrap_err().0;
        assert!(told.contains("main, other"), "{told}");
        assert!(root.cotal_dir().join("connection-evictor.creds").exists());
    }
}
