//! Whether a manager is registered now, and is the one that asks (contract 06 §3.4).

use cotal_trust::registration_proof::RegistrationProofKey;
use cotal_wire::{
    EpError, InstanceId, Owner,
    manager_authority::{Envelope, serve_principal},
    rows::EndpointGate,
};

/// An open gate of the manager that asked, whose registration it proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentManager {
    gate: EndpointGate,
}

impl CurrentManager {
    /// The gate, as it was read.
    pub fn gate(&self) -> &EndpointGate {
        &self.gate
    }
}

/// Step 1: the gate is there and open.
pub(super) fn open(gate: Option<&EndpointGate>) -> Result<&EndpointGate, EpError> {
    gate.filter(|gate| gate.is_open()).ok_or_else(|| {
        EpError::failed_precondition(
            "the manager's registration is not open; register it again, then retry with its new epoch",
        )
    })
}

/// Step 2: it is this owner's manager.
pub(super) fn of_owner(gate: &EndpointGate, owner: &Owner, instance: &InstanceId) -> Result<(), EpError> {
    if *gate.principal() == serve_principal(owner, instance) {
        Ok(())
    } else {
        Err(EpError::permission_denied("this manager instance is registered by another principal"))
    }
}

/// Step 3: it serves at this epoch. Epochs are compared for equality alone.
pub(super) fn at_epoch(gate: &EndpointGate, epoch: u64) -> Result<(), EpError> {
    if gate.coordinate().process_epoch == epoch {
        Ok(())
    } else {
        Err(EpError::conflict("the manager has registered again since; ask with its present epoch"))
    }
}

/// Step 4: the request carries the keyed proof of that registration.
pub(super) fn proved(
    gate: &EndpointGate,
    envelope: &Envelope,
    owner: &Owner,
    key: &RegistrationProofKey,
) -> Result<(), EpError> {
    let at = gate.coordinate();
    if key.proves(envelope, owner, at.registration_revision, at.process_epoch) {
        Ok(())
    } else {
        Err(bad_proof())
    }
}

pub(super) fn bad_proof() -> EpError {
    EpError::permission_denied("the registration proof is not of this manager's registration")
}

