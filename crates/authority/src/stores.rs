//! Both authority stores, sealed: a value of this type means that their shape was proved (contract 07 §1).
use cotal_broker::{Connection, kv::Bucket};
use cotal_wire::{EpError, Space};

/// The proved stores of one space over one connection.
#[derive(Clone)]
pub struct AuthorityStores { _private: () }

impl AuthorityStores {
    /// Creates the stores if absent, then proves both (the mint writer).
    pub async fn ensure(_writer: &Connection, _space: &Space) -> Result<Self, EpError> { todo!() }
    /// Proves both, records first.
    pub async fn bind(_connection: &Connection, _space: &Space) -> Result<Self, EpError> { todo!() }
    /// `cotal_records_<S>`.
    pub fn records(&self) -> &Bucket { todo!() }
    /// `cotal_auth_<S>`.
    pub fn auth(&self) -> &Bucket { todo!() }
}
