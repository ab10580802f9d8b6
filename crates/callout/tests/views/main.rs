//! Views whose authority the actor's row does not hold, over a real broker: one session, one object, one manager, and the
//! pair that a manager's caller is issued (contract 04 §9, 03 §H.8).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

#[path = "../house/mod.rs"]
mod house;
mod issuing;
mod manager;
mod serving;
mod session;
mod transfer;
