use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn refusal(manifest: &Value) -> String {
    parse_auth_host_manifest(&manifest.to_string()).unwrap_err().to_string()
}

fn of_entries(entries: &Value) -> Value {
    json!({"version": 2, "spaces": entries})
}

/// What refuses an entry that stands behind a good one.
fn refusal_of_entry(entry: &Value) -> String {
    refusal(&of_entries(&json!([{"space": "first", "exchangePublicPort": 7451}, entry])))
}

#[test]
fn an_entry_is_read_whole() {
    let text = r#"{"version": 2, "spaces": [
        {"space": "acme", "exchangePublicPort": 7451, "exchangePublicUrl": "https://acme.example",
         "exchangeTrustedProxy": true, "advertisedServer": "tls://broker.example:4222",
         "agentProvisioningUrl": "https://agents.example", "serviceEndpoints": true},
        {"space": "zoo", "serviceEndpoints": true},
        {"space": "a space of any name"}
    ]}"#;
    let [acme, zoo, any] = <[AuthHostEntry; 3]>::try_from(parse_auth_host_manifest(text).unwrap()).unwrap();
    let face = PublicFace::on_port(7451).behind_trusted_proxy(true).with_urls(
        Some("https://acme.example"),
        Some("tls://broker.example:4222"),
        Some("https://agents.example"),
    );
    assert_eq!((acme.space.as_str(), acme.public_face, acme.service_endpoints), ("acme", face.ok(), true));
    assert_eq!((zoo.space.as_str(), zoo.public_face, zoo.service_endpoints), ("zoo", None, true));
    assert_eq!(
        (any.space.as_str(), any.public_face, any.service_endpoints),
        ("a space of any name", None, false)
    );
}

#[test]
fn a_whole_manifest_is_refused_by_the_first_path_that_is_wrong() {
    for (manifest, expected) in [
        (json!(null), "the manifest must be an object"),
        (json!([]), "the manifest must be an object"),
        (json!({}), "version is missing"),
        (
            json!({"version": 2, "spaces": [{"space": "a"}], "x": 1}),
            "the manifest has no field \"x\"; it takes version, spaces",
        ),
        (json!({"version": 3, "spaces": []}), "version must be the number 2"),
        (json!({"version": 2.0, "spaces": []}), "version must be the number 2"),
        (json!({"version": "2", "spaces": []}), "version must be the number 2"),
        (json!({"version": 1, "spaces": ["a"]}), "version is 1, the form of a callout host"),
        (json!({"version": 2}), "spaces is missing"),
        (json!({"version": 2, "spaces": {}}), "spaces must be a list"),
        (of_entries(&json!([])), "spaces names no space"),
        (of_entries(&json!(["a"])), "spaces[0] must be an object"),
        (
            of_entries(&json!([{"space": "a"}, {"space": "b"}, {"space": "a"}])),
            "spaces[2].space is the space of spaces[0] too",
        ),
    ] {
        let refused = refusal(&manifest);
        assert!(refused.starts_with(expected), "{manifest}: {refused}");
    }
}

#[test]
fn an_entry_is_refused_by_name_and_field() {
    for (entry, expected) in [
        (json!({}), "spaces[1].space is missing"),
        (json!({"space": 1}), "spaces[1].space must be a string, the name of a space"),
        (json!({"space": ""}), "spaces[1].space must name a space"),
        (json!({"space": ".."}), "spaces[1].space must name a space"),
        (
            json!({"space": "a", "port": 1}),
            "spaces[1] has no field \"port\"; it takes space, exchangePublicPort",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 7451}),
            "spaces[1].exchangePublicPort is the port of spaces[0] too",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 65_536}),
            "spaces[1].exchangePublicPort must be an integer from 0 to 65535",
        ),
        (json!({"space": "a", "exchangePublicPort": -1}), "spaces[1].exchangePublicPort must be an integer"),
        (json!({"space": "a", "exchangePublicPort": 1.5}), "spaces[1].exchangePublicPort must be an integer"),
        (json!({"space": "a", "exchangePublicPort": "1"}), "spaces[1].exchangePublicPort must be an integer"),
        (
            json!({"space": "a", "exchangePublicPort": null}),
            "spaces[1].exchangePublicPort must be an integer",
        ),
        (
            json!({"space": "a", "exchangePublicUrl": "https://x"}),
            "spaces[1].exchangePublicUrl needs a public face; add exchangePublicPort",
        ),
        (
            json!({"space": "a", "exchangeTrustedProxy": true}),
            "spaces[1].exchangeTrustedProxy needs a public face",
        ),
        (
            json!({"space": "a", "advertisedServer": "tls://x"}),
            "spaces[1].advertisedServer needs a public face",
        ),
        (
            json!({"space": "a", "agentProvisioningUrl": "https://x"}),
            "spaces[1].agentProvisioningUrl needs a public face",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "http://x"}),
            "spaces[1].exchangePublicUrl must be an https:// URL",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": 1}),
            "spaces[1].exchangePublicUrl must be a string",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "exchangeTrustedProxy": "yes"}),
            "spaces[1].exchangeTrustedProxy must be true or false",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "advertisedServer": "http://x"}),
            "spaces[1].advertisedServer must be a nats://, tls://, ws:// or wss:// URL",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "x"}),
            "spaces[1].agentProvisioningUrl is not a URL",
        ),
        (
            json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "http://x"}),
            "spaces[1].agentProvisioningUrl must be https://",
        ),
        (json!({"space": "a", "serviceEndpoints": 1}), "spaces[1].serviceEndpoints must be true or false"),
    ] {
        let refused = refusal_of_entry(&entry);
        assert!(refused.starts_with(expected), "{entry}: {refused}");
    }
}

