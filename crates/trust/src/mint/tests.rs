//! What each kind is minted with, and how what was minted stands.

use std::num::NonZeroU64;

use serde_json::json;

use super::*;
use crate::{bundle::SpaceAccount, system::SystemEntropy};

const NOW: UnixSecs = UnixSecs(1_700_000_000);

fn made() -> (BrokerTrust, SpaceAccount, Space) {
    let space = Space::parse("main").unwrap();
    let broker = BrokerTrust::create("main", &SystemEntropy, NOW);
    let account = SpaceAccount::create(&broker, &space, &SystemEntropy, NOW);
    (broker, account, space)
}

fn something(_: &ConnectPrincipal) -> Permissions {
    let one = Rules { allow: vec!["a".to_owned()], deny: Vec::new() };
    Permissions { publish: one.clone(), subscribe: one }
}

#[test]
fn default_lifetimes_are_the_contracts() {
    let of = |ttl: Option<u64>| {
        let kinds = CredentialKind::ALL.iter().filter(|kind| kind.default_ttl() == ttl);
        kinds.map(|kind| kind.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of(None), "agent observer admin channel-purger teardown deployer");
    assert_eq!(
        of(Some(86_400)),
        "supervisor delivery membership-rw endpoint-serve goal-writer session-ledger run-driver run-mediator \
         remote-manager session-caller session-serving"
    );
    assert_eq!(
        of(Some(300)),
        "provisioner deprovisioner retirement-requester lifecycle-executor endpoint-serve-executor operator \
         purger backup restore channel-writer control-caller-privileged control-caller-admin issuer \
         transfer-writer transfer-reader"
    );
    assert_eq!(of(Some(60)), "probe run-operator run-admitter endpoint-evictor");
    // The last one is this service's own.
    assert_eq!(of(Some(2_592_000)), "membership-observer connection-evictor account-publisher");
    assert_eq!(CredentialKind::ALL.len(), 6 + 11 + 15 + 4 + 2 + 1);
}

#[test]
fn an_asked_lifetime_beats_the_kinds() {
    let kind = CredentialKind::Provisioner;
    assert_eq!(Lifetime::OfKind.expiry(kind, NOW), Some(NOW.plus(300)));
    assert_eq!(Lifetime::OfKind.expiry(CredentialKind::Agent, NOW), None);
    assert_eq!(Lifetime::Until(UnixSecs(7)).expiry(kind, NOW), Some(UnixSecs(7)));
    assert_eq!(Lifetime::For(NonZeroU64::new(9).unwrap()).expiry(kind, NOW), Some(NOW.plus(9)));
}

#[test]
fn a_provisioner_is_local_bounded_tagged_and_signed_by_the_signing_key() {
    let (_, account, space) = made();
    let minted = mint_provisioner(&account.data_account(), &space, &SystemEntropy, NOW).unwrap();
    let back = creds::parse(&minted.creds).unwrap();
    let nkey = back.seed.public();
    let claims = jwt::decode_verified(&back.jwt).unwrap();
    assert_eq!(claims["name"], "provisioner");
    assert_eq!(claims["exp"], json!(NOW.0 + 300));
    assert_eq!(claims["iss"], json!(account.signing.public()));
    assert_eq!(claims["nats"]["issuer_account"], json!(account.account.public()));
    assert_eq!(
        claims["nats"]["tags"],
        json!(["owner:local", format!("actor:{nkey}"), format!("principal:local.{nkey}")])
    );
    assert_eq!(claims["nats"]["sub"]["allow"], json!([format!("_INBOX_{nkey}.>")]));
    assert!(!format!("{minted:?}").contains(&**back.seed.expose()));
}

#[test]
fn grants_are_built_for_the_resolved_principal_and_before_anything_is_signed() {
    let (_, account, _) = made();
    let holder = StaticHolder { actor: Some(Actor::parse("alice").unwrap()), ..StaticHolder::default() };
    let mint = |grant: fn(&ConnectPrincipal) -> Result<Permissions, String>| {
        let data = account.data_account();
        mint_static_user(&data, CredentialKind::Agent, &holder, Lifetime::OfKind, grant, &SystemEntropy, NOW)
    };
    let minted = mint(|who| {
        assert_eq!(who.principal.key(), "local.alice");
        Ok(something(who))
    })
    .unwrap();
    assert_eq!((minted.exp, minted.holder.conn_id), (None, minted.user.seed.public().conn_id()));
    assert_eq!(mint(|_| Err("no template".to_owned())).unwrap_err().0, "no template");
    assert!(mint(|_| Ok(Permissions::default())).unwrap_err().0.contains("names nothing"));
}

#[test]
fn system_users_are_minted_only_beside_the_fresh_seed_and_carry_no_tags() {
    let (mut broker, account, _) = made();
    let minted = mint_system_user(&broker, CredentialKind::ConnectionEvictor, something, &SystemEntropy, NOW);
    let claims = jwt::decode_verified(&minted.unwrap().user.jwt).unwrap();
    assert_eq!(claims["name"], "connection-evictor");
    assert_eq!((&claims["iss"], &claims["nats"]["issuer_account"]), (&json!(broker.sys), &json!(broker.sys)));
    assert_eq!(claims["exp"], json!(NOW.0 + 2_592_000));
    assert!(claims["nats"].get("tags").is_none());
    assert!(mint_system_user(&broker, CredentialKind::Agent, something, &SystemEntropy, NOW).is_err());
    broker.sys_signing_seed = None;
    let refusal =
        mint_system_user(&broker, CredentialKind::ConnectionEvictor, something, &SystemEntropy, NOW);
    assert!(refusal.unwrap_err().0.contains("rotate the system account"));
    let data = account.data_account();
    let refusal = mint_static_user(
        &data,
        CredentialKind::MembershipObserver,
        &StaticHolder::default(),
        Lifetime::OfKind,
        |who| Ok::<_, String>(something(who)),
        &SystemEntropy,
        NOW,
    );
    assert!(refusal.is_err());
}

#[test]
fn a_renewal_keeps_the_nkey_and_says_who_signed_it() {
    let (_, account, space) = made();
    let data = account.data_account();
    let first = mint_provisioner(&data, &space, &SystemEntropy, NOW).unwrap();
    let second = remint_static_user(
        &data,
        CredentialKind::Delivery,
        first.user.seed.clone(),
        &StaticHolder::default(),
        Lifetime::OfKind,
        |who| Ok::<_, String>(something(who)),
        NOW.plus(9),
    )
    .unwrap();
    assert_eq!(second.user.seed.public(), first.user.seed.public());
    assert_eq!(second.exp, Some(NOW.plus(9 + STANDING_RENEWABLE_TTL_SECS)));
    let signed =
        SignedBy { issuer: account.signing.public().clone(), account: account.account.public().clone() };
    assert_eq!(SignedBy::of_creds(&second.creds), Some(signed));
    assert_eq!(SignedBy::of_creds("x"), None);
}

#[test]
fn a_key_that_somebody_else_holds_gets_a_bounded_jwt_of_a_public_profile_and_no_seed() {
    let (_, account, _) = made();
    let data = account.data_account();
    let seed = Seed::<User>::generate(&SystemEntropy);
    let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.manager_x").unwrap();
    let one = |rows: usize| Rules { allow: vec!["a.b.c".to_owned(); rows], deny: Vec::new() };
    let mint = |kind, publish: usize, subscribe: usize| {
        let permissions = Permissions { publish: one(publish), subscribe: one(subscribe) };
        let exp = NOW.plus(5);
        let user = PublicUser { kind, key: seed.public(), principal: &principal, permissions, exp };
        mint_public_user(&data, user, NOW)
    };
    let claims = jwt::decode_verified(&mint(CredentialKind::GoalWriter, 1, 1).unwrap()).unwrap();
    assert_eq!((&claims["sub"], &claims["exp"]), (&json!(seed.public()), &json!(NOW.0 + 5)));
    assert_eq!(claims["name"], "goal-writer");
    assert_eq!(claims["nats"]["tags"], json!(principal_tags(&principal)));
    let public: Vec<_> = CredentialKind::ALL.iter().filter(|kind| kind.is_public()).collect();
    assert_eq!(public.len(), 10);
    for kind in CredentialKind::ALL {
        assert_eq!(mint(*kind, 1, 1).is_ok(), kind.is_public(), "{kind}");
    }
    for (publish, subscribe) in [(0, 1), (1, 0)] {
        assert!(
            mint(CredentialKind::GoalWriter, publish, subscribe).is_err(),
            "the broker reads it as everything"
        );
    }
    assert!(mint(CredentialKind::EndpointServe, 1, 1_000).is_ok());
    let refusal = mint(CredentialKind::EndpointServe, 1, 2_000).unwrap_err();
    assert!(refusal.0.contains("16384"), "{refusal}");
}

#[test]
fn every_command_that_the_contract_names_of_a_manager_fits_one_serve_credential() {
    let named = "stop run-answer spawn despawn attach define-persona inspect run-start run-resume run-status run-ps \
                 run-submit run-cancel status ps models resolve-cwd turn purge launch resume-preserved commit-resume \
                 finalize-resume prepare-preservation commit-preservation abort-preservation transcript-receive";
    let (_, account, space) = made();
    let seed = Seed::<User>::generate(&SystemEntropy);
    let principal = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.manager_x").unwrap();
    let surface = grants::endpoint_serve::ServeSurface {
        endpoint: cotal_wire::EndpointName::manager().token(),
        instance: cotal_wire::InstanceId::parse(&"i".repeat(26)).unwrap(),
        epoch: 1_000_000,
        commands: named.split_whitespace().map(|name| cotal_wire::Command::parse(name).unwrap()).collect(),
        journal: false,
        pools: std::collections::BTreeSet::new(),
    };
    let permissions =
        grants::endpoint_serve::endpoint_serve(&space.token(), &seed.public().conn_id(), &surface);
    let kind = CredentialKind::EndpointServe;
    let user = PublicUser { kind, key: seed.public(), principal: &principal, permissions, exp: NOW.plus(5) };
    let jwt = mint_public_user(&account.data_account(), user, NOW).unwrap();
    assert!(jwt.len() < MAX_USER_JWT, "{} bytes", jwt.len());
}

#[test]
fn health_turns_at_three_quarters_and_at_expiry() {
    let (iat, exp) = (UnixSecs(1_000), UnixSecs(1_010));
    for (now, state) in [
        (1_000, HealthState::Healthy),
        (1_006, HealthState::Healthy),
        (1_007, HealthState::NearExpiry),
        (1_009, HealthState::NearExpiry),
        (1_010, HealthState::Expired),
    ] {
        let health = Health::of_times(iat, exp, UnixSecs(now));
        assert_eq!((health.state, health.renew_at), (state, Some(UnixSecs(1_007))), "{now}");
    }
    let backwards = Health::of_times(exp, iat, UnixSecs(1_005));
    assert_eq!(backwards.state, HealthState::Expired);
}

#[test]
fn health_is_read_from_creds_text() {
    let (_, account, space) = made();
    let minted = mint_provisioner(&account.data_account(), &space, &SystemEntropy, NOW).unwrap();
    assert_eq!(Health::of_creds(&minted.creds, NOW).state, HealthState::Healthy);
    assert_eq!(Health::of_creds(&minted.creds, NOW.plus(225)).state, HealthState::NearExpiry);
    assert_eq!(Health::of_creds(&minted.creds, NOW.plus(300)).state, HealthState::Expired);
    assert_eq!(Health::of_creds("", NOW).state.as_str(), "unreadable");
    let agent = mint_static_user(
        &account.data_account(),
        CredentialKind::Agent,
        &StaticHolder::default(),
        Lifetime::OfKind,
        |who| Ok::<_, String>(something(who)),
        &SystemEntropy,
        NOW,
    );
    assert_eq!(Health::of_creds(&agent.unwrap().creds, NOW).state.as_str(), "unbounded");
}
