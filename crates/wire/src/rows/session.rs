//! The session ledger row `session.<sid>` (contract 02 §12, 03 §R, 04 §11.3): what containing a session needs of it.
//!
//! A session's two credentials are ledger rows of the auth bucket, `cred.<credCaller>` and `epcred.<credServing>`; the
//! session row says which, and which of the two are known to be revoked.

use serde::Serialize;

use super::{
    closed::{Closed, compact},
    credential::{CREDENTIAL_PREFIX, EP_CREDENTIAL_PREFIX},
};
use crate::{
    endpoint_token::EndpointToken,
    error::EpError,
    time::UnixMillis,
    token::{InstanceId, LifecycleUid, Principal, SessionId},
};

const WHAT: &str = "session row";

/// The party of a session, as the tail of its credential id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionParty {
    /// Who opened the session.
    Caller,
    /// The endpoint instance that serves it.
    Serving,
}

/// Where a session stands. Nothing leaves a terminal state, and nothing re-enters `issuing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// Its credentials are being staged.
    Issuing,
    /// Its credentials are released.
    Active,
    /// A party closed it.
    Closed,
    /// It ran out.
    Expired,
    /// Another serving epoch took its place.
    Superseded,
    /// The lifecycle or the handle behind it ended.
    Retired,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    session_id: SessionId,
    endpoint: EndpointToken,
    serving_instance: InstanceId,
    serving_epoch: u64,
    holder: Principal,
    holder_uid: LifecycleUid,
    grant_sig: Option<String>,
    revoked_caller: bool,
    revoked_serving: bool,
    state: SessionState,
    exp: UnixMillis,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    session_id: &'a SessionId,
    endpoint: &'a EndpointToken,
    serving: WireServing<'a>,
    holder: WireHolder<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grant_sig: Option<&'a str>,
    cred_caller: &'a str,
    cred_serving: &'a str,
    revoked: WireRevoked,
    state: SessionState,
    exp: UnixMillis,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireServing<'a> {
    instance_id: &'a InstanceId,
    epoch: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireHolder<'a> {
    principal: &'a Principal,
    lifecycle_uid: &'a LifecycleUid,
}

#[derive(Serialize)]
struct WireRevoked {
    caller: bool,
    serving: bool,
}

impl SessionParty {
    /// Both, the caller first.
    pub const ALL: [Self; 2] = [Self::Caller, Self::Serving];

    /// The last segment of the party's credential id.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Caller => "c",
            Self::Serving => "s",
        }
    }
}

impl SessionState {
    const ALL: [(&'static str, Self); 6] = [
        ("issuing", Self::Issuing),
        ("active", Self::Active),
        ("closed", Self::Closed),
        ("expired", Self::Expired),
        ("superseded", Self::Superseded),
        ("retired", Self::Retired),
    ];

    /// Whether the session is over.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Issuing | Self::Active)
    }
}

