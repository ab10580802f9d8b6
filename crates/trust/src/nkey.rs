//! Seeds and signatures of NATS keys.
//!
//! A public key is base32 of `<role byte> <32 key bytes> <CRC-16>`; a seed is base32 of
//! `<seed and role bits, 2 bytes> <32 seed bytes> <CRC-16>`, the checksum little-endian in both.

use std::{fmt, sync::Arc};

use cotal_wire::{Account, Curve, Entropy, Nkey, NkeyRole, Operator, Server, User};
use data_encoding::BASE32_NOPAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

/// A seed or a key that cannot be used; never carries key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NkeyError(pub &'static str);

const NOT_A_SEED: NkeyError = NkeyError("not an nkey seed: wanted S, the role's letter and 56 of A-Z 2-7");
const WRONG_ROLE: NkeyError = NkeyError("the nkey seed is of another role");
const BAD_CHECKSUM: NkeyError = NkeyError("the nkey's checksum does not match: it was cut or mistyped");
const NOT_A_POINT: NkeyError = NkeyError("the nkey is not an Ed25519 public key");
const BAD_SIGNATURE: NkeyError = NkeyError("the signature does not verify");

/// Length of a seed in text.
const SEED_TEXT_LEN: usize = 58;
const SEED_RAW_LEN: usize = 36;
const PUBLIC_TEXT_LEN: usize = 56;
const PUBLIC_RAW_LEN: usize = 35;
/// The prefix of every seed: `S` in the top five bits.
const SEED_PREFIX: u8 = 18 << 3;

/// A role whose keys sign: every role but the curve's. A curve seed does not have [`Seed::sign`] at all.
pub trait SigningRole: NkeyRole {}

impl SigningRole for Operator {}
impl SigningRole for Account {}
impl SigningRole for User {}
impl SigningRole for Server {}

/// A private nkey seed of one role; zeroized on drop, printed nowhere.
#[derive(Clone)]
pub struct Seed<R: NkeyRole> {
    public: Nkey<R>,
    secret: Arc<Secret>,
}

/// Both kinds zeroize themselves on drop.
enum Secret {
    Signing(SigningKey),
    Curve(Zeroizing<[u8; 32]>),
}

impl Secret {
    fn bytes(&self) -> Zeroizing<[u8; 32]> {
        match self {
            Self::Signing(key) => Zeroizing::new(key.to_bytes()),
            Self::Curve(bytes) => bytes.clone(),
        }
    }
}

impl<R: NkeyRole> Seed<R> {
    /// A fresh seed.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut bytes = Zeroizing::new([0u8; 32]);
        entropy.fill(&mut *bytes);
        Self::from_bytes(bytes)
    }

    /// Reads `S<role>…` seed text, checking prefix and checksum.
    pub fn parse(text: &str) -> Result<Self, NkeyError> {
        if text.len() != SEED_TEXT_LEN {
            return Err(NOT_A_SEED);
        }
        let mut raw = Zeroizing::new([0u8; SEED_RAW_LEN]);
        BASE32_NOPAD.decode_mut(text.as_bytes(), &mut *raw).map_err(|_| NOT_A_SEED)?;
        if raw[0] & 0b1111_1000 != SEED_PREFIX {
            return Err(NOT_A_SEED);
        }
        let (body, checksum) = raw.split_at(SEED_RAW_LEN - 2);
        if crc16(body).to_le_bytes() != checksum {
            return Err(BAD_CHECKSUM);
        }
        if raw[..2] != seed_prefix::<R>() {
            return Err(WRONG_ROLE);
        }
        let mut bytes = Zeroizing::new([0u8; 32]);
        bytes.copy_from_slice(&raw[2..SEED_RAW_LEN - 2]);
        Ok(Self::from_bytes(bytes))
    }

    fn from_bytes(bytes: Zeroizing<[u8; 32]>) -> Self {
        let (public, secret) = if R::PREFIX == Curve::PREFIX {
            let public = crypto_box::SecretKey::from_bytes(*bytes).public_key().to_bytes();
            (public, Secret::Curve(bytes))
        } else {
            let key = SigningKey::from_bytes(&bytes);
            (key.verifying_key().to_bytes(), Secret::Signing(key))
        };
        Self { public: encode_public(public), secret: Arc::new(secret) }
    }

    /// The public key.
    pub fn public(&self) -> &Nkey<R> {
        &self.public
    }

    /// The seed text, to be stored and nothing else.
    pub fn expose(&self) -> Zeroizing<String> {
        let mut raw = Zeroizing::new([0u8; SEED_RAW_LEN]);
        raw[..2].copy_from_slice(&seed_prefix::<R>());
        raw[2..SEED_RAW_LEN - 2].copy_from_slice(&*self.secret.bytes());
        let checksum = crc16(&raw[..SEED_RAW_LEN - 2]).to_le_bytes();
        raw[SEED_RAW_LEN - 2..].copy_from_slice(&checksum);
        Zeroizing::new(BASE32_NOPAD.encode(&*raw))
    }
}

impl<R: SigningRole> Seed<R> {
    /// Ed25519 over `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        match &*self.secret {
            Secret::Signing(key) => key.sign(message).to_bytes(),
            // `from_bytes` builds this arm for the curve role alone, which is no `SigningRole`.
            Secret::Curve(_) => unreachable!("a curve seed is of no signing role"),
        }
    }
}

impl Seed<Curve> {
    /// The X25519 secret: the seed's 32 bytes, not hashed (contract 04 §8.3).
    pub(crate) fn secret_key(&self) -> crypto_box::SecretKey {
        crypto_box::SecretKey::from_bytes(*self.secret.bytes())
    }
}

