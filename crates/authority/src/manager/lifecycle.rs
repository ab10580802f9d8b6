//! The decisions of the manager's own lifecycle, operation by operation (contract 06 §4.2-4.6).

#[cfg(test)]
mod tests;

use cotal_ledger::{RowKind, TaggedRow};
use cotal_trust::registration_proof::{RegistrationProofKey, same};
use cotal_wire::{
    Account, EpCode, EpError, Nkey, Owner, OwnerKind, Space, UnixSecs,
    es_value::EsValue,
    manager_authority::{
        Envelope, Incarnation, MANAGER_ENDPOINT, Operation, Payload, Renewal, RenewedRun, ServedSession,
        ServiceRequest, registration_proof,
    },
    rows::{EndpointGate, SessionRow},
};

use super::{
    Holder,
    agents::own,
    registration::{at_epoch, bad_proof, of_owner, open, proved},
};
use crate::NotOwn;

/// What a session that is over is refused with.
pub const SESSION_ENDED: &str = "the session has ended; serve one that its ledger still has";

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

/// Decides what a request says of itself, before anything is read: holder, distinct keys, space, and what its operation
/// asks for ahead of the gate.
pub fn decide_asking(
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &ServiceRequest,
) -> Result<(), EpError> {
    let envelope = &request.envelope;
    holder.may_ask(request.operation.rule().scope, envelope.instance_id.as_str())?;
    request.check_distinct_keys()?;
    let owner = holder.owner();
    // The contract compares the space through the proofs alone, and `prepare` has none: refusing a foreign one early is
    // the stricter reading that it calls safe.
    in_space(host.space, envelope)?;
    match &request.payload {
        Payload::Artifacts(artifacts) => unkeyed(envelope, owner, artifacts),
        Payload::Session(_) | Payload::Reader(_) => unkeyed(envelope, owner, &[]),
        Payload::Retirement(retirement) => {
            unkeyed(envelope, owner, &[])?;
            own(&retirement.target, owner)
        }
        Payload::Standing(renewal) | Payload::Run(renewal, _) => of_account(host.account, renewal),
        Payload::None => Ok(()),
    }
}

/// Decides what is left once the gate was read, up to the mint: what [`decide_asking`] passed. An operation that does not
/// stand on the gate ignores it. The run of a `renewRunDriver` is [`same_run`]'s, after this.
pub fn decide_at_gate(
    host: LifecycleHost<'_>,
    holder: &Holder,
    request: &ServiceRequest,
    gate: Option<&EndpointGate>,
) -> Result<(), EpError> {
    let (envelope, owner) = (&request.envelope, holder.owner());
    match &request.payload {
        Payload::Artifacts(_) => {
            let gate = gate.ok_or_else(not_registered)?;
            of_owner(open(Some(gate))?, owner, &envelope.instance_id)
        }
        Payload::Retirement(retirement) => {
            let gate = open(gate)?;
            of_owner(gate, owner, &envelope.instance_id)?;
            at_epoch(gate, retirement.serve_epoch)
        }
        Payload::Standing(renewal) | Payload::Run(renewal, _) => {
            let gate = open(gate)?;
            of_owner(gate, owner, &envelope.instance_id)?;
            at_epoch(gate, renewal.process_epoch)?;
            proved(gate, envelope, owner, host.proof)
        }
        Payload::Reader(_) => of_owner(open(gate)?, owner, &envelope.instance_id),
        Payload::None if request.operation == Operation::Renew => {
            let gate = open(gate)?;
            of_owner(gate, owner, &envelope.instance_id)?;
            proved(gate, envelope, owner, host.proof)
        }
        // An executor writes the gate of the instance that it names, and a session speaks for it: somebody else's stays out of
        // reach.
        Payload::None | Payload::Session(_) => {
            gate.map_or(Ok(()), |gate| of_owner(gate, owner, &envelope.instance_id))
        }
    }
}

/// Before a renewal mints: the gate, read again, is still open at that epoch (contract 06 §4.3).
pub fn still_at(gate: Option<&EndpointGate>, process_epoch: u64) -> Result<&EndpointGate, EpError> {
    gate.filter(|gate| gate.is_open() && gate.coordinate().process_epoch == process_epoch)
        .ok_or_else(|| EpError::conflict("the manager's registration moved during the renewal; ask again"))
}

/// Before a session's serving credential is minted: what the ledger of sessions says, if it has the session by now. It is served
/// by this very instance at this epoch, its holder may be a caller of this manager, and it has not ended.
pub fn decide_session(
    envelope: &Envelope,
    owner: &Owner,
    session: &ServedSession,
    row: Option<&SessionRow>,
) -> Result<(), EpError> {
    let Some(row) = row else { return Ok(()) };
    let served_here = row.endpoint().as_str() == MANAGER_ENDPOINT
        && row.serving() == (&envelope.instance_id, session.epoch);
    if !served_here {
        return Err(EpError::permission_denied(
            "the session is served by another instance, or at another epoch; serve one of this manager's own",
        ));
    }
    // A person's manager serves that person's callers, and the static mesh's (contract 01 §6.6).
    let holder = &row.holder().0.owner;
    if owner.kind() == OwnerKind::Derived && holder.kind() == OwnerKind::Derived && holder != owner {
        return Err(not_own());
    }
    if row.state().is_terminal() {
        return Err(session_ended());
    }
    Ok(())
}

/// Until when a session is served, once the host has bound it to its owner.
pub fn session_of_own(bound: Result<UnixSecs, NotOwn>) -> Result<UnixSecs, EpError> {
    bound.map_err(|why| match why {
        NotOwn::Anothers => not_own(),
        NotOwn::Over => session_ended(),
    })
}

fn not_own() -> EpError {
    EpError::permission_denied("the session is another owner's; serve one of this manager's own")
}

fn session_ended() -> EpError {
    EpError::new(EpCode::Expired, SESSION_ENDED)
}

/// Before a requester is minted: a manager ends agents, and a person's own incarnation ends where it was granted.
pub fn decide_retired(target: &Incarnation, row: Option<&TaggedRow>) -> Result<(), EpError> {
    let person =
        |tagged: &&TaggedRow| tagged.kind == RowKind::Interactive && tagged.row.is_at(&target.lifecycle_uid);
    match row.filter(person) {
        None => Ok(()),
        Some(_) => Err(EpError::permission_denied(format!(
            "{}.{} is a person's actor and no managed agent; it is ended with: cotal actor revoke",
            target.owner, target.actor
        ))),
    }
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

fn of_account(account: &Nkey<Account>, renewal: &Renewal) -> Result<(), EpError> {
    if renewal.account == *account {
        Ok(())
    } else {
        Err(EpError::permission_denied("the request names another data account than this service's"))
    }
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
