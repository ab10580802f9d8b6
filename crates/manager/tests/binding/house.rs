//! The host's side of the answers, and the participant that asks. The fuzz target `manager_result` plays in it too, so nothing in
//! it is drawn but from the entropy that it is given.

use std::path::Path;

use cotal_manager::remote::{
    ManagerIdentity,
    requests::{Current, Requests},
    results::Known,
};
use cotal_trust::{
    jwt::{UserClaims, encode_user},
    nkey::Seed,
};
use cotal_wire::{
    Account, Actor, DigestRef, EndpointName, Entropy, Generation, LifecycleUid, Nkey, Owner, Permissions,
    Principal, Revision, Space, UnixMillis, UnixSecs, User,
    es_value::EsValue,
    manager_authority::{Incarnation, RunId, StandingActors, StandingRole, Unbound},
    rows::{IssuedAuthorityRef, IssuedPermissions, RunAdmission},
};
use cotal_workspace::root::Root;
use serde_json::{Map, Value, json};

pub(crate) const NOW: u64 = 1_800_000_000;

/// A host's side of the answers, and the participant that asks.
pub(crate) struct House {
    pub(crate) identity: ManagerIdentity,
    pub(crate) actor: Actor,
    pub(crate) owner: Owner,
    pub(crate) account: Seed<Account>,
    pub(crate) signing: Seed<Account>,
    pub(crate) current: Current,
    pub(crate) agent: Incarnation,
    pub(crate) entropy: &'static dyn Entropy,
}

/// One kind's request, its good answer, and what binds it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) answer: Value,
    pub(crate) bind: Box<dyn Fn(&EsValue) -> Result<(), Unbound>>,
    /// Paths whose value the participant cannot know: another of the same type still binds.
    pub(crate) free: &'static [&'static str],
    /// Members that may be missing.
    pub(crate) optional: &'static [&'static str],
}

impl House {
    /// A house whose manager makes its identity on this root.
    pub(crate) fn of(root: &Path, entropy: &'static dyn Entropy) -> Self {
        let space = Space::parse("main").unwrap();
        let (identity, _) = ManagerIdentity::load_or_create(&Root::at(root), &space, entropy).unwrap();
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let account = Seed::generate(entropy);
        let current = Current {
            owner: owner.clone(),
            account: account.public().clone(),
            proof: DigestRef::parse(&format!("sha256:{}", "0".repeat(64))).unwrap(),
            epoch: 3,
        };
        let agent = Incarnation {
            owner: owner.clone(),
            actor: Actor::parse("scout").unwrap(),
            lifecycle_uid: LifecycleUid::mint(entropy),
        };
        Self {
            identity,
            actor: Actor::parse("cli").unwrap(),
            owner,
            account,
            signing: Seed::generate(entropy),
            current,
            agent,
            entropy,
        }
    }

    pub(crate) fn requests(&self) -> Requests<'_> {
        Requests::of(&self.identity, &self.actor, self.entropy)
    }

    pub(crate) fn known(&self) -> Known {
        Known { owner: Some(self.owner.clone()), account: Some(self.account.public().clone()) }
    }

    pub(crate) fn claims(&self, key: &Nkey<User>, principal: &Principal, exp: u64) -> UserClaims {
        UserClaims {
            name: "remote-manager".into(),
            subject: key.clone(),
            issuer_account: self.account.public().clone(),
            permissions: Permissions::default(),
            tags: cotal_trust::jwt::principal_tags(principal),
            exp: Some(UnixSecs(exp)),
        }
    }

    pub(crate) fn credential(&self, key: &Nkey<User>, principal: &Principal, seconds: u64) -> Value {
        let claims = self.claims(key, principal, NOW + seconds);
        json!({ "jwt": encode_user(&claims, &self.signing, UnixSecs(NOW)), "exp": NOW + seconds })
    }

    pub(crate) fn serves(&self) -> Principal {
        Principal::new(self.owner.clone(), StandingRole::Serve.actor(self.identity.instance()))
    }

    pub(crate) fn standing(&self, roles: &[StandingRole]) -> Value {
        let mut credentials = Map::new();
        for role in roles {
            let principal = Principal::new(self.owner.clone(), role.actor(self.identity.instance()));
            let seconds = if *role == StandingRole::Executor { 300 } else { 86_400 };
            let entry = self.credential(self.identity.seed(*role).public(), &principal, seconds);
            credentials.insert(role.as_str().into(), entry);
        }
        credentials.into()
    }

    /// The host's record of a run that this manager may drive.
    pub(crate) fn admission(&self, run: &RunId) -> RunAdmission {
        let authority = IssuedAuthorityRef {
            space: self.identity.space().token(),
            principal: self.serves(),
            uid: LifecycleUid::mint(self.entropy),
            generation: Generation::mint(self.entropy),
        };
        RunAdmission::issued(
            &EndpointName::manager().token(),
            run,
            self.identity.instance(),
            (authority, Revision(7)),
            IssuedPermissions::of_grants(&Permissions::default()).unwrap(),
            UnixMillis(5),
        )
    }

    /// The members that an answer repeats of its request, and more.
    pub(crate) fn echo(request: &impl serde::Serialize, drop: &[&str], more: Value) -> Value {
        let mut answer = serde_json::to_value(request).unwrap();
        let members = answer.as_object_mut().unwrap();
        members.retain(|member, _| !drop.contains(&member.as_str()));
        let Value::Object(more) = more else { unreachable!() };
        members.extend(more);
        answer
    }

    /// Answers of the manager's own lifecycle name its lifecycle `lifecycleUid`.
    pub(crate) fn material(
        &self,
        request: &impl serde::Serialize,
        drop: &[&str],
        credentials: Value,
        more: Value,
    ) -> Value {
        let first =
            credentials.as_object().unwrap().values().map(|entry| entry["exp"].as_u64().unwrap()).min();
        let mut answer = Self::echo(
            request,
            &[&["managerLifecycleUid"][..], drop].concat(),
            json!({
                "owner": self.owner,
                "lifecycleUid": self.identity.lifecycle(),
                "issuedAt": NOW * 1000,
                "expiresAt": first.unwrap() * 1000,
                "actors": StandingActors::of(self.identity.instance()),
                "credentials": credentials,
            }),
        );
        let Value::Object(more) = more else { unreachable!() };
        answer.as_object_mut().unwrap().extend(more);
        answer
    }

    pub(crate) fn cases(&self) -> Vec<Case> {
        [self.service(), self.agents(), self.maintenance_and_runs()].into_iter().flatten().collect()
    }
}

/// Contract 03 §J, spelled out.
pub(crate) fn run_caller(owner: &Owner, run_id: &str) -> Principal {
    let hex = cotal_wire::canonical::raw_digest(run_id.as_bytes()).hex().to_string();
    Principal::new(owner.clone(), Actor::parse(&format!("wf_{}", &hex[..12])).unwrap())
}
