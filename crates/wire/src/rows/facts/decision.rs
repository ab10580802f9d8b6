//! Decision facts `dec.<caller>.<id>`: accepted or rejected (contract 02 §5, 07 §14).

use serde::Serialize;
use serde_json::{Value, json};

use super::{CallerWire, check_caller, check_version, object, target_of};
use crate::{
    acceptance::Acceptance,
    canonical::canonical_json,
    endpoint_subject::TargetTriple,
    endpoint_token::{Command, DigestRef, EndpointToken, IdToken},
    envelope::{CallClass, EndpointRequest, ReplyCode},
    error::{EpCode, EpError},
    rows::{
        closed::{Closed, compact},
        obligation::{FactWork, Route},
    },
    time::UnixMillis,
};

const WHAT: &str = "decision fact";
/// Longest `error.detail`, in bytes of UTF-8.
pub const MAX_REJECTION_DETAIL: usize = 256;

/// What was decided about a submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It is to be carried out.
    Accepted(Box<AcceptedFact>),
    /// It is not.
    Rejected(RejectedFact),
}

/// An acceptance: the sole authority of what is carried out.
#[derive(Clone, PartialEq)]
pub struct AcceptedFact {
    /// Whose submission.
    pub acceptance: Acceptance,
    /// The submission's fingerprint.
    pub fingerprint: DigestRef,
    /// The submission's sequence in the journal, at least 1.
    pub source_seq: u64,
    /// Where it goes.
    pub route: Route,
    /// The incarnation that it acts on.
    pub target: Option<TargetTriple>,
    /// The goal that it drives, for an action.
    pub goal_id: Option<IdToken>,
    /// When a pool item is dead, leased or not; present exactly for a pool.
    pub work_expiry: Option<UnixMillis>,
    /// The request, as accepted.
    request: Value,
}

/// A rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedFact {
    /// The submission's fingerprint.
    pub fingerprint: DigestRef,
    /// The submission's sequence in the journal, at least 1.
    pub source_seq: u64,
}

/// A rejection to be written: what the drain settles a provisional obligation with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection<'a> {
    /// Whose submission.
    pub acceptance: &'a Acceptance,
    /// What the obligation says about it.
    pub work: &'a FactWork,
    /// Why, for a person; cut to [`MAX_REJECTION_DETAIL`].
    pub detail: &'a str,
    /// When.
    pub ts: UnixMillis,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RejectionWire<'a> {
    v: u64,
    id: &'a IdToken,
    decision: &'static str,
    fingerprint: DigestRef,
    error: ErrorWire<'a>,
    caller: CallerWire<'a>,
    source_seq: u64,
    ts: UnixMillis,
}

#[derive(Serialize)]
struct ErrorWire<'a> {
    code: EpCode,
    detail: &'a str,
}

// === impl Decision ===

impl Decision {
    /// Reads the decision about this submission to this endpoint.
    pub fn parse(endpoint: &EndpointToken, acceptance: &Acceptance, bytes: &[u8]) -> Result<Self, EpError> {
        const ACCEPTED: [&str; 14] = [
            "v",
            "id",
            "decision",
            "fingerprint",
            "request",
            "caller",
            "target",
            "contractDigests",
            "authzDecision",
            "route",
            "readinessDeadlineMs",
            "workExpiry",
            "sourceSeq",
            "ts",
        ];
        const REJECTED: [&str; 9] =
            ["v", "id", "decision", "fingerprint", "error", "caller", "authzDecision", "sourceSeq", "ts"];
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal(format!("a stored {WHAT} is not valid JSON")))?;
        let rejected = value.get("decision").and_then(Value::as_str) == Some("rejected");
        let fact = Closed::of(WHAT, value, if rejected { &REJECTED } else { &ACCEPTED })?;
        check_version(&fact)?;
        if fact.text("id")? != acceptance.id.as_str() {
            return Err(fact.garbled("it names another id than its subject"));
        }
        let fingerprint: DigestRef = fact.token("fingerprint")?;
        let source_seq = fact.positive("sourceSeq")?;
        fact.uint("ts")?;
        check_caller(&fact, &acceptance.caller)?;
        if fact.has("authzDecision") {
            let authz = object(&fact, "fact authzDecision", "authzDecision", &["revision", "epoch"])?;
            authz.uint("revision")?;
            authz.uint("epoch")?;
        }
        if rejected {
            check_error(&fact)?;
            return Ok(Self::Rejected(RejectedFact { fingerprint, source_seq }));
        }
        if fact.text("decision")? != "accepted" {
            return Err(fact.garbled("it is neither accepted nor rejected"));
        }
        if !fact.has("authzDecision") {
            return Err(fact.garbled("an acceptance carries its authzDecision"));
        }
        let stored = fact.value("request").cloned().unwrap_or(Value::Null);
        let request = check_request(&fact, &stored, endpoint, acceptance)?;
        let target = check_target(&fact, &request)?;
        check_digests(&fact, &request)?;
        let route: Route = fact.token("route")?;
        fact.optional("readinessDeadlineMs", Closed::uint)?;
        let work_expiry = fact.optional("workExpiry", Closed::positive)?.map(UnixMillis);
        if route.as_pool()?.is_some() != work_expiry.is_some() {
            return Err(fact.garbled("it carries a workExpiry exactly when its route is a pool"));
        }
        Ok(Self::Accepted(Box::new(AcceptedFact {
            acceptance: acceptance.clone(),
            fingerprint,
            source_seq,
            route,
            target,
            goal_id: request.goal_id,
            work_expiry,
            request: stored,
        })))
    }

    /// The submission's fingerprint.
    pub fn fingerprint(&self) -> &DigestRef {
        match self {
            Self::Accepted(fact) => &fact.fingerprint,
            Self::Rejected(fact) => &fact.fingerprint,
        }
    }

    /// The submission's sequence.
    pub fn source_seq(&self) -> u64 {
        match self {
            Self::Accepted(fact) => fact.source_seq,
            Self::Rejected(fact) => fact.source_seq,
        }
    }
}

