//! The trust of a broker and of its spaces, and the static mint (contract 01 §3).
use crate::nkey::Seed;
use cotal_wire::{Account, Entropy, Nkey, Operator, Space, UnixSecs};

/// A bundle that does not hold together; never echoes stored values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BundleError(pub String);

/// One broker: operator and system account (contract 01 §3.1).
#[derive(Clone)]
pub struct BrokerTrust {
    /// The operator's seed.
    pub operator: Seed<Operator>,
    /// The operator JWT.
    pub operator_jwt: String,
    /// The system account.
    pub sys: Nkey<Account>,
    /// The system account's JWT.
    pub sys_jwt: String,
    /// Only in memory after create or rotate; never persisted.
    pub sys_signing_seed: Option<Seed<Account>>,
    /// The generation of the system account; absent means 0.
    pub generation: u64,
}

/// One space's data account (contract 01 §3.1).
#[derive(Clone)]
pub struct SpaceAccount {
    /// The space.
    pub space: Space,
    /// The account's seed.
    pub account: Seed<Account>,
    /// The account JWT, signed by the operator.
    pub jwt: String,
    /// The account's signing key.
    pub signing: Seed<Account>,
}

/// The account key pair that signs a space's users: what the auth service holds (contract 04 §6.2 `service-keys.json`).
#[derive(Clone)]
pub struct DataAccount {
    /// The data account.
    pub account: Nkey<Account>,
    /// Its signing key.
    pub signing: Seed<Account>,
}

impl BrokerTrust {
    /// Fresh operator and system account.
    pub fn create(_label: &str, _entropy: &dyn Entropy, _now: UnixSecs) -> Self {
        todo!()
    }
    /// The persisted document `auth/broker.json` (JSON text, 2-space indent), without `sys.signingSeed`.
    pub fn to_document(&self) -> zeroize::Zeroizing<String> {
        todo!()
    }
    /// Reads and validates the persisted document.
    pub fn from_document(_text: &str) -> Result<Self, BundleError> {
        todo!()
    }
}

impl SpaceAccount {
    /// Fresh data account of a space under this broker.
    pub fn create(_broker: &BrokerTrust, _space: &Space, _entropy: &dyn Entropy, _now: UnixSecs) -> Self {
        todo!()
    }
    /// The persisted document `auth/account.<hex>.json`.
    pub fn to_document(&self) -> zeroize::Zeroizing<String> {
        todo!()
    }
    /// Reads and validates the persisted document for `space`.
    pub fn from_document(_text: &str, _space: &Space) -> Result<Self, BundleError> {
        todo!()
    }
    /// The signing half.
    pub fn data_account(&self) -> DataAccount {
        todo!()
    }
    /// The compose check: the account JWT's issuer is this broker's operator, and every seed matches its key.
    pub fn check_signed_by(&self, _broker: &BrokerTrust) -> Result<(), BundleError> {
        todo!()
    }
}
