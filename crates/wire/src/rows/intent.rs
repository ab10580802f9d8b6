//! Operation intents `stage.<op>` in the auth bucket (contract 02 §3.10 and §3.11; 07 §4.6, §5 and §6.1).

use serde::Serialize;
use serde_json::Value;

use super::{
    closed::{Closed, compact},
    gate::OpKind,
};
use crate::{
    error::EpError,
    names::Names,
    token::{LifecycleUid, Principal},
};

const WHAT: &str = "operation intent";

/// What a takeover set out to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakeoverIntent {
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// Its principal.
    pub principal: Principal,
    /// The epoch that it was captured at, at least 1.
    pub from_epoch: u64,
    /// The gate generation that it was captured at, at least 1.
    pub from_generation: u64,
}

/// What a retirement set out to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RetirementIntent {
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// Its principal.
    pub principal: Principal,
    /// The gate generation that it was captured at, at least 1.
    pub from_generation: u64,
    /// The streams whose frontier it records, each of [`Names::frontier_streams`].
    pub frontier_streams: Vec<String>,
}

/// The durable intent of a barrier. Never deleted while the operation can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Intent {
    /// A takeover.
    Takeover(TakeoverIntent),
    /// A retirement.
    Retirement(RetirementIntent),
}

/// What boot discovery reads of an intent, without its coordinates (contract 07 §4.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentHeader {
    /// Takeover or retirement.
    pub kind: OpKind,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// Its principal.
    pub principal: Principal,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    kind: OpKind,
    lifecycle_uid: &'a LifecycleUid,
    owner: &'a str,
    actor: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_epoch: Option<u64>,
    from_generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    frontier_streams: Option<&'a [String]>,
}

impl Intent {
    /// Reads a stored intent of a space.
    pub fn parse(names: &Names, bytes: &[u8]) -> Result<Self, EpError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal("a stored operation intent is not valid JSON"))?;
        match value.get("kind").and_then(Value::as_str) {
            Some("takeover") => TakeoverIntent::of(value).map(Self::Takeover),
            Some("retirement") => RetirementIntent::of(names, value).map(Self::Retirement),
            _ => Err(EpError::internal("a stored operation intent is neither a takeover nor a retirement")),
        }
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&match self {
            Self::Takeover(intent) => Wire {
                kind: OpKind::Takeover,
                lifecycle_uid: &intent.lifecycle_uid,
                owner: intent.principal.owner.as_str(),
                actor: intent.principal.actor.as_str(),
                from_epoch: Some(intent.from_epoch),
                from_generation: intent.from_generation,
                frontier_streams: None,
            },
            Self::Retirement(intent) => Wire {
                kind: OpKind::Retirement,
                lifecycle_uid: &intent.lifecycle_uid,
                owner: intent.principal.owner.as_str(),
                actor: intent.principal.actor.as_str(),
                from_epoch: None,
                from_generation: intent.from_generation,
                frontier_streams: Some(&intent.frontier_streams),
            },
        })
    }

    /// The incarnation.
    pub fn lifecycle_uid(&self) -> &LifecycleUid {
        match self {
            Self::Takeover(intent) => &intent.lifecycle_uid,
            Self::Retirement(intent) => &intent.lifecycle_uid,
        }
    }

    /// The principal.
    pub fn principal(&self) -> &Principal {
        match self {
            Self::Takeover(intent) => &intent.principal,
            Self::Retirement(intent) => &intent.principal,
        }
    }
}

impl TakeoverIntent {
    fn of(value: Value) -> Result<Self, EpError> {
        let row = Closed::of(
            WHAT,
            value,
            &["kind", "lifecycleUid", "owner", "actor", "fromEpoch", "fromGeneration"],
        )?;
        let (from_epoch, from_generation) = (row.positive("fromEpoch")?, row.positive("fromGeneration")?);
        let (lifecycle_uid, principal) = coordinates(&row)?;
        Ok(Self { lifecycle_uid, principal, from_epoch, from_generation })
    }
}

impl RetirementIntent {
    fn of(names: &Names, value: Value) -> Result<Self, EpError> {
        let row = Closed::of(
            WHAT,
            value,
            &["kind", "lifecycleUid", "owner", "actor", "fromGeneration", "frontierStreams"],
        )?;
        let from_generation = row.positive("fromGeneration")?;
        let streams: Option<Vec<String>> =
            row.array("frontierStreams")?.iter().map(|s| s.as_str().map(str::to_owned)).collect();
        let known = names.frontier_streams();
        let frontier_streams = streams
            .filter(|streams| streams.iter().all(|s| known.contains(s)))
            .ok_or_else(|| row.garbled("frontierStreams names a stream outside the closed set"))?;
        let (lifecycle_uid, principal) = coordinates(&row)?;
        Ok(Self { lifecycle_uid, principal, from_generation, frontier_streams })
    }
}

