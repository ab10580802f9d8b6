//! A ledger row: whatever a file holds, it is refused or is exactly one kind of row, and is written back as itself.
#![no_main]

use cotal_fuzz::json;
use cotal_ledger::{
    RowKind,
    fuzzing::{parse_row, row_document},
    regrant_command,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let read = RowKind::ALL.map(|kind| (kind, parse_row(data, kind)));
    assert!(!read.iter().all(|(_, row)| row.is_ok()), "one row is of both kinds");
    for (kind, row) in read {
        let row = match row {
            Ok(row) => row,
            Err(sentence) => {
                assert!(
                    SENTENCES.contains(&sentence.as_str()),
                    "a refusal says more than its rule: {sentence}"
                );
                continue;
            }
        };
        let stored = json(data);
        assert!(stored.is_object() && stored["ver"] == 1);
        assert_eq!(stored["owner"], row.owner.as_str());
        assert_eq!(stored["actor"], row.actor.as_str());
        assert_eq!(stored["scope"], serde_json::json!(row.scope));
        assert_eq!(stored.get("grantedAt").cloned(), row.granted_at.clone().map(serde_json::Value::from));
        assert_eq!(row.key(), row.principal().to_string());
        assert_eq!(row.token_hash.is_some(), kind == RowKind::ManagedAgent);

        let document = row_document(&row, kind);
        assert!(document.starts_with(b"{\n  \"ver\": 1,\n  \"owner\": "));
        assert_eq!(parse_row(&document, kind).as_ref(), Ok(&row), "a row is not what was written");
        let written = json(&document);
        for (name, value) in written.as_object().expect("a row is an object") {
            assert_eq!(stored.get(name), Some(value), "{name} was rewritten");
        }

        if let Some(hash) = &row.token_hash {
            let elsewhere = [&row.role, &row.parent, &row.label, &row.lifecycle_uid, &row.granted_at]
                .into_iter()
                .flatten()
                .chain([&row.scope, &row.allow_subscribe, &row.allow_publish].into_iter().flatten())
                .map(String::as_str)
                .chain([row.actor.as_str()])
                .any(|text| text.contains(hash.as_str()));
            assert!(
                elsewhere || !format!("{row:?}").contains(hash.as_str()),
                "Debug shows an agent secret's hash"
            );
        }

        // The command that a refusal prints is one command of a shell, and names what the row holds.
        let words = shell_words(&regrant_command(&row)).expect("a command line");
        let mut wanted = vec!["cotal", "actor", "grant", row.actor.as_str(), "--owner", row.owner.as_str()];
        let lists = [&row.scope, &row.allow_subscribe, &row.allow_publish].map(|list| list.join(","));
        for (flag, list) in ["--scope", "--allow-subscribe", "--allow-publish"].into_iter().zip(&lists) {
            wanted.extend([flag, list]);
        }
        for (flag, value) in [("--role", &row.role), ("--label", &row.label)] {
            wanted.extend(value.iter().flat_map(|value| [flag, value.as_str()]));
        }
        assert_eq!(words, wanted);
    }
});

const SENTENCES: [&str; 8] = [
    "is not valid JSON",
    "is not an object with \"ver\": 1",
    "names no derived owner",
    "names no valid actor",
    "has a scope, allowSubscribe or allowPublish that is not a list of strings",
    "is an interactive row with an agent secret's hash",
    "is a managed row without a valid agent secret's hash",
    "has a role, parent, label, lifecycleUid or grantedAt that is not a string",
];

/// The words of a POSIX command line of bare words, single quotes and escaped characters; `None` for anything that a
/// shell would do more with.
fn shell_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => word.get_or_insert_default().push(c),
            _ => return None,
        }
    }
    words.extend(word);
    Some(words)
}
