//! Where a credential's authority comes from: lineage members, the lineage index and the source gates
//! (contract 02 §3.4, 07 §4.2 and §4.3).

use std::fmt;

use serde::Serialize;

use super::{
    closed::{Closed, compact},
    credential::{CREDENTIAL_PREFIX, CredentialRow, EP_CREDENTIAL_PREFIX},
};
use crate::{endpoint_token::KeySegment, error::EpError, names::srcgate_key};

/// One member of a credential row's `sourceChain`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceMember {
    /// The incarnation's own root.
    Root,
    /// A capability handle.
    Handle {
        /// The key that signed it.
        issuer_key: KeySegment,
        /// The handle.
        id: KeySegment,
    },
    /// A session.
    Session(KeySegment),
}

impl SourceMember {
    /// Reads `root`, `handle.<issuerKeyId>.<id>` or `session.<sessionId>`; `None` for anything else.
    pub fn parse(s: &str) -> Option<Self> {
        let mut parts = s.split('.');
        let member = match (parts.next()?, parts.next(), parts.next()) {
            ("root", None, None) => Self::Root,
            ("session", Some(id), None) => Self::Session(KeySegment::parse(id).ok()?),
            ("handle", Some(key), Some(id)) => {
                Self::Handle { issuer_key: KeySegment::parse(key).ok()?, id: KeySegment::parse(id).ok()? }
            }
            _ => return None,
        };
        parts.next().is_none().then_some(member)
    }
}

impl fmt::Display for SourceMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Handle { issuer_key, id } => write!(f, "handle.{issuer_key}.{id}"),
            Self::Session(id) => write!(f, "session.{id}"),
        }
    }
}

impl Serialize for SourceMember {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A lineage index row `bysrc.<issuerKeyId>.<id>.<uid>.<credential>`: which ledger row a handle led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BySource {
    #[serde(rename = "ref")]
    row: String,
}

impl BySource {
    /// The index row of this credential row.
    pub fn of(row: &CredentialRow) -> Self {
        Self { row: row.key().to_string() }
    }

    /// Reads the index row stored under `key`: its tail must be the tail of the row that it points to.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse("lineage index row", bytes, &["ref"])?;
        let target = row.text("ref")?;
        let tail = key
            .strip_prefix("bysrc.")
            .and_then(|rest| rest.splitn(3, '.').nth(2))
            .filter(|tail| !tail.is_empty())
            .ok_or_else(|| row.garbled("its key has no tail"))?;
        let agent = target.strip_prefix(CREDENTIAL_PREFIX) == Some(tail);
        let endpoint = target.starts_with(EP_CREDENTIAL_PREFIX)
            && target.strip_suffix(tail).is_some_and(|head| head.ends_with('.'));
        if !(agent || endpoint) {
            return Err(row.garbled("it points to another row than its key"));
        }
        Ok(Self { row: target.to_owned() })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(self)
    }

    /// The full key of the ledger row.
    pub fn target(&self) -> &str {
        &self.row
    }
}

/// A source gate `srcgate.<issuerKeyId>.<id>`: open until the handle is revoked, then frozen for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceGate {
    issuer_key: KeySegment,
    id: KeySegment,
    frozen: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    issuer_key_id: &'a KeySegment,
    id: &'a KeySegment,
    state: &'static str,
}

impl SourceGate {
    /// The gate of a freshly provisioned handle.
    pub fn open(issuer_key: &KeySegment, id: &KeySegment) -> Self {
        Self { issuer_key: issuer_key.clone(), id: id.clone(), frozen: false }
    }

    /// Reads the source gate stored under this handle's key.
    pub fn parse(issuer_key: &KeySegment, id: &KeySegment, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse("source gate", bytes, &["issuerKeyId", "id", "state"])?;
        let stored = (row.text("issuerKeyId")?, row.text("id")?);
        let frozen = match row.text("state")? {
            "open" => false,
            "frozen" => true,
            _ => return Err(row.garbled("its state is not open or frozen")),
        };
        if stored != (issuer_key.as_str(), id.as_str()) {
            return Err(row.garbled("it names another handle than its key"));
        }
        Ok(Self { issuer_key: issuer_key.clone(), id: id.clone(), frozen })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        let state = if self.frozen { "frozen" } else { "open" };
        compact(&Wire { issuer_key_id: &self.issuer_key, id: &self.id, state })
    }

    /// The key of this row.
    pub fn key(&self) -> String {
        srcgate_key(&self.issuer_key, &self.id)
    }

    /// Whether credentials may still be minted from the handle.
    pub fn is_open(&self) -> bool {
        !self.frozen
    }

    /// Freezes the gate; it never reopens.
    pub fn freeze(self) -> Self {
        Self { frozen: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seg(s: &str) -> KeySegment {
        KeySegment::parse(s).unwrap()
    }

    #[test]
    fn lineage_members_have_exact_arity() {
        for ok in ["root", "handle.k.h", "session.s-1"] {
            assert_eq!(SourceMember::parse(ok).unwrap().to_string(), ok);
        }
        for bad in [
            "",
            "root.x",
            "handle",
            "handle.k",
            "handle.k.h.x",
            "session",
            "session.",
            "session.a.b",
            "other",
        ] {
            assert_eq!(SourceMember::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_index_row_points_to_the_row_of_its_own_tail() {
        let uid = "a".repeat(26);
        let key = format!("bysrc.k.h.{uid}.c.1");
        for (target, ok) in [
            (format!("cred.{uid}.c.1"), true),
            (format!("epcred.com_x.{uid}.c.1"), true),
            (format!("cred.{uid}.c.2"), false),
            (format!("cred.x.{uid}.c.1"), false),
            (format!("epcred{uid}.c.1"), false),
            (format!("other.{uid}.c.1"), false),
        ] {
            let bytes = format!("{{\"ref\":\"{target}\"}}");
            let row = BySource::parse(&key, bytes.as_bytes());
            assert_eq!(row.is_ok(), ok, "{target}");
            if let Ok(row) = row {
                assert_eq!(row.to_bytes(), bytes.as_bytes());
            }
        }
        let bytes = format!("{{\"ref\":\"cred.{uid}.c.1\"}}");
        for key in ["bysrc.k.h", "bysrc.k.h.", "bysrc", "other.k.h.x"] {
            assert!(BySource::parse(key, bytes.as_bytes()).is_err(), "{key}");
        }
    }

    #[test]
    fn a_source_gate_is_bound_to_its_key_and_freezes_for_ever() {
        let gate = SourceGate::open(&seg("k"), &seg("h"));
        assert_eq!(gate.to_bytes(), br#"{"issuerKeyId":"k","id":"h","state":"open"}"#);
        assert_eq!(gate.key(), "srcgate.k.h");
        let frozen = gate.freeze();
        assert!(!frozen.is_open());
        assert_eq!(SourceGate::parse(&seg("k"), &seg("h"), &frozen.to_bytes()).unwrap(), frozen);
        assert!(SourceGate::parse(&seg("k"), &seg("x"), &frozen.to_bytes()).is_err());
        assert!(
            SourceGate::parse(&seg("k"), &seg("h"), br#"{"issuerKeyId":"k","id":"h","state":"ajar"}"#)
                .is_err()
        );
    }
}
