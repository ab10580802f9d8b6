//! The decisions of the platform's two doors, before the request reaches the decision of its kind (contract 05 §16-17).

use cotal_wire::{
    Account, EpError, InstanceId, LifecycleUid, Nkey, Owner, Space, UnixSecs,
    manager_authority::{
        Operation, PlatformControlRequest, PlatformSupervisorRequest, SUPERVISE, serve_principal,
    },
    rows::EndpointGate,
};

use super::Assignment;

/// What the context that the platform asks is.
#[derive(Debug, Clone, Copy)]
pub struct PlatformContext<'a> {
    /// Its space.
    pub space: &'a Space,
    /// Its data account.
    pub account: &'a Nkey<Account>,
}

/// What is seen of the instance that had an assignment before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor<'a> {
    /// Its gate.
    pub gate: Option<&'a EndpointGate>,
    /// Whether it is in the registry.
    pub registered: bool,
}

impl PlatformContext<'_> {
    /// Whether the envelope names this context; before the assignment is read.
    pub fn check_control(&self, request: &PlatformControlRequest<'_>) -> Result<(), EpError> {
        if request.space == self.space.as_str() && request.account == self.account.as_str() {
            Ok(())
        } else {
            Err(denied("the request names another space or data account than this context's"))
        }
    }

    /// Whether the request is of exactly the manager that is assigned now: assignment, instance and lifecycle, and what the
    /// inner request names besides.
    pub fn check_assigned(
        &self,
        request: &PlatformControlRequest<'_>,
        assignment: &Assignment,
    ) -> Result<(), EpError> {
        let assigned = assignment.assigned
            && assignment.space == *self.space
            && assignment.account == *self.account
            && assignment.revision == request.assignment_revision;
        if !assigned {
            return Err(denied("the platform has not assigned a manager under this revision"));
        }
        if request.instance_id != assignment.instance.as_str()
            || request.manager_lifecycle_uid != assignment.lifecycle_uid.as_str()
        {
            return Err(denied("the request is of another manager than the assigned one"));
        }
        if request.inner_space() != Some(self.space.as_str())
            || !request.agrees_on_account(self.account.as_str())
        {
            return Err(denied("the inner request names another space or data account than this context's"));
        }
        Ok(())
    }
}

/// Whether the assigned instance's gate, if there is one, is the platform's.
pub fn check_platform_gate(
    owner: &Owner,
    instance: &InstanceId,
    gate: Option<&EndpointGate>,
) -> Result<(), EpError> {
    match gate {
        Some(gate) if *gate.principal() != serve_principal(owner, instance) => {
            Err(denied("the assigned instance is registered by another principal"))
        }
        _ => Ok(()),
    }
}

/// Whether an instance may come to be in its predecessor's place: not while that one is registered, or registering.
pub fn check_predecessor(
    operation: Option<Operation>,
    predecessor: Option<Predecessor<'_>>,
) -> Result<(), EpError> {
    let (Some(Operation::Prepare | Operation::Activate), Some(before)) = (operation, predecessor) else {
        return Ok(());
    };
    let frozen = before.gate.is_some_and(|gate| !gate.is_open() && !gate.is_retired());
    if before.registered || frozen {
        return Err(EpError::failed_precondition(
            "the instance that had this assignment before is still registered, or is registering; take it out first",
        ));
    }
    Ok(())
}

/// What a platform says of a manager that it supervises for a user, at the moment that it was asked (contract 05 §17).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupervisorAssignment {
    /// The user.
    pub owner: Owner,
    /// The space.
    pub space: Space,
    /// Its data account.
    pub account: Nkey<Account>,
    /// The manager's instance.
    pub instance: InstanceId,
    /// The manager's lifecycle.
    pub lifecycle_uid: LifecycleUid,
    /// Its revision: a changed assignment has another.
    pub revision: u64,
    /// Whether it has ended.
    pub ended: bool,
    /// When it ends by itself: no credential outlives it.
    pub expires_at: UnixSecs,
    /// Exactly `supervise`.
    pub scope: Vec<String>,
}

impl SupervisorAssignment {
    /// Whether it is of this user, in this context.
    pub fn names(&self, context: PlatformContext<'_>, owner: &Owner) -> Result<(), EpError> {
        if self.owner == *owner && self.space == *context.space && self.account == *context.account {
            Ok(())
        } else {
            Err(denied("the platform's assignment is another user's, or another context's"))
        }
    }

