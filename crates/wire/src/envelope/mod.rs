//! The endpoint envelope: requests, replies, and what both sides check of them (contract 02 §4).
//!
//! Unlike a stored row, an envelope ignores members that it does not know.

mod correlation;
mod fields;
mod reply;
mod request;

pub use correlation::Correlation;
pub use reply::{EndpointReply, Outcome, ReplyCode, ReplyError};
pub use request::{
    BodyTarget, CallClass, CallerCard, EndpointRequest, IncarnationBind, Operation, RequestArgs,
};

/// Largest request that an endpoint of this project reads, in bytes: anybody may send one, as large as the broker takes it.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Envelope version of this contract.
pub const ENVELOPE_VERSION: u64 = 1;
