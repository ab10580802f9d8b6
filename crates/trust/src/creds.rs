//! Creds files (contract 01 §8).
use cotal_wire::User;
use zeroize::Zeroizing;
use crate::nkey::Seed;

/// Creds text that cannot be used; never echoes content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredsError(pub &'static str);

/// A user JWT and its seed.
#[derive(Clone)]
pub struct Creds {
    /// The user JWT.
    pub jwt: String,
    /// The user's seed; its public key is the JWT's `sub`.
    pub seed: Seed<User>,
}

/// The standard decorated creds text.
pub fn format(_creds: &Creds) -> Zeroizing<String> { todo!() }
/// Reads creds text; a JWT `sub` other than the seed's public key refuses.
pub fn parse(_text: &str) -> Result<Creds, CredsError> { todo!() }
