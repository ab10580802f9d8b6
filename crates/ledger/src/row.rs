//! One row: its members, and how it is read from and written to a file (contract 04 §7.2, §7.3 steps 2-6).

use std::fmt;

use cotal_wire::{Actor, DerivedOwner, LifecycleUid, Principal, Sha256Hex};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;

/// The version that every row opens with.
const ROW_VERSION: u64 = 1;

/// Which directory a row lives in. The kind is the directory, never a member of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKind {
    /// Granted by an operator, exchanged with an IdP proof.
    Interactive,
    /// Granted at spawn or enrollment, exchanged with an agent secret.
    ManagedAgent,
}

impl RowKind {
    /// Both kinds, in listing order.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::ManagedAgent];

    /// The directory under the state directory (contract 04 §7.1).
    pub const fn dir_name(self) -> &'static str {
        match self {
            Self::Interactive => "actors",
            Self::ManagedAgent => "managed-actors",
        }
    }

    /// The kind as listings and lookups spell it (contract 04 §7.3).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::ManagedAgent => "managed-agent",
        }
    }
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One ledger row as it was read (contract 04 §7.2).
#[derive(Clone, PartialEq, Eq)]
pub struct ActorRow {
    /// The owner.
    pub owner: DerivedOwner,
    /// The actor.
    pub actor: Actor,
    /// Capabilities.
    pub scope: Vec<String>,
    /// Channel patterns it may read.
    pub allow_subscribe: Vec<String>,
    /// Channel patterns it may post to.
    pub allow_publish: Vec<String>,
    /// Role.
    pub role: Option<String>,
    /// Parent link, as stored.
    pub parent: Option<String>,
    /// Display label.
    pub label: Option<String>,
    /// SHA-256 of the agent secret, managed rows only.
    pub token_hash: Option<String>,
    /// The incarnation.
    pub lifecycle_uid: Option<String>,
    /// When it was granted, ISO. Every writer puts it; a reader needs it for nothing but display.
    pub granted_at: Option<String>,
}

/// A row and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedRow {
    /// The kind.
    pub kind: RowKind,
    /// The row.
    pub row: ActorRow,
}

/// Why a row's bytes are not a row of its kind. Never carries content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("is not valid JSON")]
    Json,
    #[error("is not an object with \"ver\": 1")]
    Version,
    #[error("names no derived owner")]
    Owner,
    #[error("names no valid actor")]
    Actor,
    #[error("has a scope, allowSubscribe or allowPublish that is not a list of strings")]
    Lists,
    #[error("is an interactive row with an agent secret's hash")]
    HashOnInteractive,
    #[error("is a managed row without a valid agent secret's hash")]
    HashOnManaged,
    #[error("has a role, parent, label, lifecycleUid or grantedAt that is not a string")]
    Member,
}

impl ActorRow {
    /// The key form `<owner>.<actor>`.
    pub fn key(&self) -> String {
        format!("{}.{}", self.owner, self.actor)
    }

    /// The principal of this row.
    pub fn principal(&self) -> Principal {
        Principal::new(&self.owner, self.actor.clone())
    }

    /// Whether the row's scope holds a capability.
    pub fn has_scope(&self, capability: &str) -> bool {
        self.scope.iter().any(|s| s == capability)
    }

    /// Whether the row is of this incarnation.
    pub fn is_at(&self, uid: &LifecycleUid) -> bool {
        self.lifecycle_uid.as_deref() == Some(uid.as_str())
    }

    /// Whether the row's agent secret has this digest; compared in constant time.
    pub fn holds_secret_of(&self, digest: &Sha256Hex) -> bool {
        let stored = self.token_hash.as_deref().unwrap_or_default();
        stored.as_bytes().ct_eq(digest.as_str().as_bytes()).into()
    }

