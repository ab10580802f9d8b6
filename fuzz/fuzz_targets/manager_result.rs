//! What a participant makes of a host's answer (contract 08 §8.3): an answer that binds is the one good answer of its request, but
//! for what the participant cannot know, and a refusal is one line that repeats no credential.
//!
//! The requests and their good answers are those of the binding tests. Input: a case of theirs, by its first byte from `A`, and an
//! answer in which `$` and a small letter stands for a text that the good answer alone has, and a capital for what stands in its
//! place in the answer of another house.
#![no_main]

#[path = "../../crates/manager/tests/binding/agents.rs"]
mod agents;
#[path = "../../crates/manager/tests/binding/house.rs"]
mod house;
#[path = "../../crates/manager/tests/binding/marks.rs"]
mod marks;
#[path = "../../crates/manager/tests/binding/runs.rs"]
mod runs;
#[path = "../../crates/manager/tests/binding/service.rs"]
mod service;

use std::sync::LazyLock;

use cotal_fuzz::{Counting, fill, json};
use cotal_wire::es_value::EsValue;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

use crate::{
    house::{Case, House},
    marks::Marks,
};

/// Longest refusal: a path, a member, and at most 64 characters of an unknown member's name, escaped.
const LONGEST: usize = 1024;
/// Longer texts of an answer are its credentials, and no refusal says one.
const LONGEST_NAME: usize = 80;

/// Words of the contract and an earlier generation, any of which the host may say.
const SAID_BY_THE_HOST: [&str; 4] =
    ["/state", "/readiness", "/retirementPhase", "/reconciliation/before/generation"];

thread_local! {
    static CASES: Vec<(Case, Marks)> = cases();
}

fn cases() -> Vec<(Case, Marks)> {
    static ENTROPY: LazyLock<Counting> = LazyLock::new(Counting::default);
    let house = || {
        let root = std::env::temp_dir().join(format!("cotal-fuzz-manager-{}", std::process::id()));
        let house = House::of(&root, &*ENTROPY);
        std::fs::remove_dir_all(&root).expect("its own directory");
        house
    };
    let (own, foreign) = (house().cases(), house().cases());
    own.into_iter()
        .zip(foreign)
        .map(|(case, foreign)| {
            // A house in which nothing binds would prove nothing.
            let good = EsValue::parse(case.answer.to_string().as_bytes()).expect("an answer");
            (case.bind)(&good).expect(case.name);
            let marks = Marks::of(&case.answer, &foreign.answer);
            (case, marks)
        })
        .collect()
}

fuzz_target!(|data: &[u8]| {
    let [which, template @ ..] = data else { return };
    CASES.with(|cases| {
        let (case, marks) = &cases[usize::from(which.wrapping_sub(b'A')) % cases.len()];
        let text = fill(template, |letter| marks.text(letter));
        let Ok(answer) = EsValue::parse(&text) else { return };
        match (case.bind)(&answer) {
            Ok(()) => {
                let bound = json(answer.stringify().as_bytes());
                agrees_with_itself(&bound);
                is_good(case, "", &case.answer, &of_the_asked_run(bound, &case.answer));
            }
            Err(why) => {
                let said = why.to_string();
                assert!(said.len() < LONGEST && !said.contains('\n'), "{said}");
                let mut texts = (b'A'..=b'z').filter_map(|letter| marks.text(letter));
                assert!(
                    !texts.any(|text| text.len() > LONGEST_NAME && said.contains(text)),
                    "a refusal repeats a credential"
                );
            }
        }
    });
});

/// Nothing is missing, nothing is more, and nothing is another, apart from what the case says that its participant cannot know.
fn is_good(case: &Case, path: &str, good: &Value, bound: &Value) {
    if is_free(case, path) {
        return;
    }
    match (good, bound) {
        (Value::Object(good), Value::Object(bound)) => {
            for (member, bound) in bound {
                let path = format!("{path}/{member}");
                let good = good.get(member).unwrap_or_else(|| panic!("{}: {path} is more", case.name));
                is_good(case, &path, good, bound);
            }
            for member in good.keys().filter(|member| !bound.contains_key(*member)) {
                let path = format!("{path}/{member}");
                assert!(case.optional.contains(&path.as_str()), "{}: {path} is missing", case.name);
            }
        }
        (Value::Array(good), Value::Array(bound)) => {
            // A list of what is free is as long as the host says, and each item is like its first one.
            let first = format!("{path}/0");
            let is_of_free = good.is_empty() || [case.free, case.optional].concat().contains(&first.as_str());
            assert!(is_of_free || good.len() == bound.len(), "{}: {path} is longer or shorter", case.name);
            for (at, bound) in bound.iter().enumerate() {
                let at = if is_of_free { 0 } else { at };
                if let Some(good) = good.get(at) {
                    is_good(case, &format!("{path}/{at}"), good, bound);
                }
            }
        }
        _ => assert_eq!(good, bound, "{}: another {path}", case.name),
    }
}

fn is_free(case: &Case, path: &str) -> bool {
    // An admission is the host's own record.
    let is_of_record = path.starts_with("/admission/")
        && !["/admission/runId", "/admission/instanceId", "/admission/endpoint", "/admission/space"]
            .contains(&path);
    case.free.contains(&path) || SAID_BY_THE_HOST.contains(&path) || is_of_record
}

/// A submission that created nothing is answered with the run that its caller's name stands for already.
fn of_the_asked_run(mut bound: Value, good: &Value) -> Value {
    if bound.get("created") == Some(&Value::Bool(false)) {
        for run in ["/runId", "/admission/runId"] {
            *bound.pointer_mut(run).expect("a run") = good["runId"].clone();
        }
    }
    bound
}

/// What the host may choose fits what else it says.
fn agrees_with_itself(bound: &Value) {
    for row in ["admission", "revocation"].into_iter().filter_map(|row| bound.get(row)) {
        assert_eq!(row["runId"], bound["runId"], "a row of another run");
    }
    if let Some(report) = bound.get("reconciliation") {
        let generation = |value: &Value| value.as_u64().expect("a generation");
        assert!(generation(&report["reopenedAtGeneration"]) > generation(&report["before"]["generation"]));
    }
    for eviction in bound.get("evictions").and_then(Value::as_array).into_iter().flatten() {
        let is_gone = eviction["scanComplete"] == true && eviction["remaining"] == 0;
        assert!(eviction["verifiedGone"] == false || is_gone, "gone, and still there");
    }
    if let Some(next) = bound.get("nextRegistrationProof") {
        assert_ne!(*next, bound["registrationProof"], "the next registration is proved by this one's proof");
    }
}
