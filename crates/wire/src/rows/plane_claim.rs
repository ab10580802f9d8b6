//! The plane claim `plane` in the auth bucket: which process owns a space's authority plane (contract 03 §E and §G,
//! 05 §8.5).

use serde::Serialize;
use serde_json::Value;

use super::closed::{Closed, compact};
use crate::{
    error::EpError,
    time::MAX_SAFE_INTEGER,
    token::{Nkey, User},
};

const WHAT: &str = "plane claim";
const VERSION: u64 = 1;
/// Longest text of a connection's server id and of a claim id, in UTF-16 units.
const LONGEST_ID: usize = 128;
/// Longest text of `openedAt`, in UTF-16 units.
const LONGEST_TIME: usize = 64;

/// One pinned scanner connection, as the broker knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaneTuple {
    server_id: String,
    cid: u64,
    user_nkey: Nkey<User>,
}

/// Whether a claim is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimState {
    /// By the process whose connections it pins, or by one that died with it.
    Held,
    /// Its process closed cleanly.
    Released,
}

/// The claim row. Never deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneClaim {
    /// Grows by one with every claim.
    pub generation: u64,
    /// A fresh user nkey's public key; another reader takes any text of 1 to 128 characters.
    pub claim_id: String,
    /// Held or released.
    pub state: ClaimState,
    /// The ledger scanner's connection.
    pub ledger: PlaneTuple,
    /// The records scanner's connection.
    pub records: PlaneTuple,
    /// When it was taken, as its writer printed it.
    pub opened_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    generation: u64,
    claim_id: &'a str,
    state: ClaimState,
    ledger: &'a PlaneTuple,
    records: &'a PlaneTuple,
    opened_at: &'a str,
}

// === impl PlaneTuple ===

impl PlaneTuple {
    /// A tuple; `internal` when the server id is not 1 to 128 characters or the client id no positive safe integer.
    pub fn new(server_id: &str, cid: u64, user_nkey: &Nkey<User>) -> Result<Self, EpError> {
        if !is_text(server_id, LONGEST_ID) || !(1..=MAX_SAFE_INTEGER).contains(&cid) {
            return Err(EpError::internal("a plane connection needs a server id and a positive client id"));
        }
        Ok(Self { server_id: server_id.to_owned(), cid, user_nkey: user_nkey.clone() })
    }

    /// The broker's `server_id`.
    pub fn server_id(&self) -> &str {
        &self.server_id
    }

    /// The broker's `client_id`, positive.
    pub fn cid(&self) -> u64 {
        self.cid
    }

    /// The connection's own user nkey.
    pub fn user_nkey(&self) -> &Nkey<User> {
        &self.user_nkey
    }

    /// Reads a closed tuple, as a claim row and the oracle's answers carry it.
    pub fn parse(value: &Value) -> Result<Self, EpError> {
        let tuple = Closed::of("plane connection", value.clone(), &["serverId", "cid", "userNkey"])?;
        let server_id = tuple.text("serverId")?;
        if !is_text(server_id, LONGEST_ID) {
            return Err(tuple.garbled("serverId must be 1 to 128 characters"));
        }
        Ok(Self {
            server_id: server_id.to_owned(),
            cid: tuple.positive("cid")?,
            user_nkey: tuple.token("userNkey")?,
        })
    }
}

// === impl PlaneClaim ===

