//! Tokens that requests of managers name (contract 06 §1).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    time::Entropy,
    token::{TokenError, is_segment, token},
};

const RUN_ID_PREFIX: &str = "run-";

fn is_hex(s: &str, len: usize) -> bool {
    s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_run_id(s: &str) -> bool {
    s.strip_prefix(RUN_ID_PREFIX).is_some_and(|hex| is_hex(hex, 32))
}

fn is_run_holder(s: &str) -> bool {
    (1..=256).contains(&s.len())
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn is_renewed_takeover(s: &str) -> bool {
    is_hex(s, 16)
}

fn is_request_id(s: &str) -> bool {
    (22..=64).contains(&s.len()) && is_segment(s)
}

fn is_takeover(s: &str) -> bool {
    (1..=64).contains(&s.len()) && is_segment(s)
}

token!(
    /// The participant's name of one request (contract 06 §1).
    RequestId, "request id", is_request_id, "22 to 64 of A-Z a-z 0-9 _ -"
);
token!(
    /// A run's id (contract 06 §1).
    RunId, "run id", is_run_id, "run- followed by 32 of 0-9 a-f"
);
token!(
    /// Who holds a run: a prefix, a dot and the takeover id (contract 06 §4.1).
    RunHolder, "run holder", is_run_holder, "1 to 256 of A-Z a-z 0-9 _ . -"
);
token!(
    /// The takeover of a run that is renewed; an attempt's is looser (contract 06 §4.1, §12.2).
    RenewedTakeover, "takeover id", is_renewed_takeover, "16 of 0-9 a-f"
);
token!(
    /// The takeover of a run that is attempted; a renewed one's is stricter (contract 06 §12.2).
    Takeover, "takeover id", is_takeover, "1 to 64 of A-Z a-z 0-9 _ -"
);
impl Takeover {
    /// Mints a fresh takeover: 8 random bytes in hex (contract 03 §J).
    pub fn mint(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0u8; 8];
        entropy.fill(&mut bytes);
        Self(hex::encode(bytes).into())
    }
}

token!(
    /// A caller's own name of one run that it may ask for again (contract 10 §3.5). Private.
    SubmissionId, "submission id", is_takeover, "1 to 64 of A-Z a-z 0-9 _ -"
);
