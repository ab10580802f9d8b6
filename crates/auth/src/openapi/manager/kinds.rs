//! What a request of each kind holds, written down once: the document is built from it, and its samples are parsed.

use cotal_wire::{
    LifecycleUid, OpId,
    manager_authority::{Kind, MAX_ARTIFACTS, MAX_LABEL, MAX_LIST, Operation, Rule, StandingRole},
};
use serde_json::json;
use utoipa::openapi::{
    RefOr, Schema,
    schema::{ObjectBuilder, Type},
};

use super::shape::{Member, Shape, by_name, closed, list, literal, matching, may, must, number, text};

const LIFECYCLE: &str = "^[a-z0-9]{26,32}$";
const ACTOR: &str = "^[A-Za-z0-9_]+$";
const OWNER: &str = "^u_[a-z2-7]{26}$";
const REQUEST_ID: &str = "^[A-Za-z0-9_-]{22,64}$";
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
const USER: &str = "^U[A-Z2-7]{55}$";
const ACCOUNT: &str = "^A[A-Z2-7]{55}$";
const RUN_ID: &str = "^run-[0-9a-f]{32}$";
/// Most characters of a request in the route's body: what it is bounded by.
const BODY: usize = crate::http::body::BODY_MAX;

fn actor(sample: &str) -> Shape {
    matching(ACTOR, sample)
}

fn lifecycle(letter: &str) -> Shape {
    matching(LIFECYCLE, letter.repeat(26))
}

fn user(letter: &str) -> Shape {
    matching(USER, format!("U{}", letter.repeat(55)))
}

fn key(letter: &str) -> Shape {
    closed(vec![must("id", user(letter))])
}

fn account() -> Member {
    must("accountPublicKey", matching(ACCOUNT, format!("A{}", "A".repeat(55))))
}

fn proof() -> Member {
    must("registrationProof", matching(DIGEST, format!("sha256:{}", "0".repeat(64))))
}

fn run_id() -> Member {
    must("runId", matching(RUN_ID, format!("run-{}", "0".repeat(32))))
}

const IDENTITIES: &str = "ManagerIdentities";
const INCARNATION: &str = "ManagedAgentIncarnation";
const TARGET: &str = "ManagedAgentTarget";

/// What more than one kind has in it.
pub(super) fn shared() -> [(String, RefOr<Schema>); 3] {
    [(IDENTITIES, standing_keys()), (INCARNATION, agent()), (TARGET, enrollment_target(true))]
        .map(|(name, shape)| (name.to_owned(), shape.schema))
}

fn standing_keys() -> Shape {
    let keys = StandingRole::ALL.into_iter().zip(["A", "B", "C", "D", "E"]);
    closed(keys.map(|(role, letter)| must(role.as_str(), key(letter))).collect())
}

fn identities() -> Member {
    must("identities", by_name(IDENTITIES, standing_keys()))
}

fn incarnation() -> Shape {
    by_name(INCARNATION, agent())
}

fn agent() -> Shape {
    closed(vec![
        must("owner", matching(OWNER, format!("u_{}", "a".repeat(26)))),
        must("actor", actor("scout")),
        must("lifecycleUid", lifecycle("t")),
    ])
}

fn retirement_op() -> Shape {
    let op = LifecycleUid::parse(&"t".repeat(26)).map(|uid| OpId::managed_retirement(&uid).to_string());
    matching(LIFECYCLE, op.unwrap_or_default())
}

/// The members that every kind but one carries, and its own.
fn request(kind: Kind, own: Vec<Member>) -> Shape {
    let mut members = vec![
        must(
            "v",
            Shape::of(ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([1])), json!(1)),
        ),
        must("kind", literal(kind.as_str())),
        must("space", text(BODY, "main")),
        must("actor", actor("cli")),
        must("instanceId", lifecycle("i")),
        must("managerLifecycleUid", lifecycle("l")),
        must("requestId", matching(REQUEST_ID, "r".repeat(22))),
        identities(),
    ];
    members.extend(own);
    closed(members)
}

