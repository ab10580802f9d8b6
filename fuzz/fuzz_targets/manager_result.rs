//! What a participant makes of a host's answer (contract 08 §8.3): nothing binds that does not repeat the request, and a
//! refusal is one line that repeats nothing.
//!
//! Input: a kind, by its first byte, and an answer. Marks: `$o` the owner, `$i` the instance, `$l` the manager's lifecycle,
//! `$r` the request's id, `$p` its proof, `$s $e $v $g $k` a JWT for each standing key in order, `$I` the identities and `$A`
//! the actors as they are printed.
#![no_main]

use std::sync::LazyLock;

use cotal_fuzz::{Counting, NOW, fill};
use cotal_manager::remote::{
    ManagerIdentity,
    requests::{Current, Requests},
    results::{self, Known},
};
use cotal_trust::{
    jwt::{UserClaims, encode_user, principal_tags},
    nkey::Seed,
};
use cotal_wire::{
    Account, Actor, DigestRef, LifecycleUid, Owner, Permissions, Principal, Space,
    es_value::EsValue,
    manager_authority::{
        EnrollmentTarget, Envelope, Incarnation, Kind, ServiceRequest, StandingActors, StandingRole,
    },
};
use cotal_workspace::root::Root;
use libfuzzer_sys::fuzz_target;

struct House {
    identity: ManagerIdentity,
    actor: Actor,
    owner: Owner,
    current: Current,
    agent: Incarnation,
    jwts: [String; 5],
    entropy: Counting,
    activate: ServiceRequest,
    bundle: ServiceRequest,
}

static HOUSE: LazyLock<House> = LazyLock::new(|| {
    let entropy = Counting::default();
    let dir = std::env::temp_dir().join(format!("cotal-fuzz-manager-{}", std::process::id()));
    let space = Space::parse("main").unwrap();
    let (identity, _) = ManagerIdentity::load_or_create(&Root::at(&dir), &space, &entropy).unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
    let account = Seed::<Account>::generate(&entropy);
    let jwts = StandingRole::ALL.map(|role| {
        let principal = Principal::new(owner.clone(), role.actor(identity.instance()));
        let claims = UserClaims {
            name: String::new(),
            subject: identity.seed(role).public().clone(),
            issuer_account: account.public().clone(),
            permissions: Permissions::default(),
            tags: principal_tags(&principal),
            exp: Some(NOW.plus(300)),
        };
        encode_user(&claims, &account, NOW)
    });
    let current = Current {
        owner: owner.clone(),
        account: account.public().clone(),
        proof: DigestRef::parse(&format!("sha256:{}", "0".repeat(64))).unwrap(),
        epoch: 0,
    };
    let agent = Incarnation {
        owner: owner.clone(),
        actor: Actor::parse("scout").unwrap(),
        lifecycle_uid: LifecycleUid::mint(&entropy),
    };
    let actor = Actor::parse("cli").unwrap();
    let requests = Requests::of(&identity, &actor, &entropy);
    let activate = requests.activate(&owner, vec![EsValue::Null]);
    let bundle = requests.standing_bundle(&current);
    House { identity, actor, owner, current, agent, jwts, entropy, activate, bundle }
});

fn marks<'h>(house: &'h House, envelope: &'h Envelope, printed: &'h [String; 2]) -> impl Fn(u8) -> Option<&'h str> {
    move |mark| {
        Some(match mark {
            b'o' => house.owner.as_str(),
            b'i' => house.identity.instance().as_str(),
            b'l' => house.identity.lifecycle().as_str(),
            b'r' => envelope.request_id.as_str(),
            b'p' => envelope.registration_proof.as_ref()?.as_str(),
            b's' => &house.jwts[0],
            b'e' => &house.jwts[1],
            b'v' => &house.jwts[2],
            b'g' => &house.jwts[3],
            b'k' => &house.jwts[4],
            b'I' => &printed[0],
            b'A' => &printed[1],
            _ => return None,
        })
    }
}