fn check_error(fact: &Closed) -> Result<(), EpError> {
    let error = object(fact, "fact error", "error", &["code", "detail"])?;
    if ReplyCode::parse(error.text("code")?).is_none() {
        return Err(error.garbled("its code is neither of the catalog nor reverse-DNS"));
    }
    match error.optional("detail", Closed::text)? {
        Some(detail) if detail.len() > MAX_REJECTION_DETAIL => {
            Err(error.garbled("its detail is longer than 256 bytes"))
        }
        _ => Ok(()),
    }
}

/// The accepted request must be a whole request of this very submission.
fn check_request(
    fact: &Closed,
    stored: &Value,
    endpoint: &EndpointToken,
    acceptance: &Acceptance,
) -> Result<EndpointRequest, EpError> {
    let request = EndpointRequest::parse(&compact(stored))
        .map_err(|error| fact.garbled(&format!("its request is none: {}", error.message)))?;
    let (class, id) = (request.class, &request.id);
    if class != CallClass::Journal {
        return Err(fact.garbled("its request is not of the journal class"));
    }
    if *id != acceptance.id {
        return Err(fact.garbled("its request has another id"));
    }
    if request.op.endpoint.token() != *endpoint {
        return Err(fact.garbled("its request is to another endpoint"));
    }
    if request.from.id != acceptance.caller.principal.key() {
        return Err(fact.garbled("its request is from another caller"));
    }
    Ok(request)
}

fn check_target(fact: &Closed, request: &EndpointRequest) -> Result<Option<TargetTriple>, EpError> {
    let Some(asked) = &request.target else {
        return if fact.has("target") { Err(fact.garbled("its request has no target")) } else { Ok(None) };
    };
    let target =
        object(fact, "fact target", "target", &["owner", "actor", "lifecycleUid", "mappingRevision"])?;
    let triple = target_of(&target)?;
    let revision = target.optional("mappingRevision", Closed::uint)?;
    if triple != asked.triple || (asked.mapping_revision.is_some() && revision != asked.mapping_revision) {
        return Err(fact.garbled("its target is not its request's"));
    }
    Ok(Some(triple))
}

fn check_digests(fact: &Closed, request: &EndpointRequest) -> Result<(), EpError> {
    let digests = object(fact, "fact contractDigests", "contractDigests", &["input", "output"])?;
    for (member, asked) in [("input", &request.op.input_digest), ("output", &request.op.output_digest)] {
        let digest: DigestRef = digests.token(member)?;
        if asked.as_ref().is_some_and(|asked| *asked != digest) {
            return Err(fact.garbled("its contract digests are not its request's"));
        }
    }
    Ok(())
}

// === impl AcceptedFact ===

impl AcceptedFact {
    /// The pool that it goes to and when its item is dead.
    pub fn pool(&self) -> Option<(Command, UnixMillis)> {
        self.route.as_pool().ok().flatten().zip(self.work_expiry)
    }

    /// The stored bytes of its pool item: canonical JSON of the work's identity and input, and of no lease
    /// (contract 02 §5). `None` when it goes to no pool.
    pub fn item_bytes(&self) -> Option<Vec<u8>> {
        let item = json!({
            "v": 1,
            "id": self.acceptance.id,
            "fingerprint": self.fingerprint,
            "sourceSeq": self.source_seq,
            "workExpiry": self.work_expiry?,
            "caller": CallerWire::of(&self.acceptance.caller),
            "request": self.request,
        });
        canonical_json(&item).ok().map(String::into_bytes)
    }
}

