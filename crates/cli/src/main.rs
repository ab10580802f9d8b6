//! The `cotal` command.
fn main() {}
