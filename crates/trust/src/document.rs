//! Stored JSON documents: two spaces of indent, `ver` first where there is one, secrets wiped from memory.

use cotal_wire::Object;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::bundle::BundleError;

const VERSION: u64 = 1;

/// Text of a document that is wiped when dropped and shown by no `Debug`.
#[derive(Clone, Default)]
pub(crate) struct SecretText(pub(crate) Zeroizing<String>);

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

#[derive(Serialize)]
struct Versioned<T> {
    ver: u64,
    #[serde(flatten)]
    body: T,
}

/// The text of a document without `ver`.
pub(crate) fn write<T: Serialize>(body: &T) -> Zeroizing<String> {
    #[allow(clippy::expect_used, reason = "documents are structs of strings, integers and lists of them")]
    Zeroizing::new(serde_json::to_string_pretty(body).expect("a document of plain strings serialises"))
}

/// The text of a document, `"ver": 1` first (contract 04 §6.2).
pub(crate) fn write_versioned<T: Serialize>(body: &T) -> Zeroizing<String> {
    write(&Versioned { ver: VERSION, body })
}

/// Reads a document without `ver`.
pub(crate) fn read<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, BundleError> {
    let document: Object<T> = serde_json::from_str(text).map_err(|error| unreadable(what, &error))?;
    Ok(document.0)
}

/// Reads a document whose `ver` must be 1: no migration, no default.
pub(crate) fn read_versioned<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, BundleError> {
    #[derive(Deserialize)]
    struct Version {
        ver: serde_json::Value,
    }
    let Object(version): Object<Version> =
        serde_json::from_str(text).map_err(|error| unreadable(what, &error))?;
    if version.ver.as_f64() != Some(1.0) {
        return Err(BundleError(format!("{what} is of another version than {VERSION}")));
    }
    read(what, text)
}

/// Says where reading stopped, and never what stood there.
fn unreadable(what: &str, error: &serde_json::Error) -> BundleError {
    let kind = match error.classify() {
        serde_json::error::Category::Data => "lacks a member, or one has the wrong form",
        _ => "is not valid JSON",
    };
    BundleError(format!("{what} {kind} (near line {}, column {})", error.line(), error.column()))
}