    /// Reads a row of a kind, refusing in the order of contract 04 §7.3 steps 2-6.
    ///
    /// The contract checks no optional member on read, so one that is absent or `null` is simply not there. Two things
    /// are stricter here than there: an entry of a list that is not text, and an optional member of another type,
    /// refuse. Either would have to be dropped or guessed at, and a row is no place for guesses.
    pub(crate) fn parse(bytes: &[u8], kind: RowKind) -> Result<Self, RowError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|_| RowError::Json)?;
        let Value::Object(mut members) = value else { return Err(RowError::Version) };
        if members.get("ver").and_then(Value::as_u64) != Some(ROW_VERSION) {
            return Err(RowError::Version);
        }
        let owner =
            text(&members, "owner").and_then(|s| DerivedOwner::parse(s).ok()).ok_or(RowError::Owner)?;
        let actor = text(&members, "actor").and_then(|s| Actor::parse(s).ok()).ok_or(RowError::Actor)?;
        let scope = take_list(&mut members, "scope")?;
        let allow_subscribe = take_list(&mut members, "allowSubscribe")?;
        let allow_publish = take_list(&mut members, "allowPublish")?;
        let token_hash = match (kind, members.remove("tokenHash")) {
            (RowKind::Interactive, None) => None,
            (RowKind::Interactive, Some(_)) => return Err(RowError::HashOnInteractive),
            (RowKind::ManagedAgent, Some(Value::String(hash))) if Sha256Hex::parse(&hash).is_ok() => {
                Some(hash)
            }
            (RowKind::ManagedAgent, _) => return Err(RowError::HashOnManaged),
        };
        Ok(Self {
            owner,
            actor,
            scope,
            allow_subscribe,
            allow_publish,
            token_hash,
            role: take_text(&mut members, "role")?,
            parent: take_text(&mut members, "parent")?,
            label: take_text(&mut members, "label")?,
            lifecycle_uid: take_text(&mut members, "lifecycleUid")?,
            granted_at: take_text(&mut members, "grantedAt")?,
        })
    }

    /// The file of this row: two-space JSON, members in the order in which the writer of its kind puts them, no
    /// trailing newline (contract 04 §7.2).
    pub(crate) fn to_document(&self, kind: RowKind) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec_pretty(&Document { row: self, kind })
    }
}

/// The agent secret's hash is left out: nothing that prints a row needs it.
impl fmt::Debug for ActorRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorRow")
            .field("owner", &self.owner)
            .field("actor", &self.actor)
            .field("scope", &self.scope)
            .field("allow_subscribe", &self.allow_subscribe)
            .field("allow_publish", &self.allow_publish)
            .field("role", &self.role)
            .field("parent", &self.parent)
            .field("label", &self.label)
            .field("lifecycle_uid", &self.lifecycle_uid)
            .field("granted_at", &self.granted_at)
            .finish_non_exhaustive()
    }
}

struct Document<'a> {
    row: &'a ActorRow,
    kind: RowKind,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn optional<T: SerializeStruct>(
            doc: &mut T,
            name: &'static str,
            value: Option<&String>,
        ) -> Result<(), T::Error> {
            match value {
                Some(value) => doc.serialize_field(name, value),
                None => doc.skip_field(name),
            }
        }
        let row = self.row;
        let mut doc = serializer.serialize_struct("ActorRow", 12)?;
        doc.serialize_field("ver", &ROW_VERSION)?;
        doc.serialize_field("owner", &row.owner)?;
        doc.serialize_field("actor", &row.actor)?;
        doc.serialize_field("scope", &row.scope)?;
        doc.serialize_field("allowSubscribe", &row.allow_subscribe)?;
        doc.serialize_field("allowPublish", &row.allow_publish)?;
        optional(&mut doc, "role", row.role.as_ref())?;
        // The two writers disagree about these two; readers do not care.
        match self.kind {
            RowKind::Interactive => {
                optional(&mut doc, "label", row.label.as_ref())?;
                optional(&mut doc, "parent", row.parent.as_ref())?;
            }
            RowKind::ManagedAgent => {
                optional(&mut doc, "parent", row.parent.as_ref())?;
                optional(&mut doc, "label", row.label.as_ref())?;
                optional(&mut doc, "tokenHash", row.token_hash.as_ref())?;
            }
        }
        optional(&mut doc, "lifecycleUid", row.lifecycle_uid.as_ref())?;
        optional(&mut doc, "grantedAt", row.granted_at.as_ref())?;
        doc.end()
    }
}

fn text<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    members.get(name).and_then(Value::as_str)
}

/// An optional string member; `null` is absence, another type refuses.
fn take_text(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, RowError> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s)),
        Some(_) => Err(RowError::Member),
    }
}

