//! Error codes of the endpoint envelope, used by every native refusal (contract 02 §4.3).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A code of the closed error catalog (contract 02 §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EpCode {
    /// Shape or arguments are invalid at invocation.
    BadRequest,
    /// The envelope or protocol version is not implemented.
    UnsupportedVersion,
    /// The body's operation differs from the subject's.
    OpMismatch,
    /// The declared class differs from the contract's.
    ClassMismatch,
    /// The body's target differs from the subject's.
    TargetMismatch,
    /// `from.id` differs from the subject's principal.
    SenderMismatch,
    /// No authentication, or it failed.
    Unauthenticated,
    /// Authority refused.
    PermissionDenied,
    /// The coordinate does not exist.
    NotFound,
    /// A create met an existing active thing.
    AlreadyExists,
    /// A conditional write or a fence was lost.
    Conflict,
    /// The operation digest is missing or cannot be honoured.
    ContractMismatch,
    /// A schema or artifact is outside the profile.
    ContractInvalid,
    /// The state does not admit the operation.
    FailedPrecondition,
    /// The budget elapsed.
    DeadlineExceeded,
    /// The call was cancelled.
    Cancelled,
    /// A lease, handle, lifecycle, epoch or token has expired.
    Expired,
    /// No responder, or an ambiguous outcome.
    Unavailable,
    /// Not served here.
    Unimplemented,
    /// A bound was reached.
    ResourceExhausted,
    /// Trusted state is garbled, or an invariant is broken.
    Internal,
}

impl EpCode {
    /// Every code, in catalog order.
    pub const ALL: [Self; 21] = [
        Self::BadRequest,
        Self::UnsupportedVersion,
        Self::OpMismatch,
        Self::ClassMismatch,
        Self::TargetMismatch,
        Self::SenderMismatch,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::ContractMismatch,
        Self::ContractInvalid,
        Self::FailedPrecondition,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Expired,
        Self::Unavailable,
        Self::Unimplemented,
        Self::ResourceExhausted,
        Self::Internal,
    ];

    /// The wire token of this code.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad-request",
            Self::UnsupportedVersion => "unsupported-version",
            Self::OpMismatch => "op-mismatch",
            Self::ClassMismatch => "class-mismatch",
            Self::TargetMismatch => "target-mismatch",
            Self::SenderMismatch => "sender-mismatch",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission-denied",
            Self::NotFound => "not-found",
            Self::AlreadyExists => "already-exists",
            Self::Conflict => "conflict",
            Self::ContractMismatch => "contract-mismatch",
            Self::ContractInvalid => "contract-invalid",
            Self::FailedPrecondition => "failed-precondition",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Unavailable => "unavailable",
            Self::Unimplemented => "unimplemented",
            Self::ResourceExhausted => "resource-exhausted",
            Self::Internal => "internal",
        }
    }

    /// The code of a catalog token, or `None` when it is not in the catalog.
    pub fn from_token(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == token)
    }
}

impl fmt::Display for EpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A native refusal: a catalog code, a sentence for a person, and structured details (contract 02 §4.2).
///
/// The message never carries a secret, a bearer or a stored value that the caller did not send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct EpError {
    /// What kind of refusal this is.
    pub code: EpCode,
    /// One sentence for a person.
    pub message: String,
    /// Machine-readable details, each an object with a reverse-DNS `kind`.
    pub details: Vec<serde_json::Value>,
}

impl EpError {
    /// A refusal without details.
    pub fn new(code: EpCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    /// Adds one structured detail.
    pub fn with_detail(mut self, detail: serde_json::Value) -> Self {
        self.details.push(detail);
        self
    }

    /// `internal`: garbled trusted state or a broken invariant.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(EpCode::Internal, message)
    }

    /// `failed-precondition`: the state does not admit the operation.
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(EpCode::FailedPrecondition, message)
    }

    /// `permission-denied`: authority refused.
    pub fn permission_denied(message: impl Into<String>) -> Self {
        Self::new(EpCode::PermissionDenied, message)
    }

    /// `unavailable`: no answer, or an ambiguous one.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(EpCode::Unavailable, message)
    }

    /// `conflict`: a conditional write was lost.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(EpCode::Conflict, message)
    }

    /// `bad-request`: the shape or arguments are invalid.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(EpCode::BadRequest, message)
    }

    /// `unimplemented`: not served here.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(EpCode::Unimplemented, message)
    }
}

/// Kinds of structured details (contract 02 §4.3).
pub mod detail {
    /// The request was bound to another incarnation.
    pub const BIND_REFUSED: &str = "ai.cotal.ep.bind-refused";
    /// Somebody else than the bound responder answered.
    pub const UNBOUND_RESPONDER: &str = "ai.cotal.ep.unbound-responder";
    /// Nobody answered.
    pub const UNANSWERED: &str = "ai.cotal.ep.unanswered";
    /// The service registry could not be read.
    pub const REGISTRY_READ_FAILED: &str = "ai.cotal.ep.registry-read-failed";
    /// Another instance holds the slot.
    pub const FOREIGN_SLOT_HELD: &str = "ai.cotal.ep.foreign-slot-held";
    /// Another lifecycle operation stands in the way.
    pub const LIFECYCLE_BLOCKED: &str = "ai.cotal.ep.lifecycle-blocked";
    /// A plane claim was refused, released or lost.
    pub const PLANE_CLAIM_REFUSED: &str = "ai.cotal.auth.plane-claim-refused";
    /// A run was asked for without an issued authority.
    pub const UNBOUND_CALLER_AUTHORITY: &str = "ai.cotal.ep.unbound-caller-authority";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_prints_and_parses_to_itself() {
        for code in EpCode::ALL {
            assert_eq!(EpCode::from_token(code.as_str()), Some(code));
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{code}\""));
        }
        assert_eq!(EpCode::from_token("nope"), None);
    }
}
