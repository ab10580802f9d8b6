//! The seeds of the fuzz target `manager_result`: each good answer, with its marks.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{a_house, marks::Marks, values::es};

/// `COTAL_BLESS=1` writes them. The first byte says which case of the house is answered.
#[test]
fn every_good_answer_is_a_seed_of_its_fuzz_target_and_binds_in_its_own_house_alone() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/manager_result");
    let (own, foreign) = (a_house().cases(), a_house().cases());
    let names: Vec<String> = own.iter().map(|case| case.name.replace(' ', "-")).collect();
    for (((case, other), name), at) in own.iter().zip(&foreign).zip(&names).zip(b'A'..) {
        let marks = Marks::of(&case.answer, &other.answer);
        let letters = || (b'a'..=b'z').filter(|letter| marks.text(*letter).is_some());
        let template = letters().fold(case.answer.to_string(), |answer, letter| {
            let text = marks.text(letter).unwrap();
            answer.replace(&format!("\"{text}\""), &format!("\"${}\"", char::from(letter)))
        });
        let filled = |case: fn(&u8) -> u8| -> Value {
            let text = letters().fold(template.clone(), |answer, letter| {
                answer.replace(&format!("${}", char::from(letter)), marks.text(case(&letter)).unwrap())
            });
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(filled(u8::to_ascii_lowercase), case.answer, "{name}: its marks are all that it needs");
        assert!((case.bind)(&es(&case.answer)).is_ok(), "{name}");
        assert_eq!(filled(u8::to_ascii_uppercase), other.answer, "{name}: and all that the houses differ in");
        assert!((case.bind)(&es(&other.answer)).is_err(), "{name}");

        let (path, seed) = (corpus.join(name), format!("{}{template}", char::from(at)));
        if std::env::var_os("COTAL_BLESS").is_some() {
            fs::write(&path, &seed).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, seed, "{name}: regenerate with COTAL_BLESS=1, then read the difference");
    }
    // What a run once found is kept beside them.
    for kept in fs::read_dir(corpus).unwrap() {
        let kept = kept.unwrap().file_name().into_string().unwrap();
        assert!(kept.starts_with("found-") || names.contains(&kept), "{kept} is stale");
    }
}
