//! The authority over a real broker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends")]

mod activation;
mod boot;
mod claim;
mod connect;
mod containment;
mod harness;
#[allow(dead_code, reason = "each slice uses its part")]
mod held;
mod issuance;
mod mint;
mod rail;
mod retire;
mod rig;
mod scan;
mod takeover;
