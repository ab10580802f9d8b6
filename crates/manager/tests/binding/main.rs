//! Closed result binding (contract 08 §8.3): an answer is used when every coordinate is the request's, and in no other case.
//!
//! Each kind has one good answer. Every member of it is then changed, dropped and joined by another, one at a time, at every
//! depth: what still binds must be listed as free, with the reason why the participant cannot know it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::type_complexity,
    clippy::needless_pass_by_value,
    reason = "a test that cannot go on ends"
)]

mod agents;
mod house;
mod marks;
mod runs;
mod seeds;
mod service;
mod values;

use std::cell::Cell;

use cotal_manager::remote::results::{self, Known};
use cotal_trust::{
    jwt::{UserClaims, encode_user},
    nkey::Seed,
    system::SystemEntropy,
};
use cotal_wire::{
    Owner, Principal, UnixSecs, User,
    es_value::EsValue,
    manager_authority::{CredentialName, StandingRole},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    house::{Case, House, NOW},
    values::{another, es, others, paths, with, without},
};

const CASES: usize = 23;

fn a_house() -> House {
    let root = tempfile::tempdir().unwrap();
    House::of(root.path(), &SystemEntropy)
}

#[test]
fn every_good_answer_binds() {
    let house = a_house();
    for case in house.cases() {
        (case.bind)(&es(&case.answer)).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        for optional in case.optional {
            let answer = without(&case.answer, optional);
            (case.bind)(&es(&answer)).unwrap_or_else(|why| panic!("{} without {optional}: {why}", case.name));
        }
    }
    assert_eq!(house.cases().len(), CASES, "every operation and every kind");
}

#[test]
fn no_coordinate_may_be_another_one_missing_or_of_another_type() {
    let house = a_house();
    for Case { name, answer, bind, free, optional } in house.cases() {
        let binds = |answer: &Value| bind(&es(answer)).is_ok();
        let mut all = Vec::new();
        paths(&answer, "", &mut all);
        // An admission's evidence is the host's record; the participant looks at whose run it is.
        let opaque = |path: &str| {
            path.strip_prefix("/admission/")
                .is_some_and(|member| !["space", "endpoint", "runId", "instanceId"].contains(&member))
        };
        for path in all.iter().filter(|path| !opaque(path)) {
            let value = answer.pointer(path).unwrap();
            let is_free = free.contains(&path.as_str());
            // A list of what is free is as long as the host says.
            let is_list = value.is_array()
                && (optional.contains(&format!("{path}/0").as_str())
                    || free.contains(&format!("{path}/0").as_str())
                    || value.as_array().is_some_and(Vec::is_empty));
            if !(value.is_object() || is_free || is_list) {
                assert!(!binds(&with(&answer, path, another(value))), "{name}: another {path} binds");
            }
            if !(optional.contains(&path.as_str()) || is_free && path.ends_with("/0")) {
                assert!(!binds(&without(&answer, path)), "{name}: it binds without {path}");
            }
            for other in others(value) {
                let listed = is_free && matches!((value, &other), (Value::String(_), Value::String(_)));
                if !listed {
                    assert!(!binds(&with(&answer, path, other.clone())), "{name}: {path} may be {other}");
                }
            }
            if let Value::Object(members) = value {
                let mut more = members.clone();
                more.insert("more".into(), json!(1));
                assert!(!binds(&with(&answer, path, more.into())), "{name}: {path} may hold more");
            }
        }
        let mut more = answer.clone();
        more["more"] = json!(1);
        assert!(!binds(&more), "{name}: it may hold more");
        for none in [json!(null), json!([answer]), json!("x"), json!({})] {
            assert!(!binds(&none), "{name}: {none} binds");
        }
    }
}

