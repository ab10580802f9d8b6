//! Signing a turn at a run: one fixed profile for each key, and nothing in it that was not read (contract 06 §12.2).

use cotal_authority::manager::{
    Holder,
    runs::{GrantedTurn, TurnPins},
};
use cotal_trust::mint::{CredentialKind, PublicUser, mint_public_user};
use cotal_wire::{
    EndpointName, EpError, Nkey, Owner, Permissions, Principal, SpaceToken, User,
    grants::runs::{OperatorPin, RunCaller, RunPin, run_driver, run_mediator, run_operator},
    manager_authority::{IssuedJwt, RunAttemptResult, RunCredentials},
};

use super::Parts;

/// Lifetime of an operator's credential, in seconds.
const OPERATOR_TTL_SECS: u64 = 60;

/// Signs what was granted to the manager of this holder, and nothing past the end that the holder itself has.
pub(super) fn sign(
    parts: &Parts,
    holder: &Holder,
    granted: &GrantedTurn,
) -> Result<RunAttemptResult, EpError> {
    let owner = holder.owner();
    let request = granted.request();
    let (envelope, endpoint) = (&request.envelope, EndpointName::manager().token());
    let space = parts.space.token();
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
            let (driver, mediator) =
                sign_pair(&space, owner, &pin, keys, |kind, key, principal, permissions| {
                    issue(parts, holder, (kind, key), principal, (permissions, parts.standing_ttl_secs))
                })?;
            RunCredentials::Attempt { driver, mediator, attempt: attempt.clone() }
        }
        TurnPins::Operator { turn, token } => {
            let pin = OperatorPin {
                endpoint,
                takeover: turn.takeover_id.clone(),
                run: turn.run_id.clone(),
                answers: token.clone(),
            };
            let permissions = run_operator(&space, &pin, &turn.id.conn_id());
            let principal = Principal::new(owner.clone(), envelope.actor.clone());
            let kind = (CredentialKind::RunOperator, &turn.id);
            RunCredentials::Operator {
                operator: issue(parts, holder, kind, &principal, (permissions, OPERATOR_TTL_SECS))?,
                turn: turn.clone(),
            }
        }
    };
    RunAttemptResult::of(envelope, owner, &request.pins, credentials)
        .ok_or_else(|| EpError::internal("an attempt carries a proof"))
}

/// The driver's and the mediator's credential of a run, under the caller actor that the run has at its manager's owner. At an
/// attempt and at its renewals alike.
pub(in crate::manager) fn sign_pair(
    space: &SpaceToken,
    owner: &Owner,
    pin: &RunPin,
    (driver, mediator): (&Nkey<User>, &Nkey<User>),
    sign: impl Fn(CredentialKind, &Nkey<User>, &Principal, Permissions) -> Result<IssuedJwt, EpError>,
) -> Result<(IssuedJwt, IssuedJwt), EpError> {
    let as_run = Principal::new(owner.clone(), RunCaller::of(&pin.run, &pin.owner).principal.actor);
    let driver_grant = run_driver(space, pin, &driver.conn_id());
    let mediator_grant = run_mediator(space, pin, &mediator.conn_id());
    Ok((
        sign(CredentialKind::RunDriver, driver, &as_run, driver_grant)?,
        sign(CredentialKind::RunMediator, mediator, &as_run, mediator_grant)?,
    ))
}

fn issue(
    parts: &Parts,
    holder: &Holder,
    (kind, key): (CredentialKind, &Nkey<User>),
    principal: &Principal,
    (permissions, ttl_secs): (Permissions, u64),
) -> Result<IssuedJwt, EpError> {
    let now = parts.clock.now_secs();
    let own_end = now.plus(ttl_secs);
    let exp = holder.not_after().map_or(own_end, |end| end.min(own_end));
    let user = PublicUser { kind, key, principal, permissions, exp };
    let jwt = mint_public_user(&parts.data_account, user, now)
        .map_err(|error| EpError::internal(error.to_string()))?;
    Ok(IssuedJwt { jwt, exp })
}
