//! Owner derivation (contract 04 §5), frozen: any change re-keys every owner.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use cotal_wire::{Account, DerivedOwner, Entropy, Nkey, Owner, Space, token};
use data_encoding::{Encoding, Specification};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::document::{self, SecretText};

const DERIVED_DOMAIN: &[u8] = b"cotal-owner-v1:";
const PLATFORM_DOMAIN: &[u8] = b"cotal/platform-control-owner/v1\0";
/// Bytes of a generated and of a stored secret; the least of any.
const SECRET_LEN: usize = 32;
/// Bytes of the digest that name an owner: 128 bits.
const OWNER_DIGEST_LEN: usize = 16;
/// Characters of base32 that name an owner.
const OWNER_TEXT_LEN: usize = 26;

/// The space's owner-derivation secret: at least 32 bytes, zeroized on drop.
#[derive(Clone)]
pub struct OwnerSecret {
    bytes: Zeroizing<Vec<u8>>,
}

/// Why a derivation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OwnerError(pub &'static str);

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(rename = "secretB64")]
    secret: SecretText,
}

impl OwnerSecret {
    /// 32 fresh bytes.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut bytes = Zeroizing::new(vec![0; SECRET_LEN]);
        entropy.fill(&mut bytes);
        Self { bytes }
    }

    /// At least 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OwnerError> {
        if bytes.len() < SECRET_LEN {
            return Err(OwnerError("the owner secret is shorter than 32 bytes"));
        }
        Ok(Self { bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// The raw bytes, to be committed to and nothing else.
    pub(crate) fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// The document `owner-secret.json` (`{"ver":1,"secretB64":…}`).
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write_versioned(&Document {
            secret: SecretText(Zeroizing::new(STANDARD.encode(&*self.bytes))),
        })
    }

    /// Reads the document; exactly 32 bytes.
    pub fn from_document(text: &str) -> Result<Self, OwnerError> {
        const REFUSED: OwnerError =
            OwnerError("owner-secret.json does not hold version 1 of a 32-byte secret in base64");
        let document: Document = document::read_versioned("owner-secret.json", text).map_err(|_| REFUSED)?;
        let bytes = Zeroizing::new(STANDARD.decode(document.secret.0.as_bytes()).map_err(|_| REFUSED)?);
        if bytes.len() == SECRET_LEN { Ok(Self { bytes }) } else { Err(REFUSED) }
    }

    /// The owner of an IdP subject.
    pub fn derive(&self, issuer: &str, sub: &str) -> Result<DerivedOwner, OwnerError> {
        if issuer.is_empty() {
            return Err(OwnerError("an owner cannot be derived without an IdP issuer"));
        }
        if sub.is_empty() {
            return Err(OwnerError("an owner cannot be derived without an IdP subject"));
        }
        let input = serde_json::to_string(&[issuer, sub])
            .map_err(|_| OwnerError("the IdP issuer and subject have no JSON form"))?;
        let name = self.name(token::DERIVED_PREFIX, &[DERIVED_DOMAIN, input.as_bytes()]);
        DerivedOwner::parse(&name).map_err(|_| OwnerError("the derivation did not yield an owner"))
    }

    /// The platform control owner (contract 04 §5.1, 12 D3).
    pub fn platform_control_owner(&self, space: &Space, account: &Nkey<Account>) -> Owner {
        let message = [PLATFORM_DOMAIN, space.as_str().as_bytes(), b"\0", account.as_str().as_bytes()];
        platform_owner(&self.name(token::PLATFORM_PREFIX, &message))
    }

    /// The same owner in the other reading of its rule, which cuts the text and not the bytes (contract 10 §9). A store whose
    /// gates name it keeps it (contract 12 D3).
    pub fn platform_control_owner_of_text(&self, space: &Space, account: &Nkey<Account>) -> Owner {
        let message = [PLATFORM_DOMAIN, space.as_str().as_bytes(), b"\0", account.as_str().as_bytes()];
        let text = base32_lower().encode(&self.digest(&message));
        platform_owner(&format!("{}{}", token::PLATFORM_PREFIX, &text[..OWNER_TEXT_LEN]))
    }

    fn name(&self, prefix: &str, message: &[&[u8]]) -> String {
        format!("{prefix}{}", base32_lower().encode(&self.digest(message)[..OWNER_DIGEST_LEN]))
    }

    fn digest(&self, message: &[&[u8]]) -> [u8; 32] {
        #[allow(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.bytes).expect("HMAC takes any key");
        for part in message {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

fn platform_owner(name: &str) -> Owner {
    #[allow(clippy::expect_used, reason = "p_ and 26 base32 characters are an owner")]
    Owner::parse(name).expect("a platform owner is an owner")
}

impl fmt::Debug for OwnerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerSecret(hidden)")
    }
}

fn base32_lower() -> Encoding {
    let mut specification = Specification::new();
    specification.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    #[allow(clippy::expect_used, reason = "a constant alphabet of 32 distinct characters")]
    specification.encoding().expect("a constant alphabet")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::SystemEntropy;

    fn counting() -> OwnerSecret {
        OwnerSecret::from_bytes(&(0..32).collect::<Vec<u8>>()).unwrap()
    }

    #[test]
    fn owners_of_the_contracts_vectors() {
        let text = OwnerSecret::from_bytes(b"0123456789abcdef0123456789abcdef").unwrap();
        for (secret, issuer, sub, owner) in [
            (counting(), "https://idp.example", "user-123", "u_g34qewu4qwbgftozn4lar5yudu"),
            (counting(), "http://127.0.0.1:3000", "Zoë \"x\"\n", "u_jloc2u7hqh6rh37mlwxhfnqcbm"),
            (counting(), "https://a.example/", "b/c\u{7f}\u{2028}\u{1}", "u_lple5fi4ugbdm6ilyz6xi7dsqa"),
            (text, "https://idp.example", "user-123", "u_bqadpah4uzibuub7k2gxpqtr2a"),
        ] {
            assert_eq!(secret.derive(issuer, sub).unwrap().as_str(), owner);
        }
    }

    #[test]
    fn json_escapes_are_ecmascripts() {
        assert_eq!(
            serde_json::to_string(&["\u{8}\u{c}\n\r\t\"\\/", "\u{0}\u{1f}\u{7f}\u{2029}é"]).unwrap(),
            "[\"\\b\\f\\n\\r\\t\\\"\\\\/\",\"\\u0000\\u001f\u{7f}\u{2029}é\"]"
        );
    }

    #[test]
    fn the_platform_owner_takes_the_sixteen_byte_prefix() {
        let account = Nkey::parse(&format!("A{}", "B".repeat(55))).unwrap();
        let owner = counting().platform_control_owner(&Space::parse("demo").unwrap(), &account);
        assert_eq!(owner.as_str(), "p_twm65lc2v4yntkvefwmb2eb5ky");
        let other = counting().platform_control_owner_of_text(&Space::parse("demo").unwrap(), &account);
        assert_eq!(other.as_str(), "p_twm65lc2v4yntkvefwmb2eb5k3");
    }

    #[test]
    fn an_empty_issuer_or_subject_has_no_owner() {
        assert!(counting().derive("", "user").is_err());
        assert!(counting().derive("https://idp.example", "").is_err());
    }

    #[test]
    fn a_secret_is_at_least_32_bytes_and_stored_as_exactly_32() {
        assert!(OwnerSecret::from_bytes(&[0; 31]).is_err());
        assert!(OwnerSecret::from_bytes(&[0; 33]).is_ok());
        let secret = OwnerSecret::generate(&SystemEntropy);
        let text = secret.to_document();
        assert!(text.starts_with("{\n  \"ver\": 1,\n  \"secretB64\": \""));
        assert_eq!(OwnerSecret::from_document(&text).unwrap().bytes, secret.bytes);
        let stored =
            |bytes: usize| format!("{{\"ver\":1,\"secretB64\":\"{}\"}}", STANDARD.encode(vec![7; bytes]));
        assert!(OwnerSecret::from_document(&stored(32)).is_ok());
        for bad in [
            stored(31).as_str(),
            &stored(33),
            &stored(32).replace(":1,", ":2,"),
            &stored(32).replace("\"ver\":1,", ""),
            &stored(32).replace('=', ""),
            "",
            "null",
            "[]",
            "{\"ver\":1}",
        ] {
            assert!(OwnerSecret::from_document(bad).is_err());
        }
    }
}
