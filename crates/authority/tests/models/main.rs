//! The decision functions of this room, run by a model checker through every interleaving of a small world.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a model that cannot go on ends")]

mod plane_claim;
