//! The authority over a real broker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on ends")]

mod activation;
mod boot;
mod claim;
mod clean;
mod connect;
mod containment;
mod deprovision;
mod drain;
mod harness;
mod held;
mod issuance;
mod issued;
mod managed_agents;
mod managers;
mod mint;
mod owing;
mod plane;
mod rail;
mod registration;
mod retire;
mod retirements;
mod rig;
mod scan;
mod sessions;
mod takeover;
mod tap;