impl SessionRow {
    /// Reads the row stored under this session's key. Its credential ids must be the ones that its members rebuild.
    pub fn parse(session: &SessionId, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(
            WHAT,
            bytes,
            &[
                "sessionId",
                "endpoint",
                "serving",
                "holder",
                "grantSig",
                "credCaller",
                "credServing",
                "revoked",
                "state",
                "exp",
            ],
        )?;
        let member = |name: &str, members: &[&str]| match row.value(name) {
            Some(value) => Closed::of("session row's member", value.clone(), members),
            None => Err(row.garbled("a member is missing")),
        };
        let serving = member("serving", &["instanceId", "epoch"])?;
        let holder = member("holder", &["principal", "lifecycleUid"])?;
        let revoked = member("revoked", &["caller", "serving"])?;
        let mark = |party: &str| {
            revoked
                .value(party)
                .and_then(serde_json::Value::as_bool)
                .ok_or_else(|| row.garbled("revoked must hold two booleans"))
        };
        let state = row.text("state")?;
        let parsed = Self {
            session_id: row.token("sessionId")?,
            endpoint: row.token("endpoint")?,
            serving_instance: serving.token("instanceId")?,
            serving_epoch: serving.uint("epoch")?,
            holder: Principal::parse_key(holder.text("principal")?)
                .map_err(|_| row.garbled("its holder is not a principal"))?,
            holder_uid: holder.token("lifecycleUid")?,
            grant_sig: row.optional("grantSig", Closed::non_empty)?.map(str::to_owned),
            revoked_caller: mark("caller")?,
            revoked_serving: mark("serving")?,
            state: SessionState::ALL
                .into_iter()
                .find_map(|(word, known)| (word == state).then_some(known))
                .ok_or_else(|| row.garbled("its state is none that the contract knows"))?,
            exp: UnixMillis(row.uint("exp")?),
        };
        if parsed.session_id != *session {
            return Err(row.garbled("it names another session than its key"));
        }
        for (name, party) in [("credCaller", SessionParty::Caller), ("credServing", SessionParty::Serving)] {
            if row.text(name)? != parsed.coordinate(party) {
                return Err(row.garbled("its credential ids are not those of its parties"));
            }
        }
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire {
            session_id: &self.session_id,
            endpoint: &self.endpoint,
            serving: WireServing { instance_id: &self.serving_instance, epoch: self.serving_epoch },
            holder: WireHolder { principal: &self.holder, lifecycle_uid: &self.holder_uid },
            grant_sig: self.grant_sig.as_deref(),
            cred_caller: &self.coordinate(SessionParty::Caller),
            cred_serving: &self.coordinate(SessionParty::Serving),
            revoked: WireRevoked { caller: self.revoked_caller, serving: self.revoked_serving },
            state: self.state,
            exp: self.exp,
        })
    }

    /// The session.
    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// The endpoint that serves it, as a token.
    pub fn endpoint(&self) -> &EndpointToken {
        &self.endpoint
    }

    /// The instance that serves it, and at which process epoch.
    pub fn serving(&self) -> (&InstanceId, u64) {
        (&self.serving_instance, self.serving_epoch)
    }

    /// Who holds it, and as which incarnation.
    pub fn holder(&self) -> (&Principal, &LifecycleUid) {
        (&self.holder, &self.holder_uid)
    }

    /// The signature of the grant that opened it; older rows have none (contract 03 §R).
    pub fn grant_sig(&self) -> Option<&str> {
        self.grant_sig.as_deref()
    }

    /// Where it stands.
    pub fn state(&self) -> SessionState {
        self.state
    }

    /// When it runs out.
    pub fn exp(&self) -> UnixMillis {
        self.exp
    }

    /// Whether this party's credential is known to be revoked.
    pub fn is_marked(&self, party: SessionParty) -> bool {
        match party {
            SessionParty::Caller => self.revoked_caller,
            SessionParty::Serving => self.revoked_serving,
        }
    }

    /// The ledger key of this party's credential.
    pub fn credential_key(&self, party: SessionParty) -> String {
        let prefix = match party {
            SessionParty::Caller => CREDENTIAL_PREFIX,
            SessionParty::Serving => EP_CREDENTIAL_PREFIX,
        };
        format!("{prefix}{}", self.coordinate(party))
    }

    /// The same session, ended as `terminal`; one that has ended keeps its state.
    #[must_use]
    pub fn terminalize(self, terminal: SessionState) -> Self {
        if self.state.is_terminal() || !terminal.is_terminal() {
            self
        } else {
            Self { state: terminal, ..self }
        }
    }

    /// The same session, this party's credential marked revoked.
    #[must_use]
    pub fn mark_revoked(self, party: SessionParty) -> Self {
        match party {
            SessionParty::Caller => Self { revoked_caller: true, ..self },
            SessionParty::Serving => Self { revoked_serving: true, ..self },
        }
    }

    /// `<holder uid>.<sid>.c` or `<endpoint>.<instance>.<sid>.s`.
    fn coordinate(&self, party: SessionParty) -> String {
        let (sid, suffix) = (&self.session_id, party.suffix());
        match party {
            SessionParty::Caller => format!("{}.{sid}.{suffix}", self.holder_uid),
            SessionParty::Serving => format!("{}.{}.{sid}.{suffix}", self.endpoint, self.serving_instance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::EpCode, rows::CredentialKey};

    fn sid() -> SessionId {
        SessionId::parse(&"s".repeat(22)).unwrap()
    }

    fn bytes() -> String {
        let (uid, instance, sid) = ("a".repeat(26), "b".repeat(26), sid());
        format!(
            "{{\"sessionId\":\"{sid}\",\"endpoint\":\"com_x\",\"serving\":{{\"instanceId\":\"{instance}\",\
             \"epoch\":3}},\"holder\":{{\"principal\":\"local.alice\",\"lifecycleUid\":\"{uid}\"}},\
             \"grantSig\":\"sig\",\"credCaller\":\"{uid}.{sid}.c\",\
             \"credServing\":\"com_x.{instance}.{sid}.s\",\"revoked\":{{\"caller\":false,\"serving\":false}},\
             \"state\":\"active\",\"exp\":1700000000000}}"
        )
    }

    fn row() -> SessionRow {
        SessionRow::parse(&sid(), bytes().as_bytes()).unwrap()
    }

    #[test]
    fn a_row_has_these_bytes_and_names_both_ledger_rows() {
        assert_eq!(String::from_utf8(row().to_bytes()).unwrap(), bytes());
        let caller = format!("cred.{}.{}.c", "a".repeat(26), sid());
        let serving = format!("epcred.com_x.{}.{}.s", "b".repeat(26), sid());
        assert_eq!(row().credential_key(SessionParty::Caller), caller);
        assert_eq!(row().credential_key(SessionParty::Serving), serving);
        for key in [caller, serving] {
            assert_eq!(CredentialKey::parse(&key).unwrap().to_string(), key);
        }
    }

    #[test]
    fn a_session_ends_once_and_is_marked_party_by_party() {
        let ended = row().terminalize(SessionState::Retired);
        assert_eq!(ended.state(), SessionState::Retired);
        assert_eq!(ended.clone().terminalize(SessionState::Closed), ended, "the first end stays");
        assert_eq!(row().terminalize(SessionState::Issuing), row(), "nothing goes back to issuing");
        let marked = ended.mark_revoked(SessionParty::Serving);
        assert!(marked.is_marked(SessionParty::Serving) && !marked.is_marked(SessionParty::Caller));
        let expected =
            bytes().replace("\"serving\":false", "\"serving\":true").replace("\"active\"", "\"retired\"");
        assert_eq!(String::from_utf8(marked.to_bytes()).unwrap(), expected);
    }

    #[test]
    fn an_older_row_has_no_signature_and_gets_none() {
        let older = bytes().replace("\"grantSig\":\"sig\",", "");
        let row = SessionRow::parse(&sid(), older.as_bytes()).unwrap();
        assert_eq!(row.grant_sig(), None);
        assert_eq!(String::from_utf8(row.to_bytes()).unwrap(), older);
    }

    #[test]
    fn a_garbled_row_is_internal() {
        let good = bytes();
        for bytes in [
            String::new(),
            "[]".to_owned(),
            good.replace("\"state\"", "\"more\":1,\"state\""),
            good.replace("\"epoch\":3", "\"epoch\":3,\"more\":1"),
            good.replace("\"epoch\":3", "\"epoch\":-3"),
            good.replace("active", "ajar"),
            good.replace("\"sig\"", "\"\""),
            good.replace("com_x\",\"serving", "com_y\",\"serving"),
            good.replace("local.alice", "alice"),
            good.replace(".c\"", ".s\""),
            good.replace("\"caller\":false", "\"caller\":0"),
            good.replace(",\"serving\":false", ""),
            good.replace("1700000000000", "\"x\""),
            good.replace(&format!("\"sessionId\":\"{}\"", sid()), "\"sessionId\":\"x\""),
        ] {
            assert_eq!(
                SessionRow::parse(&sid(), bytes.as_bytes()).unwrap_err().code,
                EpCode::Internal,
                "{bytes}"
            );
        }
        let other = SessionId::parse(&"t".repeat(22)).unwrap();
        assert_eq!(SessionRow::parse(&other, good.as_bytes()).unwrap_err().code, EpCode::Internal);
    }
}
