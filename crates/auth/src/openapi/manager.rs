//! The requests of `POST /manager-service-authority` in the OpenAPI document: a union that `kind` tells apart.
//!
//! Each kind is written down once, as members with a schema and a sample. The document is built from the schemas; the tests
//! hand the samples to the parsers, so that a schema which promises another request than the parser takes does not pass.

use std::borrow::Cow;

use cotal_wire::{
    LifecycleUid, OpId,
    manager_authority::{
        Epoch, Gate, Kind, MAX_ARTIFACTS, MAX_LABEL, MAX_LIST, Operation, Proof, Rule, Scope, StandingRole,
        Stock,
    },
    time::MAX_SAFE_INTEGER,
};
use serde_json::{Map, Value, json};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Ref, RefOr, Schema,
        schema::{AdditionalProperties, ArrayBuilder, Discriminator, ObjectBuilder, OneOfBuilder, Type},
    },
};

const LIFECYCLE: &str = "^[a-z0-9]{26,32}$";
const ACTOR: &str = "^[A-Za-z0-9_]+$";
const OWNER: &str = "^u_[a-z2-7]{26}$";
const REQUEST_ID: &str = "^[A-Za-z0-9_-]{22,64}$";
const DIGEST: &str = "^sha256:[0-9a-f]{64}$";
const USER: &str = "^U[A-Z2-7]{55}$";
const ACCOUNT: &str = "^A[A-Z2-7]{55}$";
const RUN_ID: &str = "^run-[0-9a-f]{32}$";
/// Most characters of a request in the route's body: what it is bounded by.
const BODY: usize = super::super::http::body::BODY_MAX;

/// Any request of the route.
pub(crate) struct ManagerRequest;

/// A request about a managed agent: what the verification door takes.
pub(crate) struct ManagedAgentRequest;

/// The result of a request. Each kind has its own; these members are in all of them, or in those of the manager's own
/// lifecycle.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the answer")]
pub(crate) struct ManagerResult {
    /// 1.
    v: u64,
    /// The kind that was asked for.
    kind: String,
    /// As asked.
    request_id: String,
    /// As asked.
    operation: Option<String>,
    /// As asked.
    space: Option<String>,
    /// Derived from the proof.
    owner: Option<String>,
    /// As asked.
    actor: Option<String>,
    /// As asked.
    instance_id: Option<String>,
    /// When it was issued, in milliseconds since 1970.
    issued_at: Option<u64>,
    /// When the first of its credentials expires, in milliseconds since 1970.
    expires_at: Option<u64>,
    /// The credentials, each `{ "jwt", "exp" }`; one that is absent is no authority. No seed is ever among them.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
}

impl PartialSchema for ManagerRequest {
    fn schema() -> RefOr<Schema> {
        union(Some("kind"), &Kind::ALL.map(|kind| (kind.as_str(), component(kind))))
    }
}

impl ToSchema for ManagerRequest {
    fn name() -> Cow<'static, str> {
        "ManagerRequest".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.extend(Kind::ALL.into_iter().flat_map(components).chain(shared()));
    }
}

const MANAGED_AGENTS: [Kind; 4] =
    [Kind::Enrollment, Kind::PrepareRetirement, Kind::RuntimeCreate, Kind::RuntimeStatus];

impl PartialSchema for ManagedAgentRequest {
    fn schema() -> RefOr<Schema> {
        union(Some("kind"), &MANAGED_AGENTS.map(|kind| (kind.as_str(), component(kind))))
    }
}

impl ToSchema for ManagedAgentRequest {
    fn name() -> Cow<'static, str> {
        "ManagedAgentRequest".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.extend(MANAGED_AGENTS.into_iter().flat_map(components).chain(shared()));
    }
}

/// `manager-goal-index-scan` is the component `ManagerGoalIndexScan`.
fn component(kind: Kind) -> String {
    camel(kind.as_str())
}

