//! What the tests stand on: a real nats-server, a provisioned space on disk, its daemons as processes, a raw protocol
//! client, a network that can be cut.

pub mod broker;
pub mod daemons;
pub mod disk;
pub mod hung_disk;
pub mod injected;
pub mod jwt;
pub mod manager;
pub mod privilege;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod registration;
pub mod rows;
pub mod runs;
pub mod space;
pub mod spaces;
pub mod stage;

/// Set to `1`, a test that can take longer to see more does: `cargo xtask test --long`.
pub const LONG_TESTS: &str = "COTAL_LONG_TESTS";

/// Whether tests may take their time.
pub fn long_tests() -> bool {
    std::env::var(LONG_TESTS).is_ok_and(|value| value == "1")
}
