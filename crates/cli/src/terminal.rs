//! Text of other people on a terminal: an IdP's label, a service's sentence, a row's label.

use std::fmt::Write as _;

use cotal_workspace::printed::is_plain;

/// The text on one line and without control characters, so that nobody else's words can move the cursor, colour the
/// screen or forge a second line.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect()
}

/// The text as a JSON string when it holds anything that [`printable`] would replace: what people copy must not be
/// another text. `None` when it can be shown as it is.
pub fn escaped(text: &str) -> Option<String> {
    let mut json = String::from("\"");
    let mut odd = false;
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if !is_plain(c) => {
                odd = true;
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    odd.then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_cannot_be_shown_as_it_is_becomes_the_json_string_that_reads_back_as_it() {
        let odd = "a\u{1b}\"\\\n\u{202e}é";
        let json = escaped(odd).unwrap();
        assert_eq!(json, r#""a\u001b\"\\\u000a\u202eé""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), odd);
        assert_eq!(escaped("it's \"plain\" é"), None);
    }

    #[test]
    fn foreign_text_stays_on_its_line_and_sends_no_escape() {
        assert_eq!(printable("Zoë\u{1b}[2J\r\nroot\u{202e}"), "Zoë\u{fffd}[2J\u{fffd}\u{fffd}root\u{fffd}");
    }
}
