//! Credential ledger rows `cred.…` and `epcred.…` in the auth bucket (contract 02 §3.4, 07 §4.2).

use std::fmt;

use serde::Serialize;

use super::{
    closed::{Closed, compact},
    source::SourceMember,
};
use crate::{
    endpoint_token::{EndpointName, EndpointToken},
    error::EpError,
    names::{cred_key, epcred_key},
    time::{UnixMillis, UnixSecs},
    token::{CredentialId, InstanceId, LifecycleUid, Principal},
};

const WHAT: &str = "credential row";
/// Prefix of the agent family's keys.
pub(super) const CREDENTIAL_PREFIX: &str = "cred.";
/// Prefix of the endpoint family's keys.
pub(super) const EP_CREDENTIAL_PREFIX: &str = "epcred.";

/// Which family a credential row is in, and so what its key carries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CredentialFamily {
    /// `cred.<uid>.<credential>`.
    Agent(LifecycleUid),
    /// `epcred.<endpoint>.<instance>.<credential>`.
    Endpoint {
        /// The endpoint's dotted name.
        endpoint: EndpointName,
        /// The instance, which the row's `lifecycleUid` holds.
        instance: InstanceId,
    },
}

/// The key of a credential row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CredentialKey {
    /// The family and what it pins.
    pub family: CredentialFamily,
    /// The credential.
    pub credential_id: CredentialId,
}

/// Whether a credential admits new connections. Monotonic: revoked is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialState {
    /// It does.
    Active,
    /// It does not, and never will again.
    Revoked,
}

/// One credential: who holds it, what it derives from, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialRow {
    key: CredentialKey,
    holder: Principal,
    source_chain: Vec<SourceMember>,
    state: CredentialState,
    // In the unit of the row's writer: see `expires_at`.
    exp: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    credential_id: &'a CredentialId,
    holder_principal: &'a Principal,
    lifecycle_uid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a EndpointName>,
    source_chain: &'a [SourceMember],
    state: CredentialState,
    exp: u64,
}

impl CredentialKey {
    /// Reads a ledger key of either family; `None` when it is not one.
    pub fn parse(key: &str) -> Option<Self> {
        let (family, credential) = if let Some(rest) = key.strip_prefix(CREDENTIAL_PREFIX) {
            let (uid, credential) = rest.split_once('.')?;
            (CredentialFamily::Agent(LifecycleUid::parse(uid).ok()?), credential)
        } else {
            let mut parts = key.strip_prefix(EP_CREDENTIAL_PREFIX)?.splitn(3, '.');
            let endpoint = EndpointToken::parse(parts.next()?).ok()?.name();
            let instance = InstanceId::parse(parts.next()?).ok()?;
            (CredentialFamily::Endpoint { endpoint, instance }, parts.next()?)
        };
        Some(Self { family, credential_id: CredentialId::parse(credential).ok()? })
    }
}

impl fmt::Display for CredentialKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match &self.family {
            CredentialFamily::Agent(uid) => cred_key(uid, &self.credential_id),
            CredentialFamily::Endpoint { endpoint, instance } => {
                epcred_key(&endpoint.token(), instance, &self.credential_id)
            }
        })
    }
}

impl CredentialRow {
    /// An active row of the agent family. Its expiry is in milliseconds.
    pub fn agent(
        uid: &LifecycleUid,
        credential_id: &CredentialId,
        holder: &Principal,
        source_chain: Vec<SourceMember>,
        exp: UnixMillis,
    ) -> Result<Self, EpError> {
        let family = CredentialFamily::Agent(uid.clone());
        Self::active(family, credential_id, holder, source_chain, exp.0)
    }

    /// An active row of a serve or sibling credential. Its expiry is the JWT's, in seconds.
    pub fn endpoint(
        endpoint: &EndpointName,
        instance: &InstanceId,
        credential_id: &CredentialId,
        holder: &Principal,
        exp: UnixSecs,
    ) -> Result<Self, EpError> {
        Self::served(endpoint, instance, credential_id, holder, vec![SourceMember::Root], exp)
    }

    /// As [`Self::endpoint`], of a serve credential that derives from something else than the root.
    pub fn served(
        endpoint: &EndpointName,
        instance: &InstanceId,
        credential_id: &CredentialId,
        holder: &Principal,
        source_chain: Vec<SourceMember>,
        exp: UnixSecs,
    ) -> Result<Self, EpError> {
        let family = CredentialFamily::Endpoint { endpoint: endpoint.clone(), instance: instance.clone() };
        Self::active(family, credential_id, holder, source_chain, exp.0)
    }

    fn active(
        family: CredentialFamily,
        credential_id: &CredentialId,
        holder: &Principal,
        source_chain: Vec<SourceMember>,
        exp: u64,
    ) -> Result<Self, EpError> {
        if source_chain.is_empty() {
            return Err(EpError::failed_precondition("a credential needs at least one source"));
        }
        if exp > crate::time::MAX_SAFE_INTEGER {
            return Err(EpError::failed_precondition("a credential's expiry must be at most 2^53 - 1"));
        }
        let key = CredentialKey { family, credential_id: credential_id.clone() };
        Ok(Self { key, holder: holder.clone(), source_chain, state: CredentialState::Active, exp })
    }

