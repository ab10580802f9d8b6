//! Runs (contract 06 §12, 10 §3).

use cotal_authority::manager::Holder;
use cotal_wire::{EpError, es_value::EsValue};
use serde_json::Value;

use super::Parts;

/// run admission: not served yet.
pub(super) async fn admit(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve run admission"))
}

/// keyed run submission: not served yet.
pub(super) async fn submit(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve keyed run submission"))
}

/// run cancellation: not served yet.
pub(super) async fn cancel(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve run cancellation"))
}

/// run revocation: not served yet.
pub(super) async fn revoke(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve run revocation"))
}

/// run attempts: not served yet.
pub(super) async fn attempt(_parts: &Parts, _holder: &Holder, _request: &EsValue) -> Result<Value, EpError> {
    Err(EpError::unimplemented("this service does not serve run attempts"))
}
