//! The rows `epowner.<e>.<instance>` and `sessowner.<sid>` in the auth bucket: whose an endpoint instance, or a session, is, by the
//! host's own word. A private shape.
//!
//! Gate, spec and status of an instance, and the row of a session, are written by tenants, and so say what these like. Before
//! anything is granted that rests on them, the host writes this one, once and for good.

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{error::EpError, token::Owner};

const WHAT: &str = "owner";
const VERSION: u64 = 1;

/// Whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership(pub Owner);

#[derive(Serialize)]
struct Wire<'a> {
    v: u64,
    owner: &'a Owner,
}

impl Ownership {
    /// Reads the stored row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &["v", "owner"])?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        row.token("owner").map(Self)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { v: VERSION, owner: &self.0 })
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
}
