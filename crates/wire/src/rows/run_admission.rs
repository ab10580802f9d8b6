//! Run admissions, revocations and submissions: rows of the admission bucket (contract 03 §M, 10 §3.5).
//!
//! None of them ever changes: each key is created once. Every row is canonical JSON, and one that is not its own canonical
//! form is garbled.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    closed::Closed,
    issued::{IssuedAuthorityRef, canonical_bytes, canonical_or_garbled, versioned},
    issued_permissions::IssuedPermissions,
};
use crate::{
    endpoint_subject::EndpointCaller,
    endpoint_token::EndpointToken,
    error::EpError,
    manager_authority::{RunId, SubmissionId},
    names,
    time::{Revision, UnixMillis},
    token::{Actor, InstanceId, Owner, Principal, Sha256Hex, SpaceToken},
};

const ADMISSION: &str = "run admission";
const REVOCATION: &str = "run revocation";
const SUBMISSION: &str = "run submission";
const VERSION: u64 = 1;

/// By what right a run was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunProvenance {
    /// The caller's authority was issued, and resolved at this revision of its attempt.
    Issued {
        /// The issuance.
        authority: IssuedAuthorityRef,
        /// The attempt's revision, at least 1.
        resolved: Revision,
    },
    /// An operator of this machine said so.
    Operator {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
}

/// Who may run what, where, and under which ceiling. Only [`Self::issued`] and [`Self::parse`] build one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAdmission {
    space: SpaceToken,
    endpoint: EndpointToken,
    run: RunId,
    instance: InstanceId,
    caller: EndpointCaller,
    ceiling: IssuedPermissions,
    provenance: RunProvenance,
    admitted_at: UnixMillis,
}

/// The marker that ends a run for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRevocation {
    /// The run.
    pub run: RunId,
    /// Who revoked it: `<owner>.<actor>`.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub revoked_at: UnixMillis,
}

/// The one run that a submission id stands for (contract 10 §3.5). Private.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSubmissionRow {
    /// The space.
    pub space: SpaceToken,
    /// The endpoint that runs it.
    pub endpoint: EndpointToken,
    /// The id.
    pub submission: SubmissionId,
    /// Whose it is: an id is one owner's.
    pub owner: Owner,
    /// The run.
    pub run: RunId,
    /// The manager instance that runs it.
    pub instance: InstanceId,
    /// When it was submitted first.
    pub created_at: UnixMillis,
}

// === impl RunAdmission ===

impl RunAdmission {
    /// The admission of a caller whose authority was issued: what it may do is the issuance's ceiling, word for word.
    pub fn issued(
        endpoint: &EndpointToken,
        run: &RunId,
        instance: &InstanceId,
        (authority, resolved): (IssuedAuthorityRef, Revision),
        ceiling: IssuedPermissions,
        admitted_at: UnixMillis,
    ) -> Self {
        let caller = EndpointCaller {
            principal: authority.principal.clone(),
            lifecycle_uid: authority.uid.clone(),
            generation: Some(authority.generation.clone()),
        };
        Self {
            space: authority.space.clone(),
            endpoint: endpoint.clone(),
            run: run.clone(),
            instance: instance.clone(),
            caller,
            ceiling,
            provenance: RunProvenance::Issued { authority, resolved },
            admitted_at,
        }
    }

    /// The same admission, of another run.
    #[must_use]
    pub fn of_run(&self, run: &RunId) -> Self {
        Self { run: run.clone(), ..self.clone() }
    }

    /// The space.
    pub fn space(&self) -> &SpaceToken {
        &self.space
    }

