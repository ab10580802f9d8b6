//! The manager's own lifecycle: what `manager-service-authority` grants (contract 06 §4).
//!
//! There is no phase that the host would keep: each request is decided from the asking actor's ledger row, the gate as it
//! stands and the request's proof. What is granted are JWTs for keys that the manager made itself, so that no seed
//! crosses. Three of them speak for a registration and are ledgered under it: see [`duties`].

mod duties;
pub(super) mod pace;

use cotal_authority::{
    SESSION_TTL_SECS,
    manager::{
        Holder, ObservedRun, SESSION_ENDED, decide_asking, decide_at_gate, decide_retired, decide_session,
        runs::decide_renewed_run, same_run, session_of_own, still_at,
    },
    registration::gate::GateAt,
    run_records::observe_run,
    run_rows::RunRows,
};
use cotal_trust::mint::CredentialKind;
use cotal_wire::{
    DigestRef, EndpointName, EpCode, EpError, Owner, Principal, SessionId, UnixSecs,
    endpoint_subject::TargetTriple,
    es_value::EsValue,
    grants::{
        manager::{self, ManagerDuty},
        rail,
        runs::RunPin,
    },
    manager_authority::{
        CredentialName, Credentials, Envelope, IssuedJwt, Operation, Payload, RemoteManagerAuthorityMaterial,
        RenewedRun, RequestedRetirement, ServedSession, ServiceRequest, Takeover, serve_principal,
    },
};

use super::{Parts, mint::Minting, runs::sign_pair};
use crate::manager::{Answer, NoAnswer, print};
use duties::Duties;

/// How long an executor's credential lives, in seconds: it renews, and is adopted at the current epoch alone.
const EXECUTOR_TTL_SECS: u64 = 300;

/// What an operation came to.
type Issued = Vec<(CredentialName, IssuedJwt)>;

/// Decides a request of the lifecycle and grants what it is for. Nothing that is granted outlives the assignment that the
/// holder acts under (contract 06 §14.2).
pub(super) async fn issue(parts: &Parts, holder: &Holder, request: &EsValue) -> Result<Answer, NoAnswer> {
    let request = ServiceRequest::parse(request, holder.kind())?;
    let host = parts.lifecycle_host();
    decide_asking(host, holder, &request)?;
    let gate = if request.operation.rule().reads_gate() {
        parts.manager_gate(&request.envelope.instance_id).await?
    } else {
        None
    };
    decide_at_gate(host, holder, &request, gate.as_ref().map(|seen| &seen.gate))?;
    if request.operation == Operation::RenewStandingBundle {
        // Nobody waits, and makes others wait, who may not renew. The gate is read again after it.
        parts.renewals.turn(holder.owner()).await?;
    }
    if request.operation.grants_registration() {
        let chosen = request.operation == Operation::Prepare && matches!(holder, Holder::Human { .. });
        parts.plane.bind_instance(&request.envelope.instance_id, holder.owner(), chosen).await?;
    }

    let minting = Minting::new(parts, holder.not_after())?;
    let asked = Asked { parts, holder, request: &request, minting: &minting };
    let (issued, next) = asked.grant(gate).await?;
    let credentials = Credentials::of(request.operation, issued)?;
    let issued_at = minting.now_millis();
    // A plane that was fenced meanwhile hands nothing out any more.
    parts.plane.check_open()?;
    let material =
        RemoteManagerAuthorityMaterial::answer(&request, holder.owner(), issued_at, next, credentials);
    Ok(print(&material)?)
}

/// One decided request.
struct Asked<'a> {
    parts: &'a Parts,
    holder: &'a Holder,
    request: &'a ServiceRequest,
    minting: &'a Minting<'a>,
}

