//! One root credential per incarnation (contract 04 §10).
use cotal_wire::{Clock, CredentialId, Entropy, EpError, LifecycleUid, Principal};
use crate::stores::AuthorityStores;

/// Lifetime of a root credential, in milliseconds: 90 days.
pub const ROOT_CREDENTIAL_TTL_MS: u64 = 90 * 24 * 60 * 60 * 1000;

/// Ensures and returns the incarnation's root credential id; durable before it returns.
pub async fn ensure_root_credential(_stores: &AuthorityStores, _principal: &Principal, _uid: &LifecycleUid, _manager_instance: &str, _clock: &dyn Clock, _entropy: &dyn Entropy) -> Result<CredentialId, EpError> { todo!() }