    /// The endpoint that runs it.
    pub fn endpoint(&self) -> &EndpointToken {
        &self.endpoint
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The instance that runs it.
    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// Who asked for it.
    pub fn caller(&self) -> &EndpointCaller {
        &self.caller
    }

    /// Whose run it is.
    pub fn owner(&self) -> &Owner {
        &self.caller.principal.owner
    }

    /// What it may do.
    pub fn ceiling(&self) -> &IssuedPermissions {
        &self.ceiling
    }

    /// By what right.
    pub fn provenance(&self) -> &RunProvenance {
        &self.provenance
    }

    /// Whether the same issuance was admitted on the same instance: a repeated forward then gets this one back.
    pub fn is_same_admission(&self, authority: &IssuedAuthorityRef, instance: &InstanceId) -> bool {
        self.instance == *instance
            && matches!(&self.provenance, RunProvenance::Issued { authority: of, .. } if of == authority)
    }

    /// The key of this row.
    pub fn key(&self) -> String {
        names::admission_key(&self.endpoint, &self.run)
    }

    /// Reads an admission; whoever reads compares its coordinates with what was asked for.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let parsed = Self::of(&versioned(ADMISSION, bytes, &MEMBERS)?)?;
        if parsed.to_bytes() == bytes { Ok(parsed) } else { Err(not_canonical(ADMISSION)) }
    }

    /// Reads an admission as an answer carries it, where the order of members says nothing.
    pub(crate) fn of_value(value: Value) -> Result<Self, EpError> {
        let row = Closed::of(ADMISSION, value, &MEMBERS)?;
        if row.uint("version")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        Self::of(&row)
    }

    fn of(row: &Closed) -> Result<Self, EpError> {
        let space: SpaceToken = row.token("space")?;
        let caller = read_caller(row.value("caller"))?;
        let provenance = RunProvenance::parse(row.value("provenance"))?;
        if let RunProvenance::Issued { authority, .. } = &provenance {
            let of_caller = authority.is_of(&space, &caller.principal, &caller.lifecycle_uid)
                && caller.generation.as_ref() == Some(&authority.generation);
            if !of_caller {
                return Err(row.garbled("its provenance is of another space or caller"));
            }
        }
        Ok(Self {
            endpoint: row.token("endpoint")?,
            run: row.token("runId")?,
            instance: row.token("instanceId")?,
            ceiling: IssuedPermissions::parse(row.value("ceiling").unwrap_or(&Value::Null))?,
            admitted_at: UnixMillis(row.positive("admittedAt")?),
            space,
            caller,
            provenance,
        })
    }

    /// The row as a value: what an answer carries.
    pub fn to_value(&self) -> Value {
        let caller = &self.caller;
        let mut named = json!({
            "owner": caller.principal.owner, "actor": caller.principal.actor, "uid": caller.lifecycle_uid,
        });
        if let Some(generation) = &caller.generation {
            named["generation"] = json!(generation);
        }
        json!({
            "version": VERSION,
            "space": self.space,
            "endpoint": self.endpoint,
            "runId": self.run,
            "instanceId": self.instance,
            "caller": named,
            "ceiling": self.ceiling.to_value(),
            "provenance": self.provenance.to_value(),
            "admittedAt": self.admitted_at.0,
        })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&self.to_value())
    }
}

const MEMBERS: [&str; 9] =
    ["version", "space", "endpoint", "runId", "instanceId", "caller", "ceiling", "provenance", "admittedAt"];

fn read_caller(value: Option<&Value>) -> Result<EndpointCaller, EpError> {
    let value = value.cloned().unwrap_or_default();
    let caller = Closed::of("run admission's caller", value, &["owner", "actor", "uid", "generation"])?;
    Ok(EndpointCaller {
        principal: Principal::new(caller.token::<Owner>("owner")?, caller.token::<Actor>("actor")?),
        lifecycle_uid: caller.token("uid")?,
        generation: caller.optional("generation", Closed::token)?,
    })
}

