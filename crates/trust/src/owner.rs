//! Owner derivation (contract 04 §5), frozen: any change re-keys every owner.
use cotal_wire::{Account, DerivedOwner, Entropy, Nkey, Owner, Space};
use zeroize::Zeroizing;

/// The space's owner-derivation secret: at least 32 bytes, zeroized on drop.
#[derive(Clone)]
pub struct OwnerSecret {
    _bytes: Zeroizing<Vec<u8>>,
}

/// Why a derivation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OwnerError(pub &'static str);

impl OwnerSecret {
    /// 32 fresh bytes.
    pub fn generate(_entropy: &dyn Entropy) -> Self {
        todo!()
    }
    /// At least 32 bytes.
    pub fn from_bytes(_bytes: &[u8]) -> Result<Self, OwnerError> {
        todo!()
    }
    /// The document `owner-secret.json` (`{"ver":1,"secretB64":…}`).
    pub fn to_document(&self) -> Zeroizing<String> {
        todo!()
    }
    /// Reads the document; exactly 32 bytes.
    pub fn from_document(_text: &str) -> Result<Self, OwnerError> {
        todo!()
    }
    /// The owner of an IdP subject.
    pub fn derive(&self, _issuer: &str, _sub: &str) -> Result<DerivedOwner, OwnerError> {
        todo!()
    }
    /// The platform control owner (contract 04 §5.1, decision D3).
    pub fn platform_control_owner(&self, _space: &Space, _account: &Nkey<Account>) -> Owner {
        todo!()
    }
}
