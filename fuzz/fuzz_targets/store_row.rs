//! Rows that a tenant writes, and the service or another tenant reads: a manager's gate, spec, status, credentials, sessions,
//! goals and runs, and the contract that it publishes. What is accepted is written back as itself; a refusal is one short line
//! that repeats no value.
//!
//! Input: a kind, by its first byte from `A`, the row's key, a newline, and the row.
#![no_main]

use cotal_fuzz::parts;
use cotal_wire::{
    EndpointToken, EpError, SessionId,
    contract::{Artifact, ClusterDocument, Manifest},
    error::EpCode,
    manager_authority::RunId,
    rows::{
        CheckpointStatus, CredentialRow, EndpointGate, GoalIndexRow, GovernHead, Ownership, RepairCursor,
        RunAdmission, RunRevocation, RunStatus, RunSubmissionRow, ServiceSpec, ServiceStatus, SessionRow,
    },
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Longest refusal: a row, a member, and its rule.
const LONGEST: usize = 400;
/// Shorter digits may stand in a refusal by chance.
const LONG: usize = 24;

/// What a row is written back as; `None` where it is read and never written here.
type Written = Result<Option<Vec<u8>>, EpError>;

fuzz_target!(|data: &[u8]| {
    let [which, rest @ ..] = data else { return };
    let [Some(key), Some(row)] = parts::<2>(rest) else { return };
    let key = String::from_utf8_lossy(key);
    match read(*which, &key, row) {
        None => {}
        Some(Ok(None)) => assert!(serde_json::from_slice::<Value>(row).is_ok_and(|row| row.is_object())),
        Some(Ok(Some(written))) => {
            let again = read(*which, &key, &written).expect("the same kind").expect("what was written reads");
            // A spec and a status keep members of a later version, and a number among those may be any.
            assert!(again.as_ref() == Some(&written) || matches!(which, b'C' | b'D'));
        }
        Some(Err(refusal)) => is_short(&refusal, row),
    }
});

/// `None` when there is no such kind, or no row of it under such a key.
fn read(which: u8, key: &str, row: &[u8]) -> Option<Written> {
    let written = |bytes: Vec<u8>| Some(bytes);
    let document = || serde_json::from_slice::<Value>(row).ok();
    Some(match which {
        b'A' => EndpointGate::parse(row).map(|row| written(row.to_bytes())),
        b'B' => CredentialRow::parse(key, row).map(|row| written(row.to_bytes())),
        b'C' => ServiceSpec::parse(&EndpointToken::parse(key).ok()?, row).map(|row| written(row.to_bytes())),
        b'D' => ServiceStatus::parse(row).map(|row| written(row.to_bytes())),
        b'E' => GovernHead::parse(row).map(|row| written(row.to_bytes())),
        b'F' => RepairCursor::parse(row).map(|row| written(row.to_bytes())),
        b'G' => SessionRow::parse(&SessionId::parse(key).ok()?, row).map(|row| written(row.to_bytes())),
        b'H' => GoalIndexRow::parse(key, row).map(|row| serde_json::to_vec(&row).ok()),
        b'I' => RunStatus::parse(row).map(|_| None),
        b'J' => CheckpointStatus::parse(row).map(|_| None),
        b'K' => RunAdmission::parse(row).map(|row| written(row.to_bytes())),
        b'L' => RunRevocation::parse(&RunId::parse(key).ok()?, row).map(|row| written(row.to_bytes())),
        b'M' => RunSubmissionRow::parse(key, row).map(|row| written(row.to_bytes())),
        b'N' => Ownership::parse(row).map(|row| written(row.to_bytes())),
        b'O' => ClusterDocument::parse(document()?).map(|_| None),
        b'P' => Manifest::parse(&document()?).and_then(|read| read.artifact()).map(|it| written(it.bytes().to_vec())),
        b'Q' => Artifact::from_bytes(row.to_vec()).map(|it| written(it.bytes().to_vec())),
        _ => return None,
    })
}

fn is_short(refusal: &EpError, row: &[u8]) {
    let said = &refusal.message;
    assert!(said.len() < LONGEST && !said.contains('\n'), "{said}");
    assert!(matches!(refusal.code, EpCode::Internal | EpCode::ContractInvalid), "{refusal:?}");
    let Ok(document) = serde_json::from_slice::<Value>(row) else { return };
    for text in document.as_object().into_iter().flat_map(|members| members.values()).filter_map(Value::as_str) {
        let by_chance = text.len() < LONG || !text.bytes().all(|byte| byte.is_ascii_digit());
        assert!(by_chance || !said.contains(text), "a refusal repeats a value: {said}");
    }
}