fn service(operation: Operation) -> Shape {
    let mut own = vec![must("operation", literal(operation.as_str()))];
    if operation != Operation::Prepare {
        own.push(proof());
    }
    match operation {
        Operation::Prepare | Operation::Renew => {}
        Operation::Activate => {
            let any = Shape::of(Schema::Object(utoipa::openapi::Object::with_type(Type::Object)), json!({}));
            own.push(must("contractArtifacts", list(any, 1, MAX_ARTIFACTS)));
        }
        Operation::Session => own.push(must(
            "session",
            closed(vec![
                must("id", user("F")),
                must("endpoint", literal("manager")),
                must("sessionId", text(BODY, "session-1")),
                must("epoch", number(0)),
                must("exp", number(1)),
            ]),
        )),
        Operation::Retire => own.push(must(
            "retirement",
            closed(vec![
                must("id", user("F")),
                must("target", incarnation()),
                must("opId", retirement_op()),
                must("serveEpoch", number(0)),
            ]),
        )),
        Operation::RenewStandingBundle => own.extend([account(), must("processEpoch", number(0))]),
        Operation::RenewRunDriver => own.extend([
            account(),
            must("processEpoch", number(0)),
            must(
                "run",
                closed(vec![
                    run_id(),
                    must(
                        "holder",
                        matching(
                            "^[A-Za-z0-9_.-]{1,256}$",
                            format!("U{}.{}", "A".repeat(55), "0".repeat(16)),
                        ),
                    ),
                    must("takeoverId", matching("^[0-9a-f]{16}$", "0".repeat(16))),
                    must("epoch", number(1)),
                    must("fencingToken", number(1)),
                    must("driverId", user("F")),
                    must("mediatorId", user("G")),
                ]),
            ),
        ]),
        Operation::TransferReader => own.push(must("transferReader", key("F"))),
    }
    request(Kind::Service, own)
}

fn enrollment_target(with_hash: bool) -> Shape {
    let channels = || list(text(256, "general"), 0, MAX_LIST);
    let label = usize::try_from(MAX_LABEL.get()).unwrap_or(usize::MAX);
    let mut members = vec![
        must("actor", actor("scout")),
        may("role", matching("^[A-Za-z0-9_-]{1,64}$", "reader")),
        may("label", text(label, "a scout")),
        may("capabilities", list(matching("^[A-Za-z0-9_:-]{1,64}$", "spawn"), 0, MAX_LIST)),
        may("subscribe", channels()),
        may("allowSubscribe", channels()),
        may("allowPublish", channels()),
    ];
    if with_hash {
        members.push(must("tokenHash", matching("^[0-9a-f]{64}$", "0".repeat(64))));
    }
    closed(members)
}

/// A payload of a run kind, with what all of them carry.
fn run(kind: Kind, name: &'static str, payload: Shape) -> Shape {
    request(kind, vec![proof(), account(), must("processEpoch", number(0)), must(name, payload)])
}

/// What tells a kind's variants apart, if one member does, and the variants, each with what it stands on. Most kinds have
/// one.
pub(super) fn variants(kind: Kind) -> (Option<&'static str>, Vec<(&'static str, Rule, Shape)>) {
    let Some(rule) = kind.rule() else {
        let each = Operation::ALL.map(|operation| (operation.as_str(), operation.rule(), service(operation)));
        return (Some("operation"), each.into());
    };
    let (told_by, shapes) = shapes(kind);
    (told_by, shapes.into_iter().map(|(variant, shape)| (variant, rule, shape)).collect())
}

