//! The oldest nats-server that a space runs on (contract 01 §7, 12 D20).

use cotal_wire::EpError;

use crate::connection::Connection;

/// Major and minor version of the floor.
pub const BROKER_FLOOR: (u64, u64) = (2, 12);

/// Refuses a server below the floor, or whose version cannot be read, as `failed-precondition`.
pub fn require_broker_floor(connection: &Connection) -> Result<(), EpError> {
    let version = connection.server_version();
    if meets_floor(&version) {
        return Ok(());
    }
    let (major, minor) = BROKER_FLOOR;
    Err(EpError::failed_precondition(format!(
        "{}: the broker is nats-server {version:?}, and a space needs {major}.{minor} or newer; upgrade it",
        connection.label()
    )))
}

/// Whether a version text, `^(\d+)\.(\d+)\.(\d+)`, is at the floor or above. A higher major passes.
pub fn meets_floor(version: &str) -> bool {
    let mut parts = version.splitn(3, '.');
    let whole =
        |part: Option<&str>| part.filter(|p| p.bytes().all(|b| b.is_ascii_digit()))?.parse::<u64>().ok();
    let (Some(major), Some(minor)) = (whole(parts.next()), whole(parts.next())) else { return false };
    // The patch may be followed by anything (`2.12.0-RC.1`), but starts with a digit.
    parts.next().is_some_and(|patch| patch.starts_with(|c: char| c.is_ascii_digit()))
        && (major, minor) >= BROKER_FLOOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_2_12_and_a_higher_major_passes() {
        for ok in ["2.12.0", "2.12.8", "2.15.1", "3.0.0", "10.1.2", "2.12.0-RC.1"] {
            assert!(meets_floor(ok), "{ok}");
        }
        for old in ["2.11.9", "1.99.9", "0.0.0"] {
            assert!(!meets_floor(old), "{old}");
        }
    }

    #[test]
    fn a_version_that_cannot_be_read_is_refused() {
        for bad in
            ["", "2", "2.12", "2.12.", "v2.12.0", "2.x.0", "2.12.x", "+2.12.0", "-3.0.0", " 2.12.0", "2..1"]
        {
            assert!(!meets_floor(bad), "{bad:?}");
        }
    }
}
