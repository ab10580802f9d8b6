//! Maintenance of a registration (contract 06 §5).

use cotal_authority::manager::Holder;
use cotal_wire::{EpError, es_value::EsValue};
use serde_json::Value;

use super::Parts;

/// the maintenance of registrations: not served yet.
pub(super) async fn mend(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve the maintenance of registrations"))
}
