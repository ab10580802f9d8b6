//! Redeemed sessions: whether a principal holds the session that it asks a `session-caller` bearer for
//! (contract 05 §4.5, §13).

use async_trait::async_trait;
use cotal_wire::{
    EpError, LifecycleUid, Principal, SessionClaim, SessionEndpoint, SessionId, time::MAX_SAFE_INTEGER,
};
use serde_json::Value;

/// The coordinates that a `sessionGrant` names. They prove nothing: the session row decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCoordinates {
    /// The serving endpoint.
    pub endpoint: SessionEndpoint,
    /// The session.
    pub session_id: SessionId,
    /// The serving epoch.
    pub epoch: u64,
    /// The grant's signature, when it carries one.
    pub grant_sig: Option<String>,
}

impl SessionCoordinates {
    /// Reads the coordinates out of a grant; other members are the grant's own.
    pub(crate) fn of_grant(grant: &Value) -> Result<Self, &'static str> {
        const REFUSAL: &str = "sessionGrant needs { endpoint: string, sessionId: string, epoch: non-negative integer, grantSig?: string }";
        let member = |name: &str| grant.get(name);
        let endpoint =
            member("endpoint").and_then(Value::as_str).and_then(|s| SessionEndpoint::parse(s).ok());
        let session_id = member("sessionId").and_then(Value::as_str).and_then(|s| SessionId::parse(s).ok());
        let epoch = member("epoch").and_then(Value::as_u64).filter(|epoch| *epoch <= MAX_SAFE_INTEGER);
        let grant_sig = match member("grantSig") {
            None => None,
            Some(Value::String(signature)) => Some(signature.clone()),
            Some(_) => return Err(REFUSAL),
        };
        match (endpoint, session_id, epoch) {
            (Some(endpoint), Some(session_id), Some(epoch)) => {
                Ok(Self { endpoint, session_id, epoch, grant_sig })
            }
            _ => Err(REFUSAL),
        }
    }
}

/// Decides whether a principal holds a redeemed session, and until when.
#[async_trait]
pub trait SessionDirectory: Send + Sync {
    /// The claim to sign, with its expiry from the session's row.
    async fn verify(
        &self,
        principal: &Principal,
        lifecycle_uid: &LifecycleUid,
        coordinates: &SessionCoordinates,
    ) -> Result<SessionClaim, EpError>;
}

/// The directory of a space whose service keeps no sessions yet: nobody holds one.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSessions;

#[async_trait]
impl SessionDirectory for NoSessions {
    async fn verify(
        &self,
        principal: &Principal,
        _lifecycle_uid: &LifecycleUid,
        coordinates: &SessionCoordinates,
    ) -> Result<SessionClaim, EpError> {
        Err(EpError::permission_denied(format!(
            "{principal} holds no redeemed session on endpoint {}",
            coordinates.endpoint
        )))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn coordinates_are_read_strictly_and_other_members_are_ignored() {
        let id = "s".repeat(22);
        let good = json!({"endpoint": "manager", "sessionId": id, "epoch": 0, "grantSig": "x", "v": 1});
        let read = SessionCoordinates::of_grant(&good).unwrap();
        assert_eq!(
            (read.endpoint.as_str(), read.epoch, read.grant_sig.as_deref()),
            ("manager", 0, Some("x"))
        );
        for (member, bad) in [
            ("endpoint", json!("a.b")),
            ("endpoint", json!(1)),
            ("sessionId", json!("short")),
            ("epoch", json!(-1)),
            ("epoch", json!(1.5)),
            ("epoch", json!(9_007_199_254_740_992_u64)),
            ("grantSig", json!(null)),
        ] {
            let mut grant = good.clone();
            grant[member] = bad;
            assert!(SessionCoordinates::of_grant(&grant).is_err(), "{member}");
        }
        for bad in [json!(null), json!([]), json!("x"), json!({})] {
            assert!(SessionCoordinates::of_grant(&bad).is_err());
        }
    }
}
