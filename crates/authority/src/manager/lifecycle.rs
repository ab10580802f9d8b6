//! The decisions of the manager's own lifecycle, operation by operation (contract 06 §4.2-4.6).

use cotal_trust::registration_proof::{RegistrationProofKey, same};
use cotal_wire::{
    Account, EpError, Nkey, Owner, Space,
    es_value::EsValue,
    manager_authority::{
        Envelope, Operation, Payload, Renewal, RenewedRun, ServiceRequest, registration_proof,
    },
    rows::EndpointGate,
};

use super::{
    Holder,
    agents::own,
    registration::{at_epoch, bad_proof, of_owner, open, proved},
};

/// What the host that decides is.
#[derive(Debug, Clone, Copy)]
pub struct LifecycleHost<'a> {
    /// Its space.
    pub space: &'a Space,
    /// Its data account.
    pub account: &'a Nkey<Account>,
    /// The key of current registrations.
    pub proof: &'a RegistrationProofKey,
}

/// A run as the host reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRun {
    /// Whether it is `running`.
    pub running: bool,
    /// The manager instance that runs it.
    pub instance: String,
    /// Who holds it.
    pub holder: String,
    /// Under which takeover.
    pub takeover_id: String,
    /// At which epoch.
    pub epoch: u64,
    /// With which token.
    pub fencing_token: u64,
}

/// Decides a request up to the mint: holder, distinct keys, then what its operation stands on.
///
/// `gate` is the manager's gate as read now; operations that do not read it ignore it. `run` is the run that a
/// `renewRunDriver` names, `None` when there is none.
pub fn decide_service(
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &ServiceRequest,
    gate: Option<&EndpointGate>,
    run: Option<&ObservedRun>,
) -> Result<(), EpError> {
    let envelope = &request.envelope;
    holder.may_supervise(envelope.instance_id.as_str())?;
    request.check_distinct_keys()?;
    let owner = holder.owner();
    // The contract compares the space through the proofs alone, and `prepare` has none: refusing a foreign one early is
    // the stricter reading that it calls safe.
    in_space(host.space, envelope)?;
    match &request.payload {
        Payload::Artifacts(artifacts) => {
            unkeyed(envelope, owner, artifacts)?;
            let gate = gate.ok_or_else(not_registered)?;
            of_owner(open(Some(gate))?, owner, &envelope.instance_id)
        }
        Payload::Session(_) => unkeyed(envelope, owner, &[]),
        Payload::Retirement(retirement) => {
            unkeyed(envelope, owner, &[])?;
            own(&retirement.target, owner)?;
            let gate = open(gate)?;
            of_owner(gate, owner, &envelope.instance_id)?;
            at_epoch(gate, retirement.serve_epoch)
        }
        Payload::Standing(renewal) => renew(host, envelope, owner, renewal, gate),
        Payload::Run(renewal, wanted) => {
            renew(host, envelope, owner, renewal, gate)?;
            same_run(envelope, wanted, run)
        }
        Payload::Reader(_) => {
            unkeyed(envelope, owner, &[])?;
            of_owner(open(gate)?, owner, &envelope.instance_id)
        }
        Payload::None if request.operation == Operation::Renew => {
            let gate = open(gate)?;
            of_owner(gate, owner, &envelope.instance_id)?;
            proved(gate, envelope, owner, host.proof)
        }
        Payload::None => Ok(()),
    }
}

/// Before a renewal mints: the gate, read again, is still open at that epoch (contract 06 §4.3).
pub fn still_at(gate: Option<&EndpointGate>, process_epoch: u64) -> Result<&EndpointGate, EpError> {
    gate.filter(|gate| gate.is_open() && gate.coordinate().process_epoch == process_epoch)
        .ok_or_else(|| EpError::conflict("the manager's registration moved during the renewal; ask again"))
}

/// Before a run's driver is minted: the run, read again, has moved in nothing (contract 06 §4.3).
pub fn same_run(envelope: &Envelope, wanted: &RenewedRun, run: Option<&ObservedRun>) -> Result<(), EpError> {
    let same = run.is_some_and(|run| {
        run.running
            && run.instance == envelope.instance_id.as_str()
            && run.holder == wanted.holder.as_str()
            && run.takeover_id == wanted.takeover_id.as_str()
            && run.epoch == wanted.epoch
            && run.fencing_token == wanted.fencing_token
    });
    if same {
        Ok(())
    } else {
        Err(EpError::conflict("the run is not running under this holder, takeover, epoch and token any more"))
    }
}

fn renew(
    host: LifecycleHost<'_>,
    envelope: &Envelope,
    owner: &Owner,
    renewal: &Renewal,
    gate: Option<&EndpointGate>,
) -> Result<(), EpError> {
    if renewal.account != *host.account {
        return Err(EpError::permission_denied("the request names another data account than this service's"));
    }
    let gate = open(gate)?;
    of_owner(gate, owner, &envelope.instance_id)?;
    at_epoch(gate, renewal.process_epoch)?;
    proved(gate, envelope, owner, host.proof)
}

fn in_space(space: &Space, envelope: &Envelope) -> Result<(), EpError> {
    if envelope.space == space.as_str() {
        Ok(())
    } else {
        Err(EpError::permission_denied("the request names another space than the one that is asked"))
    }
}

fn unkeyed(envelope: &Envelope, owner: &Owner, artifacts: &[EsValue]) -> Result<(), EpError> {
    let wanted = registration_proof(envelope, owner, artifacts);
    if same(envelope.registration_proof.as_ref(), &wanted) { Ok(()) } else { Err(bad_proof()) }
}

fn not_registered() -> EpError {
    EpError::failed_precondition(
        "the manager has no registration yet; register it with the executor credential, then activate",
    )
}
