//! `retire-lifecycle`: what this command checks, in the contract's order (contract 05 §11.3, 03 §A).
//!
//! Every refusal is a full no-op: nothing is written before the flight, and the flight is the last step.

use async_trait::async_trait;
use cotal_wire::{
    EndpointName, EndpointToken, EpCode, EpError, InstanceId, LifecycleUid, OpId, Principal,
    endpoint_subject::{SubjectTarget, TargetTriple},
    envelope::RequestArgs,
    rows::{AgentGate, EndpointGate, GateState, HeadState},
};
use serde_json::{Map, Value, json};

use crate::{drain::Retiring, flights::Flight, head::HeadAt, retirement::RetirementReport};

const NEVER_ACTIVATED: &str = "retire-lifecycle: the target was never activated";
const STANDS_AT: &str = "retire-lifecycle: the target stands at lifecycle ";

/// Whether the rail refused because nothing of this incarnation stands: its alias never began, or stands at another
/// incarnation, as it only does once everything before that one was retired. Without a grant it never will.
///
/// The codes say more than this, so the sentence is matched to the letter, at the end of whatever was put before it.
pub fn nothing_stands(refusal: &EpError, uid: &LifecycleUid) -> bool {
    match refusal.code {
        EpCode::FailedPrecondition => refusal.message.ends_with(NEVER_ACTIVATED),
        EpCode::Expired => {
            let stands_at =
                refusal.message.rsplit_once(STANDS_AT).and_then(|(_, at)| at.strip_suffix(" now"));
            stands_at.and_then(|at| LifecycleUid::parse(at).ok()).is_some_and(|at| at != *uid)
        }
        _ => false,
    }
}

/// What the rail reads of the authority, and where it starts or joins a barrier.
#[async_trait]
pub trait RetireOnRail: Send + Sync {
    /// The serving gate of an endpoint instance, by one leader read.
    async fn serving_gate(
        &self,
        endpoint: &EndpointToken,
        instance: &InstanceId,
    ) -> Result<Option<EndpointGate>, EpError>;

    /// The alias head of the target, by a leader read.
    async fn head(&self, principal: &Principal) -> Result<Option<HeadAt>, EpError>;

    /// The issuance gate of the target's incarnation, by a leader read. An activation that was cut off right before it
    /// opened the gate is ended first: it is nobody's to be waited for.
    async fn lifecycle_gate(
        &self,
        principal: &Principal,
        uid: &LifecycleUid,
    ) -> Result<Option<AgentGate>, EpError>;

    /// Joins or starts the flight of this operation; `conflict` when it is in flight for other coordinates.
    fn join_or_start(&self, retiring: &Retiring) -> Result<Flight, EpError>;
}

/// The arguments, as their schema admits them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetireArgs {
    op_id: String,
    serve_endpoint: String,
    serve_instance: String,
    serve_epoch: u64,
}

/// A retirement that may begin, or has ended before.
pub(super) enum Admitted {
    /// This incarnation was retired before.
    Retired(Value),
    /// The barrier's flight, joined or started.
    InFlight(Retiring, Flight),
}

impl RetireArgs {
    /// Reads the arguments by the input schema; every failure is `bad-request`.
    pub(super) fn read(args: &RequestArgs) -> Result<Self, EpError> {
        let bad = |rule: &str| EpError::bad_request(format!("retire-lifecycle: args {rule}"));
        let RequestArgs::Object(members) = args else { return Err(bad("must be an object")) };
        let known = ["opId", "serveEndpoint", "serveInstanceId", "serveEpoch"];
        if members.keys().any(|name| !known.contains(&name.as_str())) {
            return Err(bad("has a member that its schema does not know"));
        }
        let text = |name: &str| {
            let value = members.get(name).and_then(Value::as_str);
            value.map(str::to_owned).ok_or_else(|| bad(&format!("needs the string {name}")))
        };
        let op_id = text("opId")?;
        let serve_endpoint = text("serveEndpoint")?;
        let serve_instance = text("serveInstanceId")?;
        let serve_epoch =
            uint(members, "serveEpoch").ok_or_else(|| bad("needs the integer serveEpoch, 0 or more"))?;
        Ok(Self { op_id, serve_endpoint, serve_instance, serve_epoch })
    }

