//! The quarantined AUTH account of a space (contract 04 §8.1).

use std::fmt;

use cotal_wire::{
    Account, Curve, Entropy, Nkey, Operator, Permissions, Rules, Space, UnixSecs, User, object,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    bundle::{self, BundleError},
    creds::{self, Creds},
    document::{self, SecretText},
    jwt::{self, AccountClaims, CalloutAuthorization, UserClaims},
    nkey::Seed,
};

const WHAT: &str = "callout.json";
/// Where the broker asks.
pub const CALLOUT_SUBJECT: &str = "$SYS.REQ.USER.AUTH";
const EVERYTHING: &str = ">";
const CALLOUT_USER: &str = "callout";
const SENTINEL_USER: &str = "sentinel";

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

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(deserialize_with = "object::read")]
    callout: Stored,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    #[serde(deserialize_with = "object::read")]
    account: StoredAccount,
    callout_creds: SecretText,
    sentinel_creds: SecretText,
    #[serde(deserialize_with = "object::read")]
    xkey: StoredXkey,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredAccount {
    r#pub: String,
    seed: SecretText,
    signing_seed: SecretText,
    signing_pub: String,
    jwt: String,
}

#[derive(Serialize, Deserialize)]
struct StoredXkey {
    seed: SecretText,
    r#pub: String,
}

impl CalloutAuth {
    /// Fresh material.
    pub fn create(
        space: &Space,
        operator: &Seed<Operator>,
        data_account: &Nkey<Account>,
        entropy: &dyn Entropy,
        now: UnixSecs,
    ) -> Self {
        let account = Seed::<Account>::generate(entropy);
        let signing = Seed::<Account>::generate(entropy);
        let xkey = Seed::<Curve>::generate(entropy);
        let callout = Seed::<User>::generate(entropy);
        let sentinel = Seed::<User>::generate(entropy);
        let claims = AccountClaims {
            name: format!("AUTH_{}", space.token()),
            subject: account.public().clone(),
            signing_keys: vec![signing.public().clone()],
            jetstream: false,
            authorization: Some(CalloutAuthorization {
                auth_users: vec![callout.public().clone()],
                allowed_accounts: vec![data_account.clone()],
                xkey: xkey.public().clone(),
            }),
        };
        let user = |name: &str, seed: Seed<User>, permissions: Permissions| {
            let claims = UserClaims {
                name: name.to_owned(),
                subject: seed.public().clone(),
                issuer_account: account.public().clone(),
                permissions,
                tags: Vec::new(),
                exp: None,
            };
            creds::format(&Creds { jwt: jwt::encode_user(&claims, &signing, now), seed })
        };
        Self {
            jwt: jwt::encode_account(&claims, operator, now),
            callout_creds: user(CALLOUT_USER, callout, callout_permissions()),
            sentinel_creds: user(SENTINEL_USER, sentinel, deny_everything()),
            account,
            signing,
            xkey,
        }
    }

