//! Tests that take minutes: the same rules over more runs, or over longer ones.

/// Asks for them when it is `1`; `cargo xtask test --long` sets it.
pub const LONG_VARIABLE: &str = "COTAL_LONG_TESTS";

/// Whether tests may take minutes.
pub fn long_tests() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some_and(|value| value == "1")
}
