//! Who asked a manager, and for what, when the manager says that it serves the request (contract 06 §12.3).

use cotal_ledger::{RowKind, TaggedRow};
use cotal_wire::{
    EpError, InstanceId, Owner, OwnerKind, Revision, Space,
    endpoint_subject::{EndpointCaller, Rail, RequestSubject, SubjectTarget},
    envelope::IncarnationBind,
    error::detail::UNBOUND_CALLER_AUTHORITY,
    manager_authority::{Envelope, MANAGER_ENDPOINT, ObservedRequest, RUN_ANSWER, Renewal, RunOperation},
    rows::{ConcreteSubject, IssuedAuthorityRef},
};

use super::{DeclaredContract, RunWorld, check_registered};
use crate::{issued::ResolvedAuthority, manager::LifecycleHost};

/// Where the manager that forwards serves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Serving<'a> {
    pub(super) space: &'a Space,
    pub(super) owner: &'a Owner,
    pub(super) instance: &'a InstanceId,
    pub(super) epoch: u64,
    pub(super) registration: Revision,
}

impl<'a> Serving<'a> {
    /// As it is registered now, for a request that stands on that (contract 06 §12).
    pub(super) async fn registered(
        world: &dyn RunWorld,
        host: LifecycleHost<'a>,
        envelope: &'a Envelope,
        pins: &Renewal,
        owner: &'a Owner,
    ) -> Result<Self, EpError> {
        let gate = world.gate(&envelope.instance_id).await?;
        let current = check_registered(host, envelope, pins, owner, gate.as_ref())?;
        Ok(Self {
            space: host.space,
            owner,
            instance: &envelope.instance_id,
            epoch: pins.process_epoch,
            registration: Revision(current.gate().coordinate().registration_revision),
        })
    }

    /// Steps 3 to 5: what was asked is what is forwarded, of this incarnation, under the contract that it declares. `absent`
    /// says that it declares none.
    pub(super) async fn check_asked(
        &self,
        world: &dyn RunWorld,
        observed: &ObservedRequest,
        forwarded: &RunOperation,
        absent: &str,
    ) -> Result<(), EpError> {
        same_operation(observed, forwarded)?;
        same_incarnation(observed.bind.as_ref(), self.instance, self.epoch)?;
        let command = forwarded.command();
        let declared = world.declared(self.owner, self.instance, self.registration, command).await?;
        same_contract(observed, declared.as_ref(), absent)
    }
}

/// What a forward claims.
pub(super) struct Forward<'a> {
    pub(super) subject: &'a str,
    pub(super) wanted: &'a RunOperation,
    pub(super) run_owner: &'a Owner,
}

/// Step 1: the subject of a request that this instance serves: of this space, endpoint and command, untargeted or of the
/// caller itself, to the class or to this very instance.
pub(super) fn served_subject(
    serving: &Serving<'_>,
    command: &str,
    subject: &str,
) -> Result<RequestSubject, EpError> {
    RequestSubject::parse(subject)
        .filter(|parsed| {
            parsed.space == serving.space.token()
                && parsed.endpoint.as_str() == MANAGER_ENDPOINT
                && parsed.command.as_str() == command
                && matches!(parsed.target, SubjectTarget::Untargeted | SubjectTarget::SelfMode)
                && match &parsed.rail {
                    Rail::One => true,
                    Rail::Instance(instance) => instance == serving.instance,
                    // Nobody asks every manager at once to do something about one run.
                    Rail::All => false,
                }
        })
        .ok_or_else(|| {
            EpError::permission_denied(format!(
                "the forwarded subject is no {command} request that this manager instance serves in this space"
            ))
        })
}

/// The same for what is admitted: untargeted, and of a caller whose authority was issued.
pub(super) fn issued_subject(
    serving: &Serving<'_>,
    command: &str,
    subject: &str,
) -> Result<(RequestSubject, IssuedAuthorityRef), EpError> {
    let parsed = served_subject(serving, command, subject)?;
    if parsed.target != SubjectTarget::Untargeted {
        return Err(EpError::permission_denied(format!("a {command} request has no target")));
    }
    match issued_reference(&parsed) {
        Some(reference) => Ok((parsed, reference)),
        None => Err(unbound(command, &parsed.caller)),
    }
}

/// Names the issuance of a caller on the versioned rail.
fn issued_reference(subject: &RequestSubject) -> Option<IssuedAuthorityRef> {
    Some(IssuedAuthorityRef {
        space: subject.space.clone(),
        principal: subject.caller.principal.clone(),
        uid: subject.caller.lifecycle_uid.clone(),
        generation: subject.caller.generation.clone()?,
    })
}

/// Step 2: this service saw the request, and nobody has forwarded it before.
pub(super) fn was_observed(
    observed: Option<ObservedRequest>,
    command: &str,
) -> Result<ObservedRequest, EpError> {
    observed.ok_or_else(|| {
        EpError::permission_denied(format!(
            "this service did not see that {command} request within the last five minutes, or a forward of it came \
             before; have its caller ask again"
        ))
    })
}