impl RunProvenance {
    fn parse(value: Option<&Value>) -> Result<Self, EpError> {
        const WHAT: &str = "run admission's provenance";
        let value = value.cloned().unwrap_or_default();
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "issued" => {
                let row = Closed::of(WHAT, value, &["kind", "ref", "resolvedRevision"])?;
                let authority = IssuedAuthorityRef::parse(row.value("ref"))?;
                Ok(Self::Issued { authority, resolved: Revision(row.positive("resolvedRevision")?) })
            }
            "operator" => {
                let row = Closed::of(WHAT, value, &["kind", "by", "reason"])?;
                let text = |member: &str| row.non_empty(member).map(str::to_owned);
                Ok(Self::Operator { by: text("by")?, reason: text("reason")? })
            }
            _ => Err(EpError::internal(format!("a stored {WHAT} is garbled: its kind is unknown"))),
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Issued { authority, resolved } => {
                json!({ "kind": "issued", "ref": authority.to_value(), "resolvedRevision": resolved.0 })
            }
            Self::Operator { by, reason } => json!({ "kind": "operator", "by": by, "reason": reason }),
        }
    }
}

// === impl RunRevocation ===

impl RunRevocation {
    /// Reads a marker; it must be of this run.
    pub fn parse(run: &RunId, bytes: &[u8]) -> Result<Self, EpError> {
        let row = versioned(REVOCATION, bytes, &REVOCATION_MEMBERS)?;
        let parsed = Self::of(&row)?;
        if parsed.run != *run {
            return Err(row.garbled("it is of another run than its key"));
        }
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    pub(crate) fn of_value(value: Value) -> Result<Self, EpError> {
        let row = Closed::of(REVOCATION, value, &REVOCATION_MEMBERS)?;
        if row.uint("version")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        Self::of(&row)
    }

    fn of(row: &Closed) -> Result<Self, EpError> {
        Ok(Self {
            run: row.token("runId")?,
            by: row.non_empty("by")?.to_owned(),
            reason: row.non_empty("reason")?.to_owned(),
            revoked_at: UnixMillis(row.positive("revokedAt")?),
        })
    }

    /// The row as a value: what an answer carries.
    pub fn to_value(&self) -> Value {
        json!({
            "version": VERSION, "runId": self.run, "by": self.by, "reason": self.reason,
            "revokedAt": self.revoked_at.0,
        })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&self.to_value())
    }

    /// The key of the marker on an endpoint.
    pub fn key(&self, endpoint: &EndpointToken) -> String {
        names::revocation_key(endpoint, &self.run)
    }
}

const REVOCATION_MEMBERS: [&str; 5] = ["version", "runId", "by", "reason", "revokedAt"];

// === impl RunSubmissionRow ===

impl RunSubmissionRow {
    /// What names an owner's submission in a key: the digest of the canonical `[owner, submissionId]`.
    pub fn digest_of(owner: &Owner, submission: &SubmissionId) -> Sha256Hex {
        Sha256Hex::of_digest(&Sha256::digest(canonical_bytes(&json!([owner, submission]))).into())
    }

    /// The key of this row.
    pub fn key(&self) -> String {
        names::submission_key(&self.endpoint, &Self::digest_of(&self.owner, &self.submission))
    }

    /// Reads the row stored under `key`, which is the key of exactly this owner and id.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        let members =
            ["version", "space", "endpoint", "submissionId", "owner", "runId", "instanceId", "createdAt"];
        let row = versioned(SUBMISSION, bytes, &members)?;
        let parsed = Self {
            space: row.token("space")?,
            endpoint: row.token("endpoint")?,
            submission: row.token("submissionId")?,
            owner: row.token("owner")?,
            run: row.token("runId")?,
            instance: row.token("instanceId")?,
            created_at: UnixMillis(row.positive("createdAt")?),
        };
        if parsed.key() != key {
            return Err(row.garbled("it is of another owner or id than its key"));
        }
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&json!({
            "version": VERSION, "space": self.space, "endpoint": self.endpoint, "submissionId": self.submission,
            "owner": self.owner, "runId": self.run, "instanceId": self.instance, "createdAt": self.created_at.0,
        }))
    }
}

