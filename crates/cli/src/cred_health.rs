//! How one credential on disk stands (contract 01 §3.4): what a plain look at its text, its signer and the clock says.

use cotal_trust::{
    bundle::{BrokerTrust, BundleError},
    mint::{Health, HealthState, SignedBy},
};
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

/// Looks at creds text of a user of the system account, which its own key or an added one has signed.
pub fn look_at_system(
    text: Option<&str>,
    broker: &BrokerTrust,
    now: UnixSecs,
) -> Result<CredHealth, BundleError> {
    let added = broker.system_signers()?;
    let signed = text.and_then(SignedBy::of_creds).map(|signed| signed.issuer);
    let signer = signed.filter(|issuer| added.contains(issuer)).unwrap_or_else(|| broker.sys.clone());
    Ok(look(text, &(broker.sys.clone(), signer), now))
}

#[cfg(test)]
mod tests {
    use cotal_trust::{
        bundle::{BrokerTrust, SpaceAccount},
        mint::{CredentialKind, mint_provisioner, mint_system_user},
        system::SystemEntropy,
    };
    use cotal_wire::{Space, grants::accounts::account_publisher};

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

    #[test]
    fn a_user_of_the_system_account_holds_whichever_of_its_keys_has_signed_it_and_no_longer_than_that_key() {
        let now = UnixSecs(1_700_000_000);
        let made = BrokerTrust::create("main", &SystemEntropy, now);
        let extended = made.add_system_signer(&SystemEntropy, now).unwrap();
        let rotated = extended.rotate_system_account(&SystemEntropy, now).unwrap();
        let mint = |broker: &BrokerTrust| {
            let kind = CredentialKind::AccountPublisher;
            mint_system_user(broker, kind, |_| account_publisher(), &SystemEntropy, now).unwrap().creds
        };
        let (first, second) = (mint(&made), mint(&extended));
        let state =
            |creds: &str, broker: &BrokerTrust| look_at_system(Some(creds), broker, now).unwrap().state;
        assert_eq!(state(&first, &made), CredState::Healthy);
        assert_eq!(
            (state(&first, &extended), state(&second, &extended)),
            (CredState::Healthy, CredState::Healthy)
        );
        assert_eq!(state(&second, &made), CredState::Foreign);
        assert_eq!(
            (state(&first, &rotated), state(&second, &rotated)),
            (CredState::Foreign, CredState::Foreign)
        );
        assert_eq!(look_at_system(None, &made, now).unwrap().state, CredState::Missing);
    }
}
