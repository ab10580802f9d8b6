//! The authority over a real broker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends")]

mod activation;
mod connect;
mod harness;
mod issuance;
mod mint;
