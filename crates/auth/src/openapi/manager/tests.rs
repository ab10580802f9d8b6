//! What is documented is what the parsers take, and what the book says.

use std::path::PathBuf;

use cotal_wire::{
    EpCode, EpError,
    es_value::EsValue,
    manager_authority::{
        AdminRequest, EnrollmentRequest, ExecutionRequest, GoalIndexRequest, HolderKind, IntentRequest,
        MaintenanceRequest, Operation, PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest,
        RunAttemptRequest, RunCancelRequest, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest,
        ServiceRequest,
    },
};
use serde_json::json;

use super::*;

/// Every kind, variant by variant.
fn all() -> Vec<(String, Kind, Shape)> {
    let of = |kind: Kind| {
        let each = variants(kind).1.into_iter();
        each.map(move |(variant, _, shape)| (format!("{} {variant}", kind.as_str()), kind, shape))
    };
    Kind::ALL.into_iter().flat_map(of).collect()
}

fn parse(kind: Kind, value: &Value) -> Result<(), EpError> {
    let request = EsValue::parse(value.to_string().as_bytes()).unwrap();
    let human = HolderKind::Human;
    match kind {
        Kind::Service => ServiceRequest::parse(&request, human).map(drop),
        Kind::Enrollment => EnrollmentRequest::parse(&request).map(drop),
        Kind::PrepareRetirement => PrepareRetirementRequest::parse(&request).map(drop),
        Kind::RuntimeCreate | Kind::RuntimeStatus => RuntimeRequest::parse(&request, kind).map(drop),
        Kind::RetainedAgentValidation => RetainedAgentRequest::parse(&request, human).map(drop),
        Kind::GoalIndexScan => GoalIndexRequest::parse(&request).map(drop),
        Kind::AdminAuthorization => AdminRequest::parse(&request, human).map(drop),
        Kind::RunAdmission => RunAdmissionRequest::parse(&request).map(drop),
        Kind::RunRevoke => RunRevokeRequest::parse(&request).map(drop),
        Kind::RunAttempt => RunAttemptRequest::parse(&request).map(drop),
        Kind::Maintenance => MaintenanceRequest::parse(&request).map(drop),
        Kind::DelegatedIntent => IntentRequest::parse(&request).map(drop),
        Kind::DelegatedIntentExecution => ExecutionRequest::parse(&request).map(drop),
        Kind::RunSubmission => RunSubmissionRequest::parse(&request).map(drop),
        Kind::RunCancel => RunCancelRequest::parse(&request).map(drop),
    }
}

/// Each way to take one member out of a value, or to put an unknown one in.
fn broken(value: &Value, at: &str) -> Vec<(String, Value)> {
    let Value::Object(members) = value else { return Vec::new() };
    let mut all = Vec::new();
    let mut with = members.clone();
    with.insert("unknown".to_owned(), json!(1));
    all.push((format!("{at}/unknown"), Value::Object(with)));
    for (name, inner) in members {
        let at = format!("{at}/{name}");
        let mut without = members.clone();
        without.remove(name);
        all.push((at.clone(), Value::Object(without)));
        for (at, inner) in broken(inner, &at) {
            let mut with = members.clone();
            with.insert(name.clone(), inner);
            all.push((at, Value::Object(with)));
        }
    }
    all
}

#[test]
fn each_documented_request_is_what_its_parser_takes() {
    for (name, kind, shape) in all() {
        for sample in [&shape.least, &shape.full] {
            assert_eq!(parse(kind, sample), Ok(()), "{name}: {sample}");
        }
    }
}

#[test]
fn a_member_that_is_missing_or_unknown_is_refused_wherever_the_document_closes() {
    for (name, kind, shape) in all() {
        for (at, value) in broken(&shape.least, "") {
            // Open by the contract: any JSON, and a session's other members (contract 06 §4.1).
            if at.starts_with("/contractArtifacts") || at == "/session/unknown" {
                continue;
            }
            // An operator's turn that answers nothing is another variant.
            if name.ends_with(" answer") && at == "/operator/answers" {
                continue;
            }
            let refusal = parse(kind, &value).expect_err(&format!("{name} {at}: {value}"));
            assert_eq!(refusal.code, EpCode::BadRequest, "{name} {at}");
        }
    }
}

#[test]
fn the_books_table_says_what_the_kinds_stand_on() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/manager-authority.md");
    let book = std::fs::read_to_string(page).unwrap();
    let row = |name: &str, rule: Rule| {
        let [scope, epoch, proof, gate, stock] = words(rule);
        format!("| `{name}` | {scope} | {epoch} | {proof} | {gate} | {stock} |")
    };
    let kinds = Kind::ALL.into_iter().filter_map(|kind| Some(row(kind.as_str(), kind.rule()?)));
    let operations = Operation::ALL.into_iter().map(|operation| row(operation.as_str(), operation.rule()));
    let missing: Vec<String> = kinds.chain(operations).filter(|row| !book.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/src/manager-authority.md lacks these rows:\n{}", missing.join("\n"));
}
