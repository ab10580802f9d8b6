//! Cluster documents: what the commands of an endpoint take, give and need (contract 02 §8.1).

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use super::invalid;
use crate::{
    endpoint_token::{Command, DESCRIBE, DigestRef},
    envelope::CallClass,
    error::EpError,
    rows::safe_uint,
};

/// By what right a targeted command may act on its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandMode {
    /// The caller itself.
    #[serde(rename = "self")]
    SelfMode,
    /// An agent of the caller's owner.
    Owner,
    /// An agent of any owner.
    Any,
    /// The caller's own child.
    Child,
    /// Whatever the authorization ledger says.
    Ledger,
    /// The triple of a redeemed handle.
    Handle,
    /// A literal triple of a privileged profile.
    Exact,
}

/// The bounds of what a journal admits of a command's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionCeiling {
    /// Bytes.
    pub max_bytes: u64,
    /// Nesting.
    pub max_depth: u64,
    /// Items.
    pub max_items: u64,
}

/// One command of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterCommand {
    /// Its name, never `describe`.
    pub name: Command,
    /// Whether it is answered or journaled.
    pub class: CallClass,
    /// Whether it acts on an agent.
    pub targeted: bool,
    /// By what right; empty when it is not targeted. In the document's order.
    pub modes: Vec<CommandMode>,
    /// The capability that a caller needs.
    pub capability: String,
    /// Closure digest of its arguments' schema.
    pub input_digest: DigestRef,
    /// Closure digest of its result's schema.
    pub output_digest: DigestRef,
    /// Trait definitions that it is bound to.
    pub traits: BTreeSet<String>,
    /// Whether it is a composite action.
    pub action: bool,
    /// What its journal admits; of a journal command alone.
    pub admission_ceiling: Option<AdmissionCeiling>,
    /// How long an action may take to be ready, in milliseconds.
    pub readiness_deadline_ms: Option<u64>,
}

/// A cluster: one document of an endpoint's contract.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterDocument {
    urn: String,
    revision: u64,
    commands: Vec<ClusterCommand>,
    document: Value,
}

impl CommandMode {
    /// Every mode.
    pub const ALL: [Self; 7] =
        [Self::SelfMode, Self::Owner, Self::Any, Self::Child, Self::Ledger, Self::Handle, Self::Exact];

    /// The wire word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SelfMode => "self",
            Self::Owner => "owner",
            Self::Any => "any",
            Self::Child => "child",
            Self::Ledger => "ledger",
            Self::Handle => "handle",
            Self::Exact => "exact",
        }
    }

    fn parse(value: &Value) -> Option<Self> {
        let word = value.as_str()?;
        Self::ALL.into_iter().find(|mode| mode.as_str() == word)
    }
}

impl ClusterDocument {
    /// Reads a cluster document; `contract-invalid` names the first rule that it breaks.
    pub fn parse(document: Value) -> Result<Self, EpError> {
        let fields = Fields::of("the document", &document)?;
        let urn = fields.text("urn")?;
        if !is_cluster_urn(urn) {
            return Err(fields.bad("urn", "two to sixteen dot-separated labels of a-z 0-9 -"));
        }
        let revision = fields.uint("revision")?;
        fields.array("attributes")?;
        let listed = fields.array("commands")?;
        if listed.is_empty() {
            return Err(fields.bad("commands", "a list with at least one command"));
        }
        fields.array("events")?;
        let mut commands: Vec<ClusterCommand> = Vec::with_capacity(listed.len());
        for value in listed {
            let command = ClusterCommand::parse(value)?;
            if commands.iter().any(|other| other.name == command.name) {
                return Err(invalid(format!("cluster {urn}: {} stands there twice", command.name)));
            }
            commands.push(command);
        }
        Ok(Self { urn: urn.to_owned(), revision, commands, document })
    }

    /// The cluster's name.
    pub fn urn(&self) -> &str {
        &self.urn
    }

    /// The document's revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Its commands, in the document's order.
    pub fn commands(&self) -> &[ClusterCommand] {
        &self.commands
    }

    /// The document as it was read.
    pub fn document(&self) -> &Value {
        &self.document
    }
}

