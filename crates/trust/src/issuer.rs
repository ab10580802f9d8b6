//! The issuer key set of a space (contract 04 §3).

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::{Entropy, Space, object};
use ed25519_dalek::{SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    bundle::BundleError,
    document::{self, SecretText},
    jws,
};

const WHAT: &str = "issuer.json";
pub(crate) const KEY_TYPE: &str = "OKP";
pub(crate) const CURVE: &str = "Ed25519";
const USE_SIGNATURE: &str = "sig";

/// The issuer string of a space: `urn:cotal:auth:<space>`.
pub fn issuer_urn(space: &Space) -> String {
    format!("urn:cotal:auth:{space}")
}

/// The RFC 7638 thumbprint of an Ed25519 public key.
pub(crate) fn thumbprint(x: &str) -> String {
    let text = format!(r#"{{"crv":"{CURVE}","kty":"{KEY_TYPE}","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(text))
}

/// The key set: every key is published, one is active.
#[derive(Clone)]
pub struct IssuerKeySet {
    issuer: String,
    /// In published order; never empty.
    keys: Vec<IssuerKey>,
    /// Index of the active key.
    active: usize,
}

#[derive(Clone)]
struct IssuerKey {
    kid: String,
    /// base64url of the public key.
    x: String,
    signing: SigningKey,
    verifying: VerifyingKey,
}

/// A published key.
#[derive(Serialize)]
pub(crate) struct PublicJwk<'a> {
    pub(crate) kty: &'a str,
    pub(crate) crv: &'a str,
    pub(crate) x: &'a str,
    pub(crate) kid: &'a str,
    pub(crate) alg: &'a str,
    pub(crate) r#use: &'a str,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    issuer: String,
    active_kid: String,
    #[serde(deserialize_with = "object::read_list")]
    keys: Vec<StoredKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredKey {
    kid: String,
    #[serde(deserialize_with = "object::read")]
    private_jwk: PrivateJwk,
}

#[derive(Serialize, Deserialize)]
struct PrivateJwk {
    kty: String,
    crv: String,
    x: String,
    d: SecretText,
}

impl IssuerKey {
    fn generate(entropy: &dyn Entropy) -> Self {
        let mut secret = Zeroizing::new([0u8; 32]);
        entropy.fill(&mut *secret);
        Self::new(SigningKey::from_bytes(&secret))
    }

    fn new(signing: SigningKey) -> Self {
        let verifying = signing.verifying_key();
        let x = URL_SAFE_NO_PAD.encode(verifying.as_bytes());
        Self { kid: thumbprint(&x), x, signing, verifying }
    }

    fn from_stored(stored: &StoredKey) -> Result<Self, BundleError> {
        let refuse = |why: &str| Err(BundleError(format!("{WHAT} holds a key that {why}")));
        let jwk = &stored.private_jwk;
        if jwk.kty != KEY_TYPE || jwk.crv != CURVE {
            return refuse("is not an Ed25519 key");
        }
        let mut secret = Zeroizing::new([0u8; 32]);
        if URL_SAFE_NO_PAD.decode_slice(jwk.d.0.as_bytes(), &mut *secret) != Ok(secret.len()) {
            return refuse("has no usable private part");
        }
        let key = Self::new(SigningKey::from_bytes(&secret));
        if key.x != jwk.x {
            return refuse("has a public part of another key");
        }
        if key.kid != stored.kid {
            return refuse("is stored under the kid of another key");
        }
        Ok(key)
    }

    fn stored(&self) -> StoredKey {
        let secret = Zeroizing::new(self.signing.to_bytes());
        StoredKey {
            kid: self.kid.clone(),
            private_jwk: PrivateJwk {
                kty: KEY_TYPE.to_owned(),
                crv: CURVE.to_owned(),
                x: self.x.clone(),
                d: SecretText(Zeroizing::new(URL_SAFE_NO_PAD.encode(*secret))),
            },
        }
    }

    fn public(&self) -> PublicJwk<'_> {
        PublicJwk {
            kty: KEY_TYPE,
            crv: CURVE,
            x: &self.x,
            kid: &self.kid,
            alg: jws::ALGORITHM,
            r#use: USE_SIGNATURE,
        }
    }
}

