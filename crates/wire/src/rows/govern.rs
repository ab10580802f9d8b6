//! The governance head `govern.<e>` in the records bucket (contract 02 §6.2, 07 §11.2).
//!
//! It records which governed traits each command of an endpoint was ever bound to, so that none is dropped silently,
//! and carries one slot: the registration that is under way. The slot is what makes registrations of several instances
//! of one endpoint take turns.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

use super::closed::{compact, safe_uint};
use crate::{endpoint_token::Command, error::EpError, token::InstanceId};

/// The trait definitions whose binding is recorded (contract 07 §11.2).
pub const GOVERNED_TRAITS: [&str; 2] = ["ai.cotal.guarded", "ai.cotal.priced"];

const COMMANDS: &str = "commands";
const PROVISIONAL: &str = "provisional";
const PENDING_POLICY: &str = "pendingPolicyKey";

/// Governed traits by command. A command without one is not listed.
pub type Governed = BTreeMap<Command, BTreeSet<String>>;

/// Whose registration holds the slot, and since which generation of its gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotHolder {
    /// The instance.
    pub instance: InstanceId,
    /// The generation at which its gate was frozen.
    pub generation: u64,
}

/// The slot: who holds it and what it declares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Provisional {
    /// Who holds it.
    pub holder: SlotHolder,
    /// The governed traits that its new spec declares.
    pub commands: Governed,
}

/// The governance head of an endpoint. Its recorded commands only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct GovernHead {
    commands: Governed,
    provisional: Option<Provisional>,
    /// Members of other writers, kept as they are.
    rest: Map<String, Value>,
}

#[derive(Serialize)]
struct Wire<'a> {
    commands: &'a Governed,
    #[serde(skip_serializing_if = "Option::is_none")]
    provisional: Option<WireSlot<'a>>,
    #[serde(flatten)]
    rest: &'a Map<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireSlot<'a> {
    instance_id: &'a InstanceId,
    generation: u64,
    commands: &'a Governed,
}

impl GovernHead {
    /// Reads a stored head.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let garbled = |rule: &str| EpError::internal(format!("a stored governance head is garbled: {rule}"));
        let value = serde_json::from_slice(bytes).map_err(|_| garbled("it is not valid JSON"))?;
        let Value::Object(mut rest) = value else { return Err(garbled("it is not an object")) };
        let commands = rest
            .remove(COMMANDS)
            .and_then(|value| governed(&value))
            .ok_or_else(|| garbled("its commands are not lists of trait names by command"))?;
        let provisional = match rest.remove(PROVISIONAL) {
            None => None,
            Some(slot) => Some(provisional(&slot).ok_or_else(|| garbled("its slot is not one"))?),
        };
        Ok(Self { commands, provisional, rest })
    }

    /// The bytes of this row: `commands`, `provisional`, then what others wrote.
    pub fn to_bytes(&self) -> Vec<u8> {
        let provisional = self.provisional.as_ref().map(|slot| WireSlot {
            instance_id: &slot.holder.instance,
            generation: slot.holder.generation,
            commands: &slot.commands,
        });
        compact(&Wire { commands: &self.commands, provisional, rest: &self.rest })
    }

    /// What is recorded.
    pub fn commands(&self) -> &Governed {
        &self.commands
    }

    /// The slot.
    pub fn provisional(&self) -> Option<&Provisional> {
        self.provisional.as_ref()
    }

    /// Whether a change of admission policy is staged, during which nothing is admitted (contract 02 §6.1).
    pub fn stages_policy(&self) -> bool {
        self.rest.contains_key(PENDING_POLICY)
    }

    /// A recorded trait that a command would lose under `declared`, which lists every declared command, governed or not.
    pub fn dropped_by<'a>(
        &'a self,
        declared: &BTreeMap<Command, BTreeSet<String>>,
    ) -> Option<(&'a Command, &'a str)> {
        self.commands.iter().find_map(|(command, traits)| {
            let again = declared.get(command)?;
            traits.iter().find(|name| !again.contains(*name)).map(|name| (command, name.as_str()))
        })
    }

    /// The same head, its slot taken. Commands without a governed trait are not recorded.
    #[must_use]
    pub fn take(self, holder: SlotHolder, declared: &Governed) -> Self {
        Self { provisional: Some(Provisional { holder, commands: governed_alone(declared) }), ..self }
    }

    /// Whether the slot is taken, for a registration that declares this.
    pub fn holds_slot_for(&self, declared: &Governed) -> bool {
        self.provisional.as_ref().is_some_and(|slot| slot.commands == governed_alone(declared))
    }

    /// The same head with what its slot declares recorded; the slot stays.
    #[must_use]
    pub fn promote(mut self) -> Self {
        for (command, traits) in self.provisional.iter().flat_map(|slot| &slot.commands) {
            self.commands.entry(command.clone()).or_default().extend(traits.iter().cloned());
        }
        self
    }

    /// The same head without its slot.
    #[must_use]
    pub fn release(self) -> Self {
        Self { provisional: None, ..self }
    }
}