/// All four, in order. `epoch` is `None` for the one request that names none: `renew`.
pub fn check_current(
    gate: Option<&EndpointGate>,
    envelope: &Envelope,
    epoch: Option<u64>,
    owner: &Owner,
    key: &RegistrationProofKey,
) -> Result<CurrentManager, EpError> {
    let gate = open(gate)?;
    of_owner(gate, owner, &envelope.instance_id)?;
    if let Some(epoch) = epoch {
        at_epoch(gate, epoch)?;
    }
    proved(gate, envelope, owner, key)?;
    Ok(CurrentManager { gate: gate.clone() })
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::{Account, EpCode, es_value::EsValue, manager_authority::GoalIndexRequest};
    use serde_json::{Value, json};

    use super::*;

    const EPOCH: u64 = 3;
    const REVISION: u64 = 7;

    fn owner(letter: &str) -> Owner {
        Owner::parse(&format!("u_{}", letter.repeat(26))).unwrap()
    }

    fn instance() -> InstanceId {
        InstanceId::parse(&"a".repeat(26)).unwrap()
    }

    fn envelope(proof: &Value) -> Envelope {
        let id = |letter: &str| json!({ "id": format!("U{}", letter.repeat(55)) });
        let request = json!({
            "v": 1, "kind": "manager-goal-index-scan", "space": "main", "actor": "cli", "instanceId": instance(),
            "managerLifecycleUid": "b".repeat(26), "requestId": "r".repeat(22), "registrationProof": proof,
            "serveEpoch": EPOCH,
            "identities": {
                "supervisor": id("A"), "executor": id("B"), "serve": id("C"), "goalWriter": id("D"),
                "sessionLedger": id("E"),
            },
        });
        let request = EsValue::parse(request.to_string().as_bytes()).unwrap();
        GoalIndexRequest::parse(&request).unwrap().envelope
    }

    fn gate(breaks: &[&str]) -> Option<EndpointGate> {
        let broken = |what: &str| breaks.contains(&what);
        let mut row = json!({
            "state": "open", "generation": 2, "processEpoch": EPOCH, "registrationRevision": REVISION,
            "nameAuthorityRevision": 0, "principal": serve_principal(&owner("a"), &instance()),
        });
        if broken("closed") {
            row["state"] = json!("frozen");
            row["op"] = json!({ "opId": "o".repeat(26), "kind": "registration" });
        }
        if broken("principal") {
            row["principal"] = json!(serve_principal(&owner("b"), &instance()));
        }
        if broken("epoch") {
            row["processEpoch"] = json!(EPOCH + 1);
        }
        (!broken("absent")).then(|| EndpointGate::parse(row.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn the_four_steps_refuse_alone_and_the_earlier_of_two_answers() {
        let steps = [
            ("absent", EpCode::FailedPrecondition),
            ("closed", EpCode::FailedPrecondition),
            ("principal", EpCode::PermissionDenied),
            ("epoch", EpCode::Conflict),
            ("proof", EpCode::PermissionDenied),
        ];
        let key = RegistrationProofKey::new(Seed::<Account>::generate(&SystemEntropy));
        let nothing = json!(format!("sha256:{}", "0".repeat(64)));
        let unsigned = envelope(&nothing);
        let check = |breaks: &[&str]| {
            let proof = if breaks.contains(&"proof") {
                nothing.clone()
            } else {
                json!(key.prove(&unsigned, &owner("a"), REVISION, EPOCH))
            };
            check_current(gate(breaks).as_ref(), &envelope(&proof), Some(EPOCH), &owner("a"), &key)
        };
        assert_eq!(check(&[]).unwrap().gate().coordinate().registration_revision, REVISION);
        for (i, (step, code)) in steps.iter().enumerate() {
            let alone = check(&[step]).unwrap_err();
            assert_eq!(alone.code, *code, "{step}");
            for (later, _) in &steps[i + 1..] {
                assert_eq!(check(&[step, later]).unwrap_err(), alone, "{step} before {later}");
            }
        }
    }

    #[test]
    fn every_coordinate_of_a_registration_makes_another_proof() {
        let key = RegistrationProofKey::new(Seed::<Account>::generate(&SystemEntropy));
        let unsigned = envelope(&json!(format!("sha256:{}", "0".repeat(64))));
        for (owner_of_proof, revision, epoch) in [
            (owner("b"), REVISION, EPOCH),
            (owner("a"), REVISION + 1, EPOCH),
            (owner("a"), REVISION, EPOCH + 1),
        ] {
            let proof = json!(key.prove(&unsigned, &owner_of_proof, revision, epoch));
            let refusal =
                check_current(gate(&[]).as_ref(), &envelope(&proof), Some(EPOCH), &owner("a"), &key);
            assert_eq!(refusal.unwrap_err().code, EpCode::PermissionDenied);
        }
        let other = RegistrationProofKey::new(Seed::<Account>::generate(&SystemEntropy));
        let proof = json!(other.prove(&unsigned, &owner("a"), REVISION, EPOCH));
        assert!(check_current(gate(&[]).as_ref(), &envelope(&proof), None, &owner("a"), &key).is_err());
    }

    #[test]
    fn an_epoch_of_zero_is_an_epoch_and_a_request_that_names_none_is_bound_by_its_proof() {
        let key = RegistrationProofKey::new(Seed::<Account>::generate(&SystemEntropy));
        let unsigned = envelope(&json!(format!("sha256:{}", "0".repeat(64))));
        let proof = json!(key.prove(&unsigned, &owner("a"), REVISION, 0));
        let first = {
            let row = String::from_utf8(gate(&[]).unwrap().to_bytes()).unwrap();
            EndpointGate::parse(row.replace("\"processEpoch\":3", "\"processEpoch\":0").as_bytes()).unwrap()
        };
        for epoch in [Some(0), None] {
            assert!(check_current(Some(&first), &envelope(&proof), epoch, &owner("a"), &key).is_ok());
            let refusal = check_current(gate(&[]).as_ref(), &envelope(&proof), epoch, &owner("a"), &key);
            let code = if epoch.is_some() { EpCode::Conflict } else { EpCode::PermissionDenied };
            assert_eq!(refusal.unwrap_err().code, code);
        }
    }
}