fn take_list(members: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, RowError> {
    let Some(Value::Array(entries)) = members.remove(name) else { return Err(RowError::Lists) };
    entries
        .into_iter()
        .map(|entry| if let Value::String(s) = entry { Ok(s) } else { Err(RowError::Lists) })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn minimal(kind: RowKind) -> Value {
        let mut row = json!({
            "ver": 1, "owner": OWNER, "actor": "cli", "scope": [], "allowSubscribe": [], "allowPublish": [],
            "grantedAt": "2026-01-02T03:04:05.006Z",
        });
        if kind == RowKind::ManagedAgent {
            row["tokenHash"] = json!(HASH);
        }
        row
    }

    fn parse(value: &Value, kind: RowKind) -> Result<ActorRow, RowError> {
        ActorRow::parse(value.to_string().as_bytes(), kind)
    }

    /// The minimal row with these members replaced; `None` removes one.
    fn with(kind: RowKind, edits: &[(&str, Option<Value>)]) -> Result<ActorRow, RowError> {
        let mut row = minimal(kind);
        let members = row.as_object_mut().unwrap();
        for (name, value) in edits {
            match value {
                Some(value) => members.insert((*name).to_owned(), value.clone()),
                None => members.remove(*name),
            };
        }
        parse(&row, kind)
    }

    #[test]
    fn each_rule_of_a_row_refuses_with_its_own_reason() {
        use RowKind::{Interactive as I, ManagedAgent as M};
        let cases: &[(RowKind, &str, Option<Value>, RowError)] = &[
            (I, "ver", None, RowError::Version),
            (I, "ver", Some(json!(2)), RowError::Version),
            (I, "ver", Some(json!("1")), RowError::Version),
            (I, "owner", None, RowError::Owner),
            (I, "owner", Some(json!("local")), RowError::Owner),
            (I, "owner", Some(json!(format!("p_{}", "a".repeat(26)))), RowError::Owner),
            (I, "owner", Some(json!(7)), RowError::Owner),
            (I, "actor", Some(json!("a.b")), RowError::Actor),
            (I, "actor", Some(json!("")), RowError::Actor),
            (I, "actor", Some(json!(["cli"])), RowError::Actor),
            (I, "scope", None, RowError::Lists),
            (I, "scope", Some(json!("spawn")), RowError::Lists),
            (I, "allowSubscribe", Some(json!({})), RowError::Lists),
            (I, "allowPublish", Some(Value::Null), RowError::Lists),
            (I, "allowPublish", Some(json!(["a", 1])), RowError::Lists),
            (I, "tokenHash", Some(json!(HASH)), RowError::HashOnInteractive),
            (I, "tokenHash", Some(Value::Null), RowError::HashOnInteractive),
            (M, "tokenHash", None, RowError::HashOnManaged),
            (M, "tokenHash", Some(json!(HASH.to_uppercase())), RowError::HashOnManaged),
            (M, "tokenHash", Some(json!(&HASH[1..])), RowError::HashOnManaged),
            (M, "tokenHash", Some(json!(1)), RowError::HashOnManaged),
            (I, "role", Some(json!(1)), RowError::Member),
            (I, "parent", Some(json!({})), RowError::Member),
            (I, "label", Some(json!([])), RowError::Member),
            (I, "lifecycleUid", Some(json!(true)), RowError::Member),
            (I, "grantedAt", Some(json!(0)), RowError::Member),
        ];
        for (kind, name, value, error) in cases {
            assert_eq!(with(*kind, &[(name, value.clone())]), Err(*error), "{kind} {name} {value:?}");
        }
        for bytes in ["", "{", "null", "[]", "1", "\u{feff}{}", "{\"ver\":1}x"] {
            assert!(ActorRow::parse(bytes.as_bytes(), I).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn rules_are_checked_in_the_order_of_the_contract() {
        let broken: [(&str, Option<Value>); 6] = [
            ("ver", Some(json!(2))),
            ("owner", Some(json!("x"))),
            ("actor", Some(json!("-"))),
            ("scope", None),
            ("tokenHash", Some(json!("x"))),
            ("role", Some(json!(1))),
        ];
        let order = [
            RowError::Version,
            RowError::Owner,
            RowError::Actor,
            RowError::Lists,
            RowError::HashOnInteractive,
            RowError::Member,
        ];
        for (first, error) in order.into_iter().enumerate() {
            assert_eq!(with(RowKind::Interactive, &broken[first..]), Err(error));
        }
    }

    #[test]
    fn an_optional_member_that_is_absent_or_null_is_not_there() {
        for name in ["role", "parent", "label", "lifecycleUid", "grantedAt"] {
            for value in [None, Some(Value::Null)] {
                for kind in RowKind::ALL {
                    let row = with(kind, &[(name, value.clone())]).unwrap();
                    assert!(row.role.is_none() && row.parent.is_none() && row.label.is_none());
                    assert_eq!(row.granted_at.is_none(), name == "grantedAt", "{name} {value:?}");
                    assert_eq!(ActorRow::parse(&row.to_document(kind).unwrap(), kind), Ok(row));
                }
            }
        }
    }

    #[test]
    fn unknown_members_are_ignored() {
        assert!(with(RowKind::Interactive, &[("later", Some(json!({"a": [1]})))]).is_ok());
    }

    #[test]
    fn each_kind_is_written_in_its_own_member_order() {
        let full = |kind: RowKind| ActorRow {
            owner: DerivedOwner::parse(OWNER).unwrap(),
            actor: Actor::parse("cli").unwrap(),
            scope: vec!["spawn".into(), "role:default".into()],
            allow_subscribe: vec![">".into()],
            allow_publish: vec![],
            role: Some("default".into()),
            parent: Some(format!("{OWNER}.boss")),
            label: Some("Zoë".into()),
            token_hash: (kind == RowKind::ManagedAgent).then(|| HASH.into()),
            lifecycle_uid: Some("0".repeat(26)),
            granted_at: Some("2026-01-02T03:04:05.006Z".into()),
        };
        let document = |kind| String::from_utf8(full(kind).to_document(kind).unwrap()).unwrap();
        assert_eq!(
            document(RowKind::Interactive),
            "{\n  \"ver\": 1,\n  \"owner\": \"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\n  \"actor\": \"cli\",\n  \"scope\": [\n    \
             \"spawn\",\n    \"role:default\"\n  ],\n  \"allowSubscribe\": [\n    \">\"\n  ],\n  \"allowPublish\": [],\n  \
             \"role\": \"default\",\n  \"label\": \"Zoë\",\n  \"parent\": \"u_aaaaaaaaaaaaaaaaaaaaaaaaaa.boss\",\n  \
             \"lifecycleUid\": \"00000000000000000000000000\",\n  \"grantedAt\": \"2026-01-02T03:04:05.006Z\"\n}"
        );
        let managed = document(RowKind::ManagedAgent);
        let position = |name: &str| managed.find(&format!("\"{name}\"")).unwrap();
        let order = ["role", "parent", "label", "tokenHash", "lifecycleUid", "grantedAt"].map(position);
        assert!(order.is_sorted(), "{managed}");
        assert!(!format!("{:?}", full(RowKind::ManagedAgent)).contains(HASH));
    }

    fn any_row(kind: RowKind) -> impl Strategy<Value = ActorRow> {
        let list = || prop::collection::vec(any::<String>(), 0..4);
        (
            ("u_[a-z2-7]{26}", "[A-Za-z0-9_]{1,20}", list(), list(), list()),
            prop::option::of(any::<String>()),
            prop::option::of(any::<String>()),
            prop::option::of(any::<String>()),
            prop::option::of(any::<String>()),
            "[0-9a-f]{64}",
            prop::option::of(any::<String>()),
        )
            .prop_map(
                move |((owner, actor, scope, sub, publish), role, parent, label, uid, hash, at)| ActorRow {
                    owner: DerivedOwner::parse(&owner).unwrap(),
                    actor: Actor::parse(&actor).unwrap(),
                    scope,
                    allow_subscribe: sub,
                    allow_publish: publish,
                    role,
                    parent,
                    label,
                    token_hash: (kind == RowKind::ManagedAgent).then_some(hash),
                    lifecycle_uid: uid,
                    granted_at: at,
                },
            )
    }

    proptest! {
        #[test]
        fn a_written_row_reads_back_equal(
            (kind, row) in prop::sample::select(RowKind::ALL.to_vec()).prop_flat_map(|k| (Just(k), any_row(k)))
        ) {
            prop_assert_eq!(ActorRow::parse(&row.to_document(kind).unwrap(), kind).unwrap(), row);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            for kind in RowKind::ALL {
                prop_assert!(ActorRow::parse(&bytes, kind).is_err());
            }
        }

        #[test]
        fn a_row_with_one_byte_changed_never_panics(at in 0usize..400, to in any::<u8>(), row in any_row(RowKind::ManagedAgent)) {
            let mut bytes = row.to_document(RowKind::ManagedAgent).unwrap();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = ActorRow::parse(&bytes, RowKind::ManagedAgent);
        }
    }
}
