//! The reservation `uid.<uid>` in the records bucket (contract 02 §3.2, 07 §2.2).

use serde::Serialize;
use serde_json::Value;

use super::closed::compact;
use crate::{error::EpError, token::Principal};

/// Who a lifecycle uid belongs to, for ever. Create-only: an existing row burns the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UidReservation {
    owner: String,
    actor: String,
    minted_by: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    owner: &'a str,
    actor: &'a str,
    minted_by: &'a str,
}

impl UidReservation {
    /// The reservation of a uid for this principal.
    pub fn new(principal: &Principal, minted_by: &str) -> Self {
        Self {
            owner: principal.owner.as_str().to_owned(),
            actor: principal.actor.as_str().to_owned(),
            minted_by: minted_by.to_owned(),
        }
    }

    /// Reads a stored reservation. Not a closed schema: only the owner and the actor matter to a reader.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal("a stored uid reservation is not valid JSON"))?;
        let member = |name: &str| row.get(name).and_then(Value::as_str);
        let required = |name: &str| {
            member(name).filter(|s| !s.is_empty()).map(str::to_owned).ok_or_else(|| {
                EpError::internal(format!(
                    "a stored uid reservation is garbled: {name} must be a non-empty string"
                ))
            })
        };
        Ok(Self {
            owner: required("owner")?,
            actor: required("actor")?,
            minted_by: member("mintedBy").unwrap_or_default().to_owned(),
        })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { owner: &self.owner, actor: &self.actor, minted_by: &self.minted_by })
    }

    /// Whether this uid is reserved for the principal.
    pub fn is_for(&self, principal: &Principal) -> bool {
        self.owner == principal.owner.as_str() && self.actor == principal.actor.as_str()
    }

    /// The authority that minted the uid, for audit; empty when the row does not say.
    pub fn minted_by(&self) -> &str {
        &self.minted_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_read_leniently_and_written_exactly() {
        let principal = Principal::parse_key("local.alice").unwrap();
        let row = UidReservation::new(&principal, "auth-service:main");
        assert_eq!(row.to_bytes(), br#"{"owner":"local","actor":"alice","mintedBy":"auth-service:main"}"#);
        assert_eq!(UidReservation::parse(&row.to_bytes()).unwrap(), row);
        assert!(
            UidReservation::parse(br#"{"owner":"local","actor":"alice","more":1}"#)
                .unwrap()
                .is_for(&principal)
        );
        for bad in ["", "[]", "{}", r#"{"owner":"","actor":"a"}"#, r#"{"owner":"local","actor":7}"#] {
            assert!(UidReservation::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
