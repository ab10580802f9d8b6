//! The xkey seal (contract 04 §8.3).
use cotal_wire::{Curve, Entropy, Nkey};
use zeroize::Zeroizing;

use crate::nkey::Seed;

/// A blob that does not open, without a word on why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sealed payload does not open")]
pub struct XkeyError;

/// Opens what `sender` sealed to us.
pub fn open(_ours: &Seed<Curve>, _sender: &Nkey<Curve>, _sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, XkeyError> { todo!() }
/// Seals `plain` to `recipient`.
pub fn seal(_ours: &Seed<Curve>, _recipient: &Nkey<Curve>, _plain: &[u8], _entropy: &dyn Entropy) -> Result<Vec<u8>, XkeyError> { todo!() }