fn camel(name: &str) -> String {
    name.split('-').map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// One of these components; `property` tells them apart, if one member does.
fn union(property: Option<&str>, variants: &[(&str, String)]) -> RefOr<Schema> {
    let discriminator = property.map(|property| {
        let mapping =
            variants.iter().map(|(name, of)| ((*name).to_owned(), format!("#/components/schemas/{of}")));
        Discriminator::with_mapping(property, mapping.collect::<Vec<_>>())
    });
    let one_of =
        variants.iter().fold(OneOfBuilder::new(), |one_of, (_, of)| one_of.item(Ref::from_schema_name(of)));
    one_of.discriminator(discriminator).into()
}

/// The components of a kind: one, or one for each of its variants and their union.
fn components(kind: Kind) -> Vec<(String, RefOr<Schema>)> {
    let name = component(kind);
    let (told_by, variants) = variants(kind);
    if let [(_, rule, shape)] = &variants[..] {
        return vec![(name, described(shape.clone(), *rule))];
    }
    let of = |variant: &str| name.clone() + &camel(variant);
    let told: Vec<_> = variants.iter().map(|(variant, ..)| (*variant, of(variant))).collect();
    let union = union(told_by, &told);
    let each = variants.into_iter().map(|(variant, rule, shape)| (of(variant), described(shape, rule)));
    each.chain([(name.clone(), union)]).collect()
}

/// What a request stands on, in words: the document's descriptions and the book's table say it with the same ones.
pub(crate) fn words(rule: Rule) -> [&'static str; 5] {
    let scope = match rule.scope {
        Scope::None => "none",
        Scope::Supervise => "`supervise`",
        Scope::Spawn => "`spawn`",
        Scope::RunOwnerOrAdmin => "the run's owner, or `admin`",
    };
    let epoch = match rule.epoch {
        None => "-",
        Some(Epoch::ServeEpoch) => "`serveEpoch`",
        Some(Epoch::ProcessEpoch) => "`processEpoch`",
        Some(Epoch::RetirementServeEpoch) => "`retirement.serveEpoch`",
    };
    let proof = match rule.proof {
        Proof::None => "none",
        Proof::ArtifactsOfTheRequest => "unkeyed, with artifacts",
        Proof::Artifactless => "unkeyed",
        Proof::CurrentRegistration => "keyed",
    };
    let gate = match rule.gate {
        Gate::AbsentOrOwn => "absent, or its own",
        Gate::NotRead => "not read",
        Gate::Open => "open",
        Gate::OpenAndReadAgain => "open, and read again",
        Gate::NotRetired => "not retired",
        Gate::OpenToLaunch => "open to launch",
    };
    let stock = match rule.stock {
        Stock::Serves => "serves",
        Stock::DecidesAtTheVerifyDoor => "refuses; decides at the verification door",
        Stock::Unimplemented => "refuses",
    };
    [scope, epoch, proof, gate, stock]
}

fn described(shape: Shape, rule: Rule) -> RefOr<Schema> {
    let [scope, epoch, proof, gate, stock] = words(rule);
    let text = format!("Scope: {scope}. Epoch: {epoch}. Proof: {proof}. Gate: {gate}. This service {stock}.");
    match shape.schema {
        RefOr::T(Schema::Object(mut object)) => {
            object.description = Some(text);
            RefOr::T(Schema::Object(object))
        }
        schema => schema,
    }
}

/// A schema, a value that it admits with everything optional left out, and one with all of it.
#[derive(Clone)]
struct Shape {
    schema: RefOr<Schema>,
    least: Value,
    full: Value,
}

impl Shape {
    fn of(schema: impl Into<RefOr<Schema>>, sample: Value) -> Self {
        Self { schema: schema.into(), full: sample.clone(), least: sample }
    }
}

struct Member {
    name: &'static str,
    shape: Shape,
    required: bool,
}

fn must(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, required: true }
}

fn may(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, required: false }
}

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn matching(pattern: &str, sample: impl Into<String>) -> Shape {
    Shape::of(string().pattern(Some(pattern)), Value::String(sample.into()))
}

fn text(most: usize, sample: &str) -> Shape {
    Shape::of(string().min_length(Some(1)).max_length(Some(most)), json!(sample))
}

fn literal(value: &str) -> Shape {
    Shape::of(string().enum_values(Some([value])), json!(value))
}

fn number(least: u64) -> Shape {
    let schema =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(MAX_SAFE_INTEGER));
    Shape::of(schema, json!(least))
}

fn list(item: Shape, least: usize, most: usize) -> Shape {
    let schema =
        ArrayBuilder::new().items(item.schema).min_items((least > 0).then_some(least)).max_items(Some(most));
    Shape { schema: schema.into(), least: json!([item.least]), full: json!([item.full]) }
}

/// A closed object.
fn closed(members: Vec<Member>) -> Shape {
    let mut schema =
        ObjectBuilder::new().additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    let (mut least, mut full) = (Map::new(), Map::new());
    for Member { name, shape, required } in members {
        schema = schema.property(name, shape.schema);
        full.insert(name.to_owned(), shape.full);
        if required {
            schema = schema.required(name);
            least.insert(name.to_owned(), shape.least);
        }
    }
    Shape { schema: schema.into(), least: Value::Object(least), full: Value::Object(full) }
}

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
fn shared() -> [(String, RefOr<Schema>); 3] {
    [(IDENTITIES, standing_keys()), (INCARNATION, agent()), (TARGET, enrollment_target(true))]
        .map(|(name, shape)| (name.to_owned(), shape.schema))
}

/// The shape, told by its name.
fn by_name(name: &str, shape: Shape) -> Shape {
    Shape { schema: Ref::from_schema_name(name).into(), ..shape }
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
fn variants(kind: Kind) -> (Option<&'static str>, Vec<(&'static str, Rule, Shape)>) {
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use cotal_wire::{
        EpCode, EpError,
        es_value::EsValue,
        manager_authority::{
            AdminRequest, EnrollmentRequest, ExecutionRequest, GoalIndexRequest, HolderKind, IntentRequest,
            MaintenanceRequest, PrepareRetirementRequest, RetainedAgentRequest, RunAdmissionRequest,
            RunAttemptRequest, RunCancelRequest, RunRevokeRequest, RunSubmissionRequest, RuntimeRequest,
            ServiceRequest,
        },
    };

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
        let operations =
            Operation::ALL.into_iter().map(|operation| row(operation.as_str(), operation.rule()));
        let missing: Vec<String> =
            kinds.chain(operations).filter(|row| !book.contains(row.as_str())).collect();
        assert!(
            missing.is_empty(),
            "docs/src/manager-authority.md lacks these rows:\n{}",
            missing.join("\n")
        );
    }
}
