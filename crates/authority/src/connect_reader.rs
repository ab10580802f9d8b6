//! The supervised connect reader and deny-new (contract 07 §7.5, §10).
use std::sync::Arc;
use cotal_broker::Connector;
use cotal_wire::{BearerClaims, Clock, EpError};

/// Reads the stores for every connect, and refuses while they are not proved.
pub struct ConnectReader { _private: () }

impl ConnectReader {
    /// Opens `cotal:auth-reader:<space>` and proves both stores before it returns.
    pub async fn open(_connector: &Connector, _clock: Arc<dyn Clock>) -> Result<Arc<Self>, EpError> { todo!() }
    /// Deny-new, in the order of contract 07 §10. The row and the head are read together.
    pub async fn authorize_connect(&self, _claims: &BearerClaims) -> Result<(), EpError> { todo!() }
    /// Whether the stores are proved on the current connection.
    pub fn is_proved(&self) -> bool { todo!() }
    /// Refuses at once, then closes.
    pub async fn close(&self) -> Result<(), EpError> { todo!() }
}