impl IntentHeader {
    /// Reads what boot discovery needs. Other members are not looked at: the barrier reads the whole row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let garbled = |rule: &str| EpError::internal(format!("a stored {WHAT} is garbled: {rule}"));
        let value: Value = serde_json::from_slice(bytes).map_err(|_| garbled("it is not valid JSON"))?;
        let text = |member: &str| value.get(member).and_then(Value::as_str).unwrap_or_default();
        let kind = match text("kind") {
            "takeover" => OpKind::Takeover,
            "retirement" => OpKind::Retirement,
            _ => return Err(garbled("it is neither a takeover nor a retirement")),
        };
        let lifecycle_uid = LifecycleUid::parse(text("lifecycleUid"))
            .map_err(|_| garbled("lifecycleUid must be a valid token"))?;
        let principal = Principal::parse_key(&format!("{}.{}", text("owner"), text("actor")))
            .map_err(|_| garbled("owner and actor must name a principal"))?;
        Ok(Self { kind, lifecycle_uid, principal })
    }
}

fn coordinates(row: &Closed) -> Result<(LifecycleUid, Principal), EpError> {
    let (owner, actor) = (row.non_empty("owner")?, row.non_empty("actor")?);
    let principal = Principal::parse_key(&format!("{owner}.{actor}"))
        .map_err(|_| row.garbled("owner and actor must name a principal"))?;
    Ok((row.token("lifecycleUid")?, principal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::EpCode, token::SpaceToken};

    fn names() -> Names {
        Names::new(&SpaceToken::parse("main").unwrap())
    }

    fn uid() -> LifecycleUid {
        LifecycleUid::parse(&"a".repeat(26)).unwrap()
    }

    fn takeover() -> Intent {
        Intent::Takeover(TakeoverIntent {
            lifecycle_uid: uid(),
            principal: Principal::parse_key("local.alice").unwrap(),
            from_epoch: 1,
            from_generation: 2,
        })
    }

    fn retirement() -> Intent {
        Intent::Retirement(RetirementIntent {
            lifecycle_uid: uid(),
            principal: Principal::parse_key("local.alice").unwrap(),
            from_generation: 2,
            frontier_streams: names().frontier_streams().to_vec(),
        })
    }

    #[test]
    fn intents_have_these_bytes_and_read_back() {
        assert_eq!(
            String::from_utf8(takeover().to_bytes()).unwrap(),
            format!(
                "{{\"kind\":\"takeover\",\"lifecycleUid\":\"{}\",\"owner\":\"local\",\"actor\":\"alice\",\
                 \"fromEpoch\":1,\"fromGeneration\":2}}",
                uid()
            )
        );
        assert_eq!(
            String::from_utf8(retirement().to_bytes()).unwrap(),
            format!(
                "{{\"kind\":\"retirement\",\"lifecycleUid\":\"{}\",\"owner\":\"local\",\"actor\":\"alice\",\
                 \"fromGeneration\":2,\"frontierStreams\":[\"EPF_main\",\"EPW_main\",\"EPE_main\",\
                 \"KV_cotal_records_main\"]}}",
                uid()
            )
        );
        for intent in [takeover(), retirement()] {
            assert_eq!(Intent::parse(&names(), &intent.to_bytes()).unwrap(), intent);
            let header = IntentHeader::parse(&intent.to_bytes()).unwrap();
            assert_eq!(
                (&header.lifecycle_uid, &header.principal),
                (intent.lifecycle_uid(), intent.principal())
            );
        }
    }

    #[test]
    fn a_garbled_intent_is_internal() {
        let takeover = String::from_utf8(takeover().to_bytes()).unwrap();
        let retirement = String::from_utf8(retirement().to_bytes()).unwrap();
        for bytes in [
            String::new(),
            "[]".to_owned(),
            takeover.replace("takeover", "activation"),
            takeover.replace("\"fromEpoch\":1", "\"fromEpoch\":0"),
            takeover.replace("\"fromGeneration\":2", "\"fromGeneration\":0"),
            takeover.replace("local", ""),
            takeover.replace("local", "nobody"),
            takeover.replace(uid().as_str(), "x"),
            takeover.replace("\"fromEpoch\"", "\"more\":1,\"fromEpoch\""),
            retirement.replace("EPF_main", "EPF_other"),
            retirement.replace("\"EPF_main\"", "7"),
            retirement.replace("\"frontierStreams\"", "\"endpoints\":[],\"frontierStreams\""),
        ] {
            let error = Intent::parse(&names(), bytes.as_bytes()).unwrap_err();
            assert_eq!(error.code, EpCode::Internal, "{bytes}");
        }
    }
}