    /// Whom the caller says to serve as, as tokens of a key.
    fn serving(&self) -> Result<(EndpointToken, InstanceId), EpError> {
        let endpoint = EndpointName::parse(&self.serve_endpoint)
            .map(|name| name.token())
            .or_else(|_| EndpointToken::parse(&self.serve_endpoint));
        let instance = InstanceId::parse(&self.serve_instance);
        match (endpoint, instance) {
            (Ok(endpoint), Ok(instance)) => Ok((endpoint, instance)),
            _ => Err(EpError::bad_request(
                "retire-lifecycle: serveEndpoint and serveInstanceId name no endpoint instance",
            )),
        }
    }
}

/// An integer from 0 as JSON Schema knows one: `3.0` is one, too. One that is too large for any epoch reads as the
/// largest number, which is no gate's epoch.
fn uint(members: &Map<String, Value>, name: &str) -> Option<u64> {
    let number = members.get(name)?;
    number.as_u64().or_else(|| {
        let double = number.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0)?;
        Some(format!("{:.0}", double.abs()).parse().unwrap_or(u64::MAX))
    })
}

/// Decides whether the caller may end the target, and joins or starts the barrier when it may.
pub(super) async fn admit(
    port: &dyn RetireOnRail,
    caller: &Principal,
    target: &SubjectTarget,
    args: &RetireArgs,
) -> Result<Admitted, EpError> {
    let Some(TargetTriple { principal, lifecycle_uid: uid }) = target.triple() else {
        return Err(EpError::failed_precondition(
            "retire-lifecycle: the subject must spell out its target: owner, actor and lifecycle",
        ));
    };
    let op = OpId::managed_retirement(uid);
    if args.op_id != op.as_str() {
        return Err(EpError::permission_denied(
            "retire-lifecycle: opId is not the operation that retires this lifecycle",
        ));
    }
    authorize(port, caller, args).await?;

    let Some(HeadAt { head, .. }) = port.head(principal).await? else {
        return Err(EpError::failed_precondition(NEVER_ACTIVATED));
    };
    if head.lifecycle_uid() != uid {
        return Err(EpError::new(EpCode::Expired, format!("{STANDS_AT}{} now", head.lifecycle_uid())));
    }
    if *head.state() == HeadState::Retired {
        return Ok(Admitted::Retired(result(uid, &op, &RetirementReport::default())));
    }
    if let Some(gate) = port.lifecycle_gate(principal, uid).await?
        && let GateState::Frozen(holder) = gate.state()
        && *holder.op_id() != op
    {
        return Err(gate.state().blocks(EpError::conflict(format!(
            "retire-lifecycle: {} {} holds the lifecycle; ask again when it has ended",
            holder.kind(),
            holder.op_id()
        ))));
    }
    let retiring = Retiring { op, principal: principal.clone(), uid: uid.clone() };
    let flight = port.join_or_start(&retiring)?;
    Ok(Admitted::InFlight(retiring, flight))
}

/// The serve-time check: the caller is the present incarnation of the instance that it names.
async fn authorize(port: &dyn RetireOnRail, caller: &Principal, args: &RetireArgs) -> Result<(), EpError> {
    let (endpoint, instance) = args.serving()?;
    let gate = port.serving_gate(&endpoint, &instance).await.map_err(|error| {
        tracing::warn!(%error, "auth rail: a serving gate cannot be read");
        EpError::unavailable("retire-lifecycle: the serving gate of the caller cannot be read; ask again")
    })?;
    let gate = gate.filter(|gate| !matches!(gate.state(), GateState::Retired(_))).ok_or_else(|| {
        EpError::failed_precondition("retire-lifecycle: the caller's instance is not registered")
    })?;
    if gate.principal() != caller {
        return Err(EpError::permission_denied(
            "retire-lifecycle: the caller is not the principal that this instance serves as",
        ));
    }
    let current = gate.coordinate().process_epoch;
    if args.serve_epoch != current {
        return Err(EpError::new(
            EpCode::Expired,
            format!("retire-lifecycle: the caller's instance serves at epoch {current} now"),
        ));
    }
    Ok(())
}

/// The answer's data, in the output schema's order.
pub(super) fn result(uid: &LifecycleUid, op: &OpId, report: &RetirementReport) -> Value {
    json!({
        "retired": true,
        "lifecycleUid": uid,
        "opId": op,
        "evictedPrincipals": report.evicted,
    })
}

#[cfg(test)]
mod tests {
    use cotal_wire::rows::LifecycleHead;
    use parking_lot::Mutex;