    /// Decides a request up to the manager's gate: ended, assigned and revision, expiry, scope, coordinates, operation.
    pub fn check(
        &self,
        context: PlatformContext<'_>,
        request: &PlatformSupervisorRequest<'_>,
        now: UnixSecs,
    ) -> Result<(), EpError> {
        self.names(context, &request.owner)?;
        if self.ended {
            return Err(ended());
        }
        if self.revision != request.assignment_revision {
            return Err(denied(
                "the platform has changed the assignment since; ask under its present revision",
            ));
        }
        if self.expires_at <= now {
            return Err(denied("the assignment has expired"));
        }
        if self.scope != [SUPERVISE] {
            return Err(denied("the assignment's scope is not exactly \"supervise\""));
        }
        let envelope = &request.service.envelope;
        if envelope.space != self.space.as_str()
            || envelope.instance_id != self.instance
            || envelope.manager_lifecycle_uid != self.lifecycle_uid
        {
            return Err(denied("the request is of another space or manager than the assigned one"));
        }
        if PlatformSupervisorRequest::OPERATIONS.contains(&request.service.operation) {
            Ok(())
        } else {
            Err(denied(
                "the platform supervisor door serves prepare, activate and the standing renewals alone",
            ))
        }
    }

    /// Whether the manager's gate, if there is one, is this user's and was not retired by the assignment's end.
    pub fn check_gate(&self, gate: Option<&EndpointGate>) -> Result<(), EpError> {
        let Some(gate) = gate else { return Ok(()) };
        if gate.principal().owner != self.owner {
            return Err(denied("the assigned instance is registered by another owner"));
        }
        if gate.is_retired() { Err(ended()) } else { Ok(()) }
    }
}

/// The refusal of everything that is asked under an assignment that has ended.
pub fn ended() -> EpError {
    denied("the assignment has ended; nothing is issued under it")
}

