//! The quarantined AUTH account of a space (contract 04 §8.1).
use crate::{bundle::BundleError, nkey::Seed};
use cotal_wire::{Account, Curve, Entropy, Nkey, Operator, Space, UnixSecs};
use zeroize::Zeroizing;

/// Keys, JWT and the two creds of the callout account.
#[derive(Clone)]
pub struct CalloutAuth {
    /// The account.
    pub account: Seed<Account>,
    /// Its signing key.
    pub signing: Seed<Account>,
    /// Its JWT, signed by the operator.
    pub jwt: String,
    /// Creds text of the callout user.
    pub callout_creds: Zeroizing<String>,
    /// Creds text of the deny-all sentinel user.
    pub sentinel_creds: Zeroizing<String>,
    /// The curve key that requests are sealed to.
    pub xkey: Seed<Curve>,
}

impl CalloutAuth {
    /// Fresh material.
    pub fn create(
        _space: &Space,
        _operator: &Seed<Operator>,
        _data_account: &Nkey<Account>,
        _entropy: &dyn Entropy,
        _now: UnixSecs,
    ) -> Self {
        todo!()
    }
    /// The document `callout.json` (`{"ver":1,"callout":{…}}`, 2-space indent).
    pub fn to_document(&self) -> Zeroizing<String> {
        todo!()
    }
    /// Reads the document.
    pub fn from_document(_text: &str) -> Result<Self, BundleError> {
        todo!()
    }
}
