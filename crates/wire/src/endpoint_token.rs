//! Tokens of the endpoint plane (contract 02 §1).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    time::{Entropy, MAX_SAFE_INTEGER},
    token::{Sha256Hex, TokenError, is_segment, token},
};

/// What a digest reference starts with.
const DIGEST_PREFIX: &str = "sha256:";
/// Longest endpoint token, in characters.
pub const MAX_ENDPOINT_TOKEN: usize = 64;

fn is_label(s: &str) -> bool {
    !s.is_empty()
        && !s.starts_with('-')
        && !s.ends_with('-')
        && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_endpoint_name(s: &str) -> bool {
    s.len() <= MAX_ENDPOINT_TOKEN && s.split('.').all(is_label)
}

fn is_endpoint_token(s: &str) -> bool {
    s.len() <= MAX_ENDPOINT_TOKEN && s.split('_').all(is_label)
}

fn is_command(s: &str) -> bool {
    (1..=32).contains(&s.len())
        && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_nonce(s: &str) -> bool {
    (22..=64).contains(&s.len()) && is_segment(s)
}

fn is_id_token(s: &str) -> bool {
    s.len() <= 64 && is_segment(s)
}

fn is_key_segment(s: &str) -> bool {
    is_segment(s)
}

fn is_generation(s: &str) -> bool {
    s.len() == 32 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_digest_ref(s: &str) -> bool {
    s.strip_prefix(DIGEST_PREFIX)
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

token!(
    /// An endpoint's dotted name.
    EndpointName, "endpoint name", is_endpoint_name, "dot-separated labels of a-z 0-9 -, at most 64 characters"
);
token!(
    /// An endpoint's name as one subject token: `.` written `_`, a bijection.
    EndpointToken, "endpoint token", is_endpoint_token, "labels of a-z 0-9 - joined by _, at most 64 characters"
);
token!(
    /// A command of an endpoint, or the name of one of its work pools.
    Command, "command", is_command, "1 to 32 of a-z 0-9 -"
);
token!(
    /// A request nonce: never persisted, one outstanding call each.
    Nonce, "nonce", is_nonce, "22 to 64 of A-Z a-z 0-9 _ -"
);
token!(
    /// A request, goal, timer, key or issuer key id.
    IdToken, "id", is_id_token, "1 to 64 of A-Z a-z 0-9 _ -"
);
token!(
    /// One segment of a ledger key: the ids of handles and their issuers.
    KeySegment, "key segment", is_key_segment, "one or more of A-Z a-z 0-9 _ -"
);
token!(
    /// The generation of an issued caller (contract 01 §7).
    Generation, "generation", is_generation, "32 of 0-9 a-f"
);
token!(
    /// A reference to a document by digest: `sha256:` and 64 of lower-case hex.
    DigestRef, "digest reference", is_digest_ref, "sha256: followed by 64 of 0-9 a-f"
);

/// The command that every endpoint answers without registering it.
pub const DESCRIBE: &str = "describe";
/// The authority plane's own endpoint: its name, its token and its queue group.
pub const AUTH_ENDPOINT: &str = "auth";
/// The endpoint that managers serve, an instance each.
pub const MANAGER_ENDPOINT: &str = "manager";
/// The command of [`AUTH_ENDPOINT`] that ends a managed lifecycle.
pub const RETIRE_LIFECYCLE: &str = "retire-lifecycle";

impl Command {
    /// [`RETIRE_LIFECYCLE`].
    pub fn retire_lifecycle() -> Self {
        Self(RETIRE_LIFECYCLE.into())
    }
}

impl EndpointName {
    /// [`AUTH_ENDPOINT`].
    pub fn auth() -> Self {
        Self(AUTH_ENDPOINT.into())
    }

    /// [`MANAGER_ENDPOINT`].
    pub fn manager() -> Self {
        Self(MANAGER_ENDPOINT.into())
    }

    /// The one subject token of this name.
    pub fn token(&self) -> EndpointToken {
        EndpointToken(self.0.replace('.', "_").into())
    }
}

impl EndpointToken {
    /// The dotted name of this token.
    pub fn name(&self) -> EndpointName {
        EndpointName(self.0.replace('_', ".").into())
    }
}

impl DigestRef {
    /// Reads a reference as people and programs write it: with the `sha256:` prefix, or the bare hex that the contract
    /// store is keyed by.
    pub fn normalise(s: &str) -> Result<Self, TokenError> {
        match Sha256Hex::parse(s) {
            Ok(hex) => Ok(Self(format!("{DIGEST_PREFIX}{hex}").into())),
            Err(_) => Self::parse(s),
        }
    }

    /// The digest alone, as the contract store is keyed.
    pub fn hex(&self) -> Sha256Hex {
        Sha256Hex::of_checked(&self.0[DIGEST_PREFIX.len()..])
    }

    /// The reference of a SHA-256 digest.
    pub fn of_sha256(digest: &[u8; 32]) -> Self {
        Self(format!("{DIGEST_PREFIX}{}", hex::encode(digest)).into())
    }
}

impl Generation {
    /// Mints a fresh generation, or a fresh accepted token: 16 random bytes in hex (contract 03 §H.1).
    pub fn mint(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0u8; 16];
        entropy.fill(&mut bytes);
        Self(hex::encode(bytes).into())
    }

    /// The first 16 bytes of a SHA-256 digest, in hex: how a user connection's accepted token is made.
    pub fn of_digest(digest: &[u8; 32]) -> Self {
        Self(hex::encode(&digest[..16]).into())
    }
}

/// An epoch as a subject carries it: decimal, no leading zero, at most 2^53 - 1.
pub fn parse_epoch(s: &str) -> Option<u64> {
    let canonical =
        s == "0" || (!s.starts_with('0') && !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()));
    if !canonical {
        return None;
    }
    s.parse().ok().filter(|epoch| *epoch <= MAX_SAFE_INTEGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_with_and_without_its_prefix() {
        let hex = "0a".repeat(32);
        let prefixed = DigestRef::parse(&format!("sha256:{hex}")).unwrap();
        assert_eq!(DigestRef::normalise(&hex).unwrap(), prefixed);
        assert_eq!(DigestRef::normalise(prefixed.as_str()).unwrap(), prefixed);
        assert_eq!(prefixed.hex().as_str(), hex);
        assert!(DigestRef::parse(&hex).is_err(), "a stored reference carries it");
        let bad =
            ["", "sha256:", &hex.to_uppercase(), &format!("sha256:sha256:{hex}"), &format!("sha1:{hex}")];
        for bad in bad {
            assert!(DigestRef::normalise(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoint_names_and_tokens_are_a_bijection() {
        for name in ["manager", "com.example.search", "a-b.c9", &"a".repeat(64)] {
            let parsed = EndpointName::parse(name).unwrap();
            assert_eq!(parsed.token().name(), parsed);
            assert!(EndpointToken::parse(parsed.token().as_str()).is_ok());
        }
        for bad in ["", ".", "a.", "-a", "a-", "a_b", "A", "a..b", "a.-b", &"a".repeat(65)] {
            assert!(EndpointName::parse(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "_", "a_", "_a", "a.b", "a__b"] {
            assert!(EndpointToken::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bounds_of_the_endpoint_tokens_hold() {
        assert!(Command::parse(&"a".repeat(32)).is_ok() && Command::parse(&"a".repeat(33)).is_err());
        assert!(Command::parse("").is_err() && Command::parse("a_b").is_err());
        assert!(Nonce::parse(&"a".repeat(21)).is_err() && Nonce::parse(&"a".repeat(22)).is_ok());
        assert!(Nonce::parse(&"a".repeat(64)).is_ok() && Nonce::parse(&"a".repeat(65)).is_err());
        assert!(IdToken::parse(&"a".repeat(64)).is_ok() && IdToken::parse(&"a".repeat(65)).is_err());
        assert!(Generation::parse(&"0".repeat(32)).is_ok() && Generation::parse(&"0".repeat(31)).is_err());
        assert!(DigestRef::parse(&format!("sha256:{}", "a".repeat(64))).is_ok());
        assert!(DigestRef::parse(&format!("sha256:{}", "A".repeat(64))).is_err());
    }

    #[test]
    fn epochs_have_one_spelling() {
        for (raw, want) in [
            ("0", Some(0)),
            ("1", Some(1)),
            ("9007199254740991", Some(MAX_SAFE_INTEGER)),
            ("9007199254740992", None),
            ("99999999999999999999999", None),
            ("01", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            ("1.0", None),
        ] {
            assert_eq!(parse_epoch(raw), want, "{raw:?}");
        }
    }
}
