//! The kinds that only ask (contract 06 §10-11).

use cotal_authority::manager::Holder;
use cotal_wire::{EpError, es_value::EsValue};
use serde_json::Value;

use super::Parts;

/// goal-index scans: not served yet.
pub(super) async fn scan_goals(
    _parts: &Parts,
    _holder: &Holder,
    _request: &EsValue,
) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve goal-index scans"))
}

/// admin authorization: not served yet.
pub(super) async fn authorize_admin(
    _parts: &Parts,
    _holder: &Holder,
    _request: &EsValue,
) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve admin authorization"))
}
