//! A callout replica over a real broker: the same answers as the full service, the grants it was really signed, what it
//! refuses, and what ends it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod admission;
mod answers;
mod ends;
mod grants;
mod hosts;
mod house;
#[path = "../stage/mod.rs"]
mod stage;
#[path = "../tap/mod.rs"]
mod tap;
