//! Runs: an admission, a keyed submission, a cancellation. Each is one create-only row, or two, written over a credential that
//! is pinned to the run. What was seen of a request dies with the process, so its caller asks again before its manager forwards
//! it again. An attempt writes nothing: it is asked for at the end of each.

use anyhow::{Result, ensure};
use async_trait::async_trait;
use cotal_authority::issued::with_issuer_session;
use cotal_ledger::{GrantInput, Ledger};
use cotal_testkit::{
    manager::{Proved, TestManager},
    runs::{RunAsker, run_id},
};
use cotal_trust::{
    nkey::Seed,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, Generation, LifecycleUid, Permissions, Principal, Rules, User,
    manager_authority::{Kind, Operation as Asks, RUN_CANCEL, RUN_START, RUN_SUBMIT, RunId, SubmissionId},
    rows::{IssuedAuthorityRef, IssuedEvidence, IssuedPermissions, RunSubmissionRow, SourceRef},
};
use serde_json::{Value, json};

use crate::{
    house::{House, WITHIN},
    journal::hold_to,
    manager::register,
    service::Operation,
};

const ROUTE: &str = "/manager-service-authority";
const SUBMISSION: &str = "nightly";

/// What is asked for about a run.
pub(crate) enum Run {
    /// It is admitted.
    Admission,
    /// It is admitted under an id of its caller's own.
    Submission,
    /// It is cancelled by its caller.
    Cancel,
}

/// A registered manager, a caller of its with issued authority, and what it asks.
pub(crate) struct Served {
    manager: TestManager,
    proved: Proved,
    sub: String,
    asker: RunAsker,
    run: RunId,
    /// The subject that is forwarded, and what is published there before.
    subject: String,
    published: Value,
    body: Value,
}

/// Issues authority that permits every subject of the space.
async fn issue(house: &House, principal: &Principal, uid: &LifecycleUid) -> Result<Generation> {
    let all = || Rules { allow: vec!["cotal.>".into()], deny: vec![] };
    let permissions = IssuedPermissions::of_grants(&Permissions { publish: all(), subscribe: all() })?;
    let generation = Generation::mint(&SystemEntropy);
    with_issuer_session(&house.connector(), async |store| {
        let authority = IssuedAuthorityRef {
            space: store.space().clone(),
            principal: principal.clone(),
            uid: uid.clone(),
            generation: generation.clone(),
        };
        let sources = vec![SourceRef::actor_ledger(store.space(), principal, uid)];
        let evidence = IssuedEvidence::new(authority, sources, permissions, None)?;
        let (released, ()) = store.stage(evidence).await?.release(async { Ok(()) }).await?;
        released.accept(&Generation::mint(&SystemEntropy)).await
    })
    .await?;
    Ok(generation)
}

impl Served {
    async fn fresh(house: &House, actor: &str) -> Result<Self> {
        let sub = format!("runs-{actor}");
        let owner = house.space.material.owner_secret.derive(&house.space.material.idp.issuer, &sub)?;
        let uid = LifecycleUid::mint(&SystemEntropy);
        let input = GrantInput::new(owner.clone(), Actor::parse("cli")?)
            .scope(["supervise", "run"])
            .lifecycle_uid(uid.clone());
        Ledger::at(&house.space.state_dir).grant_interactive(&input, &SystemClock, &SystemEntropy)?;
        let account = house.space.account.data_account().account;
        let manager = TestManager::new(&house.space.space, &account, &owner);
        register(house, &manager).await?;
        let principal = Principal::new(&owner, Actor::parse("cli")?);
        let generation = Some(issue(house, &principal, &uid).await?);
        let space = house.space.space.clone();
        let mut served = Self {
            manager,
            proved: Proved { epoch: 0, proof: Value::Null },
            sub,
            asker: RunAsker { space, principal, uid, generation },
            run: run_id(),
            subject: String::new(),
            published: Value::Null,
            body: Value::Null,
        };
        let activate = served.manager.request(Asks::Activate, &json!({}));
        let answer = house.ok(ROUTE, &served.asks(house, &activate)).await?;
        served.proved.proof = answer["nextRegistrationProof"].clone();
        Ok(served)
    }

    fn asks(&self, house: &House, request: &Value) -> Value {
        json!({ "idpToken": house.idp_token(&self.sub), "request": request })
    }