fn governed(value: &Value) -> Option<Governed> {
    value
        .as_object()?
        .iter()
        .map(|(command, traits)| {
            let traits: Option<BTreeSet<_>> =
                traits.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect();
            Some((Command::parse(command).ok()?, traits?))
        })
        .collect()
}

fn provisional(value: &Value) -> Option<Provisional> {
    let slot = value.as_object()?;
    let instance = InstanceId::parse(slot.get("instanceId")?.as_str()?).ok()?;
    let generation = slot.get("generation").and_then(safe_uint)?;
    Some(Provisional {
        holder: SlotHolder { instance, generation },
        commands: governed(slot.get("commands")?)?,
    })
}

/// The commands that have a governed trait.
fn governed_alone(declared: &Governed) -> Governed {
    declared
        .iter()
        .filter(|(_, traits)| !traits.is_empty())
        .map(|(command, traits)| (command.clone(), traits.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    fn command(name: &str) -> Command {
        Command::parse(name).unwrap()
    }

    fn declares(entries: &[(&str, &[&str])]) -> Governed {
        entries
            .iter()
            .map(|(name, traits)| (command(name), traits.iter().map(|t| (*t).to_owned()).collect()))
            .collect()
    }

    fn holder(generation: u64) -> SlotHolder {
        SlotHolder { instance: InstanceId::parse(&"i".repeat(26)).unwrap(), generation }
    }

    fn text(head: &GovernHead) -> String {
        String::from_utf8(head.to_bytes()).unwrap()
    }

    #[test]
    fn a_registration_takes_the_slot_promotes_and_releases() {
        let declared = declares(&[("run", &["ai.cotal.priced", "ai.cotal.guarded"]), ("plain", &[])]);
        let taken = GovernHead::default().take(holder(3), &declared);
        assert_eq!(
            text(&taken),
            format!(
                "{{\"commands\":{{}},\"provisional\":{{\"instanceId\":\"{}\",\"generation\":3,\
                 \"commands\":{{\"run\":[\"ai.cotal.guarded\",\"ai.cotal.priced\"]}}}}}}",
                holder(3).instance
            )
        );
        let promoted = taken.promote();
        assert_eq!(
            promoted.provisional().unwrap().holder,
            holder(3),
            "the slot is kept until after the reopen"
        );
        let released = promoted.clone().promote().release();
        assert_eq!(text(&released), "{\"commands\":{\"run\":[\"ai.cotal.guarded\",\"ai.cotal.priced\"]}}");
        for head in [promoted, released, GovernHead::default()] {
            assert_eq!(GovernHead::parse(&head.to_bytes()).unwrap(), head);
        }
    }

    #[test]
    fn recorded_commands_only_grow() {
        let first = GovernHead::default()
            .take(holder(0), &declares(&[("a", &["ai.cotal.guarded"]), ("b", &["ai.cotal.priced"])]))
            .promote()
            .release();
        let second = first
            .clone()
            .take(holder(1), &declares(&[("a", &["ai.cotal.guarded", "ai.cotal.priced"])]))
            .promote()
            .release();
        assert_eq!(
            second.commands(),
            &declares(&[("a", &["ai.cotal.guarded", "ai.cotal.priced"]), ("b", &["ai.cotal.priced"])])
        );
        assert_eq!(second.dropped_by(&declares(&[("c", &[])])), None, "a removed command keeps its record");
        let (which, what) = (command("b"), "ai.cotal.priced");
        assert_eq!(second.dropped_by(&declares(&[("b", &["ai.cotal.guarded"])])), Some((&which, what)));
    }

    #[test]
    fn what_other_writers_keep_there_is_kept() {
        let head = GovernHead::parse(
            br#"{"enforcedPolicyKey":"policy.e.x","enforcedPolicyRevision":4,"commands":{},"pendingPolicyKey":"p"}"#,
        )
        .unwrap();
        assert!(head.stages_policy() && !GovernHead::default().stages_policy());
        let written: Value =
            serde_json::from_slice(&head.take(holder(1), &Governed::new()).to_bytes()).unwrap();
        assert_eq!(written["enforcedPolicyRevision"], 4);
        assert_eq!(written["provisional"]["generation"], 1);
    }

    #[test]
    fn a_garbled_head_is_internal() {
        let slot = |slot: &str| format!("{{\"commands\":{{}},\"provisional\":{slot}}}");
        let id = holder(0).instance;
        for bytes in [
            String::new(),
            "[]".to_owned(),
            "{}".to_owned(),
            "{\"commands\":[]}".to_owned(),
            "{\"commands\":{\"run\":\"ai.cotal.guarded\"}}".to_owned(),
            "{\"commands\":{\"run\":[1]}}".to_owned(),
            "{\"commands\":{\"Run\":[]}}".to_owned(),
            slot("null"),
            slot("{}"),
            slot(&format!("{{\"instanceId\":\"{id}\",\"generation\":-1,\"commands\":{{}}}}")),
            slot(&format!("{{\"instanceId\":\"{id}\",\"generation\":1}}")),
            slot("{\"instanceId\":\"short\",\"generation\":1,\"commands\":{}}"),
        ] {
            assert_eq!(GovernHead::parse(bytes.as_bytes()).unwrap_err().code, EpCode::Internal, "{bytes}");
        }
    }
}