impl IssuerKeySet {
    /// A fresh set of one key.
    pub fn create(space: &Space, entropy: &dyn Entropy) -> Self {
        Self { issuer: issuer_urn(space), keys: vec![IssuerKey::generate(entropy)], active: 0 }
    }

    /// Reads `issuer.json`; the stored issuer must equal the space's.
    pub fn from_document(text: &str, space: &Space) -> Result<Self, BundleError> {
        let document: Document = document::read_versioned(WHAT, text)?;
        let refuse = |why: &str| Err(BundleError(format!("{WHAT} {why}")));
        if document.issuer.is_empty() || document.active_kid.is_empty() {
            return refuse("lacks its issuer or its active kid");
        }
        if document.keys.is_empty() {
            return refuse("holds no keys");
        }
        let mut keys = document.keys.iter().map(IssuerKey::from_stored).collect::<Result<Vec<_>, _>>()?;
        let Some(active) = keys.iter().position(|key| key.kid == document.active_kid) else {
            return refuse("does not hold its active key");
        };
        if document.issuer != issuer_urn(space) {
            return refuse("is of another space");
        }
        // The active key is published first, the others in file order.
        keys[..=active].rotate_right(1);
        for at in (1..keys.len()).rev() {
            if keys[..at].iter().any(|earlier| earlier.kid == keys[at].kid) {
                keys.remove(at);
            }
        }
        Ok(Self { issuer: document.issuer, keys, active: 0 })
    }

    /// The document `issuer.json`.
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write_versioned(&Document {
            issuer: self.issuer.clone(),
            active_kid: self.active_kid().to_owned(),
            keys: self.keys.iter().map(IssuerKey::stored).collect(),
        })
    }

    /// Adds a fresh key and makes it active; returns its kid.
    pub fn rotate(&mut self, entropy: &dyn Entropy) -> String {
        let key = IssuerKey::generate(entropy);
        let kid = key.kid.clone();
        self.active = self.keys.len();
        self.keys.push(key);
        kid
    }

    /// Removes a key; refuses the active one.
    pub fn retire(&mut self, kid: &str) -> Result<(), BundleError> {
        if kid == self.active_kid() {
            return Err(BundleError(
                "the active issuer key cannot be retired; rotate to a new one first".into(),
            ));
        }
        let Some(at) = self.keys.iter().position(|key| key.kid == kid) else {
            return Err(BundleError(
                "the issuer key set has no key of this kid; list the published keys".into(),
            ));
        };
        self.keys.remove(at);
        if at < self.active {
            self.active -= 1;
        }
        Ok(())
    }

    /// The active kid.
    pub fn active_kid(&self) -> &str {
        &self.keys[self.active].kid
    }

    /// The issuer string.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The JWKS document, compact JSON `{"keys":[…]}`; never `d`.
    pub fn jwks(&self) -> String {
        #[derive(Serialize)]
        struct Jwks<'a> {
            keys: Vec<PublicJwk<'a>>,
        }
        #[allow(clippy::expect_used, reason = "a list of plain strings always serialises")]
        serde_json::to_string(&Jwks { keys: self.public_keys().collect() }).expect("plain strings serialise")
    }

    /// The published keys, in order.
    pub(crate) fn public_keys(&self) -> impl Iterator<Item = PublicJwk<'_>> {
        self.keys.iter().map(IssuerKey::public)
    }

    /// The published key of this kid.
    pub fn verifying_key(&self, kid: &str) -> Option<&VerifyingKey> {
        self.keys.iter().find(|key| key.kid == kid).map(|key| &key.verifying)
    }

    /// Signs a payload under the active key.
    pub(crate) fn sign(&self, payload: &impl Serialize) -> Zeroizing<String> {
        let key = &self.keys[self.active];
        Zeroizing::new(jws::sign(&key.kid, &key.signing, payload))
    }
}