#[test]
fn an_answer_binds_to_its_own_request_alone() {
    let house = a_house();
    let (first, second) = (house.cases(), house.cases());
    for (at, case) in first.iter().enumerate() {
        for (other, asked) in second.iter().enumerate() {
            let bound = (asked.bind)(&es(&case.answer)).is_ok();
            assert!(
                !bound,
                "{} of one request binds to {} of another ({at}, {other})",
                case.name, asked.name
            );
        }
    }
}

#[test]
fn an_admission_of_another_space_binds_to_nothing() {
    for case in a_house().cases().iter().filter(|case| case.answer.get("admission").is_some()) {
        // Whole, as the host of another space would have written it.
        let other = ["/admission/space", "/admission/provenance/ref/space"]
            .iter()
            .fold(case.answer.clone(), |answer, path| with(&answer, path, json!("other")));
        let refused = (case.bind)(&es(&other)).unwrap_err();
        assert!(refused.to_string().ends_with("it is the answer to another request"), "{refused}");
    }
}

/// Mutates the credential of a `prepare` and says whether it still binds.
fn rebinds(house: &House, mutate: impl Fn(&mut UserClaims)) -> bool {
    rebinds_signed(house, mutate, |claims, house| encode_user(claims, &house.signing, UnixSecs(NOW)))
}

fn rebinds_signed(
    house: &House,
    mutate: impl Fn(&mut UserClaims),
    sign: impl Fn(&UserClaims, &House) -> String,
) -> bool {
    let request = house.requests().prepare();
    let roles = [StandingRole::Supervisor, StandingRole::Executor];
    let mut credentials = house.standing(&roles);
    let principal = Principal::new(house.owner.clone(), roles[1].actor(house.identity.instance()));
    let mut claims = house.claims(house.identity.seed(roles[1]).public(), &principal, NOW + 300);
    mutate(&mut claims);
    credentials["executor"]["jwt"] = sign(&claims, house).into();
    let answer = house.material(&request, &[], credentials, json!({}));
    results::bind_service(&request, &house.known(), &es(&answer)).is_ok()
}

#[test]
fn a_credential_is_for_the_named_key_principal_account_and_time_or_it_is_none() {
    let house = a_house();
    let other = || Seed::<User>::generate(&SystemEntropy).public().clone();
    assert!(rebinds(&house, |_| {}));
    assert!(rebinds(&house, |claims| claims.name = "anything".into()), "the label is the host's");
    assert!(!rebinds(&house, |claims| claims.subject = other()));
    assert!(!rebinds(&house, |claims| claims.subject =
        house.identity.seed(StandingRole::Supervisor).public().clone()));
    assert!(
        !rebinds(&house, |claims| claims.issuer_account = Seed::generate(&SystemEntropy).public().clone())
    );
    for exp in [None, Some(NOW + 299), Some(NOW + 301)] {
        assert!(!rebinds(&house, |claims| claims.exp = exp.map(UnixSecs)), "{exp:?}");
    }
    for tags in [vec![], vec!["owner:x".to_owned()], {
        let serves =
            Principal::new(house.owner.clone(), StandingRole::Serve.actor(house.identity.instance()));
        cotal_trust::jwt::principal_tags(&serves)
    }] {
        assert!(!rebinds(&house, |claims| claims.tags = tags.clone()), "{tags:?}");
    }
    // The account itself may sign; whoever is no account may not, and a signature is of its issuer.
    assert!(rebinds_signed(
        &house,
        |_| {},
        |claims, house| encode_user(claims, &house.account, UnixSecs(NOW))
    ));
    assert!(!rebinds_signed(
        &house,
        |_| {},
        |claims, house| {
            let mut jwt = encode_user(claims, &house.signing, UnixSecs(NOW));
            let last = jwt.pop();
            jwt.push(if last == Some('A') { 'B' } else { 'A' });
            jwt
        }
    ));
    assert!(!rebinds_signed(
        &house,
        |_| {},
        |claims, house| encode_user(claims, &house.signing, UnixSecs(NOW + 300))
    ));
    for text in ["", "a.b.c", "not a jwt"] {
        assert!(!rebinds_signed(&house, |_| {}, |_, _| text.to_owned()), "{text}");
    }
}

