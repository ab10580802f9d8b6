//! One artifact of the contract store: 1 to 262 144 bytes that are their own canonical form.

use serde_json::Value;

use super::{Manifest, invalid};
use crate::{
    canonical::{MAX_CONTRACT_BYTES, canonical_json, is_canonical, raw_digest},
    endpoint_token::DigestRef,
    error::EpError,
};

/// A document that may be published, and its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    bytes: Vec<u8>,
    digest: DigestRef,
}

impl Artifact {
    /// The artifact of a document; `contract-invalid` when it has no canonical form or is too long.
    pub fn of(document: &Value) -> Result<Self, EpError> {
        let text = canonical_json(document).map_err(|why| invalid(format!("contract artifact: {why}")))?;
        Self::bounded(text.into_bytes())
    }

    /// Takes bytes as they are; `contract-invalid` when they are not their own canonical form, or too long.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, EpError> {
        if !is_canonical(&bytes) {
            return Err(invalid("contract artifact: the bytes are not their own canonical form"));
        }
        Self::bounded(bytes)
    }

    /// What was fetched under `digest`, or `internal` when it is something else: of another digest, too long, or not
    /// canonical.
    pub fn verify(digest: &DigestRef, bytes: Vec<u8>) -> Result<Self, EpError> {
        match Self::from_bytes(bytes) {
            Ok(artifact) if artifact.digest == *digest => Ok(artifact),
            Ok(_) | Err(_) => {
                Err(EpError::internal(format!("the contract store holds something else under {digest}")))
            }
        }
    }

    fn bounded(bytes: Vec<u8>) -> Result<Self, EpError> {
        if bytes.is_empty() || bytes.len() > MAX_CONTRACT_BYTES {
            return Err(invalid(format!(
                "contract artifact: {} bytes, where 1 to {MAX_CONTRACT_BYTES} are allowed",
                bytes.len()
            )));
        }
        let digest = raw_digest(&bytes);
        Ok(Self { bytes, digest })
    }

    /// A document that refers to nothing, and the manifest that closes it. The second one's digest is what is pinned.
    pub fn closed(document: &Value) -> Result<[Self; 2], EpError> {
        let document = Self::of(document)?;
        let manifest = Manifest::of_root(document.digest.clone()).artifact()?;
        Ok([document, manifest])
    }

    /// The canonical bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The digest that it is stored under.
    pub fn digest(&self) -> &DigestRef {
        &self.digest
    }

    /// The document.
    pub fn document(&self) -> Result<Value, EpError> {
        serde_json::from_slice(&self.bytes).map_err(|_| invalid("contract artifact: not JSON"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        canonical::{VOID_CLOSURE_DIGEST, VOID_SCHEMA_DIGEST},
        error::EpCode,
    };

    #[test]
    fn the_void_schema_and_its_closure_have_the_contracts_digests() {
        let [schema, manifest] = Artifact::closed(&json!({"type": "null"})).unwrap();
        assert_eq!(schema.digest().as_str(), VOID_SCHEMA_DIGEST);
        assert_eq!(manifest.digest().as_str(), VOID_CLOSURE_DIGEST);
        assert_eq!(
            std::str::from_utf8(manifest.bytes()).unwrap(),
            format!("{{\"members\":[],\"root\":\"{VOID_SCHEMA_DIGEST}\",\"v\":1}}")
        );
    }

    #[test]
    fn only_canonical_bytes_of_bounded_length_are_an_artifact() {
        assert!(Artifact::from_bytes(b"{\"a\":1}".to_vec()).is_ok());
        for bad in [&b""[..], b" {}", b"{\"b\":1,\"a\":2}", b"{\"a\":1,\"a\":1}", b"1.0", b"{", b"\"\xff\""] {
            assert_eq!(Artifact::from_bytes(bad.to_vec()).unwrap_err().code, EpCode::ContractInvalid);
        }
        let text = |length: usize| json!("x".repeat(length - 2));
        assert!(Artifact::of(&text(MAX_CONTRACT_BYTES)).is_ok());
        assert_eq!(Artifact::of(&text(MAX_CONTRACT_BYTES + 1)).unwrap_err().code, EpCode::ContractInvalid);
    }

    #[test]
    fn what_is_fetched_is_what_was_asked_for() {
        let artifact = Artifact::of(&json!({"a": 1})).unwrap();
        assert_eq!(Artifact::verify(artifact.digest(), b"{\"a\":1}".to_vec()).unwrap(), artifact);
        for other in [&b"{\"a\":2}"[..], b"{\"a\": 1}", b""] {
            let refusal = Artifact::verify(artifact.digest(), other.to_vec()).unwrap_err();
            assert_eq!(refusal.code, EpCode::Internal);
        }
    }
}