fn denied(sentence: &str) -> EpError {
    EpError::permission_denied(format!("platform: {sentence}"))
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, OpId, es_value::EsValue, rows::GateCoordinate};
    use serde_json::{Value, json};

    use super::*;

    const NOW: UnixSecs = UnixSecs(1_000);

    fn account(letter: &str) -> Nkey<Account> {
        Nkey::parse(&format!("A{}", letter.repeat(55))).unwrap()
    }

    fn space() -> Space {
        Space::parse("main").unwrap()
    }

    fn owner() -> Owner {
        Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap()
    }

    fn instance(letter: &str) -> InstanceId {
        InstanceId::parse(&letter.repeat(26)).unwrap()
    }

    fn lifecycle(letter: &str) -> LifecycleUid {
        LifecycleUid::parse(&letter.repeat(26)).unwrap()
    }

    fn request(operation: &str) -> Value {
        let key = |letter: &str| json!({"id": format!("U{}", letter.repeat(55))});
        let mut request = json!({
            "v": 1, "kind": "manager-service-authority", "operation": operation, "space": "main", "actor": "cli",
            "instanceId": "i".repeat(26), "managerLifecycleUid": "l".repeat(26), "requestId": "r".repeat(22),
            "identities": {
                "supervisor": key("A"), "executor": key("B"), "serve": key("C"), "goalWriter": key("D"),
                "sessionLedger": key("E"),
            },
        });
        if operation != "prepare" {
            request["registrationProof"] = json!(format!("sha256:{}", "0".repeat(64)));
        }
        request
    }

    fn es(value: &Value) -> EsValue {
        EsValue::parse(value.to_string().as_bytes()).unwrap()
    }

    fn gate_of(principal: &str) -> EndpointGate {
        EndpointGate::provisioned(&cotal_wire::Principal::parse_key(principal).unwrap())
    }

    fn op() -> OpId {
        OpId::parse(&"o".repeat(26)).unwrap()
    }

    /// A rule's name, and how it is broken.
    type Break<T> = (&'static str, fn(&mut T));

    /// From each rule on every later one is broken too: the refusal must be that rule's.
    fn in_order<T>(breaks: &[Break<T>], good: &T, decide: impl Fn(&T) -> Result<(), EpError>)
    where
        T: Clone,
    {
        assert_eq!(decide(good), Ok(()));
        for first in 0..breaks.len() {
            let mut alone = good.clone();
            breaks[first].1(&mut alone);
            let mut all = good.clone();
            for (_, change) in &breaks[first..] {
                change(&mut all);
            }
            for broken in [alone, all] {
                let refusal = decide(&broken).unwrap_err();
                assert_eq!(refusal.code, EpCode::PermissionDenied, "{}", breaks[first].0);
                assert!(refusal.message.contains(breaks[first].0), "{}: {refusal}", breaks[first].0);
            }
        }
    }

    #[derive(Clone)]
    struct Control {
        envelope: Value,
        assignment: Assignment,
    }

    #[test]
    fn the_control_door_checks_context_assignment_manager_and_inner_request_in_this_order() {
        let (space, own) = (space(), account("A"));
        let context = PlatformContext { space: &space, account: &own };
        let good = Control {
            envelope: json!({
                "v": 1, "kind": "platform-control-authority", "space": "main", "accountPublicKey": own.as_str(),
                "assignmentRevision": 7, "request": request("prepare"),
            }),
            assignment: Assignment {
                space: space.clone(),
                account: own.clone(),
                instance: instance("i"),
                lifecycle_uid: lifecycle("l"),
                revision: 7,
                assigned: true,
            },
        };
        let decide = |control: &Control| {
            let envelope = es(&control.envelope);
            let request = PlatformControlRequest::parse(&envelope)?;
            context.check_control(&request)?;
            context.check_assigned(&request, &control.assignment)
        };
        in_order(
            &[
                ("names another space or data account", |control: &mut Control| {
                    control.envelope["space"] = json!("other");
                }),
                ("has not assigned a manager under this revision", |control| control.assignment.revision = 8),
                ("another manager than the assigned one", |control| {
                    control.assignment.lifecycle_uid = lifecycle("m");
                }),
                ("the inner request names another space", |control| {
                    control.envelope["request"]["space"] = json!("other");
                }),
            ],
            &good,
            decide,
        );
        let more: [fn(&mut Control); 6] = [
            |control| control.envelope["accountPublicKey"] = json!(account("B").as_str()),
            |control| control.assignment.assigned = false,
            |control| control.assignment.space = Space::parse("other").unwrap(),
            |control| control.assignment.account = account("B"),
            |control| control.assignment.instance = instance("j"),
            |control| control.envelope["request"]["accountPublicKey"] = json!(account("B").as_str()),
        ];
        for (at, change) in more.into_iter().enumerate() {
            let mut broken = good.clone();
            change(&mut broken);
            assert_eq!(decide(&broken).unwrap_err().code, EpCode::PermissionDenied, "{at}");
        }
    }

    #[test]
    fn an_assigned_instance_is_the_platforms_or_nobodys() {
        let platform = Owner::parse(&format!("p_{}", "a".repeat(26))).unwrap();
        let at = instance("i");
        let own = EndpointGate::provisioned(&serve_principal(&platform, &at));
        let other = EndpointGate::provisioned(&serve_principal(&platform, &instance("j")));
        assert_eq!(check_platform_gate(&platform, &at, None), Ok(()));
        assert_eq!(check_platform_gate(&platform, &at, Some(&own)), Ok(()));
        for foreign in [other, EndpointGate::provisioned(&serve_principal(&owner(), &at))] {
            let refusal = check_platform_gate(&platform, &at, Some(&foreign)).unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied);
        }
    }

    #[test]
    fn an_instance_takes_a_place_only_when_its_predecessor_has_left_it() {
        let open = gate_of("local.x");
        let frozen = open.clone().freeze(&op()).unwrap();
        let retired = open.clone().retire(&op());
        for (gate, registered, ok) in [
            (None, false, true),
            (Some(&open), false, true),
            (Some(&retired), false, true),
            (Some(&frozen), false, false),
            (Some(&open), true, false),
            (Some(&retired), true, false),
            (None, true, false),
        ] {
            for operation in Operation::ALL {
                let begins = matches!(operation, Operation::Prepare | Operation::Activate);
                let verdict = check_predecessor(Some(operation), Some(Predecessor { gate, registered }));
                assert_eq!(verdict.is_ok(), ok || !begins, "{gate:?} {registered} {operation:?}");
                assert!(verdict.err().is_none_or(|refusal| refusal.code == EpCode::FailedPrecondition));
            }
            assert_eq!(check_predecessor(None, Some(Predecessor { gate, registered })), Ok(()));
        }
        assert_eq!(check_predecessor(Some(Operation::Prepare), None), Ok(()));
    }

    #[derive(Clone)]
    struct Supervised {
        request: Value,
        assignment: SupervisorAssignment,
        gate: Option<EndpointGate>,
    }

    fn supervised() -> Supervised {
        Supervised {
            request: request("prepare"),
            assignment: SupervisorAssignment {
                owner: owner(),
                space: space(),
                account: account("A"),
                instance: instance("i"),
                lifecycle_uid: lifecycle("l"),
                revision: 3,
                ended: false,
                expires_at: UnixSecs(1_001),
                scope: vec!["supervise".to_owned()],
            },
            gate: None,
        }
    }

    fn decide(supervised: &Supervised) -> Result<(), EpError> {
        let (space, own) = (space(), account("A"));
        let context = PlatformContext { space: &space, account: &own };
        let envelope = es(&json!({
            "v": 1, "kind": "platform-supervisor-authority", "owner": owner().as_str(), "assignmentRevision": 3,
            "request": supervised.request,
        }));
        let request = PlatformSupervisorRequest::parse(&envelope).unwrap();
        supervised.assignment.check(context, &request, NOW)?;
        supervised.assignment.check_gate(supervised.gate.as_ref())
    }

    #[test]
    fn the_supervisor_door_checks_in_the_contracts_order() {
        in_order(
            &[
                ("another user's", |supervised: &mut Supervised| {
                    supervised.assignment.owner = Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap();
                }),
                ("has ended", |supervised| supervised.assignment.ended = true),
                ("changed the assignment", |supervised| supervised.assignment.revision = 4),
                ("has expired", |supervised| supervised.assignment.expires_at = NOW),
                ("not exactly", |supervised| supervised.assignment.scope.push("spawn".to_owned())),
                ("another space or manager", |supervised| supervised.request["space"] = json!("other")),
                ("prepare, activate and the standing renewals alone", |supervised| {
                    let mut request = request("transferReader");
                    request["transferReader"] = json!({"id": format!("U{}", "F".repeat(55))});
                    request["space"] = supervised.request["space"].clone();
                    supervised.request = request;
                }),
                ("registered by another owner", |supervised| supervised.gate = Some(gate_of("local.x"))),
            ],
            &supervised(),
            decide,
        );
        let more: [fn(&mut Supervised); 6] = [
            |supervised| supervised.assignment.space = Space::parse("other").unwrap(),
            |supervised| supervised.assignment.account = account("B"),
            |supervised| supervised.assignment.scope.clear(),
            |supervised| supervised.assignment.instance = instance("j"),
            |supervised| supervised.assignment.lifecycle_uid = lifecycle("m"),
            |supervised| {
                let own = EndpointGate::provisioned(&serve_principal(&owner(), &instance("i")));
                supervised.gate = Some(own.retire(&op()));
            },
        ];
        for (at, change) in more.into_iter().enumerate() {
            let mut broken = supervised();
            change(&mut broken);
            assert_eq!(decide(&broken).unwrap_err().code, EpCode::PermissionDenied, "{at}");
        }
    }

    #[test]
    fn the_supervisor_door_serves_four_operations() {
        let mut own = EndpointGate::provisioned(&serve_principal(&owner(), &instance("i")));
        own = own
            .freeze(&op())
            .unwrap()
            .reopen(&op(), GateCoordinate { generation: 1, ..Default::default() })
            .unwrap();
        for operation in ["prepare", "renew"] {
            let served = Supervised { request: request(operation), gate: Some(own.clone()), ..supervised() };
            assert_eq!(decide(&served), Ok(()), "{operation}");
        }
        let served: Vec<_> = PlatformSupervisorRequest::OPERATIONS.map(Operation::as_str).to_vec();
        assert_eq!(served, ["prepare", "activate", "renew", "renewStandingBundle"]);
    }
}