    /// The document `callout.json` (`{"ver":1,"callout":{…}}`, 2-space indent).
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write_versioned(&Document {
            callout: Stored {
                account: StoredAccount {
                    r#pub: self.account.public().to_string(),
                    seed: SecretText(self.account.expose()),
                    signing_seed: SecretText(self.signing.expose()),
                    signing_pub: self.signing.public().to_string(),
                    jwt: self.jwt.clone(),
                },
                callout_creds: SecretText(self.callout_creds.clone()),
                sentinel_creds: SecretText(self.sentinel_creds.clone()),
                xkey: StoredXkey {
                    seed: SecretText(self.xkey.expose()),
                    r#pub: self.xkey.public().to_string(),
                },
            },
        })
    }

    /// Reads the document. Seeds must match their keys, the JWT must be the account's, both creds must parse.
    pub fn from_document(text: &str) -> Result<Self, BundleError> {
        let stored = document::read_versioned::<Document>(WHAT, text)?.callout;
        let account = account_seed(&stored.account.seed, &stored.account.r#pub, "account")?;
        let signing = account_seed(&stored.account.signing_seed, &stored.account.signing_pub, "signing")?;
        let xkey = Seed::<Curve>::parse(&stored.xkey.seed.0)
            .map_err(|_| bundle::broken(WHAT, "has no usable curve seed"))?;
        if xkey.public().as_str() != stored.xkey.r#pub {
            return Err(bundle::broken(WHAT, "has a curve seed of another key"));
        }
        for (name, text) in [("callout", &stored.callout_creds), ("sentinel", &stored.sentinel_creds)] {
            creds::parse(&text.0)
                .map_err(|_| bundle::broken(WHAT, &format!("has no usable {name} creds")))?;
        }
        let loaded = Self {
            account,
            signing,
            jwt: stored.account.jwt,
            callout_creds: stored.callout_creds.0,
            sentinel_creds: stored.sentinel_creds.0,
            xkey,
        };
        let claims = bundle::verified(WHAT, "account JWT", &loaded.jwt)?;
        if bundle::text(&claims, "/sub") != Some(loaded.account.public().as_str()) {
            return Err(bundle::broken(WHAT, "has an account JWT of another account"));
        }
        Ok(loaded)
    }

    /// Checks that this account places users in `data_account` alone and stands for exactly these keys
    /// (contract 04 §15).
    pub fn check_for(&self, data_account: &Nkey<Account>) -> Result<(), BundleError> {
        let claims = bundle::verified(WHAT, "account JWT", &self.jwt)?;
        let callout = creds::parse(&self.callout_creds)
            .map_err(|_| bundle::broken(WHAT, "has no usable callout creds"))?;
        let sole = |pointer: &str, only: &str| bundle::is_sole(claims.pointer(pointer), only);
        if bundle::text(&claims, "/sub") != Some(self.account.public().as_str())
            || !sole("/nats/signing_keys", self.signing.public().as_str())
            || !sole("/nats/authorization/allowed_accounts", data_account.as_str())
            || !sole("/nats/authorization/auth_users", callout.seed.public().as_str())
            || bundle::text(&claims, "/nats/authorization/xkey") != Some(self.xkey.public().as_str())
        {
            return Err(bundle::broken(
                WHAT,
                "has an account JWT that is not exactly for its keys and this space's data account",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for CalloutAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalloutAuth").field("account", self.account.public()).finish_non_exhaustive()
    }
}

fn account_seed(seed: &SecretText, public: &str, which: &str) -> Result<Seed<Account>, BundleError> {
    let seed = Seed::<Account>::parse(&seed.0)
        .map_err(|_| bundle::broken(WHAT, &format!("has no usable {which} seed")))?;
    if seed.public().as_str() == public {
        Ok(seed)
    } else {
        Err(bundle::broken(WHAT, &format!("has {which} keys that do not match")))
    }
}

fn callout_permissions() -> Permissions {
    Permissions {
        publish: Rules { allow: vec![EVERYTHING.to_owned()], deny: vec![CALLOUT_SUBJECT.to_owned()] },
        subscribe: Rules { allow: vec![CALLOUT_SUBJECT.to_owned()], deny: Vec::new() },
    }
}

fn deny_everything() -> Permissions {
    let nothing = Rules { allow: Vec::new(), deny: vec![EVERYTHING.to_owned()] };
    Permissions { publish: nothing.clone(), subscribe: nothing }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        bundle::{BrokerTrust, SpaceAccount},
        system::SystemEntropy,
    };

    const NOW: UnixSecs = UnixSecs(1_700_000_000);

    fn made() -> (CalloutAuth, SpaceAccount) {
        let space = Space::parse("main").unwrap();
        let broker = BrokerTrust::create("main", &SystemEntropy, NOW);
        let data = SpaceAccount::create(&broker, &space, &SystemEntropy, NOW);
        let auth = CalloutAuth::create(&space, &broker.operator, data.account.public(), &SystemEntropy, NOW);
        (auth, data)
    }

    #[test]
    fn the_account_and_its_users_say_what_the_contract_says() {
        let (auth, data) = made();
        let claims = jwt::decode_verified(&auth.jwt).unwrap();
        let callout = creds::parse(&auth.callout_creds).unwrap();
        assert_eq!(claims["name"], "AUTH_main");
        assert_eq!(claims["nats"]["limits"]["mem_storage"], 0);
        assert_eq!(
            claims["nats"]["authorization"],
            json!({
                "auth_users": [callout.seed.public()],
                "allowed_accounts": [data.account.public()],
                "xkey": auth.xkey.public(),
            })
        );
        let claims = jwt::decode_verified(&callout.jwt).unwrap();
        assert_eq!(claims["name"], "callout");
        assert_eq!(claims["iss"], json!(auth.signing.public()));
        assert_eq!(claims["nats"]["issuer_account"], json!(auth.account.public()));
        assert_eq!(claims["nats"]["pub"], json!({"allow": [">"], "deny": ["$SYS.REQ.USER.AUTH"]}));
        assert_eq!(claims["nats"]["sub"], json!({"allow": ["$SYS.REQ.USER.AUTH"]}));
        assert!(claims.get("exp").is_none() && claims["nats"].get("tags").is_none());
        let sentinel = creds::parse(&auth.sentinel_creds).unwrap();
        let claims = jwt::decode_verified(&sentinel.jwt).unwrap();
        assert_eq!(claims["name"], "sentinel");
        assert_eq!(claims["nats"]["pub"], json!({"deny": [">"]}));
        assert_eq!(claims["nats"]["sub"], json!({"deny": [">"]}));
        assert_ne!(sentinel.seed.public(), callout.seed.public());
    }

    #[test]
    fn it_prints_parses_and_fits_its_own_data_account_only() {
        let (auth, data) = made();
        let text = auth.to_document();
        assert!(
            text.starts_with("{\n  \"ver\": 1,\n  \"callout\": {\n    \"account\": {\n      \"pub\": \"A")
        );
        let back = CalloutAuth::from_document(&text).unwrap();
        assert_eq!(*back.to_document(), *text);
        assert_eq!(back.check_for(data.account.public()), Ok(()));
        assert!(back.check_for(auth.account.public()).is_err());
    }

    #[test]
    fn a_document_that_does_not_hold_together_is_refused() {
        let (good, other) = (made().0, made().0);
        let good: Value = serde_json::from_str(&good.to_document()).unwrap();
        let other: Value = serde_json::from_str(&other.to_document()).unwrap();
        for pointer in [
            "/callout/account/pub",
            "/callout/account/seed",
            "/callout/account/signingSeed",
            "/callout/account/signingPub",
            "/callout/account/jwt",
            "/callout/xkey/seed",
            "/callout/xkey/pub",
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = other.pointer(pointer).unwrap().clone();
            assert!(CalloutAuth::from_document(&bad.to_string()).is_err(), "{pointer} of another account");
            *bad.pointer_mut(pointer).unwrap() = json!("");
            assert!(CalloutAuth::from_document(&bad.to_string()).is_err(), "empty {pointer}");
        }
        for pointer in ["/callout/calloutCreds", "/callout/sentinelCreds"] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = json!("x");
            assert!(CalloutAuth::from_document(&bad.to_string()).is_err(), "broken {pointer}");
        }
        // A derived reader would take the members of an object in order.
        for (pointer, members) in [
            ("/callout/xkey", &["seed", "pub"][..]),
            ("/callout/account", &["pub", "seed", "signingSeed", "signingPub", "jwt"]),
            ("/callout", &["account", "calloutCreds", "sentinelCreds", "xkey"]),
        ] {
            let mut bad = good.clone();
            let object = bad.pointer_mut(pointer).unwrap();
            *object = members.iter().map(|member| object[*member].clone()).collect();
            assert!(CalloutAuth::from_document(&bad.to_string()).is_err(), "{pointer} as an array");
        }
        let mut bad = good.clone();
        bad["ver"] = json!(2);
        assert!(CalloutAuth::from_document(&bad.to_string()).is_err());
    }
}
