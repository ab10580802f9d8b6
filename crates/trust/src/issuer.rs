//! The issuer key set of a space (contract 04 §3).
use crate::bundle::BundleError;
use cotal_wire::{Entropy, Space};
use ed25519_dalek::VerifyingKey;
use zeroize::Zeroizing;

/// The issuer string of a space: `urn:cotal:auth:<space>`.
pub fn issuer_urn(space: &Space) -> String {
    format!("urn:cotal:auth:{space}")
}

/// The key set: every key is published, one is active.
pub struct IssuerKeySet {
    _private: (),
}

impl IssuerKeySet {
    /// A fresh set of one key.
    pub fn create(_space: &Space, _entropy: &dyn Entropy) -> Self {
        todo!()
    }
    /// Reads `issuer.json`; the stored issuer must equal the space's.
    pub fn from_document(_text: &str, _space: &Space) -> Result<Self, BundleError> {
        todo!()
    }
    /// The document `issuer.json`.
    pub fn to_document(&self) -> Zeroizing<String> {
        todo!()
    }
    /// Adds a fresh key and makes it active; returns its kid.
    pub fn rotate(&mut self, _entropy: &dyn Entropy) -> String {
        todo!()
    }
    /// Removes a key; refuses the active one.
    pub fn retire(&mut self, _kid: &str) -> Result<(), BundleError> {
        todo!()
    }
    /// The active kid.
    pub fn active_kid(&self) -> &str {
        todo!()
    }
    /// The issuer string.
    pub fn issuer(&self) -> &str {
        todo!()
    }
    /// The JWKS document, compact JSON `{"keys":[…]}`; never `d`.
    pub fn jwks(&self) -> String {
        todo!()
    }
    /// The published key of this kid.
    pub fn verifying_key(&self, _kid: &str) -> Option<&VerifyingKey> {
        todo!()
    }
}
