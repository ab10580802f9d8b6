//! Managed agents: enrollment, retirement preparation, validation of a retained one (contract 06 §6-9).

use cotal_authority::manager::Holder;
use cotal_wire::{EpError, es_value::EsValue};
use serde_json::Value;

use super::Parts;

/// the enrollment of managed agents: not served yet.
pub(super) async fn enroll(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve the enrollment of managed agents"))
}

/// the preparation of managed retirements: not served yet.
pub(super) async fn prepare_retirement(
    _parts: &Parts,
    _holder: &Holder,
    _request: &EsValue,
) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve the preparation of managed retirements"))
}

/// the validation of retained agents: not served yet.
pub(super) async fn validate_retained(
    _parts: &Parts,
    _holder: &Holder,
    _request: &EsValue,
) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve the validation of retained agents"))
}