impl Asked<'_> {
    fn envelope(&self) -> &Envelope {
        &self.request.envelope
    }

    /// What the operation grants, and the proof that follows an activation.
    async fn grant(&self, gate: Option<GateAt>) -> Result<(Issued, Option<DigestRef>), EpError> {
        let (parts, envelope) = (self.parts, self.envelope());
        Ok(match &self.request.payload {
            Payload::None => (self.remote_manager()?, None),
            Payload::Artifacts(artifacts) => {
                let gate = gate.ok_or_else(unread)?;
                // From here on it serves: who asks it for a run must be heard by then.
                self.parts.run_observer().await?;
                let at = gate.gate.coordinate();
                let issued = self.duties(gate).issue(Some(artifacts.as_slice())).await?;
                let next = parts.proof.prove(
                    envelope,
                    self.holder.owner(),
                    at.registration_revision,
                    at.process_epoch,
                );
                (issued, Some(next))
            }
            Payload::Session(session) => (vec![self.session(session).await?], None),
            Payload::Retirement(retirement) => (vec![self.requester(retirement).await?], None),
            Payload::Reader(reader) => {
                let grant = manager::transfer_reader(
                    self.minting.space(),
                    &envelope.instance_id,
                    &reader.id.conn_id(),
                );
                let exp = self.minting.one_shot_expiry(CredentialKind::TransferReader)?;
                let kind = CredentialKind::TransferReader;
                let jwt = self.minting.mint(kind, &reader.id, &self.serving(), grant, exp)?;
                (vec![(CredentialName::TransferReader, jwt)], None)
            }
            Payload::Standing(renewal) => {
                let gate = self.gate_still_at(renewal.process_epoch).await?;
                let mut issued = self.duties(gate).issue(None).await?;
                issued.extend(self.remote_manager()?);
                (issued, None)
            }
            Payload::Run(renewal, wanted) => {
                same_run(envelope, wanted, self.observe_run(wanted).await?.as_ref())?;
                self.gate_still_at(renewal.process_epoch).await?;
                same_run(envelope, wanted, self.observe_run(wanted).await?.as_ref())?;
                let run_owner = self.run_owner(wanted).await?;
                (self.run(wanted, run_owner)?, None)
            }
        })
    }

    /// Whom one-shot credentials of the manager connect as.
    fn serving(&self) -> Principal {
        serve_principal(self.holder.owner(), &self.envelope().instance_id)
    }

    /// What the contract renews twice and `prepare` grants first: the supervisor, and the executor.
    fn remote_manager(&self) -> Result<Issued, EpError> {
        let (envelope, owner) = (self.envelope(), self.holder.owner());
        let one = |name: CredentialName, duty: ManagerDuty, exp: UnixSecs| {
            let (instance, key) = (&envelope.instance_id, envelope.identities.of(duty.role()));
            let grant = manager::remote_manager(self.minting.space(), owner, instance, duty, &key.conn_id());
            let principal = duty.principal(owner, instance);
            let jwt = self.minting.mint(CredentialKind::RemoteManager, key, &principal, grant, exp)?;
            Ok::<_, EpError>((name, jwt))
        };
        let (standing, executor) =
            (self.minting.standing_expiry(), self.minting.expiry_in(EXECUTOR_TTL_SECS));
        Ok(vec![
            one(CredentialName::Supervisor, ManagerDuty::Supervisor, standing)?,
            one(CredentialName::Executor, ManagerDuty::Executor, executor)?,
        ])
    }

    fn duties(&self, gate: GateAt) -> Duties<'_> {
        Duties {
            parts: self.parts,
            minting: self.minting,
            owner: self.holder.owner(),
            envelope: self.envelope(),
            seen: gate,
        }
    }

    async fn session(&self, session: &ServedSession) -> Result<(CredentialName, IssuedJwt), EpError> {
        let id = SessionId::parse(&session.session_id).map_err(|error| {
            EpError::bad_request(format!("session: sessionId must be a {}: {}", error.what, error.rule))
        })?;
        let exp = self.minting.expiry_in(SESSION_TTL_SECS).min(session.exp);
        if exp <= self.minting.now() {
            return Err(EpError::new(EpCode::Expired, SESSION_ENDED));
        }
        let (plane, owner) = (&self.parts.plane, self.holder.owner());
        let row = plane.reader().session_row(&id).await?;
        decide_session(self.envelope(), owner, session, row.as_ref())?;
        let exp = exp.min(session_of_own(plane.bind_session(&id, owner).await?)?);
        let (endpoint, conn) = (EndpointName::manager().token(), session.id.conn_id());
        let grant = manager::session_serving(self.minting.space(), &endpoint, &id, session.epoch, &conn);
        let kind = CredentialKind::SessionServing;
        let jwt = self.minting.mint(kind, &session.id, &self.serving(), grant, exp)?;
        Ok((CredentialName::SessionServing, jwt))
    }

    async fn requester(
        &self,
        retirement: &RequestedRetirement,
    ) -> Result<(CredentialName, IssuedJwt), EpError> {
        let RequestedRetirement { id, target, .. } = retirement;
        let row = self.parts.row(&target.owner, &target.actor).await?;
        decide_retired(target, row.as_ref())?;
        let target = TargetTriple {
            principal: Principal::new(target.owner.clone(), target.actor.clone()),
            lifecycle_uid: target.lifecycle_uid.clone(),
        };
        let (serving, uid) = (self.serving(), &self.envelope().manager_lifecycle_uid);
        let grant = rail::retirement_requester(self.minting.space(), &serving, uid, &id.conn_id(), &target);
        let kind = CredentialKind::RetirementRequester;
        let jwt = self.minting.mint(kind, id, &serving, grant, self.minting.one_shot_expiry(kind)?)?;
        Ok((CredentialName::RetirementRequester, jwt))
    }

    /// Whose the run is: the owner that was admitted on this manager.
    async fn run_owner(&self, wanted: &RenewedRun) -> Result<Owner, EpError> {
        let connection = self.parts.issuing().await?.connection();
        let rows = RunRows::bind(connection, &self.parts.space).await?;
        let revoked = rows.revocation(&wanted.run_id).await?.is_some();
        let admitted = rows.admission(&wanted.run_id).await?;
        decide_renewed_run(
            admitted.as_ref().map(|(admission, _)| admission),
            revoked,
            &wanted.run_id,
            (self.holder.owner(), &self.envelope().instance_id, &self.parts.space),
        )
    }

    fn run(&self, wanted: &RenewedRun, run_owner: Owner) -> Result<Issued, EpError> {
        let takeover = Takeover::parse(wanted.takeover_id.as_str())
            .map_err(|_| EpError::internal("a renewed takeover is a takeover"))?;
        let pin = RunPin {
            endpoint: EndpointName::manager().token(),
            run: wanted.run_id.clone(),
            owner: run_owner,
            takeover,
            instance: self.envelope().instance_id.clone(),
            epoch: wanted.epoch,
        };
        let keys = (&wanted.driver_id, &wanted.mediator_id);
        let (driver, mediator) = sign_pair(self.minting, self.holder.owner(), &pin, keys)?;
        Ok(vec![(CredentialName::RunDriver, driver), (CredentialName::RunMediator, mediator)])
    }

    /// The gate, read again right before the mint of a renewal: a registration that moved meanwhile is `conflict`.
    async fn gate_still_at(&self, process_epoch: u64) -> Result<GateAt, EpError> {
        let seen = self.parts.manager_gate(&self.envelope().instance_id).await?;
        still_at(seen.as_ref().map(|seen| &seen.gate), process_epoch)?;
        seen.ok_or_else(unread)
    }

    /// The run that is renewed, as it is recorded now.
    async fn observe_run(&self, wanted: &RenewedRun) -> Result<Option<ObservedRun>, EpError> {
        let Envelope { identities, instance_id, .. } = self.envelope();
        let (stores, supervisor) = (self.parts.plane.stores(), &identities.supervisor.id);
        observe_run(stores, &wanted.run_id, supervisor, instance_id).await
    }
}

fn unread() -> EpError {
    EpError::internal("the operation stands on a gate that was not read")
}
