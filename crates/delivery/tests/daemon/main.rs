//! The daemon over real brokers, asked by the authority's own client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod barrier;
mod callout;
mod cluster;
mod cluster_plane;
mod evict;
mod house;
mod lease;
mod liveness;
mod many;
mod memberships;
mod rail;
mod reload;
mod start;
