//! The Manager's side of a space.
//!
//! [`remote`] is a participant: a machine that supervises agents for its owner and holds no signing key, no ledger and no
//! store of the host. It generates its own nkeys, asks the host for what they may do, and believes nothing of an answer
//! that is not bound to what it asked. Whatever it may do ends with a credential that the host issued, and is renewed only
//! while the host agrees.

pub mod remote;
