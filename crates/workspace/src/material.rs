//! The user-auth material of a space: what `up --user-auth` prepares and the auth service loads (contract 04 §6).
use crate::secret_store::SecretStore;
use cotal_trust::{
    bundle::DataAccount, callout_account::CalloutAuth, idp::IdpPin, issuer::IssuerKeySet, owner::OwnerSecret,
};
use cotal_wire::{Account, Clock, Entropy, Nkey, Operator, Space};
use std::path::Path;
use zeroize::Zeroizing;

/// Material that is missing, garbled or of another space.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MaterialError(pub String);

/// Everything an auth service context needs (contract 05 §15.2 step 1).
pub struct UserAuthMaterial {
    /// `service-keys.json`.
    pub data_account: DataAccount,
    /// `callout.json`.
    pub callout: CalloutAuth,
    /// `issuer.json`.
    pub issuer: IssuerKeySet,
    /// `owner-secret.json`.
    pub owner_secret: OwnerSecret,
    /// `idp.json`.
    pub idp: IdpPin,
}

impl UserAuthMaterial {
    /// Loads all five; what is missing is listed in one error.
    pub async fn load(
        _store: &dyn SecretStore,
        _state_dir: &Path,
        _space: &Space,
    ) -> Result<Self, MaterialError> {
        todo!()
    }
}

/// Load-or-create of all five, in the order of contract 04 §6.5 (steps 3-7; the JWKS probe is the caller's).
pub async fn prepare(
    _store: &dyn SecretStore,
    _state_dir: &Path,
    _space: &Space,
    _idp_url: Option<&str>,
    _operator: &cotal_trust::nkey::Seed<Operator>,
    _data_account: &DataAccount,
    _clock: &dyn Clock,
    _entropy: &dyn Entropy,
) -> Result<UserAuthMaterial, MaterialError> {
    todo!()
}

/// The pin, or `None` when absent.
pub fn load_idp_pin(_state_dir: &Path) -> Result<Option<IdpPin>, MaterialError> {
    todo!()
}

/// `auth-service.json` (contract 04 §6.4).
pub struct Discovery {
    /// Loopback URL.
    pub url: String,
    /// The daemon's pid.
    pub pid: u32,
    /// The per-start capability.
    pub cap: Zeroizing<String>,
    /// The public URL.
    pub public_url: Option<String>,
}

impl Discovery {
    /// Reads it; `None` when absent.
    pub fn load(_state_dir: &Path) -> Result<Option<Self>, MaterialError> {
        todo!()
    }
    /// Writes it, 0600.
    pub fn write(&self, _state_dir: &Path) -> Result<(), MaterialError> {
        todo!()
    }
    /// Removes it.
    pub fn remove(_state_dir: &Path) -> Result<(), MaterialError> {
        todo!()
    }
}

/// The secret-store keys that deprovisioning a space deletes (contract 04 §14).
pub fn deprovision_secret_keys(_space: &Space) -> Vec<String> {
    todo!()
}

/// Kept for signatures that name the account key.
pub type DataAccountKey = Nkey<Account>;
