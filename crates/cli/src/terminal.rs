//! Text of other people on a terminal: an IdP's label, a service's sentence, a row's label.

/// The text on one line and without control characters, so that nobody else's words can move the cursor, colour the
/// screen or forge a second line.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_invisible(c) { '\u{fffd}' } else { c }).collect()
}

/// Line separators and the marks that reorder text.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line_and_sends_no_escape() {
        assert_eq!(printable("Zoë\u{1b}[2J\r\nroot\u{202e}"), "Zoë\u{fffd}[2J\u{fffd}\u{fffd}root\u{fffd}");
    }
}
