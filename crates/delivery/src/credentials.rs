//! Which credentials the daemon takes, and whose they must be.

use cotal_broker::creds_connector::read_creds;
use cotal_trust::{
    creds::Creds,
    jwt,
    mint::{Health, HealthState},
};
use cotal_wire::{Account, Nkey, Sha256Hex, UnixSecs, grants::delivery::connections_subject};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::inputs::{CredsKind, CredsSource};

/// Reads and checks credentials. Each refusal names the credential and what mends it.
pub(crate) struct Credentials<'a> {
    pub(crate) source: &'a dyn CredsSource,
    pub(crate) data_account: &'a Nkey<Account>,
    pub(crate) now: UnixSecs,
}

impl Credentials<'_> {
    /// A user of the data account: the daemon's own, or the membership feed's.
    pub(crate) async fn of_data_account(&self, which: CredsKind) -> Result<Creds, String> {
        let (creds, claims) = self.required(which).await?;
        if account_of(&claims) != Some(self.data_account.as_str()) {
            return Err(format!(
                "{} is of another account than this space's; restore it, or run `cotal up` again",
                which.as_str()
            ));
        }
        Ok(creds)
    }

    /// The observer: a user that may ask for the connections of exactly this data account.
    pub(crate) async fn observer(&self) -> Result<Creds, String> {
        let which = CredsKind::MembershipObserver;
        let (creds, claims) = self.required(which).await?;
        let asks = connections_subject(self.data_account);
        if account_of(&claims) == Some(self.data_account.as_str()) || !may_publish(&claims, &asks) {
            return Err(format!(
                "{} does not see the connections of this space's account; stop the broker and \
                 run `cotal up --rotate-sys`",
                which.as_str()
            ));
        }
        Ok(creds)
    }

    /// The evictor, or `None` in a space that was made before there was one.
    pub(crate) async fn evictor(&self) -> Result<Option<Creds>, String> {
        Ok(self.optional(CredsKind::ConnectionEvictor).await?.map(|(creds, _)| creds))
    }

    async fn required(&self, which: CredsKind) -> Result<(Creds, Value), String> {
        let found = self.optional(which).await?;
        found.ok_or_else(|| format!("{} is missing; run `cotal up` to make it", which.as_str()))
    }

    async fn optional(&self, which: CredsKind) -> Result<Option<(Creds, Value)>, String> {
        let name = which.as_str();
        let text = self.source.read(which).await.map_err(|why| format!("{name} cannot be read: {why}"))?;
        let Some(text) = text else { return Ok(None) };
        let creds = read_creds(name, &text).map_err(|error| error.message)?;
        let health = Health::of_creds(&text, self.now);
        if health.state == HealthState::Expired {
            return Err(format!("{name} has expired; renew it with `cotal doctor auth --fix`"));
        }
        let claims = jwt::decode_verified(&creds.jwt).map_err(|error| format!("{name}: {error}"))?;
        Ok(Some((creds, claims)))
    }
}

/// SHA-256 of a user JWT, lower hex: by which a renewal names a generation (contract 08 §7.4).
pub(crate) fn fingerprint(creds: &Creds) -> Result<Sha256Hex, String> {
    Sha256Hex::parse(&hex::encode(Sha256::digest(creds.jwt.as_bytes()))).map_err(|error| error.to_string())
}

/// When a credential was signed and when it ends, where it does.
pub(crate) fn times(creds: &Creds) -> Option<(UnixSecs, UnixSecs)> {
    let claims = jwt::decode_verified(&creds.jwt).ok()?;
    let at = |member: &str| claims.get(member).and_then(Value::as_u64).map(UnixSecs);
    Some((at("iat")?, at("exp")?))
}

fn account_of(claims: &Value) -> Option<&str> {
    let issuer_account = claims.pointer("/nats/issuer_account").and_then(Value::as_str);
    issuer_account.filter(|account| !account.is_empty()).or_else(|| claims.get("iss")?.as_str())
}

fn may_publish(claims: &Value, subject: &str) -> bool {
    let allowed = claims.pointer("/nats/pub/allow").and_then(Value::as_array);
    allowed.is_some_and(|rows| rows.iter().any(|row| row.as_str() == Some(subject)))
}
