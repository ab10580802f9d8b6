//! The signing key: its JWKS and its tokens (baseline of a real Better Auth server: no `use`, no `nbf`, a `kid` that
//! is not a thumbprint).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::{Entropy, UnixSecs};
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// How long a minted token lives: fifteen minutes.
pub(crate) const TOKEN_TTL_SECS: u64 = 900;
/// Random bytes of a key id.
const KID_BYTES: usize = 16;

pub(crate) struct Signer {
    kid: String,
    key: SigningKey,
}

impl Signer {
    pub(crate) fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0u8; 32]);
        entropy.fill(seed.as_mut_slice());
        Self { kid: random_token(entropy, KID_BYTES).to_string(), key: SigningKey::from_bytes(&seed) }
    }

    pub(crate) fn of(kid: String, seed: &[u8; 32]) -> Self {
        Self { kid, key: SigningKey::from_bytes(seed) }
    }

    pub(crate) fn kid(&self) -> &str {
        &self.kid
    }

    pub(crate) fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.key.to_bytes())
    }

    pub(crate) fn jwks(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.verifying_key().as_bytes());
        json!({ "keys": [{ "alg": "EdDSA", "crv": "Ed25519", "x": x, "kty": "OKP", "kid": self.kid }] })
    }

    /// A token of the provider for a user; its audience is its issuer.
    pub(crate) fn mint(&self, origin: &str, sub: &str, iat: UnixSecs, exp: UnixSecs) -> String {
        let header = json!({ "alg": "EdDSA", "kid": self.kid });
        let claims = json!({ "iat": iat, "name": sub, "sub": sub, "exp": exp, "iss": origin, "aud": origin });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
    }
}

/// Random bytes as base64url without padding.
pub(crate) fn random_token(entropy: &dyn Entropy, bytes: usize) -> Zeroizing<String> {
    let mut buffer = Zeroizing::new(vec![0u8; bytes]);
    entropy.fill(&mut buffer);
    Zeroizing::new(URL_SAFE_NO_PAD.encode(buffer.as_slice()))
}
