//! The shape proof of an authority store (contract 07 §1).
use crate::connection::Connection;
use cotal_wire::EpError;

/// Proves a bucket's stream shape, in the contract's order; `allow_direct_false` for the auth bucket.
pub async fn prove_authority_store(
    _connection: &Connection,
    _bucket: &str,
    _allow_direct_false: bool,
) -> Result<(), EpError> {
    todo!()
}
