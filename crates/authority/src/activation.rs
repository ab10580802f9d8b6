//! Activation sagas (contract 07 §3).
use cotal_wire::{Entropy, EpError, LifecycleUid, OpId, Principal};
use crate::stores::AuthorityStores;

/// Fresh activation (contract 07 §3.1): returns the minted uid and the operation id.
pub async fn activate_fresh(_stores: &AuthorityStores, _principal: &Principal, _manager_instance: &str, _entropy: &dyn Entropy) -> Result<(LifecycleUid, OpId), EpError> { todo!() }
/// Activation at the caller's uid (contract 07 §3.2); idempotent.
pub async fn activate_at_uid(_stores: &AuthorityStores, _principal: &Principal, _uid: &LifecycleUid, _manager_instance: &str, _entropy: &dyn Entropy) -> Result<(), EpError> { todo!() }