#[test]
fn the_refusal_says_where_it_is() {
    let refused = parse_auth_host_manifest(
        r#"{"version": 2, "spaces": [{"space": "a", "exchangePublicPort": 70000}]}"#,
    );
    assert_eq!(refused.unwrap_err().path(), "spaces[0].exchangePublicPort");
    let refused = parse_auth_host_manifest("{\n  \"version\": 2,\n}").unwrap_err();
    assert_eq!(
        (refused.path(), refused.to_string()),
        ("the manifest".into(), "the manifest is not JSON: line 3, column 1".into())
    );
}

#[test]
fn what_stands_twice_is_refused_also_when_a_map_would_keep_one() {
    for (text, expected) in [
        (r#"{"version": 2, "version": 2, "spaces": [{"space": "a"}]}"#, "version stands there twice"),
        (r#"{"version": 2, "spaces": [{"space": "a", "space": "b"}]}"#, "spaces[0].space stands there twice"),
        (
            r#"{"version": 2, "spaces": [{"space": "a"}], "spaces": [{"space": "a"}]}"#,
            "spaces stands there twice",
        ),
    ] {
        assert_eq!(parse_auth_host_manifest(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn several_spaces_take_free_ports_and_a_face_without_a_proxy_needs_none() {
    let entries = of_entries(&json!([
        {"space": "a", "exchangePublicPort": 0}, {"space": "b", "exchangePublicPort": 0},
        {"space": "c", "exchangeTrustedProxy": false},
    ]));
    assert_eq!(parse_auth_host_manifest(&entries.to_string()).unwrap().len(), 3);
}

#[test]
fn no_refusal_repeats_a_value_and_a_long_key_is_cut() {
    for entry in [
        json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "http://s3cret"}),
        json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "https://u:s3cret@x"}),
        json!({"space": "a", "exchangePublicPort": 1, "advertisedServer": "nats://s3cret@x"}),
        json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "s3cret"}),
        json!({"space": "a", "exchangePublicPort": "s3cret"}),
        json!({"space": "a", "key": "s3cret"}),
        json!("s3cret"),
    ] {
        assert!(!refusal_of_entry(&entry).contains("s3cret"), "{entry}");
    }
    let refused = refusal(&json!({"line\nbreak ".repeat(100): 1}));
    assert!(
        refused.starts_with("the manifest has no field \"line\\nbreak ") && refused.len() < 120,
        "{refused}"
    );
}