fuzz_target!(|data: &[u8]| {
    let house = &*HOUSE;
    let [which, template @ ..] = data else { return };
    let requests = Requests::of(&house.identity, &house.actor, &house.entropy);
    let printed = [
        serde_json::to_string(&house.identity.identities()).unwrap(),
        serde_json::to_string(&StandingActors::of(house.identity.instance())).unwrap(),
    ];
    let known = Known { owner: Some(house.owner.clone()), account: Some(house.current.account.clone()) };
    let answer = |envelope: &Envelope| {
        let bytes = fill(template, marks(house, envelope, &printed));
        EsValue::parse(&bytes).ok()
    };
    // Whether it bound, and what was asked.
    let (bound, kind, envelope, lifecycle) = match which % 6 {
        0 | 1 => {
            let request = if which % 6 == 0 { &house.activate } else { &house.bundle };
            let Some(answer) = answer(&request.envelope) else { return };
            let bound = results::bind_service(request, &known, &answer);
            if let Ok(material) = &bound {
                assert_eq!((&material.owner, &material.account), (&house.owner, &house.current.account));
                assert_eq!(material.expires_at, NOW.plus(300).to_millis());
                assert_eq!(material.next_proof.is_some(), which % 6 == 0);
                assert_eq!(material.credentials().count(), if which % 6 == 0 { 3 } else { 5 });
            }
            (bound.map(|_| answer), Kind::Service, request.envelope.clone(), "lifecycleUid")
        }
        2 => {
            let target = EnrollmentTarget {
                actor: house.agent.actor.clone(),
                role: None,
                label: None,
                capabilities: None,
                subscribe: None,
                allow_subscribe: None,
                allow_publish: None,
                token_hash: Some("0".repeat(64).parse().unwrap()),
            };
            let request = requests.enroll(&house.current, target);
            let Some(answer) = answer(&request.envelope) else { return };
            let bound = results::bind_enrollment(&request, &house.owner, &answer);
            if let Ok(enrolled) = &bound {
                assert_eq!((&enrolled.agent.owner, &enrolled.agent.actor), (&house.owner, &house.agent.actor));
                assert!(enrolled.exchange.scheme() == "https" || enrolled.exchange.scheme() == "http");
            }
            (bound.map(|_| answer), Kind::Enrollment, request.envelope, "managerLifecycleUid")
        }
        3 => {
            let request = requests.goal_index(&house.current);
            let Some(answer) = answer(&request.envelope) else { return };
            let bound = results::bind_goal_index(&request, &house.owner, &answer);
            if let Ok(entries) = &bound {
                assert!(entries.iter().all(|entry| entry.owner == house.owner.as_str()), "another owner's goal");
            }
            (bound.map(|_| answer), Kind::GoalIndexScan, request.envelope, "managerLifecycleUid")
        }
        4 => {
            let request = requests.evict(vec![format!("{}.x", house.owner)]);
            let Some(answer) = answer(&request.envelope) else { return };
            let bound = results::bind_maintenance(&request, &house.owner, &answer);
            (bound.map(|_| answer), Kind::Maintenance, request.envelope, "managerLifecycleUid")
        }
        _ => {
            let request = requests.admin(&house.current, house.agent.clone());
            let Some(answer) = answer(&request.envelope) else { return };
            let bound = results::bind_admin(&request, &house.owner, &answer);
            (bound.map(|_| answer), Kind::AdminAuthorization, request.envelope, "managerLifecycleUid")
        }
    };
    match bound {
        Ok(answer) => {
            // A second reading: every coordinate is the request's.
            let answer = answer.as_object().expect("an object");
            let text = |member: &str| answer.get(member).and_then(EsValue::as_text);
            assert_eq!(answer.get("v").and_then(EsValue::as_safe_integer), Some(1));
            assert_eq!(text("kind"), Some(kind.as_str()));
            assert_eq!(text("space"), Some("main"));
            assert_eq!(text("owner"), Some(house.owner.as_str()));
            assert_eq!(text("actor"), Some("cli"));
            assert_eq!(text("instanceId"), Some(envelope.instance_id.as_str()));
            assert_eq!(text(lifecycle), Some(envelope.manager_lifecycle_uid.as_str()));
            assert_eq!(text("requestId"), Some(envelope.request_id.as_str()));
            assert_eq!(text("registrationProof"), envelope.registration_proof.as_ref().map(|proof| proof.as_str()));
        }
        Err(why) => {
            let said = why.to_string();
            assert!(said.len() < 700 && !said.contains('\n'), "{said}");
            assert!(house.jwts.iter().all(|jwt| !said.contains(jwt.as_str())), "a refusal repeats a credential");
        }
    }
});
