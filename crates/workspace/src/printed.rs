//! Commands that a sentence prints, to be pasted as they are: each names its space.

use std::path::Path;

use cotal_wire::Space;

use crate::{
    file,
    root::{Root, space_of_segment, space_segment},
    trust_files::{self, TrustFileError},
};

/// The space of a command that names none.
pub const DEFAULT_SPACE: &str = "main";

/// The commands that take `--space`.
const OF_A_SPACE: [&str; 14] = [
    "up",
    "down",
    "status",
    "auth-service",
    "delivery",
    "doctor auth",
    "auth explain",
    "auth watch",
    "actor grant",
    "actor revoke",
    "actor list",
    "reconcile-gate",
    "deregister-instance",
    "manager remote-check",
];

/// A value in POSIX single quotes: `'` becomes `'\''`.
pub fn shell_quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// Whether a terminal shows a character in its place and does nothing else: no control character, no line separator, no mark
/// that reorders text. What other people say is shown without the others.
pub fn is_plain(c: char) -> bool {
    let moves_text = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !moves_text
}

/// ` --space '<name>'`, to stand behind a printed command that acts on a space: without it the command acts on
/// [`DEFAULT_SPACE`], which alone needs none.
pub fn at(space: &Space) -> String {
    if space.as_str() == DEFAULT_SPACE {
        String::new()
    } else {
        format!(" --space {}", shell_quote(space.as_str()))
    }
}

/// A sentence of a room that knows no space, said about this one: each command between backquotes that acts on a space,
/// and does not say on which, is given this one.
pub fn naming(sentence: &str, space: &Space) -> String {
    let at = at(space);
    let told = sentence.split('`').enumerate().map(|(part, text)| {
        // What stands between two backquotes.
        let nameless = part % 2 == 1 && acts_on_a_space(text) && !text.contains("--space");
        if nameless { format!("{text}{at}") } else { text.to_owned() }
    });
    told.collect::<Vec<_>>().join("`")
}

fn acts_on_a_space(command: &str) -> bool {
    let Some(words) = command.strip_prefix("cotal ") else { return false };
    OF_A_SPACE.iter().any(|of| {
        words.strip_prefix(of).is_some_and(|more| more.is_empty() || more.starts_with(char::is_whitespace))
    })
}

/// The same for whoever knows only the state directory of a space.
pub fn at_state_dir(state_dir: &Path) -> String {
    let space = state_dir.file_name().and_then(|name| name.to_str()).and_then(space_of_segment);
    space.map(|space| at(&space)).unwrap_or_default()
}

/// That a root has no such space: which ones it has, and what to do.
pub fn no_such_space(root: &Root, space: &Space) -> String {
    let has = match spaces(root) {
        Ok(spaces) if spaces.is_empty() => "it has none".to_owned(),
        Ok(spaces) => format!("it has {}", listed(&spaces)),
        Err(error) => format!("what it has cannot be listed: {error}"),
    };
    format!(
        "there is no space {:?} in {} ({has}): name one that is there, run this in the directory that ran `cotal up`, or \
         make it with `cotal up --user-auth{} --idp <auth base URL>`",
        space.as_str(),
        root.path().display(),
        at(space)
    )
}

/// Whether a root has anything of a space: its account record or its state directory. What cannot be examined counts, and
/// nothing is adopted.
pub fn has_space(root: &Root, space: &Space) -> bool {
    let state_dir = || {
        Ok::<_, std::io::Error>(
            root.has_auth_dir()? && file::is_real_dir(&root.auth_dir().join(space_segment(space)))?,
        )
    };
    !matches!(trust_files::load_account(root, space), Ok(None)) || state_dir().unwrap_or(true)
}

/// Every space that a root has anything of, as [`has_space`] says.
fn spaces(root: &Root) -> Result<Vec<Space>, TrustFileError> {
    let mut spaces = trust_files::inventory(root)?;
    if root.has_auth_dir()? {
        for entry in std::fs::read_dir(root.auth_dir())? {
            spaces.extend(entry?.file_name().to_str().and_then(space_of_segment));
        }
    }
    spaces.sort();
    spaces.dedup();
    Ok(spaces)
}

fn listed(spaces: &[Space]) -> String {
    spaces.iter().map(|space| format!("{:?}", space.as_str())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    #[test]
    fn a_printed_command_names_every_space_but_the_default_as_one_word() {
        for (name, flag) in
            [("main", ""), ("q", " --space 'q'"), ("o'hara & co", r" --space 'o'\''hara & co'")]
        {
            assert_eq!(at(&space(name)), flag);
            assert_eq!(at_state_dir(&Path::new("/srv/.cotal/auth").join(space_segment(&space(name)))), flag);
        }
        assert_eq!(at_state_dir(Path::new("/srv/mounted")), "");
    }

    #[test]
    fn a_sentence_that_knows_no_space_is_told_with_the_one_that_it_is_about() {
        let q = space("q");
        for (said, told) in [
            ("stop it with `cotal down`, or wait", "stop it with `cotal down --space 'q'`, or wait"),
            ("run `cotal up --rotate-sys`", "run `cotal up --rotate-sys --space 'q'`"),
            (
                "`cotal doctor auth --fix` or `cotal status`",
                "`cotal doctor auth --fix --space 'q'` or `cotal status --space 'q'`",
            ),
            ("`cotal down --space <each of its spaces>`", "`cotal down --space <each of its spaces>`"),
            (
                "`cotal login --idp x`, `kill 7`, `cotal upset`",
                "`cotal login --idp x`, `kill 7`, `cotal upset`",
            ),
            ("cotal up, and an odd ` backquote", "cotal up, and an odd ` backquote"),
        ] {
            assert_eq!(naming(said, &q), told);
            assert_eq!(naming(said, &space("main")), said);
        }
    }

    #[test]
    fn a_space_that_is_not_there_is_told_with_those_that_are() {
        let tmp = tempfile::tempdir().unwrap();
        let root = Root::at(tmp.path());
        assert!(!has_space(&root, &space("zo")));
        let told = no_such_space(&root, &space("zo"));
        assert!(told.contains("no space \"zo\"") && told.contains("it has none"), "{told}");
        assert!(told.contains("`cotal up --user-auth --space 'zo' --idp <auth base URL>`"), "{told}");
        assert_eq!(listed(&[space("main"), space("q")]), r#""main", "q""#);
        root.ensure_auth_dir().unwrap();
        file::ensure_private_dir(&root.user_auth_state_dir(&space("zo")).unwrap()).unwrap();
        assert!(has_space(&root, &space("zo")) && !has_space(&root, &space("q")));
        let told = no_such_space(&root, &space("q"));
        assert!(told.contains("it has \"zo\""), "{told}");
    }
}
