//! The ledger against a real directory: reads, grants, the envelope and the hooks (contract 04 §7).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod envelope;
mod granting;
mod hooks;
mod house;
mod reading;
