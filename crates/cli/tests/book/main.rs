//! The book's commands, typed as a reader types them: the real binary, a real broker, a real shell. How a block of a page
//! is marked is said in [`page`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set its stage must fail")]

mod page;
mod terminal;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use page::Page;
use terminal::Terminal;

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src")
}

fn page(name: &str) -> Page {
    let text = std::fs::read_to_string(book().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    Page::parse(&text).unwrap_or_else(|e| panic!("{name}, {e}"))
}

fn typed(name: &str) {
    let page = page(name);
    assert!(!page.commands.is_empty(), "{name} has no command that is typed");
    if let Some(tool) = Terminal::lacks(&page) {
        eprintln!("not run: {name} uses {tool}, which is not installed");
        return;
    }
    if let Err(told) = Terminal::new().type_all(&page) {
        panic!("{name}, {told}");
    }
}

/// The pages whose commands are typed, a test each: they run side by side.
macro_rules! typed_pages {
    ($($test:ident $file:literal;)+) => {
        const TYPED: &[&str] = &[$($file,)+];
        $(
            #[test]
            fn $test() {
                typed($file);
            }
        )+
    };
}

typed_pages! {
    the_commands_of_install_do_what_the_page_says "install.md";
    the_commands_of_first_space_do_what_the_page_says "first-space.md";
    the_commands_of_second_space_do_what_the_page_says "second-space.md";
    the_commands_of_before_the_first_grant_do_what_the_page_says "before-the-first-grant.md";
    the_commands_of_the_production_checklist_do_what_the_page_says "production.md";
    the_commands_of_the_delivery_daemon_do_what_the_page_says "delivery.md";
    the_commands_of_troubleshooting_do_what_the_page_says "troubleshooting.md";
    the_commands_of_the_night_shift_do_what_the_page_says "night-shift.md";
    the_commands_of_hosting_do_what_the_page_says "hosting.md";
    the_commands_of_replicas_do_what_the_page_says "replicas.md";
    the_commands_of_participants_do_what_the_page_says "participants.md";
}

#[test]
fn every_page_is_in_the_table_of_contents_and_its_commands_are_typed() {
    let summary = std::fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    for entry in std::fs::read_dir(book()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "SUMMARY.md" || !is_page(&name) {
            continue;
        }
        assert!(summary.contains(&format!("({name})")), "{name} is not in SUMMARY.md");
        assert!(page(&name).commands.is_empty() || TYPED.contains(&name.as_str()), "{name} is not typed");
    }
}

fn is_page(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "md")
}

/// The text of every link that leads nowhere.
fn broken_links(name: &str, text: &str) -> BTreeSet<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#') && !target.contains(' '))
        .filter(|target| {
            let file = target.split('#').next().unwrap_or_default();
            !file.is_empty() && !book().join(file).exists()
        })
        .map(|target| format!("{name}: {target}"))
        .collect()
}

#[test]
fn every_link_of_the_book_leads_somewhere() {
    let mut broken = BTreeSet::new();
    for entry in std::fs::read_dir(book()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if is_page(&name) {
            broken.extend(broken_links(&name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
