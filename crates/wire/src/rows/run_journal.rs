//! A run's journal, as far as this service reads it: the pause that an operator may answer (contract 03 §L).
//!
//! The journal is the only source of a pause's token: what a manager names is an address, the step's key, and the run's own
//! record says what stands there. An entry's content is the language's; only what addresses a step and what makes its token
//! is looked at, and an entry that cannot be addressed is no pause.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    closed::{Closed, safe_uint},
    issued::canonical_bytes,
};
use crate::{endpoint_token::IdToken, error::EpError, manager_authority::RunId};

const RECORD: &str = "run journal record";
const VERSION: u64 = 1;
const ACTIVATION: &str = "activation";
const STEP: &str = "step";

/// Kinds of steps that park on a checkpoint by themselves; any other does while it is held.
const PAUSES: [&str; 2] = ["checkpoint", "ask"];
const PENDING: &str = "pending";

/// Which pause is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseWanted {
    /// The open one, to answer it.
    Open,
    /// The settled one, to amend its answer.
    Settled,
}

/// Reads a journal record by record, in its order, and keeps what it says of one step.
#[derive(Debug, Clone)]
pub struct PauseReader {
    run: RunId,
    step_key: String,
    /// The ordinal of the next record.
    next: u64,
    step: Option<Step>,
    /// Whether any record of the step bound a hold.
    held: bool,
    /// The token of the last attempt of an `ask`.
    ask_token: Option<String>,
}

/// The last record of the step.
#[derive(Debug, Clone)]
struct Step {
    kind: String,
    pending: bool,
    request_id: Option<String>,
}

impl PauseReader {
    /// Looks for the step `step_key` of this run.
    pub fn new(run: &RunId, step_key: &str) -> Self {
        Self {
            run: run.clone(),
            step_key: step_key.to_owned(),
            next: 0,
            step: None,
            held: false,
            ask_token: None,
        }
    }

    /// Takes the next record. Records are numbered from 0 without a gap and the first is an activation that replayed
    /// nothing; anything else is `internal`: the journal is not the run's own.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), EpError> {
        let members =
            ["v", "kind", "run", "n", "at", "entry", "holder", "fencingToken", "epoch", "replayedTo"];
        let row = Closed::parse(RECORD, bytes, &members)?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let kind = row.text("kind")?;
        if row.token::<RunId>("run")? != self.run {
            return Err(row.garbled("it is of another run than its subject"));
        }
        if row.uint("n")? != self.next {
            return Err(row.garbled("its ordinal is not the next one"));
        }
        match kind {
            ACTIVATION if !row.has("entry") => {
                row.positive("fencingToken")?;
                if row.uint("replayedTo")? != 0 && self.next == 0 {
                    return Err(row.garbled("the first activation replayed something"));
                }
            }
            STEP if self.next == 0 => return Err(row.garbled("a journal begins with an activation")),
            STEP if !["holder", "fencingToken", "epoch", "replayedTo"]
                .iter()
                .any(|member| row.has(member)) =>
            {
                if let Some(Value::Object(entry)) = row.value("entry") {
                    self.take_entry(entry);
                }
            }
            _ => return Err(row.garbled("its members are not those of its kind")),
        }
        self.next += 1;
        Ok(())
    }

    fn take_entry(&mut self, entry: &Map<String, Value>) {
        let text = |member: &str| entry.get(member).and_then(Value::as_str);
        if step_key(entry).as_deref() != Some(self.step_key.as_str()) {
            return;
        }
        self.held |= entry.get("hold").is_some_and(|hold| !hold.is_null());
        let external = entry.get("external").and_then(Value::as_object);
        if let Some(token) = external.and_then(|external| external.get("askToken")).and_then(Value::as_str) {
            self.ask_token = Some(token.to_owned());
        }
        self.step = Some(Step {
            kind: text("kind").unwrap_or_default().to_owned(),
            pending: text("state") == Some(PENDING),
            request_id: text("requestId").map(str::to_owned),
        });
    }

    /// How many records came.
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// The token of the step's pause, once every record was taken. No such pause is `failed-precondition`.
    pub fn token(&self, wanted: PauseWanted) -> Result<IdToken, EpError> {
        let refuse = |why: &str| {
            EpError::failed_precondition(format!(
                "run {}: the step {:?} {why}",
                self.run,
                shown(&self.step_key)
            ))
        };
        let step =
            self.step.as_ref().ok_or_else(|| refuse("was never recorded; look at the run's journal"))?;
        if !self.held && !PAUSES.contains(&step.kind.as_str()) {
            return Err(refuse("is neither a checkpoint nor an ask, and is not held: nobody answers it"));
        }
        match (wanted, step.pending) {
            (PauseWanted::Open, false) => return Err(refuse("is settled; amend its answer instead")),
            (PauseWanted::Settled, true) => return Err(refuse("is still open; answer it instead")),
            _ => {}
        }
        let request = step.request_id.as_deref().ok_or_else(|| refuse("was not submitted yet"))?;
        let token = if self.held {
            hold_token(request)
        } else if step.kind == "ask" {
            self.ask_token.clone().unwrap_or_else(|| request.to_owned())
        } else {
            request.to_owned()
        };
        IdToken::parse(&token).map_err(|_| refuse("records a token that names no checkpoint"))
    }
}

