//! Seeds and signatures of NATS keys.
use cotal_wire::{Entropy, Nkey, NkeyRole};
use zeroize::Zeroizing;

/// A seed or a key that cannot be used; never carries key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NkeyError(pub &'static str);

/// A private nkey seed of one role; zeroized on drop, printed nowhere.
#[derive(Clone)]
pub struct Seed<R: NkeyRole> {
    public: Nkey<R>,
}

impl<R: NkeyRole> Seed<R> {
    /// A fresh seed.
    pub fn generate(_entropy: &dyn Entropy) -> Self { todo!() }
    /// Reads `S<role>…` seed text, checking prefix and checksum.
    pub fn parse(_text: &str) -> Result<Self, NkeyError> { todo!() }
    /// The public key.
    pub fn public(&self) -> &Nkey<R> { &self.public }
    /// The seed text, to be stored and nothing else.
    pub fn expose(&self) -> Zeroizing<String> { todo!() }
    /// Ed25519 over `message` (not for curve seeds: those refuse).
    pub fn sign(&self, _message: &[u8]) -> [u8; 64] { todo!() }
}

/// Verifies an Ed25519 signature by a public nkey, its checksum included.
pub fn verify<R: NkeyRole>(_key: &Nkey<R>, _message: &[u8], _signature: &[u8]) -> Result<(), NkeyError> { todo!() }