#[test]
fn a_callout_host_reads_names_and_of_entries_what_no_replica_can_serve() {
    let entries = r#"{"version": 2, "spaces": [{"space": "a", "serviceEndpoints": true}, {"space": "b"}]}"#;
    let served: Vec<_> = parse_callout_host_manifest(entries)
        .unwrap()
        .into_iter()
        .map(|entry| entry.service_endpoints)
        .collect();
    assert_eq!(served, [true, false]);
    let names = |text: &str| {
        let spaces = parse_callout_host_manifest(text)?;
        Ok::<_, ManifestError>(spaces.iter().map(|entry| entry.space.as_str().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(names(r#"{"version": 1, "spaces": ["a", "b"]}"#).unwrap(), ["a", "b"]);
    let entries = r#"{"version": 2, "spaces": [{"space": "a", "exchangePublicPort": 1}, {"space": "b"}]}"#;
    assert_eq!(names(entries).unwrap(), ["a", "b"]);
    for (text, expected) in [
        (r#"{"version": 1, "spaces": []}"#, "spaces names no space"),
        (r#"{"version": 1, "spaces": ["a", {"space": "b"}]}"#, "spaces[1] must be a string"),
        (r#"{"version": 1, "spaces": ["a", "a"]}"#, "spaces[1] is the space of spaces[0] too"),
        (r#"{"version": 2, "spaces": ["a"]}"#, "spaces[0] must be an object"),
        (r#"{"version": 2, "spaces": [{"space": "a", "port": 1}]}"#, "spaces[0] has no field"),
        (r#"{"version": 2, "spaces": [{"exchangePublicPort": 1}]}"#, "spaces[0].space is missing"),
        (
            r#"{"version": 2, "spaces": [{"space": "a", "serviceEndpoints": 1}]}"#,
            "spaces[0].serviceEndpoints must be",
        ),
        (
            r#"{"version": 2, "spaces": [{"space": "a"}, {"space": "a"}]}"#,
            "spaces[1].space is the space of spaces[0] too",
        ),
    ] {
        let refused = names(text).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{text}: {refused}");
    }
}

#[test]
fn a_callout_host_passes_over_what_an_entry_says_of_faces_whatever_it_is() {
    let of_the_face = [PUBLIC_PORT, PUBLIC_URL, TRUSTED_PROXY, ADVERTISED_SERVER, PROVISIONING_URL];
    for value in [json!(null), json!(-1), json!("http://x"), json!([1]), json!({"x": 1}), json!(true)] {
        for field in of_the_face {
            let entries = json!([{"space": "a", field: value}, {"space": "b", field: value}]);
            let read = parse_callout_host_manifest(&of_entries(&entries).to_string());
            assert_eq!(read.map(|entries| entries.len()), Ok(2), "{field}: {value}");
        }
    }
}

/// Entries that a host takes, as an operator writes them.
fn entries() -> impl Strategy<Value = Vec<Value>> {
    let face = prop::option::of((
        prop::option::of(prop::sample::select(vec!["https://a.example", "https://b.example/x"])),
        any::<bool>(),
        prop::option::of(prop::sample::select(vec!["nats://h:1", "wss://h"])),
        prop::option::of(prop::sample::select(vec!["", "https://p.example"])),
    ));
    let names = prop::collection::btree_set("[a-zA-Z0-9 _.\\\\\"é]{1,12}", 1..8);
    (names, prop::collection::vec((face, any::<bool>()), 8)).prop_map(|(names, faces)| {
        let named = names.into_iter().filter(|name| name != "." && name != "..");
        let with_faces = named.zip(faces).enumerate().map(|(index, (name, (face, endpoints)))| {
            let mut entry = Map::new();
            entry.insert(SPACE.into(), name.into());
            if let Some((url, proxy, server, provisioning)) = face {
                entry.insert(PUBLIC_PORT.into(), (7000 + index).into());
                entry.insert(TRUSTED_PROXY.into(), proxy.into());
                for (field, value) in
                    [(PUBLIC_URL, url), (ADVERTISED_SERVER, server), (PROVISIONING_URL, provisioning)]
                {
                    entry.extend(value.map(|value| (field.to_owned(), value.into())));
                }
            }
            if endpoints {
                entry.insert(SERVICE_ENDPOINTS.into(), true.into());
            }
            Value::Object(entry)
        });
        let mut entries: Vec<_> = with_faces.collect();
        if entries.is_empty() {
            entries.push(json!({"space": "a"}));
        }
        entries
    })
}

proptest! {
    #[test]
    fn every_good_manifest_is_read_entry_by_entry(entries in entries()) {
        let read = parse_auth_host_manifest(&of_entries(&json!(entries)).to_string()).unwrap();
        prop_assert_eq!(read.len(), entries.len());
        for (read, entry) in read.iter().zip(&entries) {
            prop_assert_eq!(read.space.as_str(), entry[SPACE].as_str().unwrap());
            let port = read.public_face.as_ref().map(|face| u64::from(face.port()));
            prop_assert_eq!(port, entry.get(PUBLIC_PORT).and_then(Value::as_u64));
            prop_assert_eq!(read.service_endpoints, entry.get(SERVICE_ENDPOINTS).is_some());
        }
    }

    #[test]
    fn one_more_field_anywhere_refuses_and_names_the_entry(
        mut entries in entries(), at in any::<prop::sample::Index>(), key in "[a-z]{1,60}", secret in "s3cret[a-z]{20}",
    ) {
        prop_assume!(!ENTRY_FIELDS.contains(&key.as_str()));
        let at = at.index(entries.len());
        entries[at][&key] = secret.clone().into();
        let refused = refusal(&of_entries(&json!(entries)));
        let expected = format!("spaces[{at}] has no field \"");
        prop_assert!(refused.starts_with(&expected), "{}", refused);
        prop_assert!(!refused.contains(&secret) && refused.len() < 300);
    }

    #[test]
    fn any_text_is_read_or_refused_on_one_short_line(text in ".*", cut in any::<prop::sample::Index>(), entries in entries()) {
        let good = of_entries(&json!(entries)).to_string();
        let cut = (0..=cut.index(good.len())).rev().find(|at| good.is_char_boundary(*at)).unwrap();
        for text in [text.as_str(), &good[..cut], &format!("{}{text}", &good[..cut])] {
            if let Err(refused) = parse_auth_host_manifest(text) {
                let refused = refused.to_string();
                prop_assert!(refused.len() < 600 && !refused.contains('\n'), "{}", refused);
            }
        }
    }
}
