//! Why a connect is denied, in words (contract 04 §8.4, §8.6).
//!
//! The client only ever sees `Authorization Violation`; the broker logs the text after `Auth callout service
//! returned an error`, and the callout's own line repeats it as `reason`. No text carries a bearer or a secret.

use crate::permit::PermitRefusal;

/// The denial of a request that was not answered in time, and of one that was shed (contract 04 §8.7).
pub const TIMEOUT: &str =
    "timeout: the auth callout could not answer inside the broker's authorization timeout";
/// The connect carries no bearer.
pub const NO_BEARER: &str =
    "no bearer: connect with the sentinel credentials and a bearer from the exchange as the auth token";
/// The connect name is no inbox nonce.
pub const NO_NONCE: &str = "no inbox nonce: the connect name must be 8 to 120 of A-Z a-z 0-9 _ -, and the inbox prefix _INBOX_<name>";
/// The bearer expired between its check and the signature.
pub const EXPIRED_WHILE_SERVED: &str = "the bearer has expired: exchange for a new one";
/// What a narrower grant between check and record says.
pub const GRANT_CHANGED: &str = "the actor's grant changed; connect again";
/// Something that cannot happen did.
pub const INTERNAL: &str = "internal: the auth callout could not decide; its log says why";

/// Longest denial text, in bytes: long enough for every sentence of ours, short enough for one log line.
const MAX_TEXT: usize = 1_000;

/// Why a connect is denied. The order of the variants is the order of the checks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Rule 7.
    #[error("{NO_BEARER}")]
    NoBearer,
    /// Rule 8: the bearer does not validate.
    #[error("bearer: {0}")]
    Bearer(String),
    /// The connect limits; the sentence starts with `RATE_LIMITED retry-after <n>s`.
    #[error("{0}")]
    Limited(String),
    /// Rule 9, file arm.
    #[error("actor ledger: {0}")]
    Ledger(String),
    /// Rule 9, credential arm.
    #[error("credential: {0}")]
    Credential(String),
    /// Rule 10.
    #[error("{NO_NONCE}")]
    NoNonce,
    /// Rule 12.
    #[error("permissions: {0}")]
    Permit(String),
    /// The bearer ran out inside the clock tolerance: nothing that it could buy would still be valid.
    #[error("{EXPIRED_WHILE_SERVED}")]
    ExpiredWhileServed,
    /// The issuance row was not written.
    #[error("issuance record: {0}")]
    Issuance(String),
    /// Authority was withdrawn between the check and the record.
    #[error("revoked while connecting: {0}")]
    Revoked(String),
    /// The deadline passed.
    #[error("{TIMEOUT}")]
    Timeout,
    /// A task of ours failed.
    #[error("{INTERNAL}")]
    Internal,
}

impl From<PermitRefusal> for Denial {
    fn from(refusal: PermitRefusal) -> Self {
        Self::Permit(refusal.to_string())
    }
}

impl Denial {
    /// The text as it is signed and logged: folded, bounded.
    pub fn text(&self) -> String {
        fold(&self.to_string())
    }
}

/// Folds to printable ASCII (contract 04 §8.6) and cuts at a bound of our own.
pub fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_TEXT));
    for c in text.chars() {
        match c {
            ' '..='~' => out.push(c),
            '\u{2010}'..='\u{2015}' => out.push('-'),
            '\u{2018}' | '\u{2019}' | '\u{201b}' => out.push('\''),
            '\u{201c}' | '\u{201d}' | '\u{201f}' => out.push('"'),
            '\u{2026}' => out.push_str("..."),
            _ => out.push('?'),
        }
        if out.len() > MAX_TEXT {
            out.truncate(MAX_TEXT - 3);
            out.push_str("...");
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn typographic_characters_fold_to_their_ascii_forms_and_others_to_a_question_mark() {
        assert_eq!(fold("a\u{2010}\u{2013}\u{2014}\u{2015}b"), "a----b");
        assert_eq!(fold("\u{2018}x\u{2019}\u{201b}"), "'x''");
        assert_eq!(fold("\u{201c}x\u{201d}\u{201f}"), "\"x\"\"");
        assert_eq!(fold("wait\u{2026}"), "wait...");
        assert_eq!(fold("Zo\u{eb}\n\t\u{7f}\u{201a}\u{1f600}"), "Zo??????");
        assert_eq!(fold(" ~"), " ~");
    }

    #[test]
    fn the_timeout_text_is_the_contracts() {
        assert_eq!(
            Denial::Timeout.text(),
            "timeout: the auth callout could not answer inside the broker's authorization timeout"
        );
    }

    #[test]
    fn a_limited_denial_starts_with_its_word() {
        let text = Denial::Limited("RATE_LIMITED retry-after 3s host h".to_owned()).text();
        assert!(text.starts_with("RATE_LIMITED retry-after 3s "));
    }

    proptest! {
        #[test]
        fn folded_text_is_printable_bounded_and_stable(text in ".{0,2000}|\\PC{0,2000}") {
            let folded = fold(&text);
            prop_assert!(folded.bytes().all(|b| (0x20..=0x7e).contains(&b)));
            prop_assert!(folded.len() <= MAX_TEXT);
            prop_assert_eq!(fold(&folded), folded.clone());
        }

        #[test]
        fn printable_ascii_is_left_alone(text in "[ -~]{0,900}") {
            prop_assert_eq!(fold(&text), text);
        }
    }
}