fn not_canonical(what: &str) -> EpError {
    EpError::internal(format!("a stored {what} is garbled: it is not in its canonical form"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EpCode, endpoint_token::Generation, grants::Permissions, grants::Rules, token::LifecycleUid,
    };

    fn authority() -> IssuedAuthorityRef {
        IssuedAuthorityRef {
            space: SpaceToken::parse("main").unwrap(),
            principal: Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice").unwrap(),
            uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
            generation: Generation::parse(&"0".repeat(32)).unwrap(),
        }
    }

    fn run() -> RunId {
        RunId::parse(&format!("run-{}", "a".repeat(32))).unwrap()
    }

    fn instance() -> InstanceId {
        InstanceId::parse(&"i".repeat(26)).unwrap()
    }

    fn manager() -> EndpointToken {
        EndpointToken::parse("manager").unwrap()
    }

    fn admission() -> RunAdmission {
        let grants = Permissions {
            publish: Rules { allow: vec!["a.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec!["_INBOX_x.>".into()], deny: vec![] },
        };
        let ceiling = IssuedPermissions::of_grants(&grants).unwrap();
        RunAdmission::issued(
            &manager(),
            &run(),
            &instance(),
            (authority(), Revision(7)),
            ceiling,
            UnixMillis(5),
        )
    }

    const BYTES: &str = "{\"admittedAt\":5,\"caller\":{\"actor\":\"alice\",\"generation\":\"00000000000000000000000000000000\",\
        \"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"uid\":\"uuuuuuuuuuuuuuuuuuuuuuuuuu\"},\"ceiling\":{\"publish\":{\"allow\":\
        {\"mode\":\"patterns\",\"patterns\":[\"a.>\"]},\"deny\":[]},\"subscribe\":{\"allow\":{\"mode\":\"patterns\",\"patterns\":\
        [\"_INBOX_x.>\"]},\"deny\":[]}},\"endpoint\":\"manager\",\"instanceId\":\"iiiiiiiiiiiiiiiiiiiiiiiiii\",\"provenance\":\
        {\"kind\":\"issued\",\"ref\":{\"actor\":\"alice\",\"generation\":\"00000000000000000000000000000000\",\"owner\":\
        \"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"space\":\"main\",\"uid\":\"uuuuuuuuuuuuuuuuuuuuuuuuuu\"},\"resolvedRevision\":7},\
        \"runId\":\"run-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"space\":\"main\",\"version\":1}";

    #[test]
    fn an_admission_has_these_canonical_bytes_and_reads_back() {
        assert_eq!(String::from_utf8(admission().to_bytes()).unwrap(), BYTES);
        assert_eq!(RunAdmission::parse(BYTES.as_bytes()).unwrap(), admission());
        assert_eq!(admission().key(), format!("admission.v1.manager.{}", run()));
        assert_eq!(RunAdmission::of_value(admission().to_value()).unwrap(), admission());
    }

    #[test]
    fn an_operators_admission_reads_and_is_nobodys_issuance() {
        let mut value = admission().to_value();
        value["provenance"] = json!({ "kind": "operator", "by": "local", "reason": "tests" });
        value["caller"].as_object_mut().unwrap().remove("generation");
        let parsed = RunAdmission::parse(&canonical_bytes(&value)).unwrap();
        assert_eq!(parsed.to_value(), value);
        assert!(!parsed.is_same_admission(&authority(), &instance()));
        for (member, bad) in [("by", json!("")), ("reason", json!(1)), ("ref", json!({}))] {
            let mut value = value.clone();
            value["provenance"][member] = bad;
            assert!(RunAdmission::parse(&canonical_bytes(&value)).is_err(), "{member}");
        }
    }

    #[test]
    fn a_garbled_admission_is_refused() {
        let mut cases: Vec<Vec<u8>> = vec![
            BYTES.replace("{\"admittedAt\"", "{ \"admittedAt\"").into_bytes(),
            format!("{BYTES}\n").into_bytes(),
            b"[]".to_vec(),
        ];
        for (pointer, value) in [
            ("/version", json!(2)),
            ("/space", json!("other")),
            ("/space", json!("my space")),
            ("/endpoint", json!("Manager")),
            ("/runId", json!("run-1")),
            ("/instanceId", json!("i")),
            ("/caller/actor", json!("bob")),
            ("/caller/generation", json!("1".repeat(32))),
            ("/caller/more", json!(1)),
            ("/ceiling", json!({})),
            ("/provenance/kind", json!("sudo")),
            ("/provenance/by", json!("x")),
            ("/provenance/resolvedRevision", json!(0)),
            ("/admittedAt", json!(0)),
            ("/more", json!(1)),
        ] {
            let mut row = admission().to_value();
            let (parent, member) = pointer.rsplit_once('/').unwrap();
            row.pointer_mut(parent).unwrap()[member] = value;
            cases.push(canonical_bytes(&row));
        }
        let mut without = admission().to_value();
        without["caller"].as_object_mut().unwrap().remove("generation");
        cases.push(canonical_bytes(&without));
        for bytes in cases {
            let refusal = RunAdmission::parse(&bytes).unwrap_err();
            assert_eq!(refusal.code, EpCode::Internal, "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn only_the_same_issuance_on_the_same_instance_is_the_same_admission() {
        let other = InstanceId::parse(&"j".repeat(26)).unwrap();
        assert!(admission().is_same_admission(&authority(), &instance()));
        assert!(!admission().is_same_admission(&authority(), &other));
        let again =
            IssuedAuthorityRef { generation: Generation::parse(&"1".repeat(32)).unwrap(), ..authority() };
        assert!(!admission().is_same_admission(&again, &instance()));
    }

    #[test]
    fn a_revocation_has_these_bytes_and_is_of_its_run() {
        let marker = RunRevocation {
            run: run(),
            by: "local.a".into(),
            reason: "why".into(),
            revoked_at: UnixMillis(9),
        };
        let bytes = format!(
            "{{\"by\":\"local.a\",\"reason\":\"why\",\"revokedAt\":9,\"runId\":\"{}\",\"version\":1}}",
            run()
        );
        assert_eq!(String::from_utf8(marker.to_bytes()).unwrap(), bytes);
        assert_eq!(RunRevocation::parse(&run(), bytes.as_bytes()).unwrap(), marker);
        assert_eq!(marker.key(&manager()), format!("revoked.v1.manager.{}", run()));
        let other = RunId::parse(&format!("run-{}", "b".repeat(32))).unwrap();
        assert!(RunRevocation::parse(&other, bytes.as_bytes()).is_err());
        for bad in [
            bytes.replace("\"why\"", "\"\""),
            bytes.replace(":9,", ":0,"),
            bytes.replace("\"version\":1", "\"version\":1,\"x\":1"),
            bytes.replace("\"by\"", "\"By\""),
            format!(" {bytes}"),
        ] {
            assert!(RunRevocation::parse(&run(), bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_submission_is_keyed_by_its_owner_and_id() {
        let row = RunSubmissionRow {
            space: SpaceToken::parse("main").unwrap(),
            endpoint: manager(),
            submission: SubmissionId::parse("nightly-1").unwrap(),
            owner: Owner::local(),
            run: run(),
            instance: instance(),
            created_at: UnixMillis(3),
        };
        // printf '["local","nightly-1"]' | sha256sum
        assert_eq!(
            row.key(),
            "submission.v1.manager.409c67ad83c5ef952762d3d28c36fcbc135e4ff55c363fca7921d49c30d376fa"
        );
        assert_eq!(RunSubmissionRow::parse(&row.key(), &row.to_bytes()).unwrap(), row);
        let other = RunSubmissionRow { submission: SubmissionId::parse("nightly-2").unwrap(), ..row.clone() };
        assert_ne!(row.key(), other.key());
        assert!(RunSubmissionRow::parse(&row.key(), &other.to_bytes()).is_err());
    }
}
