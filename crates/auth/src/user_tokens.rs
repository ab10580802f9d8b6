//! The issuer of user bearers, as a part that a host composes (contract 04 §2.3, §3).

use std::{fmt, sync::Arc};

use cotal_trust::{
    bearer::{self, BearerGrant, MintedBearer},
    issuer::{IssuerKeySet, issuer_urn},
};
use cotal_wire::{Space, UnixSecs};

use crate::bridge::{BridgeConfigError, BridgeRefusal};

/// Signs the bearers of one space under its active key. Clones share the keys.
#[derive(Clone)]
pub struct UserTokenIssuer {
    space: Space,
    keys: Arc<IssuerKeySet>,
}

/// The issuer of a space's bearers.
///
/// The callout of the space believes one issuer string, `urn:cotal:auth:<space>`; keys of another one are refused
/// ([`BridgeConfigError::OtherIssuer`]), for no connect would ever accept what they sign.
pub fn create_user_token_issuer(
    space: &Space,
    keys: Arc<IssuerKeySet>,
) -> Result<UserTokenIssuer, BridgeConfigError> {
    if keys.issuer() != issuer_urn(space) {
        return Err(BridgeConfigError::OtherIssuer);
    }
    Ok(UserTokenIssuer { space: space.clone(), keys })
}

impl UserTokenIssuer {
    /// The space that its bearers are for.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// What stands in `iss`.
    pub fn issuer(&self) -> &str {
        self.keys.issuer()
    }

    /// The JWKS document to publish. Serve it with `Cache-Control: max-age=300` at the most: a key that was rotated out
    /// stays published for 300 s and the longest lifetime of a bearer.
    pub fn jwks(&self) -> String {
        self.keys.jwks()
    }

    /// Signs a bearer. The shape of every claim is asserted again, whatever decided it; lifetimes outside 1 s to the
    /// view's cap, and a proof that has expired at `now`, refuse.
    pub fn issue(&self, grant: &BearerGrant, now: UnixSecs) -> Result<MintedBearer, BridgeRefusal> {
        bearer::mint(&self.keys, &self.space, grant, now).map_err(|refusal| BridgeRefusal(refusal.0))
    }
}

impl fmt::Debug for UserTokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserTokenIssuer({})", self.issuer())
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::system::SystemEntropy;

    use super::*;

    #[test]
    fn keys_of_another_space_issue_nothing_here() {
        let space = |name: &str| Space::parse(name).unwrap();
        let keys = Arc::new(IssuerKeySet::create(&space("demo"), &SystemEntropy));
        assert_eq!(
            create_user_token_issuer(&space("demo"), Arc::clone(&keys)).unwrap().issuer(),
            keys.issuer()
        );
        let refusal = create_user_token_issuer(&space("other"), keys).unwrap_err();
        assert_eq!(refusal, BridgeConfigError::OtherIssuer);
    }
}
