//! The fingerprint of a space's user-auth trust (contract 04 §15): equal on two machines exactly when both would
//! answer every connect and every exchange alike. Secrets enter as commitments.

use std::fmt;

use cotal_wire::{Actor, DerivedOwner, Sha256Hex, Space};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    bundle::{BundleError, DataAccount},
    callout_account::CalloutAuth,
    idp::IdpPin,
    issuer::{IssuerKeySet, PublicJwk},
    owner::OwnerSecret,
};

/// The scheme of the fingerprint, and the domain of its digest.
pub const SCHEME: &str = "cotal-user-auth-trust/v1:sha256";

const ACCOUNT_JWT: &str = "cotal-callout-account-jwt/v1";
const ACCOUNT_SEED: &str = "cotal-callout-account-seed/v1";
const SIGNING_SEED: &str = "cotal-callout-signing-seed/v1";
const XKEY_SEED: &str = "cotal-callout-xkey-seed/v1";
const SERVICE_CREDS: &str = "cotal-callout-service-creds/v1";
const SENTINEL_CREDS: &str = "cotal-callout-sentinel-creds/v1";
const OWNER_SECRET: &str = "cotal-owner-secret/v1";

/// What a fingerprint is taken of.
#[derive(Debug, Clone, Copy)]
pub struct TrustMaterial<'a> {
    /// The space.
    pub space: &'a Space,
    /// Its data account.
    pub data: &'a DataAccount,
    /// Its callout account.
    pub callout: &'a CalloutAuth,
    /// Its owner secret.
    pub owner_secret: &'a OwnerSecret,
    /// Its IdP pin.
    pub idp: &'a IdpPin,
    /// Its issuer keys.
    pub issuer: &'a IssuerKeySet,
}

/// One ledger row, as far as the fingerprint sees it: no label, no time, no lifecycle uid.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    /// The row's kind.
    pub kind: &'static str,
    /// The owner.
    pub owner: DerivedOwner,
    /// The actor.
    pub actor: Actor,
    /// Capabilities.
    pub scope: Vec<String>,
    /// Channels that it may read.
    pub allow_subscribe: Vec<String>,
    /// Channels that it may post to.
    pub allow_publish: Vec<String>,
    /// The role.
    pub role: Option<String>,
    /// The parent link.
    pub parent: Option<String>,
    /// The agent secret's hash, managed rows only.
    pub token_hash: Option<String>,
}

/// A fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrustFingerprint {
    /// [`SCHEME`].
    pub scheme: &'static str,
    /// The digest.
    pub value: Sha256Hex,
}

impl fmt::Display for TrustFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.value)
    }
}

#[derive(Serialize)]
struct Document<'a> {
    space: &'a Space,
    account: Account<'a>,
    #[serde(rename = "ownerSecret")]
    owner_secret: String,
    idp: &'a IdpPin,
    issuer: IssuerKeys<'a>,
    ledger: Vec<LedgerEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Account<'a> {
    data_pub: &'a str,
    data_signing_pub: &'a str,
    callout_pub: &'a str,
    callout_signing_pub: &'a str,
    callout_xkey_pub: &'a str,
    callout_account_jwt: String,
    callout_account_seed: String,
    callout_signing_seed: String,
    callout_xkey_seed: String,
    callout_creds: String,
    sentinel_creds: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuerKeys<'a> {
    #[serde(rename = "issuer")]
    urn: &'a str,
    active_kid: &'a str,
    keys: Vec<PublicJwk<'a>>,
}

impl TrustFingerprint {
    /// Takes the fingerprint. Refuses callout material that is not exactly for its keys and this data account.
    pub fn of(material: TrustMaterial<'_>, ledger: &[LedgerEntry]) -> Result<Self, BundleError> {
        let TrustMaterial { space, data, callout, owner_secret, idp, issuer } = material;
        callout.check_for(&data.account)?;
        let mut keys: Vec<_> = issuer.public_keys().collect();
        keys.sort_by_key(|key| key.kid);
        let mut ledger: Vec<_> = ledger.iter().cloned().map(LedgerEntry::in_order).collect();
        ledger.sort_by(|a, b| (a.kind, &a.owner, &a.actor).cmp(&(b.kind, &b.owner, &b.actor)));
        let document = Document {
            space,
            account: Account {
                data_pub: data.account.as_str(),
                data_signing_pub: data.signing.public().as_str(),
                callout_pub: callout.account.public().as_str(),
                callout_signing_pub: callout.signing.public().as_str(),
                callout_xkey_pub: callout.xkey.public().as_str(),
                callout_account_jwt: commitment(ACCOUNT_JWT, callout.jwt.as_bytes()),
                callout_account_seed: commitment(ACCOUNT_SEED, callout.account.expose().as_bytes()),
                callout_signing_seed: commitment(SIGNING_SEED, callout.signing.expose().as_bytes()),
                callout_xkey_seed: commitment(XKEY_SEED, callout.xkey.expose().as_bytes()),
                callout_creds: commitment(SERVICE_CREDS, callout.callout_creds.as_bytes()),
                sentinel_creds: commitment(SENTINEL_CREDS, callout.sentinel_creds.as_bytes()),
            },
            owner_secret: commitment(OWNER_SECRET, owner_secret.expose()),
            idp,
            issuer: IssuerKeys { urn: issuer.issuer(), active_kid: issuer.active_kid(), keys },
            ledger,
        };
        let text = serde_json::to_vec(&document)
            .map_err(|_| BundleError("the trust of this space has no JSON form".to_owned()))?;
        let value = Sha256Hex::parse(&commitment(SCHEME, &text))
            .map_err(|_| BundleError("the trust of this space has no digest".to_owned()))?;
        Ok(Self { scheme: SCHEME, value })
    }
}

