//! Every permission template against a golden file, and what must hold of all of them (contract 01 §6).
//!
//! `COTAL_BLESS=1` rewrites the golden files; read each changed line against the chapter before committing it.

#![allow(clippy::unwrap_used, reason = "a test's own constants")]

mod callers;
mod endpoints;
mod infra;
mod managers;
mod runs;
mod templates;

use std::{fs, path::PathBuf};

use cotal_wire::{Permissions, Rules};

use crate::templates::{may, templates};

fn render(permissions: &Permissions) -> String {
    let direction = |rules: &Rules| {
        let mut object = serde_json::Map::new();
        for (name, list) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            if !list.is_empty() {
                object.insert(name.to_owned(), list.clone().into());
            }
        }
        object
    };
    let value = serde_json::json!({
        "pub": direction(&permissions.publish),
        "sub": direction(&permissions.subscribe),
    });
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

#[test]
fn every_template_is_its_golden_file() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("COTAL_BLESS").is_some();
    for (name, permissions) in templates() {
        let path = dir.join(format!("{name}.json"));
        let rendered = render(&permissions);
        if bless {
            fs::write(&path, &rendered).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(rendered, golden, "{name}: regenerate with COTAL_BLESS=1, then read the difference");
    }
    let files = fs::read_dir(&dir).unwrap().count();
    assert_eq!(files, templates().len(), "a golden file without a template");
}

#[test]
fn no_direction_is_left_unrestricted() {
    for (name, permissions) in templates() {
        for rules in [&permissions.publish, &permissions.subscribe] {
            assert!(!rules.allow.is_empty() || rules.deny == [">"], "{name}");
        }
    }
}

#[test]
fn only_the_agent_and_the_probe_carry_denies() {
    for (name, permissions) in templates() {
        let denies = permissions.publish.deny.len();
        let want = match name {
            "probe" => 1,
            name if name.starts_with("agent") => 9,
            _ => 0,
        };
        assert_eq!((denies, permissions.subscribe.deny.len()), (want, 0), "{name}");
    }
}

#[test]
fn no_template_repeats_a_row_or_names_a_space_wide_wildcard() {
    for (name, permissions) in templates() {
        for rules in [&permissions.publish, &permissions.subscribe] {
            let mut rows = rules.allow.clone();
            rows.sort();
            rows.dedup();
            assert_eq!(rows.len(), rules.allow.len(), "{name}");
            for row in &rules.allow {
                let broad = [">", "*", "$JS.>", "$JS.API.>", "$KV.>", "cotal.main.>", "_INBOX.>", "$SYS.>"];
                // The contract's own row: in the system account there is nobody whose replies it could read.
                let evictor = name == "sys-connection-evictor" && row == "_INBOX.>";
                assert!(evictor || !broad.contains(&row.as_str()), "{name}: {row}");
            }
        }
    }
}

#[test]
fn everyone_of_a_space_hears_its_own_inbox_and_nobody_elses() {
    for (name, permissions) in templates().into_iter().filter(|(name, _)| !name.starts_with("sys-")) {
        let hears = |subject: &str| may(&permissions.subscribe, subject);
        assert!(hears("_INBOX_ibx0123456789.x"), "{name}");
        assert!(!hears("_INBOX_other0123456.x") && !hears("_INBOX.x"), "{name}");
    }
}