impl PlaneClaim {
    /// Reads a stored claim.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 7] = ["v", "generation", "claimId", "state", "ledger", "records", "openedAt"];
        let row = Closed::parse(WHAT, bytes, &MEMBERS)?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let text = |member: &str, longest: usize| {
            let text = row.text(member)?;
            if is_text(text, longest) {
                Ok(text.to_owned())
            } else {
                Err(row.garbled(&format!("{member} must be 1 to {longest} characters")))
            }
        };
        let tuple = |member: &str| PlaneTuple::parse(row.value(member).unwrap_or(&Value::Null));
        let state = match row.text("state")? {
            "held" => ClaimState::Held,
            "released" => ClaimState::Released,
            _ => return Err(row.garbled("state must be held or released")),
        };
        Ok(Self {
            generation: row.positive("generation")?,
            claim_id: text("claimId", LONGEST_ID)?,
            state,
            ledger: tuple("ledger")?,
            records: tuple("records")?,
            opened_at: text("openedAt", LONGEST_TIME)?,
        })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            v: VERSION,
            generation: self.generation,
            claim_id: &self.claim_id,
            state: self.state,
            ledger: &self.ledger,
            records: &self.records,
            opened_at: &self.opened_at,
        })
    }

    /// The same claim, released.
    #[must_use]
    pub fn released(&self) -> Self {
        Self { state: ClaimState::Released, ..self.clone() }
    }

    /// Whether both are one claim: same id, same generation, both pinned connections equal.
    pub fn is_same_claim(&self, other: &Self) -> bool {
        self.claim_id == other.claim_id
            && self.generation == other.generation
            && self.ledger == other.ledger
            && self.records == other.records
    }
}