#[test]
fn the_first_answer_names_owner_and_account_and_every_later_one_must_agree() {
    let house = a_house();
    let request = house.requests().prepare();
    let credentials = house.standing(&[StandingRole::Supervisor, StandingRole::Executor]);
    let answer = es(&house.material(&request, &[], credentials, json!({})));
    let first = results::bind_service(&request, &Known::default(), &answer).unwrap();
    assert_eq!((&first.owner, &first.account), (&house.owner, house.account.public()));
    assert_eq!(first.expires_at.0, (NOW + 300) * 1000, "the least, and not a ceiling");
    let held = first.creds(CredentialName::Executor, house.identity.seed(StandingRole::Executor));
    assert!(
        held.is_some()
            && first.creds(CredentialName::Serve, house.identity.seed(StandingRole::Serve)).is_none()
    );
    for known in [
        Known { owner: Some(Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap()), account: None },
        Known { owner: None, account: Some(Seed::generate(&SystemEntropy).public().clone()) },
    ] {
        assert!(results::bind_service(&request, &known, &answer).is_err(), "{known:?}");
    }
}

#[test]
fn a_refusal_repeats_nothing_of_the_answer() {
    let house = a_house();
    let marked = Cell::new(0);
    for case in house.cases() {
        let mut all = Vec::new();
        paths(&case.answer, "", &mut all);
        for path in all.iter().filter(|path| case.answer.pointer(path).unwrap().is_string()) {
            let secret = "SECRETSECRETSECRETSECRETSECRET";
            let refused = (case.bind)(&es(&with(&case.answer, path, json!(secret))));
            if let Err(why) = refused {
                marked.set(marked.get() + 1);
                assert!(!why.to_string().contains(secret), "{why}");
            }
        }
    }
    assert!(marked.get() > 100);
}

/// An admission names a generation of the host's own, which the participant cannot know: as a whole, where its members agree.
const ADMISSION: &str = "/admission";

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two answers of different requests, spliced anywhere, bind to neither.
    #[test]
    fn no_splice_of_two_answers_binds(kind in 0..CASES, cut in any::<proptest::sample::Index>()) {
        let house = a_house();
        let (mine, foreign) = (house.cases(), house.cases());
        let (mine, foreign) = (&mine[kind], &foreign[kind]);
        let mut all = Vec::new();
        paths(&mine.answer, "", &mut all);
        let path = &all[cut.index(all.len())];
        let (own, theirs) = (mine.answer.pointer(path).unwrap(), foreign.answer.pointer(path).unwrap());
        let spliced = with(&mine.answer, path, theirs.clone());
        let bound = (mine.bind)(&es(&spliced)).is_ok();
        let free = mine.free.contains(&path.as_str());
        // What is the same in both, or free, binds; what is signed differs at every signature of another key alone.
        prop_assert!(bound == (own == theirs) || free || path.ends_with("/jwt") || path.ends_with("sentinelCreds")
            || path == "/material" || path.starts_with("/credentials") || path == ADMISSION, "{} {}", mine.name, path);
        // One that differs from the foreign answer in what is free alone, or in the admission, is as good as it.
        let told = |answer: &Value| {
            let there = mine.free.iter().chain([&ADMISSION]).filter(|path| answer.pointer(path).is_some());
            there.fold(answer.clone(), |told, path| with(&told, path, json!(null)))
        };
        let same = told(&spliced) == told(&foreign.answer);
        prop_assert!(same || (foreign.bind)(&es(&spliced)).is_err(), "{} {}", mine.name, path);
    }

    #[test]
    fn text_of_no_host_binds_to_nothing(text in "\\PC{0,200}") {
        if let Ok(value) = EsValue::parse(text.as_bytes()) {
            let house = a_house();
            for case in house.cases() {
                prop_assert!((case.bind)(&value).is_err());
            }
        }
    }
}
