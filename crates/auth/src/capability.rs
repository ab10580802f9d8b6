//! The per-start capability of the loopback face (contract 05 §2.4, 12 D1).

use std::fmt;

use cotal_wire::Entropy;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Random bytes in a capability (contract 12 D1).
const CAPABILITY_BYTES: usize = 32;

/// What the `Authorization` header starts with.
const SCHEME: &[u8] = b"Bearer ";

/// Proof of access to this start's `auth-service.json`: 32 random bytes as lower hex. Never printed.
#[derive(Clone)]
pub struct Capability(Zeroizing<String>);

impl Capability {
    /// A fresh capability.
    pub fn mint(entropy: &dyn Entropy) -> Self {
        let mut bytes = Zeroizing::new([0u8; CAPABILITY_BYTES]);
        entropy.fill(bytes.as_mut_slice());
        Self(Zeroizing::new(hex::encode(bytes.as_slice())))
    }

    /// The text, for the discovery file and for a host's own calls.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether an `Authorization` value is exactly `Bearer <cap>`; compared in constant time.
    pub(crate) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        authorization
            .and_then(|value| value.strip_prefix(SCHEME))
            .is_some_and(|presented| presented.ct_eq(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting;
    impl Entropy for Counting {
        fn fill(&self, bytes: &mut [u8]) {
            for (byte, n) in bytes.iter_mut().zip(0u8..) {
                *byte = n;
            }
        }
    }

    #[test]
    fn a_capability_is_64_lower_hex_characters_and_never_prints() {
        let cap = Capability::mint(&Counting);
        assert_eq!(cap.expose(), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
        assert_eq!(format!("{cap:?}"), "Capability(..)");
    }

    #[test]
    fn only_the_exact_header_is_admitted() {
        let cap = Capability::mint(&Counting);
        let exact = format!("Bearer {}", cap.expose());
        assert!(cap.admits(Some(exact.as_bytes())));
        for wrong in [
            cap.expose().to_owned(),
            format!("bearer {}", cap.expose()),
            format!("Bearer  {}", cap.expose()),
            format!("{exact} "),
            format!("Bearer {}", cap.expose().to_uppercase()),
            "Bearer ".to_owned(),
            String::new(),
        ] {
            assert!(!cap.admits(Some(wrong.as_bytes())), "{wrong:?}");
        }
        assert!(!cap.admits(None));
    }
}
