//! The manager's own lifecycle (contract 06 §4).

use cotal_authority::manager::Holder;
use cotal_wire::{EpError, es_value::EsValue};
use serde_json::Value;

use super::Parts;

/// manager credentials: not served yet.
pub(super) async fn issue(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve manager credentials"))
}
