//! The guided tours show what they promise, from their first command to their last.

use std::path::Path;

use anyhow::Result;
use cotal_demo::{Tour, guide};

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");

#[tokio::test]
async fn the_tour_of_a_person_is_complete() -> Result<()> {
    guide(Tour::Person, Path::new(COTAL), false).await
}

#[tokio::test]
async fn the_tour_of_a_managers_agent_is_complete() -> Result<()> {
    guide(Tour::Managed, Path::new(COTAL), false).await
}