/// `<scope>/<kind>[:<name>]#<occurrence>`: how a step is addressed.
fn step_key(entry: &Map<String, Value>) -> Option<String> {
    let text = |member: &str| entry.get(member).and_then(Value::as_str);
    let (scope, kind, name) = (text("scope")?, text("kind")?, text("name")?);
    let occurrence = entry.get("occurrence").and_then(safe_uint)?;
    let separator = if name.is_empty() { "" } else { ":" };
    Some(format!("{scope}/{kind}{separator}{name}#{occurrence}"))
}

/// The token of a held step: base64url SHA-256 of the canonical `[requestId, "hold"]` (contract 03 §L).
fn hold_token(request: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(canonical_bytes(&json!([request, "hold"]))))
}

/// A step's key as a refusal repeats it.
fn shown(step_key: &str) -> String {
    step_key.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EpCode;

    const KEY: &str = "/checkpoint:approve#0";

    fn run() -> RunId {
        RunId::parse(&format!("run-{}", "a".repeat(32))).unwrap()
    }

    fn activation(n: u64) -> Value {
        json!({
            "v": 1, "kind": "activation", "run": run(), "n": n, "holder": "U.t", "fencingToken": 1, "epoch": 1,
            "replayedTo": n, "at": 5,
        })
    }

    fn step(n: u64, entry: &Value) -> Value {
        json!({ "v": 1, "kind": "step", "run": run(), "n": n, "at": 6, "entry": entry })
    }

    fn entry(kind: &str, state: &str) -> Value {
        json!({
            "scope": "", "kind": kind, "name": "approve", "occurrence": 0, "state": state, "requestId": "req-1",
        })
    }

    fn read(key: &str, records: &[Value]) -> Result<PauseReader, EpError> {
        let mut reader = PauseReader::new(&run(), key);
        for record in records {
            reader.take(record.to_string().as_bytes())?;
        }
        Ok(reader)
    }

    fn token(key: &str, entries: &[Value], wanted: PauseWanted) -> Result<String, EpCode> {
        let steps = entries.iter().zip(1..).map(|(entry, n)| step(n, entry));
        let records: Vec<_> = std::iter::once(activation(0)).chain(steps).collect();
        let found = read(key, &records).unwrap().token(wanted);
        found.map(|token| token.to_string()).map_err(|refusal| refusal.code)
    }

    #[test]
    fn the_last_record_of_a_step_says_whether_it_is_open() {
        let (open, settled) = (entry("checkpoint", "pending"), entry("checkpoint", "done"));
        assert_eq!(token(KEY, std::slice::from_ref(&open), PauseWanted::Open), Ok("req-1".into()));
        let both = [open.clone(), settled];
        assert_eq!(token(KEY, &both, PauseWanted::Open), Err(EpCode::FailedPrecondition));
        assert_eq!(token(KEY, &both, PauseWanted::Settled), Ok("req-1".into()));
        assert_eq!(token(KEY, &[open], PauseWanted::Settled), Err(EpCode::FailedPrecondition));
    }

    #[test]
    fn only_the_step_of_that_very_address_is_read() {
        let open = entry("checkpoint", "pending");
        let mut nested = open.clone();
        nested["scope"] = json!("/race:first#0/b0");
        let mut second = open.clone();
        second["occurrence"] = json!(1);
        let mut unnamed = open.clone();
        unnamed["name"] = json!("");
        for (other, key) in [
            (&nested, "/race:first#0/b0/checkpoint:approve#0"),
            (&second, "/checkpoint:approve#1"),
            (&unnamed, "/checkpoint#0"),
        ] {
            let only = std::slice::from_ref(other);
            assert_eq!(token(key, only, PauseWanted::Open), Ok("req-1".into()));
            assert_eq!(token(KEY, only, PauseWanted::Open), Err(EpCode::FailedPrecondition));
        }
    }

    #[test]
    fn a_step_that_is_no_pause_has_a_token_only_while_it_is_held() {
        let once = entry("once", "pending");
        let key = "/once:approve#0";
        assert_eq!(
            token(key, std::slice::from_ref(&once), PauseWanted::Open),
            Err(EpCode::FailedPrecondition)
        );
        let mut held = once.clone();
        held["hold"] = json!({ "deadline": 5 });
        // printf '["req-1","hold"]' | openssl dgst -sha256 -binary | basenc --base64url | tr -d =
        let hold = || Ok("YncavpwrMWAbd1ZE5_vvpKn2Ki_D9AWwQfgzlREQi9c".to_owned());
        assert_eq!(token(key, &[held.clone(), once], PauseWanted::Open), hold(), "any record may bind it");
        assert_eq!(token(key, &[held], PauseWanted::Open), hold());
    }

    #[test]
    fn an_ask_reads_at_its_last_attempt() {
        let ask = entry("ask", "pending");
        let attempt = |token: &str| {
            let mut entry = ask.clone();
            entry["external"] = json!({ "askToken": token });
            entry
        };
        let key = "/ask:approve#0";
        assert_eq!(token(key, std::slice::from_ref(&ask), PauseWanted::Open), Ok("req-1".into()));
        let entries = [attempt("t1"), attempt("t2"), ask.clone()];
        assert_eq!(token(key, &entries, PauseWanted::Open), Ok("t2".into()));
        for bad in ["", "a.b", "*", &"a".repeat(65)] {
            assert_eq!(
                token(key, &[attempt(bad)], PauseWanted::Open),
                Err(EpCode::FailedPrecondition),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_journal_that_is_not_the_runs_own_is_refused() {
        let open = entry("checkpoint", "pending");
        let replace = |member: &str, value: Value| {
            let mut record = step(1, &open);
            record[member] = value;
            record
        };
        for records in [
            vec![step(0, &open)],
            vec![activation(1)],
            vec![activation(0), step(2, &open)],
            vec![activation(0), replace("run", json!(format!("run-{}", "b".repeat(32))))],
            vec![activation(0), replace("v", json!(2))],
            vec![activation(0), replace("kind", json!("note"))],
            vec![activation(0), replace("holder", json!("U.t"))],
            vec![activation(0), replace("more", json!(1))],
        ] {
            assert_eq!(read(KEY, &records).unwrap_err().code, EpCode::Internal, "{records:?}");
        }
        let mut replayed = activation(0);
        replayed["replayedTo"] = json!(1);
        assert!(read(KEY, &[replayed]).is_err());
        assert_eq!(
            read(KEY, &[]).unwrap().token(PauseWanted::Open).unwrap_err().code,
            EpCode::FailedPrecondition
        );
    }

    #[test]
    fn what_cannot_be_addressed_is_passed_over() {
        for odd in [json!(null), json!([]), json!({}), json!({ "scope": "", "kind": 1 })] {
            let records = [activation(0), step(1, &odd), step(2, &entry("checkpoint", "pending"))];
            let reader = read(KEY, &records).unwrap();
            assert_eq!((reader.taken(), reader.token(PauseWanted::Open).is_ok()), (3, true), "{odd}");
        }
    }
}
