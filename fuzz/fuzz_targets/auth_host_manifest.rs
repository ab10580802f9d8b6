//! The manifest of a host (contract 08 §5): what is accepted obeys every rule, told by a second reading of the text, and
//! reads the same written anew; a refusal is one short line that names a path and repeats no value.
#![no_main]

use std::collections::HashSet;

use cotal_auth::{AuthHostEntry, parse_auth_host_manifest};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

const FACE: [&str; 4] =
    ["exchangePublicUrl", "exchangeTrustedProxy", "advertisedServer", "agentProvisioningUrl"];

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let document = serde_json::from_str::<Value>(&text);
    match parse_auth_host_manifest(&text) {
        Ok(entries) => {
            let document = document.expect("what was accepted is JSON");
            accepted(&entries, document.as_object().expect("it is an object"));
            let anew = parse_auth_host_manifest(&document.to_string()).expect("it reads anew");
            assert_eq!(anew, entries);
        }
        Err(refused) => {
            let (said, path) = (refused.to_string(), refused.path());
            assert!(said.starts_with(&path) && said.len() < 600 && !said.contains('\n'), "{said}");
            assert!(
                path == "the manifest" || path == "version" || path == "spaces" || path.starts_with("spaces["),
                "{path}"
            );
            assert_eq!(said.starts_with("the manifest is not JSON"), document.is_err(), "{said}");
            if let Ok(document) = document {
                repeats_no_value(&said, &document);
            }
        }
    }
});

fn accepted(entries: &[AuthHostEntry], document: &Map<String, Value>) {
    assert_eq!((document.len(), &document["version"]), (2, &Value::from(2)));
    let spaces = document["spaces"].as_array().expect("a list");
    assert!(!spaces.is_empty());
    assert_eq!(spaces.len(), entries.len());
    let (mut names, mut ports) = (HashSet::new(), HashSet::new());
    for (read, entry) in entries.iter().zip(spaces) {
        let entry = entry.as_object().expect("an object");
        assert_eq!(entry["space"], read.space.as_str());
        assert!(names.insert(read.space.as_str()), "one space, one entry");
        assert_eq!(entry.get("serviceEndpoints").is_some_and(|on| on == true), read.service_endpoints);
        match entry.get("exchangePublicPort") {
            Some(port) => {
                let port = port.as_u64().expect("an integer");
                assert!(read.public_face.is_some() && port <= 65_535);
                assert!(port == 0 || ports.insert(port), "one port, one space");
            }
            None => {
                assert!(read.public_face.is_none());
                // `false` says what its absence says.
                assert!(FACE.iter().all(|field| entry.get(*field).is_none_or(|value| value == false)));
            }
        }
        if let Some(url) = entry.get("exchangePublicUrl") {
            assert!(url.as_str().expect("a string").starts_with("https://"));
        }
        let known = entry.keys().filter(|key| {
            matches!(key.as_str(), "space" | "exchangePublicPort" | "serviceEndpoints")
                || FACE.contains(&key.as_str())
        });
        assert_eq!(known.count(), entry.len(), "no other field");
    }
}

/// Long enough a value is in no refusal by chance. A key may be, and so may a value that is part of one.
fn repeats_no_value(said: &str, value: &Value) {
    match value {
        Value::String(text) if text.len() >= 24 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            assert!(!said.contains(text.as_str()), "a refusal echoes a value: {said}");
        }
        Value::Array(items) => items.iter().for_each(|item| repeats_no_value(said, item)),
        Value::Object(members) => {
            // A key of digits may be what the refusal repeats.
            if !members.keys().any(|key| key.bytes().any(|byte| byte.is_ascii_digit())) {
                members.values().for_each(|member| repeats_no_value(said, member));
            }
        }
        _ => {}
    }
}
