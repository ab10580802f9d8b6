//! A remote manager over a real broker: it holds keys of its own and asks over HTTP; what it is granted is tried at the broker
//! (contract 06).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod lifecycle;
mod privileges;
mod rig;
mod run_privileges;
mod running;
mod runs;
mod sessions;
#[path = "../stage/mod.rs"]
mod stage;
mod stale;
