//! Agent secrets (contract 04 §7.6).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::Entropy;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Random bytes of an agent secret.
const SECRET_BYTES: usize = 32;

/// A fresh agent secret (43 characters) and its stored hash (contract 04 §7.6).
pub fn mint_agent_secret(entropy: &dyn Entropy) -> (Zeroizing<String>, String) {
    let mut bytes = Zeroizing::new([0u8; SECRET_BYTES]);
    entropy.fill(bytes.as_mut_slice());
    let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()));
    let hash = hash_agent_secret(&secret);
    (secret, hash)
}

/// What a managed row stores of an agent secret: the SHA-256 of its UTF-8 text, in lower-case hex.
pub fn hash_agent_secret(secret: &str) -> String {
    hex::encode(digest(secret))
}

pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeros;

    impl Entropy for Zeros {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    #[test]
    fn a_secret_is_43_characters_and_is_stored_as_the_hash_of_its_text() {
        let (secret, hash) = mint_agent_secret(&Zeros);
        assert_eq!(*secret, "A".repeat(43));
        assert_eq!(hash, hash_agent_secret(&secret));
        // FIPS 180-4: the digest of the empty text.
        assert_eq!(hash_agent_secret(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
