//! Signing a turn at a run: one fixed profile for each key, and nothing in it that was not read (contract 06 §12.2).

use cotal_authority::manager::{
    Holder,
    runs::{GrantedTurn, TurnPins},
};
use cotal_trust::mint::CredentialKind;
use cotal_wire::{
    EndpointName, EpError, Nkey, Owner, Principal, User,
    grants::runs::{OperatorPin, RunCaller, RunPin, run_driver, run_mediator, run_operator},
    manager_authority::{IssuedJwt, RunAttemptResult, RunCredentials},
};

use super::Parts;
use crate::manager::mint::Minting;

/// Signs what was granted to the manager of this holder, and nothing past the end that the holder itself has.
pub(super) fn sign(
    parts: &Parts,
    holder: &Holder,
    granted: &GrantedTurn,
) -> Result<RunAttemptResult, EpError> {
    let owner = holder.owner();
    let request = granted.request();
    let (envelope, endpoint) = (&request.envelope, EndpointName::manager().token());
    let minting = Minting::new(parts, holder.not_after())?;
    let credentials = match granted.pins() {
        TurnPins::Attempt { attempt, run_owner } => {
            let pin = RunPin {
                endpoint,
                run: attempt.run_id.clone(),
                owner: run_owner.clone(),
                takeover: attempt.takeover_id.clone(),
                instance: envelope.instance_id.clone(),
                epoch: attempt.epoch,
            };
            let keys = (&attempt.driver_id, &attempt.mediator_id);
            let (driver, mediator) = sign_pair(&minting, owner, &pin, keys)?;
            RunCredentials::Attempt { driver, mediator, attempt: attempt.clone() }
        }
        TurnPins::Operator { turn, token } => {
            let pin = OperatorPin {
                endpoint,
                takeover: turn.takeover_id.clone(),
                run: turn.run_id.clone(),
                answers: token.clone(),
            };
            let grant = run_operator(minting.space(), &pin, &turn.id.conn_id());
            let principal = Principal::new(owner.clone(), envelope.actor.clone());
            let kind = CredentialKind::RunOperator;
            let exp = minting.one_shot_expiry(kind)?;
            let operator = minting.mint(kind, &turn.id, &principal, grant, exp)?;
            RunCredentials::Operator { operator, turn: turn.clone() }
        }
    };
    RunAttemptResult::of(envelope, owner, &request.pins, credentials)
        .ok_or_else(|| EpError::internal("an attempt carries a proof"))
}

/// The driver's and the mediator's credential of a run, under the caller actor that the run has at its manager's owner. At an
/// attempt and at its renewals alike.
pub(in crate::manager) fn sign_pair(
    minting: &Minting<'_>,
    owner: &Owner,
    pin: &RunPin,
    (driver, mediator): (&Nkey<User>, &Nkey<User>),
) -> Result<(IssuedJwt, IssuedJwt), EpError> {
    let as_run = Principal::new(owner.clone(), RunCaller::of(&pin.run, &pin.owner).principal.actor);
    let driver_grant = run_driver(minting.space(), pin, &driver.conn_id());
    let mediator_grant = run_mediator(minting.space(), pin, &mediator.conn_id());
    let exp = minting.standing_expiry();
    Ok((
        minting.mint(CredentialKind::RunDriver, driver, &as_run, driver_grant, exp)?,
        minting.mint(CredentialKind::RunMediator, mediator, &as_run, mediator_grant, exp)?,
    ))
}
