//! Reading rows, failing closed (contract 04 §7.3).

use std::{
    io,
    path::{Path, PathBuf},
};

use cotal_wire::{Actor, DerivedOwner, LifecycleUid};
use cotal_workspace::file;

use crate::{
    Ledger, LedgerError,
    row::{ActorRow, RowKind, TaggedRow},
};

/// Every row file ends with this; whatever else lies in a row directory is not a row.
const ROW_SUFFIX: &str = ".json";
/// Longest file name of the file systems that a ledger lies on.
const MAX_FILE_NAME: usize = 255;
/// Room for the suffix that an atomic write adds to its sibling (`.<pid>.<epoch ms>.tmp`).
const TEMP_SUFFIX_ROOM: usize = 40;

impl Ledger {
    /// One interactive row.
    pub fn read_interactive(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<Option<ActorRow>, LedgerError> {
        self.read(RowKind::Interactive, owner, actor)
    }

    /// One managed row.
    pub fn read_managed(&self, owner: &DerivedOwner, actor: &Actor) -> Result<Option<ActorRow>, LedgerError> {
        self.read(RowKind::ManagedAgent, owner, actor)
    }

    /// Unified lookup; a principal in both spaces is an error.
    pub fn lookup(&self, owner: &DerivedOwner, actor: &Actor) -> Result<Option<TaggedRow>, LedgerError> {
        let interactive = self.read_interactive(owner, actor)?;
        let managed = self.read_managed(owner, actor)?;
        match (interactive, managed) {
            (Some(_), Some(row)) => Err(in_both_spaces(&row.key())),
            (Some(row), None) => Ok(Some(TaggedRow { kind: RowKind::Interactive, row })),
            (None, Some(row)) => Ok(Some(TaggedRow { kind: RowKind::ManagedAgent, row })),
            (None, None) => Ok(None),
        }
    }

    /// The current scope of a principal in either space; `None` when it has no row (contract 04 §7.8 `actorScope`).
    pub fn scope_of(&self, owner: &DerivedOwner, actor: &Actor) -> Result<Option<Vec<String>>, LedgerError> {
        Ok(self.lookup(owner, actor)?.map(|tagged| tagged.row.scope))
    }

    /// Whether a row of this very incarnation exists in either space (contract 04 §7.8 `ledgerActorSourceIsLive`).
    pub fn is_live(
        &self,
        owner: &DerivedOwner,
        actor: &Actor,
        lifecycle_uid: &LifecycleUid,
    ) -> Result<bool, LedgerError> {
        let row = self.lookup(owner, actor)?;
        Ok(row.is_some_and(|tagged| tagged.row.lifecycle_uid.as_deref() == Some(lifecycle_uid.as_str())))
    }

    /// Every row, interactive first; one broken row fails the whole listing.
    pub fn list(&self) -> Result<Vec<TaggedRow>, LedgerError> {
        let mut rows = Vec::new();
        for kind in RowKind::ALL {
            for name in row_names(self.dir(kind))? {
                let path = self.dir(kind).join(&name);
                // A row that was revoked since the directory was read is no row.
                let Some(row) = read_file(&path, kind)? else { continue };
                if name != file_name(&row.owner, &row.actor) {
                    return Err(broken(&path, "does not hold the row that its name says"));
                }
                rows.push(TaggedRow { kind, row });
            }
        }
        let mut keys: Vec<String> = rows.iter().map(|tagged| tagged.row.key()).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(in_both_spaces(&pair[0])),
            None => Ok(rows),
        }
    }

    /// One row of a kind, read fresh: its directory opened without following a link, then the file in it.
    pub(crate) fn read(
        &self,
        kind: RowKind,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<Option<ActorRow>, LedgerError> {
        let path = self.path(kind, owner, actor)?;
        match read_file(&path, kind)? {
            Some(row) if row.owner == *owner && row.actor == *actor => Ok(Some(row)),
            Some(_) => Err(broken(&path, "does not hold the row that its name says")),
            None => Ok(None),
        }
    }

    /// Where the row of a principal lies.
    pub(crate) fn path(
        &self,
        kind: RowKind,
        owner: &DerivedOwner,
        actor: &Actor,
    ) -> Result<PathBuf, LedgerError> {
        let name = file_name(owner, actor);
        // The grammar of an actor has no bound, a file name has.
        if name.len() > MAX_FILE_NAME - TEMP_SUFFIX_ROOM {
            return Err(LedgerError::Refused(
                "the actor name is too long to be granted in a ledger".to_owned(),
            ));
        }
        Ok(self.dir(kind).join(name))
    }
}

fn file_name(owner: &DerivedOwner, actor: &Actor) -> String {
    format!("{owner}.{actor}{ROW_SUFFIX}")
}

fn read_file(path: &Path, kind: RowKind) -> Result<Option<ActorRow>, LedgerError> {
    let bytes = file::read_regular(path).map_err(|e| unreadable(path, &e))?;
    let Some(bytes) = bytes else { return Ok(None) };
    ActorRow::parse(&bytes, kind).map(Some).map_err(|e| broken(path, &e.to_string()))
}

/// The `*.json` names of a row directory, sorted; none when it is absent.
fn row_names(dir: &Path) -> Result<Vec<String>, LedgerError> {
    if !file::is_real_dir(dir).map_err(|e| unreadable(dir, &e))? {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| unreadable(dir, &e))? {
        let name = entry.map_err(|e| unreadable(dir, &e))?.file_name();
        if name.as_encoded_bytes().ends_with(ROW_SUFFIX.as_bytes()) {
            let name = name.into_string().map_err(|_| broken(dir, "holds a row whose name is not text"))?;
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

pub(crate) fn broken(path: &Path, what: &str) -> LedgerError {
    LedgerError::Broken(format!("ledger: {} {what}; it authorises nobody until it is mended", path.display()))
}

pub(crate) fn unreadable(path: &Path, error: &io::Error) -> LedgerError {
    LedgerError::Broken(format!("ledger: {} cannot be trusted: {error}", path.display()))
}

fn in_both_spaces(key: &str) -> LedgerError {
    LedgerError::Broken(format!(
        "ledger: {key} has a row in both {} and {}; it authorises nobody until one of them is revoked",
        RowKind::Interactive.dir_name(),
        RowKind::ManagedAgent.dir_name()
    ))
}
