//! Canonical JSON, digests and single-document closures (contract 02 §8).
//!
//! Canonical means RFC 8785 over I-JSON: keys in the order of their UTF-16 code units, every number an IEEE double
//! printed by the ECMAScript rule, strings escaped as ECMAScript escapes them.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::endpoint_token::DigestRef;

/// Artifact digest of the void schema `{"type":"null"}`.
pub const VOID_SCHEMA_DIGEST: &str =
    "sha256:bcde375ebd4cbacf651311181173836b169d5a360c6ac158c6a2cdaf49be3f61";
/// Closure digest of the void schema: what every void side of a contract pins.
pub const VOID_CLOSURE_DIGEST: &str =
    "sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d";
/// Longest contract document, in bytes of its canonical form.
pub const MAX_CONTRACT_BYTES: usize = 262_144;

/// A value that has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// The bytes are not I-JSON: not UTF-8, not JSON, a lone surrogate, or a number beyond a double.
    #[error("not I-JSON")]
    NotIJson,
    /// A number that is not finite.
    #[error("a number that is not finite has no canonical form")]
    NotFinite,
}

/// The canonical text of a value.
pub fn canonical_json(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::new();
    write(value, &mut out)?;
    Ok(out)
}

/// The canonical text of JSON bytes. Of duplicate keys the last one stands, as every reader has it.
pub fn canonicalize(bytes: &[u8]) -> Result<String, CanonicalError> {
    let value = serde_json::from_slice(bytes).map_err(|_| CanonicalError::NotIJson)?;
    canonical_json(&value)
}

/// Whether the bytes are their own canonical form.
pub fn is_canonical(bytes: &[u8]) -> bool {
    canonicalize(bytes).is_ok_and(|text| text.as_bytes() == bytes)
}

/// `sha256:` and the hex digest of raw bytes.
pub fn raw_digest(bytes: &[u8]) -> DigestRef {
    DigestRef::of_sha256(&Sha256::digest(bytes).into())
}

/// The digest of a value's canonical text.
pub fn contract_digest(value: &Value) -> Result<DigestRef, CanonicalError> {
    canonical_json(value).map(|text| raw_digest(text.as_bytes()))
}

/// A closure of one document, which refers to nothing outside itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingleDocumentClosure {
    /// The document's own digest.
    pub root: DigestRef,
    /// The canonical bytes of the manifest.
    pub manifest: String,
    /// The manifest's digest: what a contract pins.
    pub closure: DigestRef,
}

/// The closure of one document.
pub fn single_document_closure(document: &Value) -> Result<SingleDocumentClosure, CanonicalError> {
    let root = contract_digest(document)?;
    let manifest = format!("{{\"members\":[],\"root\":\"{root}\",\"v\":1}}");
    let closure = raw_digest(manifest.as_bytes());
    Ok(SingleDocumentClosure { root, manifest, closure })
}

fn write(value: &Value, out: &mut String) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => {
            let double = number.as_f64().filter(|n| n.is_finite()).ok_or(CanonicalError::NotFinite)?;
            out.push_str(ryu_js::Buffer::new().format_finite(double));
        }
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out)?;
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (i, (key, item)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write(item, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

pub(crate) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{9}' => out.push_str("\\t"),
            '\u{a}' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\u{d}' => out.push_str("\\r"),
            c if c < ' ' => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.push_str("\\u00");
                out.push(char::from(HEX[(c as usize) >> 4]));
                out.push(char::from(HEX[(c as usize) & 15]));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn canon(text: &str) -> String {
        canonicalize(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_void_schema_has_its_two_digests() {
        let closure = single_document_closure(&json!({"type": "null"})).unwrap();
        assert_eq!(closure.root.as_str(), VOID_SCHEMA_DIGEST);
        assert_eq!(closure.closure.as_str(), VOID_CLOSURE_DIGEST);
        assert!(is_canonical(closure.manifest.as_bytes()));
    }

    #[test]
    fn numbers_print_by_the_ecmascript_rule() {
        for (raw, want) in [
            ("-0", "0"),
            ("0.0", "0"),
            ("1.0", "1"),
            ("1e21", "1e+21"),
            ("1e20", "100000000000000000000"),
            ("123456789012345678901234567890", "1.2345678901234568e+29"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709552000"),
            ("1e-7", "1e-7"),
            ("0.000001", "0.000001"),
            ("4.50", "4.5"),
            ("2e-3", "0.002"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("333333333.33333329", "333333333.3333333"),
        ] {
            assert_eq!(canon(raw), want, "{raw}");
        }
        assert_eq!(canonicalize(b"1e999"), Err(CanonicalError::NotIJson));
    }

    #[test]
    fn keys_sort_by_utf16_code_units() {
        // U+1F600 is a surrogate pair that starts D83D, before U+FB33, though its UTF-8 bytes come after.
        let text = "{\"\u{fb33}\":1,\"\u{1f600}\":2,\"b\":3,\"a\":4,\"\\r\":5}";
        assert_eq!(canon(text), "{\"\\r\":5,\"a\":4,\"b\":3,\"\u{1f600}\":2,\"\u{fb33}\":1}");
    }

    #[test]
    fn strings_escape_as_ecmascript_escapes() {
        let text = r#""\u20ac$\u000f\nA'\u0042\u0022\u005c\\\"\/\u007f\u2028""#;
        assert_eq!(canon(text), "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\u{7f}\u{2028}\"");
        assert_eq!(canon(r#""\b\t\n\f\r""#), r#""\b\t\n\f\r""#);
    }

    #[test]
    fn the_last_of_duplicate_keys_stands_and_is_not_canonical() {
        assert_eq!(canon(r#"{"a":1,"a":2}"#), r#"{"a":2}"#);
        assert!(!is_canonical(br#"{"a":1,"a":2}"#));
        assert!(!is_canonical(br#"{ "a":1}"#) && !is_canonical(b"1.0"));
        assert!(is_canonical(br#"{"a":[1,true,null,"x"]}"#));
    }

    #[test]
    fn what_is_not_i_json_has_no_canonical_form() {
        for bad in [&b"\"\\ud800\""[..], b"\"\xff\"", b"", b"{", b"NaN", b"undefined", b"{\"\\udc00\":1}"] {
            assert_eq!(canonicalize(bad), Err(CanonicalError::NotIJson));
        }
        let deep = "[".repeat(100_000);
        assert_eq!(canonicalize(deep.as_bytes()), Err(CanonicalError::NotIJson));
    }
}
