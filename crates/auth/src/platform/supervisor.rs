//! The platform supervisor door: a platform supervises a user's manager in the user's own name, for as long as its assignment
//! runs (contract 05 §17, 03 §K.5).
//!
//! Every answer is bound three times over: the platform vouches for its administrator and shows the assignment at each
//! request, every credential expires with the assignment, and what two of them may do is recorded once. When the assignment
//! has ended, [`PlatformSupervisorDoors::end_assignment`] retires those records and the manager's gate; from then on every
//! request refuses.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_authority::{
    issued::SupervisedDuty,
    manager::{Holder, PlatformContext, SupervisorAssignment},
    registration::{EndpointInstance, gate},
    stores::AuthorityStores,
};
use cotal_broker::Lifetime;
use cotal_trust::jwt;
use cotal_wire::{
    DerivedOwner, EndpointName, EpError, InfraRole, OpId, Owner, UnixSecs,
    es_value::EsValue,
    grants::endpoint_serve,
    manager_authority::{PlatformSupervisorRequest, StandingRole, serve_principal},
    rows::IssuedPermissions,
};
use futures::TryFutureExt as _;
use serde_json::{Value, value::RawValue};

use super::control::{in_its_own_task, observe};
use crate::{handle::AuthService, manager::AnswerManagers};

/// Lifetime of the credential with which a gate is retired, in seconds.
const END_TTL_SECS: u64 = 60;

/// Why a platform's own record could not be read. What it says is logged and told to no caller.
pub type PlatformError = Box<dyn std::error::Error + Send + Sync>;

/// What the platform says of the managers that it supervises for its users; asked at every use, and never cached.
#[async_trait]
pub trait PlatformSupervision: Send + Sync {
    /// Whether whoever calls the door may administer this user's assignment. Only `true` is yes.
    async fn authorize_platform_admin(&self, owner: &DerivedOwner) -> Result<bool, PlatformError>;

    /// The user's assignment now, or `None`.
    async fn observe_assignment(
        &self,
        owner: &DerivedOwner,
    ) -> Result<Option<SupervisorAssignment>, PlatformError>;
}

/// The supervisor's doors of a context that was started with `platformSupervisor`. A handle of that context, too.
#[derive(Clone)]
pub struct PlatformSupervisorDoors {
    service: AuthService,
    platform: Arc<dyn PlatformSupervision>,
}

/// The door of one user's manager.
#[derive(Clone)]
pub struct PlatformSupervisorDoor {
    doors: PlatformSupervisorDoors,
    owner: DerivedOwner,
}

impl PlatformSupervisorDoors {
    pub(crate) fn new(service: AuthService, platform: Arc<dyn PlatformSupervision>) -> Self {
        Self { service, platform }
    }

    /// The door of this user's manager. `unavailable` when the context is not ready, `permission-denied` unless the platform
    /// vouches for its administrator.
    pub async fn authority(&self, owner: DerivedOwner) -> Result<PlatformSupervisorDoor, EpError> {
        self.service.check_ready()?;
        self.check_admin(&owner).await?;
        Ok(PlatformSupervisorDoor { doors: self.clone(), owner })
    }

    /// Ends what an assignment left: the recorded ceilings of its manager, and the manager's gate, which never opens again.
    /// The platform's own record must say `ended` already. The same again is no failure.
    ///
    /// `permission-denied` without an administrator, without an assignment of this user and context, or when the gate is
    /// another principal's; `failed-precondition` while the assignment has not ended; `conflict` when the gate kept moving;
    /// `unavailable` when a store does not answer: end it again.
    pub async fn end_assignment(&self, owner: &DerivedOwner) -> Result<(), EpError> {
        self.service.check_ready()?;
        self.check_admin(owner).await?;
        let assignment = self.assignment(owner).await?;
        assignment.names(self.context(), &assignment.owner)?;
        if !assignment.ended {
            return Err(EpError::failed_precondition(
                "platform: the assignment has not ended; end it in the platform's own record first",
            ));
        }
        let entered = self.service.enter()?;
        let service = self.service.clone();
        let ending = tokio::spawn(async move {
            // Held to the end: a close waits for it.
            let _entered = entered;
            end(&service, &assignment).await
        });
        ending.await.unwrap_or_else(|_| {
            Err(EpError::unavailable("platform: the end did not run to its end; end the assignment again"))
        })
    }

