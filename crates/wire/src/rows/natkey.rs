//! The native issuance row `natkey.<user nkey>` in the auth bucket (contract 10 §5, 12 D13): a private shape.

use serde::Serialize;

use super::closed::{Closed, compact};
use crate::{
    error::EpError,
    names::natkey_key,
    time::UnixSecs,
    token::{Actor, CredentialId, DerivedOwner, LifecycleUid, Nkey, Principal, Space, User},
    view::View,
};

const VERSION: u64 = 1;

/// One admitted connect: which bearer the broker's user key was minted a JWT for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatkeyRow {
    /// The broker's user key for this connect: the row's key.
    pub user: Nkey<User>,
    /// The bearer's space.
    pub space: Space,
    /// The bearer's owner.
    pub owner: DerivedOwner,
    /// The bearer's actor.
    pub actor: Actor,
    /// The bearer's incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// The bearer's root credential.
    pub credential_id: CredentialId,
    /// The bearer's view, if any.
    pub view: Option<View>,
    /// `iat` of the minted JWT.
    pub iat: UnixSecs,
    /// `exp` of the minted JWT.
    pub exp: UnixSecs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    v: u64,
    space: &'a Space,
    owner: &'a DerivedOwner,
    actor: &'a Actor,
    lifecycle_uid: &'a LifecycleUid,
    credential_id: &'a CredentialId,
    view: Option<View>,
    iat: UnixSecs,
    exp: UnixSecs,
}

impl NatkeyRow {
    /// Reads the row stored under `key`.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 9] =
            ["v", "space", "owner", "actor", "lifecycleUid", "credentialId", "view", "iat", "exp"];
        let row = Closed::parse("issuance row", bytes, &MEMBERS)?;
        if row.uint("v")? != VERSION {
            return Err(row.garbled("its version is not 1"));
        }
        let view = match row.value("view") {
            Some(serde_json::Value::Null) => None,
            Some(serde_json::Value::String(name)) => {
                Some(View::from_name(name).ok_or_else(|| row.garbled("its view is unknown"))?)
            }
            _ => return Err(row.garbled("its view must be a string or null")),
        };
        let (iat, exp) = (row.uint("iat")?, row.uint("exp")?);
        let parsed = Self {
            space: row.token("space")?,
            owner: row.token("owner")?,
            actor: row.token("actor")?,
            lifecycle_uid: row.token("lifecycleUid")?,
            credential_id: row.token("credentialId")?,
            view,
            iat: UnixSecs(iat),
            exp: UnixSecs(exp),
            user: key
                .strip_prefix("natkey.")
                .and_then(|user| Nkey::parse(user).ok())
                .ok_or_else(|| row.garbled("its key does not carry a user nkey"))?,
        };
        if exp < iat {
            return Err(row.garbled("it expires before it was issued"));
        }
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            v: VERSION,
            space: &self.space,
            owner: &self.owner,
            actor: &self.actor,
            lifecycle_uid: &self.lifecycle_uid,
            credential_id: &self.credential_id,
            view: self.view,
            iat: self.iat,
            exp: self.exp,
        })
    }

    /// The key of this row.
    pub fn key(&self) -> String {
        natkey_key(&self.user)
    }

    /// The principal that was admitted.
    pub fn principal(&self) -> Principal {
        Principal::new(self.owner.clone(), self.actor.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> NatkeyRow {
        NatkeyRow {
            user: Nkey::parse(&format!("U{}", "A".repeat(55))).unwrap(),
            space: Space::parse("my space").unwrap(),
            owner: DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(),
            actor: Actor::parse("alice").unwrap(),
            lifecycle_uid: LifecycleUid::parse(&"a".repeat(26)).unwrap(),
            credential_id: CredentialId::parse("root1").unwrap(),
            view: None,
            iat: UnixSecs(10),
            exp: UnixSecs(20),
        }
    }

    #[test]
    fn an_issuance_row_has_these_bytes_and_reads_back() {
        let bytes = format!(
            "{{\"v\":1,\"space\":\"my space\",\"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"actor\":\"alice\",\
             \"lifecycleUid\":\"{}\",\"credentialId\":\"root1\",\"view\":null,\"iat\":10,\"exp\":20}}",
            "a".repeat(26)
        );
        assert_eq!(String::from_utf8(row().to_bytes()).unwrap(), bytes);
        assert_eq!(NatkeyRow::parse(&row().key(), bytes.as_bytes()).unwrap(), row());
        let viewed = NatkeyRow { view: Some(View::SessionCaller), ..row() };
        assert!(String::from_utf8(viewed.to_bytes()).unwrap().contains("\"view\":\"session-caller\""));
        assert_eq!(NatkeyRow::parse(&viewed.key(), &viewed.to_bytes()).unwrap(), viewed);
    }

    #[test]
    fn a_garbled_issuance_row_is_refused() {
        let good = String::from_utf8(row().to_bytes()).unwrap();
        for bytes in [
            good.replace("\"v\":1", "\"v\":2"),
            good.replace("\"view\":null,", ""),
            good.replace("\"view\":null", "\"view\":\"root\""),
            good.replace("\"view\":null", "\"view\":7"),
            good.replace("\"exp\":20", "\"exp\":9"),
            good.replace("\"exp\":20", "\"exp\":20,\"more\":1"),
            good.replace("\"iat\":10,", ""),
            good.replace("my space", ""),
            good.replace("alice", "a.b"),
        ] {
            assert!(NatkeyRow::parse(&row().key(), bytes.as_bytes()).is_err(), "{bytes}");
        }
        for key in ["natkey.", "natkey", "natkey.UA", &format!("natkey.A{}", "A".repeat(55)), "gate.x"] {
            assert!(NatkeyRow::parse(key, good.as_bytes()).is_err(), "{key}");
        }
    }
}
