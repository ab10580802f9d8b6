//! Issued authority: evidence of what a caller was handed, which others can resolve later (contract 03 §H).
//!
//! An issuance is staged, then released, then accepted, and each step is a value that only the step before it builds:
//! [`StagedAuthority`] holds the revision at which the attempt was prepared, [`ReleasedAuthority`] says that it became
//! active there, and only then is the row written that names it to its connection. Whoever was cut off anywhere leaves
//! an attempt that resolves to nothing, or one that nobody holds; the next issuance takes a generation of its own.
//!
//! What is issued here is a user connection's authority ([`UserCaller`]), and what a platform supervisor's manager holds for
//! two of its duties ([`SupervisedDuty`]). The statically minted profiles that a manager may
//! issue (contract 01 §3.3) take the same three steps, and nothing of this project mints one of them as issued.

#[cfg(test)]
mod model;
mod one_shot;
mod resolve;
mod retire;
mod session;
mod shared_ends;
mod sources;
mod stage;
mod store;
mod supervised;
mod user_caller;

pub use one_shot::{retire_lifecycle_issuance, with_issuer_session};
pub use resolve::ResolvedAuthority;
pub use session::{ISSUER_TTL_DEFAULT_SECS, ISSUER_TTL_SECS, IssuerSession};
pub(crate) use shared_ends::IssuanceEnds;
pub use sources::{HostSources, SourceLiveness};
pub use stage::{ReleasedAuthority, StagedAuthority};
pub use store::{IssuedStore, check_space};
pub use supervised::SupervisedDuty;
pub use user_caller::UserCaller;