    /// The next request of its caller, and its forward.
    fn serves(&mut self, house: &House, kind: Kind) {
        let (command, args) = match kind {
            Kind::RunSubmission => (RUN_SUBMIT, json!({ "submissionId": SUBMISSION })),
            Kind::RunCancel => (RUN_CANCEL, json!({ "runId": self.run })),
            _ => (RUN_START, json!({})),
        };
        self.subject = self.asker.subject(&self.manager.instance, command);
        self.published = self.asker.body(command, &args);
        let (run, subject) = (&self.run, &self.subject);
        let payload = match kind {
            Kind::RunSubmission => {
                json!({ "submission": { "submissionId": SUBMISSION, "runId": run, "subject": subject } })
            }
            Kind::RunCancel => json!({ "cancel": { "runId": run, "subject": subject } }),
            _ => json!({ "run": { "runId": run, "subject": subject } }),
        };
        self.body = self.asks(house, &self.manager.proved(kind, &self.proved, &payload));
    }

    /// The caller asks; the broker has it.
    async fn ask(&self, house: &House) -> Result<()> {
        house.connection().publish(&self.subject, &[], self.published.to_string().into()).await?;
        Ok(house.connection().flush().await?)
    }

    /// What the first attempt at the run is answered with.
    async fn attempt(&self, house: &House) -> Result<(u16, Value)> {
        let key = || Seed::<User>::generate(&SystemEntropy).public().clone();
        let attempt = json!({
            "runId": self.run, "takeoverId": "t1", "epoch": 1, "fencingToken": 1, "driverId": key(),
            "mediatorId": key(),
        });
        let payload = json!({ "attempt": attempt });
        let request = self.manager.proved(Kind::RunAttempt, &self.proved, &payload);
        tokio::time::timeout(WITHIN, house.post(ROUTE, &self.asks(house, &request))).await?
    }
}

#[async_trait]
impl Operation for Run {
    fn name(&self) -> &'static str {
        match self {
            Self::Admission => "run: admission",
            Self::Submission => "run: keyed submission",
            Self::Cancel => "run: cancellation",
        }
    }

    type Case = Served;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Served> {
        let mut served = Served::fresh(house, actor).await?;
        match self {
            Self::Admission => served.serves(house, Kind::RunAdmission),
            Self::Submission => served.serves(house, Kind::RunSubmission),
            Self::Cancel => {
                served.serves(house, Kind::RunAdmission);
                served.ask(house).await?;
                house.ok(ROUTE, &served.body).await?;
                served.serves(house, Kind::RunCancel);
            }
        }
        Ok(served)
    }

    async fn before(&self, house: &House, case: &Served) -> Result<()> {
        case.ask(house).await
    }

    fn question(&self, case: &Served) -> (&'static str, Value) {
        (ROUTE, case.body.clone())
    }

    fn owns(&self, case: &Served, key: &str) -> bool {
        let submission = SubmissionId::parse(SUBMISSION)
            .map(|id| RunSubmissionRow::digest_of(&case.asker.principal.owner, &id));
        key.contains(case.run.as_str()) || submission.is_ok_and(|digest| key.contains(digest.as_str()))
    }

    fn check_writes(&self, _: &Served, written: &[String]) -> Result<()> {
        // Nothing is written twice, whoever was killed.
        match self {
            Self::Admission => hold_to(written, &[("admission.", 1..=1)]),
            Self::Submission => hold_to(written, &[("submission.", 1..=1), ("admission.", 1..=1)]),
            Self::Cancel => hold_to(written, &[("revoked.", 1..=1)]),
        }
    }

    async fn check(&self, house: &House, case: &mut Served) -> Result<()> {
        let rows = house.bucket(&house.names().admission_bucket());
        let admission = house.json(&rows, &format!("admission.v1.manager.{}", case.run)).await?;
        ensure!(admission["caller"]["generation"] == json!(case.asker.generation), "{admission}");
        // One forward of one request, whatever became of the service that saw it.
        let (status, answer) = house.post(ROUTE, &case.body).await?;
        ensure!(status == 403, "the request was forwarded before: {status} {answer}");
        let (status, answer) = case.attempt(house).await?;
        if matches!(self, Self::Cancel) {
            let marker = house.json(&rows, &format!("revoked.v1.manager.{}", case.run)).await?;
            ensure!(marker["by"] == case.asker.principal.key(), "{marker}");
            ensure!(status == 403, "a cancelled run is issued nothing: {answer}");
        } else {
            ensure!(status == 200 && answer["credentials"]["driver"]["jwt"].is_string(), "{status} {answer}");
        }
        Ok(())
    }
}