impl fmt::Debug for IssuerKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKeySet")
            .field("issuer", &self.issuer)
            .field("active", &self.active_kid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::system::SystemEntropy;

    fn space() -> Space {
        Space::parse("main").unwrap()
    }

    #[test]
    fn the_kid_of_the_contracts_vector() {
        assert_eq!(
            thumbprint("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"),
            "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
        );
    }

    #[test]
    fn the_jwks_has_exactly_the_public_members() {
        let keys = IssuerKeySet::create(&space(), &SystemEntropy);
        let (kid, x) = (&keys.keys[0].kid, &keys.keys[0].x);
        assert_eq!(
            keys.jwks(),
            format!(
                r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"{kid}","alg":"EdDSA","use":"sig"}}]}}"#
            )
        );
    }

    #[test]
    fn rotation_adds_and_activates_and_only_others_retire() {
        let mut keys = IssuerKeySet::create(&space(), &SystemEntropy);
        let first = keys.active_kid().to_owned();
        assert!(keys.retire(&first).is_err());
        let second = keys.rotate(&SystemEntropy);
        assert_eq!(keys.active_kid(), second);
        assert!(keys.verifying_key(&first).is_some() && keys.verifying_key(&second).is_some());
        assert!(keys.retire(&second).is_err());
        keys.retire(&first).unwrap();
        assert_eq!(keys.active_kid(), second);
        assert!(keys.verifying_key(&first).is_none());
        assert!(keys.retire(&first).is_err());
    }

    #[test]
    fn a_loaded_set_publishes_the_active_key_first_and_the_others_in_file_order() {
        let mut keys = IssuerKeySet::create(&space(), &SystemEntropy);
        keys.rotate(&SystemEntropy);
        keys.rotate(&SystemEntropy);
        let kids: Vec<_> = keys.keys.iter().map(|key| key.kid.clone()).collect();
        let loaded = IssuerKeySet::from_document(&keys.to_document(), &space()).unwrap();
        let published: Vec<_> = loaded.keys.iter().map(|key| key.kid.clone()).collect();
        assert_eq!(published, [&*kids[2], &*kids[0], &*kids[1]]);
        assert_eq!(loaded.active_kid(), kids[2]);
    }

    type Case<'a> = (&'a dyn Fn(&mut Value), &'a str);

    #[test]
    fn a_document_that_does_not_hold_together_is_refused() {
        let keys = IssuerKeySet::create(&space(), &SystemEntropy);
        let text = keys.to_document();
        assert!(
            text.starts_with("{\n  \"ver\": 1,\n  \"issuer\": \"urn:cotal:auth:main\",\n  \"activeKid\": ")
        );
        let good: Value = serde_json::from_str(&text).unwrap();
        let other: Value = {
            let other = IssuerKeySet::create(&space(), &SystemEntropy);
            serde_json::from_str(&other.to_document()).unwrap()
        };
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut bad = good.clone();
            change(&mut bad);
            IssuerKeySet::from_document(&bad.to_string(), &space()).unwrap_err().0
        };
        let cases: [Case<'_>; 11] = [
            (&|d| d["ver"] = json!(2), "another version"),
            (&|d| d["ver"] = json!("1"), "another version"),
            (&|d| d["issuer"] = json!("urn:cotal:auth:other"), "another space"),
            (&|d| d["issuer"] = json!(""), "lacks its issuer"),
            (&|d| d["activeKid"] = json!("nope"), "does not hold its active key"),
            (&|d| d["keys"] = json!([]), "holds no keys"),
            (&|d| d["keys"][0]["privateJwk"]["kty"] = json!("RSA"), "not an Ed25519 key"),
            (&|d| d["keys"][0]["privateJwk"]["crv"] = json!("Ed448"), "not an Ed25519 key"),
            (&|d| d["keys"][0]["privateJwk"]["d"] = json!("AA"), "no usable private part"),
            (
                &|d| d["keys"][0]["privateJwk"]["x"] = other["keys"][0]["privateJwk"]["x"].clone(),
                "another key",
            ),
            (&|d| d["keys"][0]["kid"] = other["keys"][0]["kid"].clone(), "the kid of another key"),
        ];
        for (change, why) in cases {
            let refusal = refused(change);
            assert!(refusal.contains(why), "{refusal} should say {why}");
        }
        // A derived reader would take the members of an object in order.
        let key = &good["keys"][0];
        let jwk = ["kty", "crv", "x", "d"].map(|member| key["privateJwk"][member].clone());
        for keys in
            [json!([[key["kid"], key["privateJwk"]]]), json!([{"kid": key["kid"], "privateJwk": jwk}])]
        {
            assert!(refused(&|d| d["keys"] = keys.clone()).contains("wrong form"));
        }
        assert!(IssuerKeySet::from_document("", &space()).is_err());
        assert!(IssuerKeySet::from_document("null", &space()).is_err());
    }
}