    use super::*;
    use crate::flights::RetirementFlights;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("{OWNER}.{actor}")).unwrap()
    }

    fn serving_gate(state: &str, epoch: u64) -> EndpointGate {
        let op = match state {
            "open" => String::new(),
            _ => format!(",\"op\":{{\"opId\":\"{}\",\"kind\":\"retirement\"}}", "f".repeat(26)),
        };
        let row = format!(
            "{{\"state\":\"{state}\",\"generation\":1,\"processEpoch\":{epoch},\"registrationRevision\":1,\
             \"nameAuthorityRevision\":0,\"principal\":\"{OWNER}.serve\"{op}}}"
        );
        EndpointGate::parse(row.as_bytes()).unwrap()
    }

    fn head(at: char, state: &str) -> HeadAt {
        let row = format!(
            "{{\"owner\":\"{OWNER}\",\"actor\":\"bob\",\"lifecycleUid\":\"{}\",\"managerInstance\":\"m\",\
             \"processEpoch\":1,\"state\":\"{state}\"}}",
            uid(at)
        );
        let head = LifecycleHead::parse(&principal("bob"), row.as_bytes()).unwrap();
        HeadAt { head, revision: cotal_wire::Revision(1) }
    }

    fn frozen_by(op: &str) -> AgentGate {
        let row = format!(
            "{{\"lifecycleUid\":\"{}\",\"state\":\"frozen\",\"generation\":1,\"op\":{{\"opId\":\"{op}\",\
             \"kind\":\"retirement\"}}}}",
            uid('a')
        );
        AgentGate::parse(&uid('a'), row.as_bytes()).unwrap()
    }

    /// What is stored, and in which order it was looked at.
    struct Stored {
        serving: Result<Option<EndpointGate>, EpError>,
        head: Option<HeadAt>,
        gate: Option<AgentGate>,
        flights: RetirementFlights,
        looked: Mutex<Vec<&'static str>>,
    }

    #[async_trait]
    impl RetireOnRail for Stored {
        async fn serving_gate(
            &self,
            endpoint: &EndpointToken,
            instance: &InstanceId,
        ) -> Result<Option<EndpointGate>, EpError> {
            assert_eq!((endpoint.as_str(), instance.as_str()), ("manager", uid('i').as_str()));
            self.looked.lock().push("serving gate");
            self.serving.clone()
        }

        async fn head(&self, asked: &Principal) -> Result<Option<HeadAt>, EpError> {
            assert_eq!(*asked, principal("bob"));
            self.looked.lock().push("head");
            Ok(self.head.clone())
        }

        async fn lifecycle_gate(
            &self,
            whose: &Principal,
            asked: &LifecycleUid,
        ) -> Result<Option<AgentGate>, EpError> {
            assert_eq!((whose, asked), (&principal("bob"), &uid('a')));
            self.looked.lock().push("gate");
            Ok(self.gate.clone())
        }

        fn join_or_start(&self, retiring: &Retiring) -> Result<Flight, EpError> {
            self.looked.lock().push("flight");
            self.flights.join_or_start(retiring, std::future::pending)
        }
    }

    struct Case {
        target: SubjectTarget,
        args: Map<String, Value>,
        stored: Stored,
    }

    fn good() -> Case {
        let triple = TargetTriple { principal: principal("bob"), lifecycle_uid: uid('a') };
        let args = json!({
            "opId": OpId::managed_retirement(&uid('a')), "serveEndpoint": "manager",
            "serveInstanceId": uid('i'), "serveEpoch": 3,
        });
        Case {
            target: SubjectTarget::Exact(triple),
            args: args.as_object().unwrap().clone(),
            stored: Stored {
                serving: Ok(Some(serving_gate("open", 3))),
                head: Some(head('a', "active")),
                gate: None,
                flights: RetirementFlights::default(),
                looked: Mutex::default(),
            },
        }
    }

    async fn run(case: &Case) -> Result<Admitted, EpError> {
        let args = RetireArgs::read(&RequestArgs::Object(case.args.clone())).unwrap();
        admit(&case.stored, &principal("serve"), &case.target, &args).await
    }

    async fn refusal(case: &Case) -> EpError {
        run(case).await.err().expect("it refuses")
    }

    /// One row of contract 05 §11.3: what it touches, how it is broken, what it says, how far it looked.
    struct Row {
        touches: &'static str,
        breaks: fn(&mut Case),
        code: EpCode,
        says: &'static str,
        looked: &'static [&'static str],
    }

    fn rows() -> Vec<Row> {
        let row = |touches, breaks, code, says, looked| Row { touches, breaks, code, says, looked };
        let gate = &["serving gate"][..];
        let head_too = &["serving gate", "head"][..];
        let all = &["serving gate", "head", "gate"][..];
        vec![
            row(
                "target",
                |case| case.target = SubjectTarget::Owner(principal("bob").owner),
                EpCode::FailedPrecondition,
                "must spell out its target",
                &[],
            ),
            row(
                "opId",
                |case| drop(case.args.insert("opId".into(), json!("0".repeat(26)))),
                EpCode::PermissionDenied,
                "opId is not the operation",
                &[],
            ),
            row(
                "instance",
                |case| drop(case.args.insert("serveInstanceId".into(), json!("x.>"))),
                EpCode::BadRequest,
                "name no endpoint instance",
                &[],
            ),
            row(
                "serving",
                |case| case.stored.serving = Err(EpError::internal("garbled")),
                EpCode::Unavailable,
                "cannot be read",
                gate,
            ),
            row(
                "serving",
                |case| case.stored.serving = Ok(None),
                EpCode::FailedPrecondition,
                "is not registered",
                gate,
            ),
            row(
                "serving",
                |case| case.stored.serving = Ok(Some(serving_gate("retired", 3))),
                EpCode::FailedPrecondition,
                "is not registered",
                gate,
            ),
            row(
                "serving",
                |case| {
                    let other = String::from_utf8(serving_gate("open", 4).to_bytes()).unwrap();
                    let other = other.replace(".serve\"", ".other\"");
                    case.stored.serving = EndpointGate::parse(other.as_bytes()).map(Some);
                },
                EpCode::PermissionDenied,
                "is not the principal",
                gate,
            ),
            row(
                "epoch",
                |case| drop(case.args.insert("serveEpoch".into(), json!(2))),
                EpCode::Expired,
                "serves at epoch 3 now",
                gate,
            ),
            row(
                "head",
                |case| case.stored.head = None,
                EpCode::FailedPrecondition,
                "was never activated",
                head_too,
            ),
            row(
                "head",
                |case| case.stored.head = Some(head('b', "active")),
                EpCode::Expired,
                "stands at lifecycle bbbbbbbbbbbbbbbbbbbbbbbbbb now",
                head_too,
            ),
            row(
                "head",
                |case| case.stored.head = Some(head('b', "retired")),
                EpCode::Expired,
                "stands at lifecycle bbbbbbbbbbbbbbbbbbbbbbbbbb now",
                head_too,
            ),
            row(
                "gate",
                |case| case.stored.gate = Some(frozen_by("ffffffffffffffffffffffffff")),
                EpCode::Conflict,
                "ffffffffffffffffffffffffff holds the lifecycle",
                all,
            ),
            row(
                "flight",
                |case| {
                    let op = OpId::managed_retirement(&uid('a'));
                    let other = Retiring { op, principal: principal("eve"), uid: uid('a') };
                    drop(case.stored.flights.join_or_start(&other, std::future::pending));
                },
                EpCode::Conflict,
                "is in flight for",
                &["serving gate", "head", "gate", "flight"],
            ),
        ]
    }

    #[tokio::test]
    async fn every_row_refuses_with_its_code_and_looks_no_further() {
        for (at, row) in rows().iter().enumerate() {
            let mut case = good();
            (row.breaks)(&mut case);
            let refused = refusal(&case).await;
            assert_eq!(refused.code, row.code, "row {at}: {refused}");
            assert!(refused.message.contains(row.says), "row {at}: {refused}");
            assert_eq!(*case.stored.looked.lock(), row.looked, "row {at}");
        }
    }

    #[tokio::test]
    async fn nothing_stands_of_a_target_that_never_began_or_whose_alias_stands_elsewhere_and_of_no_other() {
        let mut told = Vec::new();
        for row in rows() {
            let mut case = good();
            (row.breaks)(&mut case);
            let refused = refusal(&case).await;
            let told_by_caller =
                EpError::new(refused.code, format!("endpoint auth refuses: {}", refused.message));
            let nothing = nothing_stands(&told_by_caller, &uid('a'));
            assert_eq!(nothing, nothing_stands(&refused, &uid('a')));
            if nothing {
                told.push(row.says);
            }
        }
        let elsewhere = "stands at lifecycle bbbbbbbbbbbbbbbbbbbbbbbbbb now";
        assert_eq!(told, ["was never activated", elsewhere, elsewhere]);
        let expired = |said: &str| EpError::new(EpCode::Expired, format!("{STANDS_AT}{said}"));
        for said in [format!("{} now", uid('a')), format!("{} then", uid('b')), "now".into(), String::new()] {
            assert!(!nothing_stands(&expired(&said), &uid('a')), "{said}");
        }
    }

    #[tokio::test]
    async fn of_two_broken_rows_the_earlier_one_answers() {
        let rows = rows();
        let mut pairs = 0;
        for (at, first) in rows.iter().enumerate() {
            for second in rows[at + 1..].iter().filter(|second| second.touches != first.touches) {
                let mut case = good();
                (first.breaks)(&mut case);
                (second.breaks)(&mut case);
                let refused = refusal(&case).await;
                assert!(
                    refused.message.contains(first.says),
                    "{} and {}: {refused}",
                    first.says,
                    second.says
                );
                pairs += 1;
            }
        }
        assert_eq!(pairs, 69);
    }

    #[tokio::test]
    async fn a_target_that_is_retired_here_is_success_and_starts_nothing() {
        let mut case = good();
        case.stored.head = Some(head('a', "retired"));
        // Even while a foreign operation holds what is left of it.
        case.stored.gate = Some(frozen_by("ffffffffffffffffffffffffff"));
        let Admitted::Retired(result) = run(&case).await.ok().unwrap() else {
            panic!("it was retired before")
        };
        assert_eq!(
            result,
            json!({
                "retired": true, "lifecycleUid": uid('a'),
                "opId": OpId::managed_retirement(&uid('a')), "evictedPrincipals": [],
            })
        );
        assert!(case.stored.flights.in_flight().is_empty());
    }

    #[tokio::test]
    async fn our_own_frozen_gate_resumes_and_both_literal_modes_are_served() {
        for handle in [false, true] {
            let mut case = good();
            if handle {
                case.target = SubjectTarget::Handle(case.target.triple().unwrap().clone());
            }
            case.stored.gate = Some(frozen_by(OpId::managed_retirement(&uid('a')).as_str()));
            let Admitted::InFlight(retiring, _) = run(&case).await.ok().unwrap() else { panic!("it flies") };
            assert_eq!((retiring.principal, retiring.uid), (principal("bob"), uid('a')));
            assert_eq!(case.stored.flights.in_flight(), [retiring.op]);
        }
    }

    #[test]
    fn arguments_are_what_their_schema_admits() {
        let with = |name: &str, value: Value| {
            let mut args = good().args;
            args.insert(name.to_owned(), value);
            RetireArgs::read(&RequestArgs::Object(args))
        };
        for (epoch, read) in [
            (json!(0), 0),
            (json!(3.0), 3),
            (json!(-0.0), 0),
            (json!(u64::MAX), u64::MAX),
            (json!(1e300), u64::MAX),
        ] {
            assert_eq!(with("serveEpoch", epoch.clone()).unwrap().serve_epoch, read, "{epoch}");
        }
        for (name, value) in [
            ("serveEpoch", json!(-1)),
            ("serveEpoch", json!(1.5)),
            ("serveEpoch", json!("3")),
            ("serveEpoch", Value::Null),
            ("opId", json!(7)),
            ("serveEndpoint", Value::Null),
            ("serveInstanceId", json!([])),
            ("force", json!(true)),
        ] {
            assert_eq!(with(name, value).unwrap_err().code, EpCode::BadRequest, "{name}");
        }
        for args in [RequestArgs::Absent, RequestArgs::Null, RequestArgs::Object(Map::new())] {
            assert_eq!(RetireArgs::read(&args).unwrap_err().code, EpCode::BadRequest);
        }
        for name in ["opId", "serveEndpoint", "serveInstanceId", "serveEpoch"] {
            let mut args = good().args;
            args.remove(name);
            assert!(RetireArgs::read(&RequestArgs::Object(args)).is_err(), "{name}");
        }
    }

    #[test]
    fn an_endpoint_may_be_named_dotted_or_as_its_token() {
        for (name, token) in
            [("manager", "manager"), ("com.example", "com_example"), ("com_example", "com_example")]
        {
            let mut args = good().args;
            args.insert("serveEndpoint".into(), json!(name));
            let args = RetireArgs::read(&RequestArgs::Object(args)).unwrap();
            assert_eq!(args.serving().unwrap().0.as_str(), token);
        }
    }
}
