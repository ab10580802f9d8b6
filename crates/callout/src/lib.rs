//! One connect: open, verify, limit, authorize, permit, record, sign, seal (contract 04 §8-9).
//!
//! The broker asks this room about every connect to a user-auth space. [`intake`] drops what the broker did not send,
//! admission decides who starts, waits or is shed, [`limits`] charges the actor or the host, [`permit`] turns the
//! bearer and the actor's current row into permissions, [`Callers`] are asked about what only a session, a manager or an
//! issuer can say, and [`service`] drives one request through all of it, once, before its deadline. A host's lanes share
//! their cores: how many connects of a lane are in progress goes by how fast they are answered ([`Crowd`]). The ledger and the
//! stores decide; this room keeps nothing but its rate limits.
//!
//! Not here: the hook `prepareConnection` (04 §8.2, §8.4 rule 11). [`service`] says where its place is.

mod admission;
mod callers;
mod connect;
pub mod denial;
mod dispatcher;
pub mod intake;
pub mod limits;
pub mod line;
mod pace;
pub mod permit;
pub mod progress;
pub mod service;
mod slots;

pub use callers::{Callers, ManagerAuthorizer, SessionVerifier};
pub use limits::{ConnectLimits, LimitedBucket, Limiter};
pub use service::{Callout, CalloutLimits, CalloutParts};
pub use slots::Crowd;