impl<R: NkeyRole> fmt::Debug for Seed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seed(of {})", self.public)
    }
}

/// Verifies an Ed25519 signature by a public nkey, its checksum included.
pub fn verify<R: SigningRole>(key: &Nkey<R>, message: &[u8], signature: &[u8]) -> Result<(), NkeyError> {
    let signature = Signature::from_slice(signature).map_err(|_| BAD_SIGNATURE)?;
    let key = VerifyingKey::from_bytes(&public_bytes(key)?).map_err(|_| NOT_A_POINT)?;
    key.verify_strict(message, &signature).map_err(|_| BAD_SIGNATURE)
}

/// The 32 key bytes of a public nkey, its role byte and checksum checked.
pub(crate) fn public_bytes<R: NkeyRole>(key: &Nkey<R>) -> Result<[u8; 32], NkeyError> {
    let mut raw = [0u8; PUBLIC_RAW_LEN];
    BASE32_NOPAD.decode_mut(key.as_str().as_bytes(), &mut raw).map_err(|_| BAD_CHECKSUM)?;
    let (body, checksum) = raw.split_at(PUBLIC_RAW_LEN - 2);
    if body[0] != role_byte::<R>() || crc16(body).to_le_bytes() != checksum {
        return Err(BAD_CHECKSUM);
    }
    let mut bytes = [0u8; 32];
    bytes.copy_from_slice(&body[1..]);
    Ok(bytes)
}

fn encode_public<R: NkeyRole>(bytes: [u8; 32]) -> Nkey<R> {
    let mut raw = [0u8; PUBLIC_RAW_LEN];
    raw[0] = role_byte::<R>();
    raw[1..PUBLIC_RAW_LEN - 2].copy_from_slice(&bytes);
    let checksum = crc16(&raw[..PUBLIC_RAW_LEN - 2]).to_le_bytes();
    raw[PUBLIC_RAW_LEN - 2..].copy_from_slice(&checksum);
    let mut text = [0u8; PUBLIC_TEXT_LEN];
    BASE32_NOPAD.encode_mut(&raw, &mut text);
    let text = std::str::from_utf8(&text).unwrap_or_default();
    #[allow(clippy::expect_used, reason = "base32 of 35 bytes whose first five bits are the role's letter")]
    Nkey::parse(text).expect("an encoded public nkey has the shape of one")
}

/// The role's letter as a base32 digit, in the top five bits.
const fn role_byte<R: NkeyRole>() -> u8 {
    (R::PREFIX as u8 - b'A') << 3
}

const fn seed_prefix<R: NkeyRole>() -> [u8; 2] {
    let role = role_byte::<R>();
    [SEED_PREFIX | (role >> 5), (role & 0b1_1111) << 3]
}

/// CRC-16 with polynomial 0x1021, initial value zero, no reflection.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0u16;
    for &byte in bytes {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::SystemEntropy;

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn a_seed_prints_and_parses_to_itself() {
        fn round_trip<R: NkeyRole>() {
            let seed = Seed::<R>::generate(&SystemEntropy);
            let text = seed.expose();
            assert_eq!(text.len(), SEED_TEXT_LEN);
            assert_eq!(&text[..2], format!("S{}", R::PREFIX));
            assert_eq!(Seed::<R>::parse(&text).unwrap().public().as_str(), seed.public().as_str());
        }
        round_trip::<Operator>();
        round_trip::<Account>();
        round_trip::<User>();
        round_trip::<Server>();
        round_trip::<Curve>();
    }

    #[test]
    fn a_seed_of_another_role_or_with_a_slip_is_refused() {
        let text = Seed::<Account>::generate(&SystemEntropy).expose();
        assert_eq!(Seed::<User>::parse(&text).unwrap_err(), WRONG_ROLE);
        for at in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'B' { b'C' } else { b'B' };
            assert!(Seed::<Account>::parse(std::str::from_utf8(&bytes).unwrap()).is_err(), "slip at {at}");
        }
        for bad in ["", "S", &text[1..], &text.to_lowercase(), &format!("{}A", *text)] {
            assert!(Seed::<Account>::parse(bad).is_err());
        }
    }

    #[test]
    fn a_signature_verifies_for_its_message_and_key_only() {
        let (ours, other) = (Seed::<User>::generate(&SystemEntropy), Seed::<User>::generate(&SystemEntropy));
        let signature = ours.sign(b"nonce");
        assert_eq!(verify(ours.public(), b"nonce", &signature), Ok(()));
        assert_eq!(verify(ours.public(), b"noncE", &signature), Err(BAD_SIGNATURE));
        assert_eq!(verify(other.public(), b"nonce", &signature), Err(BAD_SIGNATURE));
        assert_eq!(verify(ours.public(), b"nonce", &signature[..63]), Err(BAD_SIGNATURE));
    }

    #[test]
    fn a_public_key_with_a_wrong_checksum_verifies_nothing() {
        let ours = Seed::<User>::generate(&SystemEntropy);
        let mut text = ours.public().as_str().to_owned();
        let last = if text.ends_with('A') { 'B' } else { 'A' };
        text.pop();
        text.push(last);
        let key = Nkey::<User>::parse(&text).unwrap();
        assert_eq!(verify(&key, b"m", &ours.sign(b"m")), Err(BAD_CHECKSUM));
    }

    #[test]
    fn debug_of_a_seed_shows_the_public_key_alone() {
        let seed = Seed::<Account>::generate(&SystemEntropy);
        let shown = format!("{seed:?}");
        assert!(shown.contains(seed.public().as_str()) && !shown.contains(&**seed.expose()));
    }
}