impl ClusterCommand {
    fn parse(value: &Value) -> Result<Self, EpError> {
        let fields = Fields::of("a command", value)?;
        let name = Command::parse(fields.text("name")?).map_err(|_| fields.bad("name", "a command"))?;
        if name.as_str() == DESCRIBE {
            return Err(fields.bad("name", "something else than describe, which every endpoint answers"));
        }
        let class = CallClass::from_name(fields.text("class")?);
        let class = class.ok_or_else(|| fields.bad("class", "ephemeral or journal"))?;
        let journal = class == CallClass::Journal;
        let targeted = fields.boolean("targeted")?;
        let modes = fields.modes(targeted)?;
        let capability = fields.text("capability")?;
        if !is_capability(capability) {
            return Err(fields.bad("capability", "1 to 64 of a-z 0-9 . _ -, starting with a letter"));
        }
        let input_digest = fields.digest("inputDigest")?;
        let output_digest = fields.digest("outputDigest")?;
        let traits = fields.traits()?;
        let action = match fields.get("action") {
            None => false,
            Some(Value::Bool(true)) if journal => true,
            Some(_) => return Err(fields.bad("action", "true, and of a journal command")),
        };
        let admission_ceiling = match fields.get("admissionCeiling") {
            Some(ceiling) if journal => Some(AdmissionCeiling::parse(ceiling)?),
            None if !journal => None,
            _ => return Err(fields.bad("admissionCeiling", "there if and only if the command is journaled")),
        };
        let readiness_deadline_ms = match fields.get("readinessDeadlineMs") {
            None => None,
            Some(_) if action => Some(fields.uint("readinessDeadlineMs")?),
            Some(_) => return Err(fields.bad("readinessDeadlineMs", "of an action alone")),
        };
        Ok(Self {
            name,
            class,
            targeted,
            modes,
            capability: capability.to_owned(),
            input_digest,
            output_digest,
            traits,
            action,
            admission_ceiling,
            readiness_deadline_ms,
        })
    }

    /// Whether it is journaled.
    pub fn is_journaled(&self) -> bool {
        self.class == CallClass::Journal
    }
}

impl AdmissionCeiling {
    fn parse(value: &Value) -> Result<Self, EpError> {
        let fields = Fields::of("an admissionCeiling", value)?;
        Ok(Self {
            max_bytes: fields.positive("maxBytes")?,
            max_depth: fields.positive("maxDepth")?,
            max_items: fields.positive("maxItems")?,
        })
    }
}

/// `^[a-z0-9][a-z0-9-]{0,62}(\.[a-z0-9][a-z0-9-]{0,62}){1,15}$`
fn is_cluster_urn(urn: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    (2..=16).contains(&urn.split('.').count()) && urn.split('.').all(label)
}

/// `^[a-z][a-z0-9._-]{0,63}$`
fn is_capability(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
}