    fn context(&self) -> PlatformContext<'_> {
        let parts = self.service.parts();
        PlatformContext { space: &parts.space, account: &parts.data_account }
    }

    /// What the platform says, while the context is open.
    async fn ask<T>(
        &self,
        what: &str,
        asked: impl Future<Output = Result<T, PlatformError>>,
    ) -> Result<T, EpError> {
        self.service.while_open(asked.map_err(|error| unreadable(what, &*error))).await
    }

    async fn check_admin(&self, owner: &DerivedOwner) -> Result<(), EpError> {
        let asked = self.ask("administrator", self.platform.authorize_platform_admin(owner));
        if asked.await? {
            return Ok(());
        }
        Err(EpError::permission_denied("platform: no administrator of this user's assignment"))
    }

    /// The assignment, of this very user.
    async fn assignment(&self, owner: &DerivedOwner) -> Result<SupervisorAssignment, EpError> {
        let asked = self.ask("assignment", self.platform.observe_assignment(owner));
        let assignment = asked
            .await?
            .ok_or_else(|| EpError::permission_denied("platform: no manager is assigned for this user"))?;
        assignment.names(self.context(), &Owner::from(owner))?;
        Ok(assignment)
    }
}

impl PlatformSupervisorDoor {
    /// Serves one request, the JSON text of an envelope (contract 05 §17): `prepare`, `activate` and the standing renewals of
    /// the assigned manager.
    ///
    /// `unavailable` when the context is not ready or a record cannot be read; `bad-request` for a text that is no envelope;
    /// `permission-denied` for everything that the assignment does not cover; past it, what the operation itself refuses.
    pub async fn request(&self, envelope: &[u8]) -> Result<Box<RawValue>, EpError> {
        let door = self.clone();
        let serve = async move |envelope| door.serve(&envelope).await;
        in_its_own_task(&self.doors.service, envelope, serve).await
    }

    async fn serve(&self, envelope: &EsValue) -> Result<Box<RawValue>, EpError> {
        let request = PlatformSupervisorRequest::parse(envelope)?;
        if request.owner != Owner::from(&self.owner) {
            return Err(EpError::permission_denied(
                "platform: the request is of another user than this door",
            ));
        }
        self.doors.check_admin(&self.owner).await?;
        let assignment = self.doors.assignment(&self.owner).await?;
        let parts = self.doors.service.parts();
        let now = parts.clock.now_secs();
        assignment.check(self.doors.context(), &request, now)?;
        let gate =
            observe(&self.doors.service, &EndpointName::manager().token(), &assignment.instance).await?;
        assignment.check_gate(gate.as_ref())?;
        for role in SupervisedDuty::ROLES {
            parts.issuer.check_supervised(&duty(&assignment, role), now).await?;
        }

        let until = assignment.expires_at;
        let holder =
            Holder::Supervisor { owner: request.owner.clone(), instance: assignment.instance.clone(), until };
        let result = parts.manager.dispatch(&holder, request.request).await?;
        let issued: Value = serde_json::from_str(result.get())
            .map_err(|_| EpError::internal("platform: an answer is no JSON"))?;
        check_expiries(&issued, until)?;
        for role in SupervisedDuty::ROLES {
            let Some(jwt) = credential(&issued, role) else { continue };
            let wanted = request.service.envelope.identities.of(role).as_str();
            let ceiling = ceiling_of(jwt, wanted)?;
            parts.issuer.record_supervised(&duty(&assignment, role), ceiling, until, now).await?;
        }
        // An end that came meanwhile found nothing recorded yet: what was minted is not handed out, and ends.
        if let Err(refusal) = self.still_assigned(&request).await {
            for role in SupervisedDuty::ROLES {
                parts.issuer.end_supervised(&duty(&assignment, role)).await?;
            }
            return Err(refusal);
        }
        Ok(result)
    }

    async fn still_assigned(&self, request: &PlatformSupervisorRequest<'_>) -> Result<(), EpError> {
        let assignment = self.doors.assignment(&self.owner).await?;
        assignment.check(self.doors.context(), request, self.doors.service.parts().clock.now_secs())?;
        let gate =
            observe(&self.doors.service, &EndpointName::manager().token(), &assignment.instance).await?;
        assignment.check_gate(gate.as_ref())
    }
}

/// Retires the records first: when it stops halfway, the gate still stands and the end is asked for again.
async fn end(service: &AuthService, assignment: &SupervisorAssignment) -> Result<(), EpError> {
    let parts = service.parts();
    for role in SupervisedDuty::ROLES {
        parts.issuer.end_supervised(&duty(assignment, role)).await?;
    }
    let (space, endpoint, instance) =
        (parts.space.token(), EndpointName::manager().token(), assignment.instance.clone());
    let connection = parts
        .connector
        .open(
            InfraRole::REMOTE_MANAGER_MAINTENANCE.label(&parts.space),
            &|inbox| endpoint_serve::registration_executor(&space, inbox, &endpoint, &instance),
            Lifetime::OneShot { ttl_secs: END_TTL_SECS, principal: None },
        )
        .await?;
    let retired = match AuthorityStores::bind(&connection, &parts.space).await {
        Ok(stores) => {
            let at = EndpointInstance { endpoint, instance };
            let principal = serve_principal(&assignment.owner, &assignment.instance);
            let op = OpId::managed_retirement(&assignment.lifecycle_uid);
            gate::retire(&stores, &at, &principal, &op).await
        }
        Err(refusal) => Err(refusal),
    };
    let closed = connection.close().await;
    retired.and(closed)
}