impl LedgerEntry {
    /// Each list a set, in the order of ECMAScript's strings.
    fn in_order(mut self) -> Self {
        for list in [&mut self.scope, &mut self.allow_subscribe, &mut self.allow_publish] {
            list.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
            list.dedup();
        }
        self
    }
}

/// Hex SHA-256 of the domain, a NUL and the value.
fn commitment(domain: &str, value: &[u8]) -> String {
    hex::encode(Sha256::new().chain_update(domain).chain_update([0]).chain_update(value).finalize())
}

#[cfg(test)]
mod tests {
    use cotal_wire::UnixSecs;

    use super::*;
    use crate::{
        bundle::{BrokerTrust, SpaceAccount},
        system::SystemEntropy,
    };

    struct Made {
        space: Space,
        data: DataAccount,
        callout: CalloutAuth,
        owner_secret: OwnerSecret,
        idp: IdpPin,
        issuer: IssuerKeySet,
    }

    impl Made {
        fn new() -> Self {
            let (space, now) = (Space::parse("main").unwrap(), UnixSecs(1_700_000_000));
            let broker = BrokerTrust::create("main", &SystemEntropy, now);
            let data = SpaceAccount::create(&broker, &space, &SystemEntropy, now).data_account();
            Self {
                callout: CalloutAuth::create(&space, &broker.operator, &data.account, &SystemEntropy, now),
                owner_secret: OwnerSecret::generate(&SystemEntropy),
                idp: IdpPin::from_url("https://idp.example").unwrap(),
                issuer: IssuerKeySet::create(&space, &SystemEntropy),
                space,
                data,
            }
        }

        fn material(&self) -> TrustMaterial<'_> {
            TrustMaterial {
                space: &self.space,
                data: &self.data,
                callout: &self.callout,
                owner_secret: &self.owner_secret,
                idp: &self.idp,
                issuer: &self.issuer,
            }
        }
    }

    fn entry(kind: &'static str, actor: &str, scope: &[&str]) -> LedgerEntry {
        LedgerEntry {
            kind,
            owner: DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(),
            actor: Actor::parse(actor).unwrap(),
            scope: scope.iter().map(|&s| s.to_owned()).collect(),
            allow_subscribe: Vec::new(),
            allow_publish: Vec::new(),
            role: None,
            parent: None,
            token_hash: None,
        }
    }

    #[test]
    fn order_and_repetition_do_not_change_it_and_content_does() {
        let mut made = Made::new();
        let (a, b) = (entry("interactive", "alice", &["run", "admin", "run"]), entry("managed", "bob", &[]));
        let of = |made: &Made, ledger: &[LedgerEntry]| TrustFingerprint::of(made.material(), ledger).unwrap();
        let first = of(&made, &[a.clone(), b.clone()]);
        assert_eq!(first, of(&made, &[b.clone(), entry("interactive", "alice", &["admin", "run"])]));
        assert_ne!(first, of(&made, std::slice::from_ref(&a)));
        assert_ne!(first, of(&made, &[entry("managed", "alice", &["run", "admin"]), b.clone()]));
        let mut other = LedgerEntry { role: Some("r".to_owned()), ..b.clone() };
        assert_ne!(first, of(&made, &[a.clone(), other.clone()]));
        other.role = None;
        assert_eq!(first, of(&made, &[a.clone(), other]));
        made.owner_secret = OwnerSecret::generate(&SystemEntropy);
        assert_ne!(first, of(&made, &[a, b]));
        assert!(first.to_string().starts_with("cotal-user-auth-trust/v1:sha256:"));
    }

    #[test]
    fn callout_material_of_another_space_has_no_fingerprint() {
        let mut made = Made::new();
        made.callout = Made::new().callout;
        assert!(TrustFingerprint::of(made.material(), &[]).is_err());
    }

    #[test]
    fn a_commitment_is_the_digest_of_domain_nul_and_value() {
        assert_eq!(commitment("a", b"b"), hex::encode(Sha256::digest(b"a\0b")));
    }
}
