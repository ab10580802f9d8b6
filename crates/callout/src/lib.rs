//! One connect: open, verify, limit, authorize, permit, record, sign, seal (contract 04 §8-9).

pub mod limits;
pub mod service;

pub use limits::{ConnectLimits, LimitedBucket, Limiter};
pub use service::{Callout, CalloutLimits, CalloutParts};
