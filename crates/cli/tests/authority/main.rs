//! The authority plane of a space as real processes: one owner at a time, whoever is killed; no false success, whatever
//! fails around it; and back without a human once it is mended.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect has failed"
)]

mod delivery_faults;
mod exclusivity;
mod faults;
mod house;
mod managed_agents;