fn duty(assignment: &SupervisorAssignment, role: StandingRole) -> SupervisedDuty {
    SupervisedDuty::of(&assignment.owner, &assignment.instance, &assignment.lifecycle_uid, role)
}

fn credential(result: &Value, role: StandingRole) -> Option<&str> {
    result.get("credentials")?.get(role.as_str())?.get("jwt")?.as_str()
}

/// No credential outlives the assignment: what was signed is looked at, not how it was signed.
fn check_expiries(result: &Value, until: UnixSecs) -> Result<(), EpError> {
    let over = || EpError::internal("platform supervisor: a credential would outlive its assignment");
    let credentials = result.get("credentials").and_then(Value::as_object).ok_or_else(over)?;
    for credential in credentials.values() {
        let claims =
            credential.get("jwt").and_then(Value::as_str).and_then(|jwt| jwt::decode_verified(jwt).ok());
        let signed = claims.as_ref().and_then(|claims| claims.get("exp")).and_then(Value::as_u64);
        let told = credential.get("exp").and_then(Value::as_u64);
        if signed.is_none_or(|exp| exp > until.0) || told != signed {
            return Err(over());
        }
    }
    Ok(())
}

/// What a credential may do, when it is of the key that asked.
fn ceiling_of(jwt: &str, wanted: &str) -> Result<IssuedPermissions, EpError> {
    let other = || EpError::internal("platform supervisor: a credential is not of the key that asked for it");
    let claims = jwt::decode_verified(jwt).map_err(|_| other())?;
    if claims.get("sub").and_then(Value::as_str) != Some(wanted) {
        return Err(other());
    }
    let mut fragment = serde_json::Map::new();
    for direction in ["pub", "sub"] {
        if let Some(rules) = claims.get("nats").and_then(|nats| nats.get(direction)) {
            fragment.insert(direction.to_owned(), rules.clone());
        }
    }
    IssuedPermissions::of_native(&Value::Object(fragment))
}

fn unreadable(what: &str, error: &(dyn std::error::Error + Send + Sync)) -> EpError {
    tracing::error!(%error, what, "the platform's record cannot be read");
    EpError::unavailable(format!("the platform's {what} cannot be read; retry"))
}

#[cfg(test)]
mod tests {
    use cotal_trust::{
        jwt::{UserClaims, encode_user},
        nkey::Seed,
        system::SystemEntropy,
    };
    use cotal_wire::{Account, ConnId, Permissions, SpaceToken, User, grants::issued};
    use serde_json::json;

    use super::*;

    const UNTIL: UnixSecs = UnixSecs(1_000);

    fn permissions() -> Permissions {
        issued::issuer(&SpaceToken::parse("demo").unwrap(), &ConnId::parse("inbox-nonce-1").unwrap())
    }

    fn signed(user: &Seed<User>, exp: Option<u64>) -> String {
        let account = Seed::<Account>::generate(&SystemEntropy);
        let claims = UserClaims {
            name: "manager".to_owned(),
            subject: user.public().clone(),
            issuer_account: account.public().clone(),
            permissions: permissions(),
            tags: Vec::new(),
            exp: exp.map(UnixSecs),
        };
        encode_user(&claims, &account, UnixSecs(1))
    }

    #[test]
    fn a_credential_that_would_outlive_the_assignment_is_never_handed_out() {
        let user = Seed::generate(&SystemEntropy);
        let with = |jwt: String, exp: u64| json!({"credentials": {"supervisor": {"jwt": jwt, "exp": exp}}});
        assert_eq!(check_expiries(&with(signed(&user, Some(1_000)), 1_000), UNTIL), Ok(()));
        for bad in [
            with(signed(&user, Some(1_001)), 1_001),
            with(signed(&user, Some(1_001)), 1_000),
            with(signed(&user, None), 1_000),
            with("no.jwt.at-all".to_owned(), 1_000),
            json!({"credentials": {"supervisor": {"exp": 1}}}),
            json!({}),
        ] {
            assert!(check_expiries(&bad, UNTIL).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_recorded_is_what_was_signed_for_the_asking_key() {
        let (user, other) = (Seed::<User>::generate(&SystemEntropy), Seed::<User>::generate(&SystemEntropy));
        let jwt = signed(&user, Some(1_000));
        let ceiling = ceiling_of(&jwt, user.public().as_str()).unwrap();
        assert_eq!(ceiling, IssuedPermissions::of_grants(&permissions()).unwrap());
        assert!(ceiling_of(&jwt, other.public().as_str()).is_err());
    }
}