impl std::fmt::Debug for AcceptedFact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The request may carry secrets.
        f.debug_struct("AcceptedFact")
            .field("acceptance", &self.acceptance)
            .field("fingerprint", &self.fingerprint)
            .field("source_seq", &self.source_seq)
            .field("route", &self.route)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

// === impl Rejection ===

impl Rejection<'_> {
    /// The fact's exact bytes. `internal` when the obligation holds what no fact may: it is never decided by a guess.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EpError> {
        let fingerprint = DigestRef::parse(&self.work.fingerprint)
            .map_err(|error| EpError::internal(format!("a stored obligation's fingerprint is {error}")))?;
        if self.work.source_seq == 0 {
            return Err(EpError::internal("a stored obligation's sourceSeq is 0, which no submission has"));
        }
        Ok(compact(&RejectionWire {
            v: 1,
            id: &self.acceptance.id,
            decision: "rejected",
            fingerprint,
            error: ErrorWire { code: EpCode::FailedPrecondition, detail: cut(self.detail) },
            caller: CallerWire::of(&self.acceptance.caller),
            source_seq: self.work.source_seq,
            ts: self.ts,
        }))
    }
}

/// The longest prefix of whole characters within the limit.
fn cut(detail: &str) -> &str {
    let ends = detail.char_indices().map(|(at, c)| at + c.len_utf8());
    &detail[..ends.take_while(|end| *end <= MAX_REJECTION_DETAIL).last().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::{VOID_CLOSURE_DIGEST, is_canonical};

    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const TARGET: &str = "tttttttttttttttttttttttttt";
    const FP: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn endpoint() -> EndpointToken {
        EndpointToken::parse("com_x").unwrap()
    }

    fn acceptance() -> Acceptance {
        Acceptance::of_tokens(["local", "alice", UID, "r1"]).unwrap()
    }

    fn work() -> FactWork {
        FactWork { fingerprint: FP.to_owned(), source_seq: 7, route: Route::Effects }
    }

    fn accepted(route: &str) -> Value {
        let mut fact = json!({
            "v": 1,
            "id": "r1",
            "decision": "accepted",
            "fingerprint": FP,
            "request": {
                "v": 1,
                "id": "r1",
                "op": {
                    "endpoint": "com.x", "command": "build",
                    "inputDigest": VOID_CLOSURE_DIGEST, "outputDigest": VOID_CLOSURE_DIGEST,
                },
                "class": "journal",
                "replyExpected": false,
                "deadlineMs": 1000,
                "goalId": "g1",
                "target": { "owner": "local", "actor": "bob", "lifecycleUid": TARGET, "mappingRevision": 3 },
                "args": { "n": 1 },
                "from": { "id": "local.alice", "name": "Alice" },
            },
            "caller": { "id": "local.alice", "lifecycleUid": UID },
            "target": { "owner": "local", "actor": "bob", "lifecycleUid": TARGET, "mappingRevision": 3 },
            "contractDigests": { "input": VOID_CLOSURE_DIGEST, "output": VOID_CLOSURE_DIGEST },
            "authzDecision": { "revision": 1, "epoch": 2 },
            "route": route,
            "sourceSeq": 7,
            "ts": 9,
        });
        if route.starts_with("pool.") {
            fact["workExpiry"] = json!(1000);
        }
        fact
    }

    fn parse(fact: &Value) -> Result<Decision, EpError> {
        Decision::parse(&endpoint(), &acceptance(), fact.to_string().as_bytes())
    }

    fn with(mut fact: Value, pointer: &str, value: Value) -> Value {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = fact.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value == json!("<gone>") {
            parent.remove(member);
        } else {
            parent.insert(member.to_owned(), value);
        }
        fact
    }

    #[test]
    fn an_acceptance_says_where_its_work_goes() {
        let Decision::Accepted(fact) = parse(&accepted("pool.builds")).unwrap() else { panic!("rejected") };
        assert_eq!(fact.pool(), Some((Command::parse("builds").unwrap(), UnixMillis(1000))));
        assert_eq!(fact.target.as_ref().unwrap().lifecycle_uid.as_str(), TARGET);
        assert_eq!(fact.goal_id.as_ref().unwrap().as_str(), "g1");
        let item = fact.item_bytes().unwrap();
        assert!(is_canonical(&item));
        let item: Value = serde_json::from_slice(&item).unwrap();
        assert_eq!(
            item.as_object().unwrap().keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            ["caller", "fingerprint", "id", "request", "sourceSeq", "v", "workExpiry"].into()
        );
        assert_eq!(item["request"], accepted("pool.builds")["request"]);
        assert!(!format!("{fact:?}").contains("args"));
        let Decision::Accepted(fact) = parse(&accepted("effects")).unwrap() else { panic!("rejected") };
        assert_eq!((fact.pool(), fact.item_bytes()), (None, None));
    }

    #[test]
    fn a_rejection_has_these_bytes_and_reads_back() {
        let rejection =
            Rejection { acceptance: &acceptance(), work: &work(), detail: "why", ts: UnixMillis(9) };
        let bytes = rejection.to_bytes().unwrap();
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            format!(
                "{{\"v\":1,\"id\":\"r1\",\"decision\":\"rejected\",\"fingerprint\":\"{FP}\",\"error\":{{\"code\":\
                 \"failed-precondition\",\"detail\":\"why\"}},\"caller\":{{\"id\":\"local.alice\",\
                 \"lifecycleUid\":\"{UID}\"}},\"sourceSeq\":7,\"ts\":9}}"
            )
        );
        let Decision::Rejected(fact) = Decision::parse(&endpoint(), &acceptance(), &bytes).unwrap() else {
            panic!("accepted")
        };
        assert_eq!((fact.fingerprint.as_str(), fact.source_seq), (FP, 7));
    }

    #[test]
    fn a_detail_is_cut_to_its_bytes_between_characters() {
        for (detail, kept) in [("a".repeat(256), 256), ("a".repeat(300), 256), ("é".repeat(200), 256)] {
            assert_eq!(cut(&detail).len(), kept);
        }
        assert_eq!(cut(&format!("a{}", "é".repeat(200))).len(), 255);
        let detail = "\"€".repeat(200);
        let rejection =
            Rejection { acceptance: &acceptance(), work: &work(), detail: &detail, ts: UnixMillis(0) };
        assert!(Decision::parse(&endpoint(), &acceptance(), &rejection.to_bytes().unwrap()).is_ok());
    }

    #[test]
    fn an_obligation_that_no_fact_may_repeat_is_not_rejected_by_a_guess() {
        for work in [FactWork { fingerprint: "x".to_owned(), ..work() }, FactWork { source_seq: 0, ..work() }]
        {
            let rejection =
                Rejection { acceptance: &acceptance(), work: &work, detail: "", ts: UnixMillis(0) };
            assert_eq!(rejection.to_bytes().unwrap_err().code, EpCode::Internal);
        }
    }

    #[test]
    fn a_garbled_decision_is_internal() {
        let a = || accepted("effects");
        let rejected = || {
            json!({
                "v": 1, "id": "r1", "decision": "rejected", "fingerprint": FP,
                "error": { "code": "conflict", "detail": "d" },
                "caller": { "id": "local.alice", "lifecycleUid": UID }, "sourceSeq": 7, "ts": 9,
            })
        };
        assert!(parse(&rejected()).is_ok());
        let gone = || json!("<gone>");
        for bad in [
            json!([]),
            with(a(), "/v", json!(2)),
            with(a(), "/id", json!("r2")),
            with(a(), "/decision", json!("maybe")),
            with(a(), "/fingerprint", json!("x")),
            with(a(), "/sourceSeq", json!(0)),
            with(a(), "/ts", json!(-1)),
            with(a(), "/more", json!(1)),
            with(a(), "/caller/id", json!("local.bob")),
            with(a(), "/caller/lifecycleUid", json!(TARGET)),
            with(a(), "/caller/more", json!(1)),
            with(a(), "/request", gone()),
            with(a(), "/request/id", json!("r2")),
            with(a(), "/request/op/endpoint", json!("com.y")),
            with(a(), "/request/from/id", json!("local.bob")),
            with(with(a(), "/request/class", json!("ephemeral")), "/request/goalId", gone()),
            with(a(), "/request/target", gone()),
            with(a(), "/target", gone()),
            with(a(), "/target/actor", json!("carol")),
            with(a(), "/target/mappingRevision", json!(4)),
            with(a(), "/target/more", json!(4)),
            with(a(), "/contractDigests/input", json!(FP)),
            with(a(), "/contractDigests/output", gone()),
            with(a(), "/authzDecision", gone()),
            with(a(), "/authzDecision/epoch", json!("2")),
            with(a(), "/route", json!("pool.builds")),
            with(a(), "/route", json!("pool.a_b")),
            with(a(), "/workExpiry", json!(5)),
            with(accepted("pool.builds"), "/workExpiry", json!(0)),
            with(a(), "/readinessDeadlineMs", json!(null)),
            with(a(), "/error", json!({ "code": "conflict" })),
            with(rejected(), "/error/code", json!("nope")),
            with(rejected(), "/error/detail", json!("d".repeat(257))),
            with(rejected(), "/error", gone()),
            with(rejected(), "/route", json!("effects")),
            with(rejected(), "/caller", gone()),
        ] {
            assert_eq!(parse(&bad).unwrap_err().code, EpCode::Internal, "{bad}");
        }
        assert!(Decision::parse(&endpoint(), &acceptance(), b"{").is_err());
    }
}
