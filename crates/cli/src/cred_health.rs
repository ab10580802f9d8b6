//! How one credential on disk stands (contract 01 §3.4): what a plain look at its text, its signer and the clock says.

use cotal_trust::mint::{Health, HealthState, SignedBy};
use cotal_wire::{Account, Nkey, UnixSecs};

/// How a credential stands, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredState {
    /// It has time left.
    Healthy,
    /// It never expires.
    Unbounded,
    /// Three quarters of its life are over.
    NearExpiry,
    /// It has expired.
    Expired,
    /// It was signed by another key, or for another account, than the broker now takes.
    Foreign,
    /// Not a credential, or one whose signature does not verify.
    Unreadable,
    /// There is none.
    Missing,
}

/// How it stands and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredHealth {
    /// How it stands.
    pub state: CredState,
    /// When it expires, where that can be read.
    pub exp: Option<UnixSecs>,
    /// When it is to be renewed.
    pub renew_at: Option<UnixSecs>,
}

impl CredState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unbounded => "unbounded",
            Self::NearExpiry => "near-expiry",
            Self::Expired => "expired",
            Self::Foreign => "foreign",
            Self::Unreadable => "unreadable",
            Self::Missing => "missing",
        }
    }

    /// Whether the broker takes it now.
    pub fn holds(self) -> bool {
        self <= Self::NearExpiry
    }

    /// Whether a renewal is called for.
    pub fn is_due(self) -> bool {
        self >= Self::NearExpiry
    }
}

/// Looks at creds text. `signer` is the account and the one key of it that signs now.
pub fn look(text: Option<&str>, signer: &(Nkey<Account>, Nkey<Account>), now: UnixSecs) -> CredHealth {
    let Some(text) = text else { return CredHealth { state: CredState::Missing, exp: None, renew_at: None } };
    let Health { state, exp, renew_at } = Health::of_creds(text, now);
    let signed = SignedBy::of_creds(text);
    let ours = signed.is_some_and(|signed| (&signed.account, &signed.issuer) == (&signer.0, &signer.1));
    let state = match state {
        HealthState::Unreadable => CredState::Unreadable,
        _ if !ours => CredState::Foreign,
        HealthState::Unbounded => CredState::Unbounded,
        HealthState::Healthy => CredState::Healthy,
        HealthState::NearExpiry => CredState::NearExpiry,
        HealthState::Expired => CredState::Expired,
    };
    CredHealth { state, exp, renew_at }
}

#[cfg(test)]
mod tests {
    use cotal_trust::{
        bundle::{BrokerTrust, SpaceAccount},
        mint::mint_provisioner,
        system::SystemEntropy,
    };
    use cotal_wire::Space;

    use super::*;

    #[test]
    fn a_credential_of_another_key_is_foreign_however_much_time_it_has() {
        let (now, space) = (UnixSecs(1_700_000_000), Space::parse("main").unwrap());
        let broker = BrokerTrust::create("main", &SystemEntropy, now);
        let account = SpaceAccount::create(&broker, &space, &SystemEntropy, now);
        let signer = (account.account.public().clone(), account.signing.public().clone());
        let creds = mint_provisioner(&account.data_account(), &space, &SystemEntropy, now).unwrap().creds;
        let state = |text: Option<&str>, at: u64| look(text, &signer, now.plus(at)).state;
        assert_eq!(state(Some(&creds), 0), CredState::Healthy);
        assert_eq!(state(Some(&creds), 225), CredState::NearExpiry);
        assert_eq!(state(Some(&creds), 300), CredState::Expired);
        assert_eq!(state(Some("x"), 0), CredState::Unreadable);
        assert_eq!(state(None, 0), CredState::Missing);
        let rotated = account.rotate_data_signer(&broker, &SystemEntropy, now).unwrap();
        let signer = (rotated.account.public().clone(), rotated.signing.public().clone());
        assert_eq!(look(Some(&creds), &signer, now).state, CredState::Foreign);
        assert!(CredState::NearExpiry.holds() && CredState::NearExpiry.is_due());
        assert!(!CredState::Unbounded.is_due() && !CredState::Foreign.holds());
    }
}
