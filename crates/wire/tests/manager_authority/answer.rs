//! The answer of the lifecycle (contract 06 §4.5).

use crate::{OWNER, es, set, valid};
use cotal_wire::{
    EpCode, Owner,
    canonical::raw_digest,
    es_value::EsValue,
    manager_authority::{
        Credentials, HolderKind, IssuedJwt, Operation, RemoteManagerAuthorityMaterial, ServiceRequest,
    },
    time::UnixMillis,
    time::UnixSecs,
};
use serde_json::{Value, json};

fn jwt(exp: u64) -> IssuedJwt {
    IssuedJwt { jwt: format!("h.{exp}.s"), exp: UnixSecs(exp) }
}

/// A request of an operation, without its proof's being anybody's.
fn asked(operation: Operation) -> ServiceRequest {
    ServiceRequest::parse(&es(&valid::service(operation)), HolderKind::Human).unwrap()
}

fn answer(operation: Operation) -> RemoteManagerAuthorityMaterial {
    let issued = operation.grants().iter().enumerate().map(|(i, name)| (*name, jwt(2_000 + i as u64)));
    let credentials = Credentials::of(operation, issued).unwrap();
    let next = (operation == Operation::Activate).then(|| raw_digest(b"next"));
    let owner = Owner::parse(OWNER).unwrap();
    RemoteManagerAuthorityMaterial::answer(&asked(operation), &owner, UnixMillis(1_000), next, credentials)
}

#[test]
fn an_answer_has_the_contracts_members_in_its_order_and_reads_back() {
    let common = "v kind operation space owner actor instanceId lifecycleUid requestId";
    for (operation, before, after, credentials) in [
        (Operation::Prepare, "", "", "supervisor executor"),
        (
            Operation::Activate,
            " registrationProof",
            " nextRegistrationProof",
            "serve goalWriter sessionLedger",
        ),
        (Operation::Renew, " registrationProof", "", "supervisor executor"),
        (Operation::Session, " registrationProof", "", "sessionServing"),
        (Operation::Retire, " registrationProof retirement", "", "retirementRequester"),
        (
            Operation::RenewStandingBundle,
            " registrationProof accountPublicKey processEpoch",
            "",
            "supervisor executor serve goalWriter sessionLedger",
        ),
        (
            Operation::RenewRunDriver,
            " registrationProof accountPublicKey processEpoch run",
            "",
            "runDriver runMediator",
        ),
        (Operation::TransferReader, " registrationProof", "", "transferReader"),
    ] {
        let written = answer(operation);
        let text = serde_json::to_string(&written).unwrap();
        let EsValue::Object(object) = EsValue::parse(text.as_bytes()).unwrap() else { panic!("an object") };
        let members = format!("{common}{before} issuedAt expiresAt actors identities{after} credentials");
        let at = |member: &str| text.find(&format!("\"{member}\":")).expect(member);
        let places: Vec<usize> = members.split(' ').map(at).collect();
        assert!(places.is_sorted(), "{}: {text}", operation.as_str());
        assert_eq!(object.len(), places.len(), "{}", operation.as_str());
        let granted: Vec<&str> = written.credentials.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(granted.join(" "), credentials);
        assert_eq!(written.expires_at, UnixMillis(2_000_000), "the first of them");
        let read = RemoteManagerAuthorityMaterial::parse(&EsValue::Object(object)).unwrap();
        assert_eq!(read, written, "{}", operation.as_str());
    }
}

#[test]
fn an_answer_is_closed_and_every_member_of_it_is_checked() {
    let name = "x".to_owned();
    for operation in Operation::ALL {
        let valid = serde_json::to_value(answer(operation)).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut value = valid.clone();
            change(&mut value);
            RemoteManagerAuthorityMaterial::parse(&es(&value)).is_err()
        };
        for member in valid.as_object().unwrap().keys() {
            assert!(
                refused(&|value| set(value, &[member.as_str()], json!("-"))),
                "{}: without {member}",
                operation.as_str()
            );
            assert!(refused(&|value| value[member] = Value::Null), "{}: {member} null", operation.as_str());
        }
        assert!(refused(&|value| value[&name] = json!(1)));
        assert!(refused(&|value| value["credentials"]["other"] = json!({ "jwt": "a", "exp": 2_000 })));
        let credential = operation.grants()[0].as_str();
        for (member, bad) in [
            ("jwt", json!("")),
            ("jwt", json!("x".repeat(16_385))),
            ("exp", json!(0)),
            ("exp", json!(2_000.5)),
            ("exp", json!(1_999)),
            ("seed", json!("SU")),
        ] {
            let refusal = refused(&|value| value["credentials"][credential][member] = bad.clone());
            assert!(refusal, "{}: {member} {bad}", operation.as_str());
        }
        assert!(refused(&|value| value["expiresAt"] = json!(2_000_001)), "the bound is its credentials'");
        assert!(
            refused(&|value| value["actors"]["serve"] = json!("manager_serve_other")),
            "actors are derived"
        );
        let absent = if operation == Operation::Activate { "run" } else { "nextRegistrationProof" };
        assert!(refused(&|value| value[absent] = json!(format!("sha256:{}", "0".repeat(64)))));
    }
}

#[test]
fn an_operation_grants_exactly_what_it_is_for() {
    for operation in Operation::ALL {
        for other in Operation::ALL {
            let issued = other.grants().iter().map(|name| (*name, jwt(9)));
            let same = operation.grants() == other.grants();
            assert_eq!(Credentials::of(operation, issued).is_ok(), same, "{}", operation.as_str());
        }
        let refusal = Credentials::of(operation, []).unwrap_err();
        assert_eq!(refusal.code, EpCode::Internal);
    }
    assert!(!format!("{:?}", answer(Operation::Prepare)).contains("h.2000.s"), "no JWT in a log");
}
