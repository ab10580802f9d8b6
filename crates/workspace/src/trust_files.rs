//! `auth/broker.json` and `auth/account.<hex>.json` (contract 01 §9, 08 §2.1).
use crate::root::Root;
use cotal_trust::bundle::{BrokerTrust, SpaceAccount};
use cotal_wire::Space;

/// A trust file that is refused. Names the key and the expected space, never a stored value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TrustFileError(pub String);

/// The broker's trust, or `None` when absent.
pub fn load_broker(_root: &Root) -> Result<Option<BrokerTrust>, TrustFileError> {
    todo!()
}
/// Saves the broker's trust, refusing to go sideways or back (contract 01 §9.2).
pub fn save_broker(_root: &Root, _broker: &BrokerTrust) -> Result<(), TrustFileError> {
    todo!()
}
/// A space's account, or `None` when absent.
pub fn load_account(_root: &Root, _space: &Space) -> Result<Option<SpaceAccount>, TrustFileError> {
    todo!()
}
/// Saves a space's account, refusing to overwrite another space's record.
pub fn save_account(_root: &Root, _account: &SpaceAccount) -> Result<(), TrustFileError> {
    todo!()
}
/// Every space of this root; a corrupt entry is an error.
pub fn inventory(_root: &Root) -> Result<Vec<Space>, TrustFileError> {
    todo!()
}