    /// Reads the row stored under `key`: its own members must rebuild that key exactly.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(
            WHAT,
            bytes,
            &["credentialId", "holderPrincipal", "lifecycleUid", "endpoint", "sourceChain", "state", "exp"],
        )?;
        row.text("credentialId")?;
        let holder = row.text("holderPrincipal")?;
        row.text("lifecycleUid")?;
        let endpoint = row.optional("endpoint", Closed::text)?;
        let chain = row.array("sourceChain")?;
        let state = row.text("state")?;
        let exp = row.uint("exp")?;

        let credential_id = row.token("credentialId")?;
        let holder =
            Principal::parse_key(holder).map_err(|_| row.garbled("its holder is not a principal"))?;
        let family = if key.starts_with(EP_CREDENTIAL_PREFIX) {
            let endpoint =
                endpoint.ok_or_else(|| row.garbled("an endpoint credential names its endpoint"))?;
            let endpoint = EndpointName::parse(endpoint)
                .map_err(|_| row.garbled("its endpoint is not an endpoint name"))?;
            CredentialFamily::Endpoint { endpoint, instance: row.token("lifecycleUid")? }
        } else if endpoint.is_some() {
            return Err(row.garbled("an agent credential names no endpoint"));
        } else {
            CredentialFamily::Agent(row.token("lifecycleUid")?)
        };
        let source_chain: Option<Vec<_>> =
            chain.iter().map(|member| member.as_str().and_then(SourceMember::parse)).collect();
        let source_chain = source_chain
            .filter(|chain| !chain.is_empty())
            .ok_or_else(|| row.garbled("its sourceChain is not a non-empty list of sources"))?;
        let state = match state {
            "active" => CredentialState::Active,
            "revoked" => CredentialState::Revoked,
            _ => return Err(row.garbled("its state is not active or revoked")),
        };
        let own_key = CredentialKey { family, credential_id };
        if own_key.to_string() != key {
            return Err(row.garbled("it belongs to another key"));
        }
        Ok(Self { key: own_key, holder, source_chain, state, exp })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (lifecycle_uid, endpoint) = match &self.key.family {
            CredentialFamily::Agent(uid) => (uid.as_str(), None),
            CredentialFamily::Endpoint { endpoint, instance } => (instance.as_str(), Some(endpoint)),
        };
        compact(&Wire {
            credential_id: &self.key.credential_id,
            holder_principal: &self.holder,
            lifecycle_uid,
            endpoint,
            source_chain: &self.source_chain,
            state: self.state,
            exp: self.exp,
        })
    }

    /// The key of this row.
    pub fn key(&self) -> &CredentialKey {
        &self.key
    }

    /// The credential.
    pub fn credential_id(&self) -> &CredentialId {
        &self.key.credential_id
    }

    /// The agent's incarnation, or `None` in the endpoint family.
    pub fn lifecycle_uid(&self) -> Option<&LifecycleUid> {
        match &self.key.family {
            CredentialFamily::Agent(uid) => Some(uid),
            CredentialFamily::Endpoint { .. } => None,
        }
    }

    /// Who holds the credential: always what an eviction targets.
    pub fn holder(&self) -> &Principal {
        &self.holder
    }

    /// The full lineage.
    pub fn source_chain(&self) -> &[SourceMember] {
        &self.source_chain
    }

    /// Whether this is an incarnation's root credential: its chain is exactly `["root"]`.
    pub fn is_root(&self) -> bool {
        self.source_chain == [SourceMember::Root]
    }

    /// Whether the credential admits new connections.
    pub fn state(&self) -> CredentialState {
        self.state
    }

    /// When the credential ends. The stored unit depends on the writer: milliseconds in the agent family and in
    /// session rows, seconds in the other rows of the endpoint family (contract 02 §3.4, 12 D18).
    pub fn expires_at(&self) -> UnixMillis {
        let from_session = self.source_chain.iter().any(|member| matches!(member, SourceMember::Session(_)));
        match &self.key.family {
            CredentialFamily::Endpoint { .. } if !from_session => UnixSecs(self.exp).to_millis(),
            CredentialFamily::Agent(_) | CredentialFamily::Endpoint { .. } => UnixMillis(self.exp),
        }
    }

    /// The same row, revoked.
    pub fn revoke(self) -> Self {
        Self { state: CredentialState::Revoked, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    const HOLDER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice";

    fn uid() -> LifecycleUid {
        LifecycleUid::parse(&"a".repeat(26)).unwrap()
    }

    fn root_row() -> CredentialRow {
        CredentialRow::agent(
            &uid(),
            &CredentialId::parse("root1").unwrap(),
            &Principal::parse_key(HOLDER).unwrap(),
            vec![SourceMember::Root],
            UnixMillis(1_700_000_000_000),
        )
        .unwrap()
    }

    #[test]
    fn an_agent_row_has_these_bytes_and_reads_back() {
        let row = root_row();
        let bytes = format!(
            "{{\"credentialId\":\"root1\",\"holderPrincipal\":\"{HOLDER}\",\"lifecycleUid\":\"{}\",\
             \"sourceChain\":[\"root\"],\"state\":\"active\",\"exp\":1700000000000}}",
            uid()
        );
        assert_eq!(String::from_utf8(row.to_bytes()).unwrap(), bytes);
        let key = row.key().to_string();
        assert_eq!(CredentialRow::parse(&key, bytes.as_bytes()).unwrap(), row);
        assert!(row.is_root());
        let revoked = row.revoke();
        assert_eq!(
            String::from_utf8(revoked.to_bytes()).unwrap(),
            bytes.replace("active", "revoked"),
            "revoking replaces the state and nothing else"
        );
    }

    #[test]
    fn an_endpoint_row_names_its_endpoint_before_its_sources() {
        let row = CredentialRow::endpoint(
            &EndpointName::parse("com.example.search").unwrap(),
            &InstanceId::parse(&"b".repeat(26)).unwrap(),
            &CredentialId::parse("sha256-ab").unwrap(),
            &Principal::parse_key(HOLDER).unwrap(),
            UnixSecs(1_700_000_000),
        )
        .unwrap();
        let key = format!("epcred.com_example_search.{}.sha256-ab", "b".repeat(26));
        assert_eq!(row.key().to_string(), key);
        assert_eq!(
            String::from_utf8(row.to_bytes()).unwrap(),
            format!(
                "{{\"credentialId\":\"sha256-ab\",\"holderPrincipal\":\"{HOLDER}\",\"lifecycleUid\":\"{}\",\
                 \"endpoint\":\"com.example.search\",\"sourceChain\":[\"root\"],\"state\":\"active\",\
                 \"exp\":1700000000}}",
                "b".repeat(26)
            )
        );
        assert_eq!(CredentialRow::parse(&key, &row.to_bytes()).unwrap(), row);
        assert_eq!(CredentialKey::parse(&key).unwrap(), *row.key());
    }

    #[test]
    fn the_unit_of_an_expiry_follows_the_rows_writer() {
        assert_eq!(root_row().expires_at(), UnixMillis(1_700_000_000_000));
        let key = format!("epcred.manager.{}.c", "b".repeat(26));
        let row = |chain: &str, exp: u64| {
            let bytes = format!(
                "{{\"credentialId\":\"c\",\"holderPrincipal\":\"{HOLDER}\",\"lifecycleUid\":\"{}\",\
                 \"endpoint\":\"manager\",\"sourceChain\":[\"{chain}\"],\"state\":\"active\",\"exp\":{exp}}}",
                "b".repeat(26)
            );
            CredentialRow::parse(&key, bytes.as_bytes()).unwrap()
        };
        assert_eq!(row("root", 1_700_000_000).expires_at(), UnixMillis(1_700_000_000_000));
        assert_eq!(row("session.s1", 1_700_000_000_000).expires_at(), UnixMillis(1_700_000_000_000));
    }

    #[test]
    fn a_garbled_row_is_internal() {
        let key = root_row().key().to_string();
        let good = String::from_utf8(root_row().to_bytes()).unwrap();
        assert!(CredentialRow::parse(&key, good.as_bytes()).is_ok());
        for bytes in [
            String::new(),
            "7".to_owned(),
            good.replace("\"exp\"", "\"more\":1,\"exp\""),
            good.replace("[\"root\"]", "[]"),
            good.replace("[\"root\"]", "[\"root\",7]"),
            good.replace("[\"root\"]", "\"root\""),
            good.replace("\"root\"]", "\"handle.k\"]"),
            good.replace("active", "paused"),
            good.replace("1700000000000", "-1"),
            good.replace("1700000000000", "\"1\""),
            good.replace("root1", "root2"),
            good.replace("root1", "a..b"),
            good.replace(HOLDER, "x.alice"),
            good.replace(HOLDER, "alice"),
            good.replace(uid().as_str(), &"b".repeat(26)),
            good.replace("\"sourceChain\"", "\"endpoint\":\"manager\",\"sourceChain\""),
        ] {
            let error = CredentialRow::parse(&key, bytes.as_bytes()).unwrap_err();
            assert_eq!(error.code, EpCode::Internal, "{bytes}");
        }
        let ep_key = format!("epcred.manager.{}.root1", uid());
        assert!(
            CredentialRow::parse(&ep_key, good.as_bytes()).is_err(),
            "an endpoint row names its endpoint"
        );
        assert!(CredentialRow::parse("stage.x", good.as_bytes()).is_err());
    }

    #[test]
    fn a_platform_owner_may_hold_a_credential() {
        let good = String::from_utf8(root_row().to_bytes()).unwrap();
        let key = root_row().key().to_string();
        for owner in ["p_aaaaaaaaaaaaaaaaaaaaaaaaaa", "local"] {
            let bytes = good.replace(HOLDER, &format!("{owner}.svc"));
            assert!(CredentialRow::parse(&key, bytes.as_bytes()).is_ok(), "{owner}");
        }
    }
}
