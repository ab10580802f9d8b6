//! The admission row `svcadmit` in the auth bucket: this space has been opened with service endpoints (contract 09 §9,
//! 13 §2): a private shape.

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{error::EpError, time::UnixMillis};

const WHAT: &str = "service-endpoint admission";
const VERSION: u64 = 1;
/// Longest `by`, in bytes.
const LONGEST_BY: usize = 256;

/// The space admits service endpoints. The first open with them creates the row, and it is never deleted: its being
/// there is the admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAdmission {
    opened_at: UnixMillis,
    by: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    opened_at: UnixMillis,
    by: &'a str,
}

impl ServiceAdmission {
    /// The admission that `by`, who is named for whoever audits, opens now. `bad-request` unless that is 1 to 256
    /// printable ASCII characters.
    pub fn opened(by: &str, now: UnixMillis) -> Result<Self, EpError> {
        if !is_name(by) {
            return Err(EpError::bad_request(
                "a service-endpoint admission must say in 1 to 256 printable characters who opened it",
            ));
        }
        Ok(Self { opened_at: now, by: by.to_owned() })
    }

    /// Reads the stored row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &["v", "openedAt", "by"])?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let by = row.text("by")?;
        if !is_name(by) {
            return Err(row.garbled("by must be 1 to 256 printable characters"));
        }
        Ok(Self { opened_at: UnixMillis(row.uint("openedAt")?), by: by.to_owned() })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { v: VERSION, opened_at: self.opened_at, by: &self.by })
    }

    /// When it was opened.
    pub fn opened_at(&self) -> UnixMillis {
        self.opened_at
    }

    /// Who opened it.
    pub fn by(&self) -> &str {
        &self.by
    }
}

fn is_name(by: &str) -> bool {
    (1..=LONGEST_BY).contains(&by.len()) && by.bytes().all(|b| (0x20..=0x7e).contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    #[test]
    fn an_admission_has_these_bytes_and_reads_back() {
        let row = ServiceAdmission::opened("local.auth", UnixMillis(1_700_000_000_123)).unwrap();
        let bytes = br#"{"v":1,"openedAt":1700000000123,"by":"local.auth"}"#;
        assert_eq!(row.to_bytes(), bytes);
        assert_eq!(ServiceAdmission::parse(bytes), Ok(row));
    }

    #[test]
    fn a_garbled_admission_is_refused_and_not_taken_for_none() {
        for bytes in [
            "",
            "[]",
            "{}",
            r#"{"v":2,"openedAt":1,"by":"a"}"#,
            r#"{"v":1,"openedAt":-1,"by":"a"}"#,
            r#"{"v":1,"openedAt":"1","by":"a"}"#,
            r#"{"v":1,"openedAt":1,"by":""}"#,
            r#"{"v":1,"openedAt":1,"by":"a\nb"}"#,
            r#"{"v":1,"openedAt":1}"#,
            r#"{"v":1,"openedAt":1,"by":"a","closedAt":2}"#,
        ] {
            let refusal = ServiceAdmission::parse(bytes.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, EpCode::Internal, "{bytes}");
        }
        for by in ["", "a\n", &"a".repeat(LONGEST_BY + 1)] {
            assert_eq!(ServiceAdmission::opened(by, UnixMillis(1)).unwrap_err().code, EpCode::BadRequest);
        }
        assert!(ServiceAdmission::opened(&"a".repeat(LONGEST_BY), UnixMillis(1)).is_ok());
    }
}
