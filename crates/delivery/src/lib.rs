//! The delivery daemon of a space: the one process that can say whether a connection is gone.
//!
//! It answers the authority on the delivery-admin rail (contract 01 §5, 07 §9, 08 §9): which of the plane's pinned
//! connections are there, whether a principal is connected, ends a principal's connections and proves the end, lists
//! the durable memberships of an incarnation, and takes over re-signed credentials. It sees connections over a
//! system-account credential that reads those of one data account, and closes them over another that does nothing
//! else. It holds no signing key.
//!
//! It does NOT carry the durable message backstop: no fan-out, no inbox reader, no `ctl.delivery` rail.
//!
//! `gone` is the strongest word it has, and it is only said after a complete sweep: see
//! `cotal_broker::sys` for what that takes on one server and in a cluster.

mod credentials;
mod daemon;
mod evict;
mod inputs;
mod lease;
mod liveness;
mod memberships;
mod rail;
mod reload;
mod system;

pub use daemon::{Delivery, Ended};
pub use inputs::{CredsKind, CredsSource, DeliveryInputs, StartRefusal, Timing};
