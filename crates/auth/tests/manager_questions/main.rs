//! Managers of several owners on a real broker: which of them a caller is bound to, and what they may ask of the host.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod asking;
mod managers;
mod mending;
mod selection;
#[path = "../stage/mod.rs"]
mod stage;