fn is_text(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.encode_utf16().count())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NKEY: &str = "UAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn claim() -> PlaneClaim {
        let user = Nkey::parse(NKEY).unwrap();
        PlaneClaim {
            generation: 3,
            claim_id: NKEY.to_owned(),
            state: ClaimState::Held,
            ledger: PlaneTuple::new("NABC", 7, &user).unwrap(),
            records: PlaneTuple::new("NABC", 8, &user).unwrap(),
            opened_at: "2026-01-02T03:04:05.678Z".to_owned(),
        }
    }

    fn vector(state: &str) -> String {
        format!(
            "{{\"v\":1,\"generation\":3,\"claimId\":\"{NKEY}\",\"state\":\"{state}\",\
             \"ledger\":{{\"serverId\":\"NABC\",\"cid\":7,\"userNkey\":\"{NKEY}\"}},\
             \"records\":{{\"serverId\":\"NABC\",\"cid\":8,\"userNkey\":\"{NKEY}\"}},\
             \"openedAt\":\"2026-01-02T03:04:05.678Z\"}}"
        )
    }

    #[test]
    fn a_claim_has_these_bytes_and_a_release_changes_its_state_alone() {
        assert_eq!(String::from_utf8(claim().to_bytes()).unwrap(), vector("held"));
        assert_eq!(String::from_utf8(claim().released().to_bytes()).unwrap(), vector("released"));
        for row in [claim(), claim().released()] {
            assert_eq!(PlaneClaim::parse(&row.to_bytes()).unwrap(), row);
        }
        // What another writer may say, and JSON that says the same otherwise.
        let other = vector("held").replace(&format!("\"claimId\":\"{NKEY}\""), "\"claimId\":\"x\"");
        assert_eq!(PlaneClaim::parse(other.as_bytes()).unwrap().claim_id, "x");
        let spelled = vector("held").replace("\"cid\":7", "\"cid\": 7.0");
        assert_eq!(PlaneClaim::parse(spelled.as_bytes()).unwrap(), claim());
    }

    #[test]
    fn anything_else_is_garbled() {
        let long = |n: usize| "x".repeat(n);
        let text = |member: &str, value: String| {
            let row: Value = serde_json::from_str(&vector("held")).unwrap();
            let mut row = row.as_object().unwrap().clone();
            row.insert(member.to_owned(), value.into());
            Value::from(row).to_string()
        };
        for (name, longest) in [("claimId", 128), ("openedAt", 64)] {
            assert!(PlaneClaim::parse(text(name, long(longest)).as_bytes()).is_ok(), "{name}");
            assert!(PlaneClaim::parse(text(name, long(longest + 1)).as_bytes()).is_err(), "{name}");
            // Two UTF-16 units each.
            assert!(PlaneClaim::parse(text(name, "🦀".repeat(longest / 2)).as_bytes()).is_ok(), "{name}");
            assert!(
                PlaneClaim::parse(text(name, "🦀".repeat(longest / 2 + 1)).as_bytes()).is_err(),
                "{name}"
            );
            assert!(PlaneClaim::parse(text(name, String::new()).as_bytes()).is_err(), "{name}");
        }
        let held = vector("held");
        for bad in [
            String::new(),
            "null".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            held.replace("\"v\":1", "\"v\":2"),
            held.replace("\"v\":1,", ""),
            held.replace("\"v\":1", "\"v\":1,\"more\":1"),
            held.replace("\"generation\":3", "\"generation\":0"),
            held.replace("\"generation\":3", "\"generation\":1.5"),
            held.replace("\"generation\":3", "\"generation\":\"3\""),
            held.replace("\"generation\":3", "\"generation\":9007199254740992"),
            held.replace("\"held\"", "\"Held\""),
            held.replace("\"held\"", "\"closing\""),
            held.replace("\"cid\":7", "\"cid\":0"),
            held.replace("\"cid\":7", "\"cid\":-1"),
            held.replace("\"cid\":7", "\"cid\":7,\"more\":1"),
            held.replace("\"serverId\":\"NABC\",\"cid\":7", "\"cid\":7"),
            held.replace("\"serverId\":\"NABC\",\"cid\":8", "\"serverId\":\"\",\"cid\":8"),
            held.replace("\"NABC\"", &format!("\"{}\"", long(129))),
            held.replace(&format!("\"userNkey\":\"{NKEY}\""), "\"userNkey\":\"U\""),
            held.replace(
                &format!("\"userNkey\":\"{NKEY}\""),
                &format!("\"userNkey\":\"{}\"", NKEY.replace('U', "A")),
            ),
            text("ledger", "x".to_owned()),
        ] {
            assert!(PlaneClaim::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_claim_is_its_id_its_generation_and_both_connections() {
        let mine = claim();
        assert!(mine.is_same_claim(&mine.released()));
        let user = Nkey::parse(NKEY).unwrap();
        let another = PlaneTuple::new("NABC", 9, &user).unwrap();
        for other in [
            PlaneClaim { claim_id: "x".to_owned(), ..claim() },
            PlaneClaim { generation: 4, ..claim() },
            PlaneClaim { ledger: another.clone(), ..claim() },
            PlaneClaim { records: another, ..claim() },
        ] {
            assert!(!mine.is_same_claim(&other), "{other:?}");
        }
        // When it was taken says nothing about whose it is.
        assert!(mine.is_same_claim(&PlaneClaim { opened_at: "x".to_owned(), ..claim() }));
    }

    #[test]
    fn a_tuple_needs_a_server_and_a_client() {
        let user = Nkey::parse(NKEY).unwrap();
        for (server, cid) in [("", 1), ("N", 0), ("N", MAX_SAFE_INTEGER + 1)] {
            assert!(PlaneTuple::new(server, cid, &user).is_err());
        }
    }

    proptest! {
        #[test]
        fn whatever_reads_is_written_back_and_reads_the_same(
            generation in 1..=MAX_SAFE_INTEGER,
            claim_id in "[^\u{0}]{1,64}",
            cid in 1..=MAX_SAFE_INTEGER,
            server in "[A-Z2-7]{1,128}",
            held: bool,
        ) {
            let user = Nkey::parse(NKEY).unwrap();
            let tuple = PlaneTuple::new(&server, cid, &user).unwrap();
            let state = if held { ClaimState::Held } else { ClaimState::Released };
            let row = PlaneClaim { generation, claim_id, state, ledger: tuple, ..claim() };
            prop_assert_eq!(PlaneClaim::parse(&row.to_bytes()).unwrap(), row);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = PlaneClaim::parse(&bytes);
        }
    }
}