/// The members of one object of a cluster document.
struct Fields<'a> {
    what: &'static str,
    members: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn of(what: &'static str, value: &'a Value) -> Result<Self, EpError> {
        let members =
            value.as_object().ok_or_else(|| invalid(format!("cluster: {what} is not an object")))?;
        Ok(Self { what, members })
    }

    fn bad(&self, member: &str, rule: &str) -> EpError {
        invalid(format!("cluster: in {}, {member} must be {rule}", self.what))
    }

    fn get(&self, member: &str) -> Option<&'a Value> {
        self.members.get(member)
    }

    fn text(&self, member: &str) -> Result<&'a str, EpError> {
        self.get(member).and_then(Value::as_str).ok_or_else(|| self.bad(member, "a string"))
    }

    fn boolean(&self, member: &str) -> Result<bool, EpError> {
        self.get(member).and_then(Value::as_bool).ok_or_else(|| self.bad(member, "true or false"))
    }

    fn uint(&self, member: &str) -> Result<u64, EpError> {
        self.get(member).and_then(safe_uint).ok_or_else(|| self.bad(member, "an integer from 0 to 2^53 - 1"))
    }

    fn positive(&self, member: &str) -> Result<u64, EpError> {
        self.uint(member).ok().filter(|n| *n > 0).ok_or_else(|| self.bad(member, "a positive integer"))
    }

    fn array(&self, member: &str) -> Result<&'a [Value], EpError> {
        let array = self.get(member).and_then(Value::as_array);
        array.map(Vec::as_slice).ok_or_else(|| self.bad(member, "a list"))
    }

    fn digest(&self, member: &str) -> Result<DigestRef, EpError> {
        DigestRef::parse(self.text(member)?).map_err(|_| self.bad(member, "a closure digest"))
    }

    fn modes(&self, targeted: bool) -> Result<Vec<CommandMode>, EpError> {
        if !targeted {
            return match self.get("modes") {
                None => Ok(Vec::new()),
                Some(_) => Err(self.bad("modes", "there if and only if the command is targeted")),
            };
        }
        let modes: Option<Vec<_>> = self.array("modes")?.iter().map(CommandMode::parse).collect();
        modes
            .filter(|modes| !modes.is_empty() && modes.iter().collect::<BTreeSet<_>>().len() == modes.len())
            .ok_or_else(|| self.bad("modes", "a list of known modes, each once"))
    }

    fn traits(&self) -> Result<BTreeSet<String>, EpError> {
        if self.get("traits").is_none() {
            return Ok(BTreeSet::new());
        }
        let listed = self.array("traits")?;
        let names: Option<BTreeSet<_>> = listed.iter().map(|name| name.as_str().map(str::to_owned)).collect();
        names
            .filter(|names| names.len() == listed.len() && names.iter().all(|name| is_cluster_urn(name)))
            .ok_or_else(|| self.bad("traits", "a list of trait names, each once"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{canonical::VOID_CLOSURE_DIGEST, error::EpCode};

    fn document() -> Value {
        json!({
            "urn": "ai.cotal.auth", "revision": 1, "attributes": [], "events": [],
            "commands": [
                {
                    "name": "retire-lifecycle", "class": "ephemeral", "targeted": true, "modes": ["exact"],
                    "capability": "auth.admin", "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
                },
                {
                    "name": "launch", "class": "journal", "targeted": false, "capability": "run",
                    "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST, "action": true,
                    "traits": ["ai.cotal.priced", "ai.cotal.guarded"], "readinessDeadlineMs": 0,
                    "admissionCeiling": {"maxBytes": 1, "maxDepth": 2, "maxItems": 3},
                },
            ],
        })
    }

    #[test]
    fn a_document_reads_into_its_commands() {
        let cluster = ClusterDocument::parse(document()).unwrap();
        let [retire, launch] = cluster.commands() else { panic!("two commands") };
        assert_eq!((retire.modes.as_slice(), retire.is_journaled()), (&[CommandMode::Exact][..], false));
        assert!(launch.is_journaled() && launch.action && launch.modes.is_empty());
        assert_eq!(launch.admission_ceiling.unwrap().max_items, 3);
        assert_eq!(launch.traits.len(), 2);
        assert_eq!(
            (cluster.urn(), cluster.revision(), cluster.document()),
            ("ai.cotal.auth", 1, &document())
        );
    }

    #[test]
    fn every_rule_refuses_as_contract_invalid() {
        let cases: &[(&str, Value)] = &[
            ("/urn", json!("cotal")),
            ("/urn", json!("Ai.cotal")),
            ("/urn", json!("a.-b")),
            ("/urn", json!(format!("a.{}", "b".repeat(64)))),
            ("/urn", json!(vec!["a"; 17].join("."))),
            ("/revision", json!(-1)),
            ("/attributes", json!({})),
            ("/commands", json!([])),
            ("/commands", json!({})),
            ("/events", Value::Null),
            ("/commands/0", json!([])),
            ("/commands/0/name", json!("describe")),
            ("/commands/0/name", json!("launch")),
            ("/commands/0/name", json!("Launch")),
            ("/commands/0/class", json!("record")),
            ("/commands/0/targeted", json!(1)),
            ("/commands/0/targeted", json!(false)),
            ("/commands/0/modes", json!([])),
            ("/commands/0/modes", json!(["exact", "exact"])),
            ("/commands/0/modes", json!(["sudo"])),
            ("/commands/0/capability", json!("Admin")),
            ("/commands/0/capability", json!("a".repeat(65))),
            ("/commands/0/capability", json!("")),
            ("/commands/0/inputDigest", json!("0".repeat(64))),
            ("/commands/0/outputDigest", Value::Null),
            ("/commands/0/class", json!("journal")),
            ("/commands/1/class", json!("ephemeral")),
            ("/commands/1/targeted", json!(true)),
            ("/commands/1/action", json!(false)),
            ("/commands/1/traits", json!(["ai.cotal.priced", "ai.cotal.priced"])),
            ("/commands/1/traits", json!(["priced"])),
            ("/commands/1/traits", json!("ai.cotal.priced")),
            ("/commands/1/readinessDeadlineMs", json!(1.5)),
            ("/commands/1/admissionCeiling", json!({"maxBytes": 1, "maxDepth": 2})),
            ("/commands/1/admissionCeiling/maxItems", json!(0)),
        ];
        for (pointer, value) in cases {
            let mut document = document();
            *document.pointer_mut(pointer).unwrap() = value.clone();
            let refusal = ClusterDocument::parse(document).unwrap_err();
            assert_eq!(refusal.code, EpCode::ContractInvalid, "{pointer} {value}");
        }
        for member in ["action", "admissionCeiling"] {
            let mut document = document();
            document["commands"][1].as_object_mut().unwrap().remove(member);
            assert!(
                ClusterDocument::parse(document).is_err(),
                "{member}: what needs it is refused without it"
            );
        }
    }

    #[test]
    fn a_mode_prints_as_it_is_read() {
        for mode in CommandMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
            assert_eq!(CommandMode::parse(&json!(mode.as_str())), Some(mode));
        }
    }
}