/// Step 3: the forward's coordinates are the request's own.
fn same_operation(observed: &ObservedRequest, wanted: &RunOperation) -> Result<(), EpError> {
    if observed.operation == *wanted {
        Ok(())
    } else {
        Err(EpError::permission_denied(format!(
            "the forwarded {} names something else than its caller asked for",
            wanted.command()
        )))
    }
}

/// Step 4: a request that is bound to another incarnation is refused unrun by this one, so its forward is worth nothing.
fn same_incarnation(
    bind: Option<&IncarnationBind>,
    instance: &InstanceId,
    epoch: u64,
) -> Result<(), EpError> {
    if bind.is_none_or(|bind| bind.instance == *instance && bind.epoch == epoch) {
        Ok(())
    } else {
        Err(EpError::permission_denied(
            "its caller bound the request to another incarnation of the manager than the registered one",
        ))
    }
}

/// Step 5: the request pins what the registered manager declares; one that pins something else it refuses unrun.
fn same_contract(
    observed: &ObservedRequest,
    declared: Option<&DeclaredContract>,
    absent: &str,
) -> Result<(), EpError> {
    let declared = declared.ok_or_else(|| EpError::failed_precondition(absent))?;
    if observed.class == declared.class
        && observed.input_digest == declared.input_digest
        && observed.output_digest == declared.output_digest
    {
        Ok(())
    } else {
        Err(EpError::permission_denied(
            "its caller asked under another class or contract than the registered manager declares",
        ))
    }
}

/// Step 6: a person's request concerns that person's runs alone. A caller of a static mesh is no person.
pub(super) fn same_owner(caller: &EndpointCaller, owner: &Owner) -> Result<(), EpError> {
    let of = &caller.principal.owner;
    if of.kind() == OwnerKind::Derived && of != owner {
        return Err(EpError::permission_denied(
            "a person's runs are started, resumed and answered for that person alone, on a manager of their own",
        ));
    }
    Ok(())
}

/// The issuance's ceiling admits publishing exactly this subject, and the evidence is of exactly this issuance.
pub(super) fn within_ceiling(
    reference: &IssuedAuthorityRef,
    resolved: &ResolvedAuthority,
    subject: &str,
) -> Result<(), EpError> {
    if resolved.evidence.authority() != reference {
        return Err(EpError::permission_denied(
            "the evidence of the caller's authority names another issuance",
        ));
    }
    let permitted = ConcreteSubject::parse(subject)
        .is_ok_and(|subject| resolved.evidence.permissions().publish.permits_subject(&subject));
    if permitted {
        Ok(())
    } else {
        Err(EpError::permission_denied("the caller's issued authority does not permit that subject"))
    }
}

/// Whether the row is a managed agent's, alive, of exactly this caller.
fn is_live_seat(row: Option<&TaggedRow>, caller: &EndpointCaller) -> bool {
    row.is_some_and(|tagged| {
        tagged.kind == RowKind::ManagedAgent
            && tagged.row.lifecycle_uid.as_deref() == Some(caller.lifecycle_uid.as_str())
    })
}

/// The refusal of a caller without an issued authority. It names its caller.
fn unbound(command: &str, caller: &EndpointCaller) -> EpError {
    EpError::permission_denied(format!(
        "{command} on a remote manager needs a caller whose authority was issued: connect anew with view \
         \"manager-caller\" and ask on the versioned rail"
    ))
    .with_detail(serde_json::json!({
        "kind": UNBOUND_CALLER_AUTHORITY,
        "owner": caller.principal.owner,
        "actor": caller.principal.actor,
        "uid": caller.lifecycle_uid,
    }))
}

/// The whole check of a served resume or answer, in its order.
pub(super) async fn check_served(
    world: &dyn RunWorld,
    serving: &Serving<'_>,
    forward: &Forward<'_>,
) -> Result<(), EpError> {
    let (command, served) = (forward.wanted.command(), forward.subject);
    let subject = served_subject(serving, command, served)?;
    let observed = was_observed(world.take_served(served).await?, command)?;
    let absent = format!("registered manager has no {command} contract");
    serving.check_asked(world, &observed, forward.wanted, &absent).await?;
    same_owner(&subject.caller, forward.run_owner)?;
    if let Some(reference) = issued_reference(&subject) {
        return within_ceiling(&reference, &world.resolve(&reference).await?, served);
    }
    if command == RUN_ANSWER && subject.caller.principal.owner == *forward.run_owner {
        let row = world.row(&subject.caller.principal).await?;
        if is_live_seat(row.as_ref(), &subject.caller) {
            return Ok(());
        }
    }
    Err(unbound(command, &subject.caller))
}
