//! What a host that runs agents itself answers about a runtime (contract 06 §8).

use serde::Serialize;

use super::{
    HolderKind, Kind, RuntimeRequest,
    echo::{Echo, Unbound},
    envelope::Incarnation,
    fields::Fields,
    managed_agent_result::result,
};
use crate::{error::EpError, es_value::EsValue, token::Owner};

/// Declares the words of one member, in the contract's order.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub enum $name {
            $($(#[$word_doc])* #[serde(rename = $text)] $word,)*
        }

        impl $name {
            /// Every word, in the contract's order.
            pub const ALL: &'static [Self] = &[$(Self::$word),*];

            /// The word as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text,)* }
            }

            fn read(fields: &Fields<'_>, member: &str) -> Result<Self, EpError> {
                let word = fields.value(member).and_then(EsValue::as_text);
                Self::ALL
                    .iter()
                    .copied()
                    .find(|one| word == Some(one.as_str()))
                    .ok_or_else(|| fields.bad(member, concat!("one of", $(" ", $text),*)))
            }
        }
    };
}

words!(
    /// How far a hosted runtime has come.
    RuntimeState {
        /// It is set aside.
        Reserved = "reserved",
        /// It is being made.
        Creating = "creating",
        /// It is there.
        Bound = "bound",
        /// Nobody can say whether it was made.
        CreateUnknown = "create-unknown",
        /// It is going.
        Closing = "closing",
        /// It is gone.
        Closed = "closed",
    }
);
words!(
    /// Whether a hosted runtime answers.
    RuntimeReadiness {
        /// It does.
        Ready = "ready",
        /// It is there and does not yet.
        BoundNotReady = "bound-not-ready",
        /// There is none to ask.
        None = "none",
    }
);
words!(
    /// How far the retirement of a hosted agent has come.
    RetirementPhase {
        /// It is wanted.
        Intent = "intent",
        /// The runtime was let go.
        Released = "released",
        /// The lifecycle has ended.
        Retired = "retired",
        /// What it left is gone.
        Deprovisioned = "deprovisioned",
        /// All of it is over.
        Terminal = "terminal",
    }
);

/// What a host that runs agents itself answers about a runtime (contract 06 §8). The stock service never does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeResult {
    /// Whom it answers.
    #[serde(flatten)]
    pub echo: Echo,
    /// Of which agent.
    pub target: Incarnation,
    /// How far it has come.
    pub state: RuntimeState,
    /// Whether it answers.
    pub readiness: RuntimeReadiness,
    /// How far its retirement has come, once one has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retirement_phase: Option<RetirementPhase>,
}

impl RuntimeResult {
    /// Reads an answer to [`Kind::RuntimeCreate`] or [`Kind::RuntimeStatus`]; every refusal is `bad-request`.
    pub fn parse(answer: &EsValue, kind: Kind) -> Result<Self, EpError> {
        let fields = result(answer, kind, &["target", "state", "readiness", "retirementPhase"])?;
        let echo = Echo::read(&fields, kind)?;
        let target = Incarnation::read(&fields, "target", "target", HolderKind::Human)?;
        if target.owner != echo.owner {
            return Err(fields.bad("owner", "target.owner"));
        }
        let phase = fields.has("retirementPhase");
        Ok(Self {
            echo,
            target,
            state: RuntimeState::read(&fields, "state")?,
            readiness: RuntimeReadiness::read(&fields, "readiness")?,
            retirement_phase: phase.then(|| RetirementPhase::read(&fields, "retirementPhase")).transpose()?,
        })
    }

    /// Reads the answer to this request of this kind and owner: every coordinate is the request's.
    pub fn bind(
        answer: &EsValue,
        kind: Kind,
        request: &RuntimeRequest,
        owner: &Owner,
    ) -> Result<Self, Unbound> {
        let answer = Self::parse(answer, kind)?;
        let bound =
            answer.echo == Echo::of(kind, &request.envelope, owner) && answer.target == request.target;
        if bound { Ok(answer) } else { Err(Unbound::other(kind)) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_runtime_is_one_of_the_contracts_words_and_its_target_is_its_owners() {
        let mut answer = json!({
            "v": 1, "kind": "manager-managed-agent-runtime-status", "space": "main", "owner": OWNER, "actor": "cli",
            "instanceId": "a".repeat(26), "managerLifecycleUid": "c".repeat(26), "requestId": "r".repeat(22),
            "target": { "owner": OWNER, "actor": "worker", "lifecycleUid": "b".repeat(26) }, "state": "create-unknown", "readiness": "bound-not-ready",
        });
        let parse = |answer: &Value| RuntimeResult::parse(&es(answer), Kind::RuntimeStatus);
        let read = parse(&answer).unwrap();
        assert_eq!((read.state, read.retirement_phase), (RuntimeState::CreateUnknown, None));
        assert_eq!(serde_json::to_value(&read).unwrap(), answer);
        answer["retirementPhase"] = json!("deprovisioned");
        assert_eq!(parse(&answer).unwrap().retirement_phase, Some(RetirementPhase::Deprovisioned));
        assert!(RuntimeResult::parse(&es(&answer), Kind::RuntimeCreate).is_err(), "another kind's answer");
        let mut foreign = answer.clone();
        foreign["owner"] = json!("u_bbbbbbbbbbbbbbbbbbbbbbbbbb");
        assert!(parse(&foreign).is_err());
        for (member, bad) in [("state", "Bound"), ("readiness", ""), ("retirementPhase", "over")] {
            let mut answer = answer.clone();
            answer[member] = json!(bad);
            assert!(parse(&answer).is_err(), "{member}: {bad}");
        }
    }
}
