//! JSON as an ECMAScript program holds it: what `JSON.parse` makes of a text, and `JSON.stringify` prints.
//!
//! A registration proof digests artifacts as the reference prints what it has parsed (contract 06 §3.1): members stay
//! in the order in which they came, of duplicates the last value stands at the first one's place, keys that are array
//! indices go first in ascending order, and every number is a double. [`canonical`](crate::canonical) is another text.

use std::{fmt, num::NonZeroU32};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use crate::{canonical::write_string, time::MAX_SAFE_INTEGER};

/// A parsed JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum EsValue {
    /// `null`
    Null,
    /// A boolean.
    Bool(bool),
    /// A finite double.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    Array(Vec<EsValue>),
    /// An object.
    Object(EsObject),
}

/// An object's members, in the order in which an ECMAScript program would walk them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EsObject {
    /// Members whose keys are array indices, ascending.
    indexed: Vec<(u32, EsValue)>,
    named: Vec<(String, EsValue)>,
}

impl EsValue {
    /// Reads a JSON text. Stricter than an ECMAScript program in two places: a lone surrogate and a number beyond a double
    /// are refused, and so is nesting beyond 127 levels.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// How many values such a text may hold at the most, told without reading it: for who reads what is not trusted. A
    /// value takes two bytes there and some hundred here.
    pub fn values_at_most(bytes: &[u8]) -> usize {
        let (mut begun, mut in_text, mut escaped) = (1, false, false);
        for byte in bytes {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = in_text,
                b'"' => in_text = !in_text,
                // Each value but the outermost one follows one of these.
                b',' | b':' | b'[' if !in_text => begun += 1,
                _ => {}
            }
        }
        begun
    }

    /// The object, when this is one.
    pub fn as_object(&self) -> Option<&EsObject> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }

    /// The string, when this is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The items, when this is an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// The number, when it is an integer from 0 to 2^53 - 1; `1`, `1.0` and `1e0` are one number.
    pub fn as_safe_integer(&self) -> Option<u64> {
        let Self::Number(number) = self else { return None };
        let integer = number.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER_AS_DOUBLE).contains(number);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an integer within the range of u64"
        )]
        integer.then_some(*number as u64)
    }

    /// The text that `JSON.stringify` prints.
    pub fn stringify(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(ryu_js::Buffer::new().format_finite(*number)),
            Self::Text(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(object) => object.write(out),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 - 1 is a double")]
const MAX_SAFE_INTEGER_AS_DOUBLE: f64 = MAX_SAFE_INTEGER as f64;

impl EsObject {
    /// The member of this key.
    pub fn get(&self, key: &str) -> Option<&EsValue> {
        match array_index(key) {
            Some(index) => self.indexed.iter().find(|(of, _)| *of == index).map(|(_, value)| value),
            None => self.named.iter().find(|(of, _)| of == key).map(|(_, value)| value),
        }
    }

    /// The first key that the predicate does not know.
    pub fn first_unknown(&self, known: impl Fn(&str) -> bool) -> Option<String> {
        let indexed = self.indexed.iter().map(|(index, _)| index.to_string());
        let named = self.named.iter().map(|(key, _)| key.clone());
        indexed.chain(named).find(|key| !known(key))
    }

    /// Its members, in their order.
    pub fn members(&self) -> impl Iterator<Item = (std::borrow::Cow<'_, str>, &EsValue)> {
        let indexed = self.indexed.iter().map(|(index, value)| (index.to_string().into(), value));
        indexed.chain(self.named.iter().map(|(key, value)| (key.as_str().into(), value)))
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.indexed.len() + self.named.len()
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write(&self, out: &mut String) {
        let mut separator = '{';
        let mut open = |out: &mut String, key: &str| {
            out.push(separator);
            separator = ',';
            write_string(key, out);
            out.push(':');
        };
        for (index, value) in &self.indexed {
            open(out, &index.to_string());
            value.write(out);
        }
        for (key, value) in &self.named {
            open(out, key);
            value.write(out);
        }
        out.push_str(if self.is_empty() { "{}" } else { "}" });
    }
}

/// An array index as ECMAScript has it: the decimal form, without leading zeros, of 0 to 2^32 - 2.
fn array_index(key: &str) -> Option<u32> {
    let canonical = key == "0" || (!key.starts_with('0') && key.bytes().all(|b| b.is_ascii_digit()));
    let index = canonical.then(|| key.parse::<u32>().ok()).flatten()?;
    (index != u32::MAX).then_some(index)
}

/// Puts members in, each in amortised constant time: a body of 64 KiB holds thousands of keys.
#[derive(Default)]
struct Members {
    indexed: std::collections::BTreeMap<u32, EsValue>,
    named: Vec<(String, EsValue)>,
    places: std::collections::HashMap<String, usize>,
}

impl Members {
    fn put(&mut self, key: String, value: EsValue) {
        if let Some(index) = array_index(&key) {
            self.indexed.insert(index, value);
        } else if let Some(place) = self.places.get(&key) {
            self.named[*place].1 = value;
        } else {
            self.places.insert(key.clone(), self.named.len());
            self.named.push((key, value));
        }
    }

    fn done(self) -> EsObject {
        EsObject { indexed: self.indexed.into_iter().collect(), named: self.named }
    }
}

impl<'de> Deserialize<'de> for EsValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = EsValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<EsValue, E> {
                Ok(EsValue::Null)
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<EsValue, E> {
                Ok(EsValue::Bool(value))
            }

            #[expect(clippy::cast_precision_loss, reason = "every number is a double here")]
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<EsValue, E> {
                Ok(EsValue::Number(value as f64))
            }

            #[expect(clippy::cast_precision_loss, reason = "every number is a double here")]
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<EsValue, E> {
                Ok(EsValue::Number(value as f64))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<EsValue, E> {
                if value.is_finite() {
                    Ok(EsValue::Number(value))
                } else {
                    Err(E::custom("a number beyond a double"))
                }
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<EsValue, E> {
                Ok(EsValue::Text(value.to_owned()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<EsValue, E> {
                Ok(EsValue::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<EsValue, A::Error> {
                let mut array = Vec::new();
                while let Some(item) = items.next_element()? {
                    array.push(item);
                }
                Ok(EsValue::Array(array))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<EsValue, A::Error> {
                let mut members = Members::default();
                while let Some((key, value)) = entries.next_entry::<String, EsValue>()? {
                    members.put(key, value);
                }
                Ok(EsValue::Object(members.done()))
            }
        }

        deserializer.deserialize_any(Read)
    }
}

/// How long an ECMAScript program says that a string is: its UTF-16 code units.
pub fn utf16_len(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Whether `text` has between 1 and `most` UTF-16 code units.
pub fn within(text: &str, most: NonZeroU32) -> bool {
    !text.is_empty() && text.len() <= most.get() as usize * 3 && utf16_len(text) <= most.get() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn print(text: &str) -> String {
        EsValue::parse(text.as_bytes()).unwrap().stringify()
    }

    /// Each right-hand side is what `JSON.stringify(JSON.parse(left))` prints in Node 20.
    #[test]
    fn a_text_prints_as_an_ecmascript_program_prints_it() {
        for (text, want) in [
            (r#"{"b":1,"a":2}"#, r#"{"b":1,"a":2}"#),
            (r#"{"b":1,"10":2,"9":3,"a":4,"0":5}"#, r#"{"0":5,"9":3,"10":2,"b":1,"a":4}"#),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
            (r#"{"01":1,"1":2}"#, r#"{"1":2,"01":1}"#),
            (
                r#"{"4294967294":1,"4294967295":2,"x":0,"4294967293":3}"#,
                r#"{"4294967293":3,"4294967294":1,"4294967295":2,"x":0}"#,
            ),
            (r#"{"-1":1,"1":2,"":3}"#, r#"{"1":2,"-1":1,"":3}"#),
            (
                "[1.0,1e0,-0,1e21,0.1,1e-7,123456789012345678901]",
                "[1,1,0,1e+21,0.1,1e-7,123456789012345680000]",
            ),
            (
                r#"{ "x" : [ ] , "y" : { } , "z": null, "t":true,"f":false }"#,
                r#"{"x":[],"y":{},"z":null,"t":true,"f":false}"#,
            ),
            (
                r#""\u0001\u001f\u007f\"\\\/\b\f\n\r\té😀\u2028""#,
                "\"\\u0001\\u001f\u{7f}\\\"\\\\/\\b\\f\\n\\r\\té😀\u{2028}\"",
            ),
        ] {
            assert_eq!(print(text), want, "{text}");
        }
    }

    #[test]
    fn what_has_no_double_or_no_text_is_refused() {
        for text in ["1e999", "-1e999", r#""\ud800""#, "", "{", "[1,]", "nul", "{\"a\":1}x"] {
            assert!(EsValue::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(EsValue::parse("[".repeat(200_000).as_bytes()).is_err(), "nesting is bounded");
    }

    #[test]
    fn one_number_has_many_spellings() {
        let of = |text: &str| EsValue::parse(text.as_bytes()).unwrap().as_safe_integer();
        for text in ["1", "1.0", "1e0", "10e-1"] {
            assert_eq!(of(text), Some(1), "{text}");
        }
        assert_eq!(of("-0"), Some(0));
        assert_eq!(of("9007199254740991"), Some(MAX_SAFE_INTEGER));
        for text in ["9007199254740992", "-1", "0.5", "\"1\"", "null", "1e300"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn many_members_are_read_in_linear_time() {
        let body: Vec<_> = (0..100_000).map(|n| format!("\"k{n}\":0")).collect();
        let value = EsValue::parse(format!("{{{}}}", body.join(",")).as_bytes()).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 100_000);
    }

    #[test]
    fn a_bound_counts_utf16_units() {
        let three = NonZeroU32::new(3).unwrap();
        for (text, ok) in
            [("", false), ("abc", true), ("abcd", false), ("a😀", true), ("😀😀", false), ("ééé", true)]
        {
            assert_eq!(within(text, three), ok, "{text}");
        }
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, most) in [
            ("0", 1),
            ("[]", 2),
            ("[[],[]]", 5),
            (r#"{"a":1,"b":{"c":2}}"#, 5),
            (r#"["a,b:[c\",d","\\",0]"#, 4),
            (r#"{"\"":0}"#, 2),
        ] {
            assert_eq!(EsValue::values_at_most(text.as_bytes()), most, "{text}");
        }
    }

    fn values_of(value: &serde_json::Value) -> usize {
        1 + match value {
            serde_json::Value::Array(items) => items.iter().map(values_of).sum(),
            serde_json::Value::Object(members) => members.values().map(values_of).sum(),
            _ => 0,
        }
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(serde_json::Value::from),
            ".{0,8}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[0-9a-z]{0,3}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn printing_is_idempotent_and_loses_nothing(value in any_value()) {
            let once = print(&value.to_string());
            prop_assert_eq!(print(&once), once.clone());
            prop_assert!(values_of(&value) <= EsValue::values_at_most(value.to_string().as_bytes()));
            let canonical = crate::canonical::canonicalize(once.as_bytes()).unwrap();
            prop_assert_eq!(canonical, crate::canonical::canonical_json(&value).unwrap());
        }
    }
}
