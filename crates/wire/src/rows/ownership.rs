//! The rows `epowner.<e>.<instance>` and `sessowner.<sid>` in the auth bucket: whose an endpoint instance, or a session, is, by the
//! host's own word. Private shapes.
//!
//! Gate, spec and status of an instance, and the row of a session, are written by tenants, and so say what these like. Before
//! anything is granted that rests on them, the host writes this one, once.

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{error::EpError, time::UnixSecs, token::Owner};

const WHAT: &str = "owner";
const VERSION: u64 = 1;

/// Whose an instance is, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership(pub Owner);

/// Whose a session is, as long as anything may be granted under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOwnership {
    /// Whose.
    pub owner: Owner,
    /// Nothing that is granted under the session outlives this.
    pub until: UnixSecs,
}

#[derive(Serialize)]
struct Wire<'a> {
    v: u64,
    owner: &'a Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

fn of_version(bytes: &[u8], members: &[&str]) -> Result<Closed, EpError> {
    let row = Closed::parse(WHAT, bytes, members)?;
    if row.uint("v")? == VERSION { Ok(row) } else { Err(row.garbled("its version is not 1")) }
}

impl Ownership {
    /// Reads the stored row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        of_version(bytes, &["v", "owner"])?.token("owner").map(Self)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { v: VERSION, owner: &self.0, until: None })
    }
}

impl SessionOwnership {
    /// Reads the stored row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = of_version(bytes, &["v", "owner", "until"])?;
        Ok(Self { owner: row.token("owner")?, until: UnixSecs(row.positive("until")?) })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { v: VERSION, owner: &self.owner, until: Some(self.until.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    #[test]
    fn a_row_reads_back_and_every_other_shape_is_garbled() {
        let owner = format!("u_{}", "a".repeat(26));
        let row = Ownership(Owner::parse(&owner).unwrap());
        let text = format!("{{\"v\":1,\"owner\":\"{owner}\"}}");
        assert_eq!(row.to_bytes(), text.as_bytes());
        assert_eq!(Ownership::parse(text.as_bytes()), Ok(row));
        for garbled in [
            "{}".to_owned(),
            text.replace(":1", ":2"),
            text.replace("u_", "U "),
            text.replace('}', ",\"more\":1}"),
            text.replace("\"v\":1,", ""),
        ] {
            assert_eq!(Ownership::parse(garbled.as_bytes()).unwrap_err().code, EpCode::Internal, "{garbled}");
        }
    }

    #[test]
    fn a_sessions_row_says_until_when_and_is_no_instances() {
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let row = SessionOwnership { owner: owner.clone(), until: UnixSecs(7) };
        let text = format!("{{\"v\":1,\"owner\":\"{owner}\",\"until\":7}}");
        assert_eq!(row.to_bytes(), text.as_bytes());
        assert_eq!(SessionOwnership::parse(text.as_bytes()), Ok(row.clone()));
        assert!(Ownership::parse(&row.to_bytes()).is_err());
        for garbled in [text.replace(",\"until\":7", ""), text.replace('7', "0"), text.replace('7', "1.5")] {
            assert_eq!(
                SessionOwnership::parse(garbled.as_bytes()).unwrap_err().code,
                EpCode::Internal,
                "{garbled}"
            );
        }
    }
}