fn shapes(kind: Kind) -> (Option<&'static str>, Vec<(&'static str, Shape)>) {
    let serve_epoch = || must("serveEpoch", number(0));
    let subject = || must("subject", text(BODY, "cotal.main.ep.v1.one.manager.run-start"));
    let one = |shape: Shape| (None, vec![("", shape)]);
    match kind {
        // Its variants are its operations.
        Kind::Service => (None, Vec::new()),
        Kind::Enrollment => one(request(
            kind,
            vec![proof(), serve_epoch(), must("target", by_name(TARGET, enrollment_target(true)))],
        )),
        Kind::PrepareRetirement => one(request(
            kind,
            vec![proof(), serve_epoch(), must("target", incarnation()), must("opId", retirement_op())],
        )),
        Kind::RuntimeCreate | Kind::RuntimeStatus => {
            one(request(kind, vec![proof(), serve_epoch(), must("target", incarnation())]))
        }
        Kind::RetainedAgentValidation => one(request(
            kind,
            vec![
                proof(),
                serve_epoch(),
                must("target", incarnation()),
                must("actorToken", text(4096, "the agent's standing token")),
                must("sentinelCreds", text(16_384, "the sentinel credentials that it holds")),
            ],
        )),
        Kind::GoalIndexScan => one(request(kind, vec![proof(), serve_epoch()])),
        Kind::AdminAuthorization => {
            one(request(kind, vec![proof(), serve_epoch(), must("caller", incarnation())]))
        }
        Kind::RunAdmission => one(run(kind, "run", closed(vec![run_id(), subject()]))),
        Kind::RunSubmission => one(run(
            kind,
            "submission",
            closed(vec![
                must("submissionId", matching("^[A-Za-z0-9_-]{1,64}$", "nightly-1")),
                run_id(),
                subject(),
            ]),
        )),
        Kind::RunCancel => one(run(kind, "cancel", closed(vec![run_id(), subject()]))),
        Kind::RunRevoke => one(run(
            kind,
            "revoke",
            closed(vec![run_id(), must("reason", text(BODY, "it was started twice"))]),
        )),
        Kind::RunAttempt => (None, run_attempts()),
        Kind::Maintenance => {
            let common = |operation: &str| {
                vec![must("operation", literal(operation)), must("targetInstanceId", lifecycle("i"))]
            };
            let mut evict = common("evict-family-principal");
            let principals =
                text(BODY, "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.manager_goal_iiiiiiiiiiiiiiiiiiiiiiiiii");
            evict.push(must("principals", list(principals, 1, cotal_wire::delivery_admin::MAX_PRINCIPALS)));
            (
                Some("operation"),
                vec![
                    ("evict-family-principal", request(kind, evict)),
                    ("reconcile-registration", request(kind, common("reconcile-registration"))),
                ],
            )
        }
        Kind::DelegatedIntent => (None, delegated_intents()),
        Kind::DelegatedIntentExecution => {
            let execution = |operation: &'static str, target: Shape| {
                let execute = closed(vec![must("operation", literal(operation)), must("target", target)]);
                let own = vec![
                    proof(),
                    account(),
                    must("assignmentRevision", number(0)),
                    serve_epoch(),
                    must("intentId", lifecycle("n")),
                    must("execute", execute),
                ];
                (operation, request(kind, own))
            };
            let launch = closed(vec![
                must("actor", actor("scout")),
                must("tokenHash", matching("^[0-9a-f]{64}$", "0".repeat(64))),
            ]);
            (None, vec![execution("launch", launch), execution("retire", incarnation())])
        }
    }
}

fn run_attempts() -> Vec<(&'static str, Shape)> {
    let takeover = || must("takeoverId", matching("^[A-Za-z0-9_-]{1,64}$", "t1"));
    let served = || text(1024, "cotal.main.ep.v1.one.manager.run-answer");
    let attempt = closed(vec![
        run_id(),
        takeover(),
        must("epoch", number(1)),
        must("fencingToken", number(1)),
        must("driverId", user("F")),
        must("mediatorId", user("G")),
        may("served", served()),
    ]);
    let answers = closed(vec![
        run_id(),
        must("stepKey", text(1024, "step-1")),
        may("amend", Shape::of(truth(), json!(true))),
    ]);
    let id = || must("id", user("F"));
    let mut run = run_id();
    run.required = false;
    let operate = closed(vec![id(), takeover(), run]);
    let answer = closed(vec![id(), takeover(), must("answers", answers), may("served", served())]);
    let kind = Kind::RunAttempt;
    vec![
        ("attempt", self::run(kind, "attempt", attempt)),
        ("operator", self::run(kind, "operator", operate)),
        ("answer", self::run(kind, "operator", answer)),
    ]
}

/// Only `true`.
fn truth() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true]))
}

fn delegated_intents() -> Vec<(&'static str, Shape)> {
    let intent = |operation: &'static str, target: Shape| {
        let members = vec![
            must(
                "v",
                Shape::of(ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([1])), json!(1)),
            ),
            must("kind", literal(Kind::DelegatedIntent.as_str())),
            must("space", text(BODY, "main")),
            must("actor", actor("cli")),
            account(),
            must("instanceId", lifecycle("i")),
            must("requestId", matching(REQUEST_ID, "r".repeat(22))),
            must("intent", closed(vec![must("operation", literal(operation)), must("target", target)])),
        ];
        (operation, closed(members))
    };
    vec![intent("launch", enrollment_target(false)), intent("retire", incarnation())]
}
