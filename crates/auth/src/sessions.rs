//! Redeemed sessions: whether a principal holds the session that it asks a `session-caller` bearer for
//! (contract 05 §4.5, §13). The service's own directory is [`crate::LiveCallers`].

use std::fmt;

use async_trait::async_trait;
use cotal_wire::{
    EpError, LifecycleUid, Principal, SessionClaim, SessionEndpoint, SessionId, time::MAX_SAFE_INTEGER,
};
use serde_json::Value;

/// The coordinates that a `sessionGrant` names. They prove nothing: the session row decides.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionCoordinates {
    /// The serving endpoint.
    pub endpoint: SessionEndpoint,
    /// The session.
    pub session_id: SessionId,
    /// The serving epoch.
    pub epoch: u64,
    /// The grant's signature: there at the exchange, which is handed a grant, and not at a connect, whose bearer
    /// carries the coordinates alone.
    pub grant_sig: Option<String>,
}

impl fmt::Debug for SessionCoordinates {
    /// Without the signature: whoever holds it holds the grant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, session_id, epoch, grant_sig: _ } = self;
        f.debug_struct("SessionCoordinates")
            .field("endpoint", endpoint)
            .field("session_id", session_id)
            .field("epoch", epoch)
            .finish_non_exhaustive()
    }
}

impl SessionCoordinates {
    /// Reads the coordinates out of a redeemed grant (contract 04 §11.2); other members are the grant's own.
    pub(crate) fn of_grant(grant: &Value) -> Result<Self, &'static str> {
        const REFUSAL: &str = "sessionGrant needs { sessionId: string, endpoint: string, sig: string, serving: { epoch: non-negative integer } }";
        let text = |name: &str| grant.get(name).and_then(Value::as_str);
        let session_id = text("sessionId").and_then(|id| SessionId::parse(id).ok()).ok_or(REFUSAL)?;
        let endpoint = text("endpoint").and_then(|name| SessionEndpoint::parse(name).ok()).ok_or(REFUSAL)?;
        let signature = text("sig").ok_or(REFUSAL)?.to_owned();
        let epoch = grant.get("serving").and_then(|serving| serving.get("epoch")).and_then(Value::as_u64);
        let epoch = epoch.filter(|epoch| *epoch <= MAX_SAFE_INTEGER).ok_or(REFUSAL)?;
        Ok(Self { endpoint, session_id, epoch, grant_sig: Some(signature) })
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

/// The directory of a bridge without an authority plane behind it: nobody holds a session.
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

    fn grant() -> Value {
        json!({
            "sessionId": "s".repeat(22),
            "endpoint": "manager",
            "sig": "the-signature",
            "serving": {"epoch": 7, "instanceId": "i"},
            "v": 1,
        })
    }

    #[test]
    fn coordinates_are_read_where_a_grant_has_them_and_other_members_are_ignored() {
        let read = SessionCoordinates::of_grant(&grant()).unwrap();
        assert_eq!(
            (read.session_id.as_str(), read.endpoint.as_str(), read.epoch, read.grant_sig.as_deref()),
            ("s".repeat(22).as_str(), "manager", 7, Some("the-signature"))
        );
        assert!(!format!("{read:?}").contains("the-signature"));
    }

    #[test]
    fn a_grant_of_any_other_shape_is_refused() {
        for (member, bad) in [
            ("endpoint", json!("a.b")),
            ("endpoint", json!(1)),
            ("sessionId", json!("short")),
            ("sig", json!(null)),
            ("sig", json!(1)),
            ("serving", json!(7)),
            ("serving", json!({})),
            ("serving", json!({"epoch": -1})),
            ("serving", json!({"epoch": 1.5})),
            ("serving", json!({"epoch": "1"})),
            ("serving", json!({"epoch": 9_007_199_254_740_992_u64})),
        ] {
            let mut grant = grant();
            grant[member] = bad;
            assert!(SessionCoordinates::of_grant(&grant).is_err(), "{member}");
        }
        for member in ["endpoint", "sessionId", "sig", "serving"] {
            let mut grant = grant();
            grant.as_object_mut().unwrap().remove(member);
            // The extracted form is not the wire's.
            grant["epoch"] = json!(7);
            grant["grantSig"] = json!("the-signature");
            assert!(SessionCoordinates::of_grant(&grant).is_err(), "{member}");
        }
        for bad in [json!(null), json!([]), json!("x"), json!({})] {
            assert!(SessionCoordinates::of_grant(&bad).is_err());
        }
    }
}
