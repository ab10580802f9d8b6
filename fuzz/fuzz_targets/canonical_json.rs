//! Canonical JSON: canonical text is a fixed point, says what its source said, and its digest follows from the value.
#![no_main]

use cotal_wire::canonical::{
    canonical_json, canonicalize, contract_digest, is_canonical, raw_digest, single_document_closure,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = canonicalize(data) else {
        assert!(!is_canonical(data));
        return;
    };
    let value = cotal_fuzz::json(data);
    let again = cotal_fuzz::json(text.as_bytes());
    assert!(is_canonical(text.as_bytes()), "canonical text is not its own canonical form");
    assert_eq!(is_canonical(data), text.as_bytes() == data);
    assert!(is_same(&value, &again), "canonical text says something else");
    assert_eq!(canonical_json(&value).as_ref(), Ok(&text));
    assert!(members_in_order(&text), "members are not in the order of UTF-16 code units");
    assert!(text.bytes().all(|byte| byte >= b' '), "a control character was not escaped");

    let digest = contract_digest(&value).expect("a canonical value has a digest");
    assert_eq!(digest, raw_digest(text.as_bytes()));
    let closure = single_document_closure(&value).expect("and a closure");
    assert_eq!(closure.root, digest);
    assert!(is_canonical(closure.manifest.as_bytes()));
});

/// The same JSON, numbers as the doubles that they are.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Walks the text, not the parsed value: a reader may have sorted that.
fn members_in_order(text: &str) -> bool {
    let bytes = text.as_bytes();
    // The last key of each open object; `None` for an array.
    let mut open: Vec<Option<Option<Vec<u16>>>> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => open.push(Some(None)),
            b'[' => open.push(None),
            b'}' | b']' => drop(open.pop()),
            b'"' => {
                let start = at;
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if bytes.get(at + 1) == Some(&b':') {
                    let key: String = serde_json::from_str(&text[start..=at]).expect("a key is a string");
                    let key: Vec<u16> = key.encode_utf16().collect();
                    if let Some(Some(last)) = open.last_mut() {
                        if last.as_ref().is_some_and(|last| *last >= key) {
                            return false;
                        }
                        *last = Some(key);
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    true
}
