//! Streams and buckets of a space (contract 01 §4, 07 §12.4).
use crate::connection::Connection;
use cotal_wire::{EpError, Space};

/// Creates or verifies every messaging stream and bucket, in setup order; drift refuses.
pub async fn provision_space(_provisioner: &Connection, _space: &Space) -> Result<(), EpError> {
    todo!()
}
/// Creates if absent, then always verifies, both authority stores (contract 07 §12.4).
pub async fn ensure_authority_stores(_writer: &Connection, _space: &Space) -> Result<(), EpError> {
    todo!()
}
