//! The trust of a broker and of its spaces (contract 01 §3).

use std::fmt;

use cotal_wire::{Account, Entropy, Nkey, Operator, Space, UnixSecs, object, time::MAX_SAFE_INTEGER, token};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    document::{self, SecretText},
    jwt::{self, AccountClaims},
    nkey::Seed,
};

const BROKER: &str = "broker.json";
const ACCOUNT: &str = "the space's account record";
const SERVICE_KEYS: &str = "service-keys.json";
/// JWT name of every system account.
const SYS_NAME: &str = "SYS";

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

// === documents ===

#[derive(Serialize, Deserialize)]
struct BrokerDocument {
    #[serde(deserialize_with = "object::read")]
    operator: OperatorDocument,
    #[serde(deserialize_with = "object::read")]
    sys: SysDocument,
    /// Any JSON but a safe integer is corrupt, `null` included; absent is generation 0.
    #[serde(default, rename = "gen", skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    generation: Option<Value>,
}

/// Keeps `null` apart from an absent member.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Serialize, Deserialize)]
struct OperatorDocument {
    seed: SecretText,
    jwt: String,
}

#[derive(Serialize, Deserialize)]
struct SysDocument {
    r#pub: String,
    jwt: String,
}

#[derive(Serialize, Deserialize)]
struct AccountDocument {
    space: String,
    #[serde(deserialize_with = "object::read")]
    account: AccountKeys,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountKeys {
    r#pub: String,
    seed: SecretText,
    jwt: String,
    signing_seed: SecretText,
    signing_pub: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceKeysDocument {
    #[serde(deserialize_with = "object::read")]
    data_account: ServiceKeys,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceKeys {
    r#pub: String,
    signing_seed: SecretText,
}

// === broker ===

impl BrokerTrust {
    /// Fresh operator and system account; `label` is the space's name on a broker of one space.
    pub fn create(label: &str, entropy: &dyn Entropy, now: UnixSecs) -> Self {
        let operator = Seed::<Operator>::generate(entropy);
        Self::with_fresh_system_account(
            &format!("cotal-{}", token::sanitize(label)),
            operator,
            0,
            entropy,
            now,
        )
    }

    fn with_fresh_system_account(
        name: &str,
        operator: Seed<Operator>,
        generation: u64,
        entropy: &dyn Entropy,
        now: UnixSecs,
    ) -> Self {
        let sys = Seed::<Account>::generate(entropy);
        let claims = AccountClaims {
            name: SYS_NAME.to_owned(),
            subject: sys.public().clone(),
            signing_keys: Vec::new(),
            jetstream: false,
            authorization: None,
        };
        Self {
            operator_jwt: jwt::encode_operator(name, &operator, sys.public(), now),
            sys: sys.public().clone(),
            sys_jwt: jwt::encode_account(&claims, &operator, now),
            sys_signing_seed: Some(sys),
            operator,
            generation,
        }
    }

    /// The direct successor with a fresh system account under the same operator (contract 01 §3.2). The seed that
    /// signs system-account users lives in the result alone.
    pub fn rotate_system_account(&self, entropy: &dyn Entropy, now: UnixSecs) -> Result<Self, BundleError> {
        let claims = verified(BROKER, "operator JWT", &self.operator_jwt)?;
        let name = claims.get("name").and_then(Value::as_str).unwrap_or_default();
        let generation =
            self.generation.checked_add(1).filter(|generation| *generation <= MAX_SAFE_INTEGER).ok_or_else(
                || BundleError("the system account has been rotated too often to count".into()),
            )?;
        Ok(Self::with_fresh_system_account(name, self.operator.clone(), generation, entropy, now))
    }

    /// The same system account with one more signing key: what signs the users of a space that joins a broker which
    /// runs. Its key and every user that it has already stay good; the broker must be told the new JWT.
    ///
    /// Contract 01 §3.2 lets system-account users be minted beside the fresh account alone, and so could never give a
    /// second space its own without ending the first one's connections. Here too the seed lives in the result alone.
    pub fn add_system_signer(&self, entropy: &dyn Entropy, now: UnixSecs) -> Result<Self, BundleError> {
        let mut signing_keys = self.system_signers()?;
        let signer = Seed::<Account>::generate(entropy);
        signing_keys.push(signer.public().clone());
        let claims = AccountClaims {
            name: SYS_NAME.to_owned(),
            subject: self.sys.clone(),
            signing_keys,
            jetstream: false,
            authorization: None,
        };
        Ok(Self {
            sys_jwt: jwt::encode_account(&claims, &self.operator, now),
            sys_signing_seed: Some(signer),
            ..self.clone()
        })
    }

    /// The signing keys of the system account; its own key, which signs too, is not among them.
    pub fn system_signers(&self) -> Result<Vec<Nkey<Account>>, BundleError> {
        let claims = verified(BROKER, "system account JWT", &self.sys_jwt)?;
        let Some(keys) = claims.pointer("/nats/signing_keys") else { return Ok(Vec::new()) };
        let keys = keys.as_array().map(|keys| {
            keys.iter().map(|key| key.as_str().and_then(|key| Nkey::parse(key).ok())).collect::<Option<_>>()
        });
        keys.flatten().ok_or_else(|| {
            broken(BROKER, "has a system account JWT with a signing key that is no account key")
        })
    }

    /// The persisted document `auth/broker.json` (JSON text, 2-space indent), without `sys.signingSeed`.
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write(&BrokerDocument {
            operator: OperatorDocument {
                seed: SecretText(self.operator.expose()),
                jwt: self.operator_jwt.clone(),
            },
            sys: SysDocument { r#pub: self.sys.to_string(), jwt: self.sys_jwt.clone() },
            generation: (self.generation > 0).then(|| self.generation.into()),
        })
    }

    /// Reads and validates the persisted document: seed, keys, subjects, issuers and names.
    pub fn from_document(text: &str) -> Result<Self, BundleError> {
        let document: BrokerDocument = document::read(BROKER, text)?;
        let operator = operator_seed(&document.operator.seed)?;
        let sys = Nkey::<Account>::parse(&document.sys.r#pub)
            .map_err(|_| broken(BROKER, "has no usable system account key"))?;
        let generation = match document.generation {
            None => 0,
            Some(value) => {
                value.as_u64().filter(|generation| *generation <= MAX_SAFE_INTEGER).ok_or_else(|| {
                    broken(BROKER, "has a generation that is not a whole number from 0 to 2^53-1")
                })?
            }
        };
        let claims = verified(BROKER, "operator JWT", &document.operator.jwt)?;
        expect(BROKER, "operator JWT", &claims, "operator", operator.public().as_str(), operator.public())?;
        if claims.pointer("/nats/system_account").and_then(Value::as_str) != Some(sys.as_str()) {
            return Err(broken(BROKER, "has an operator JWT that names another system account"));
        }
        let claims = verified(BROKER, "system account JWT", &document.sys.jwt)?;
        expect(BROKER, "system account JWT", &claims, "account", sys.as_str(), operator.public())?;
        Ok(Self {
            operator,
            operator_jwt: document.operator.jwt,
            sys,
            sys_jwt: document.sys.jwt,
            sys_signing_seed: None,
            generation,
        })
    }
}

/// A missing seed and an unusable one are different refusals (contract 01 §3.2).
fn operator_seed(seed: &SecretText) -> Result<Seed<Operator>, BundleError> {
    if seed.0.is_empty() {
        return Err(broken(BROKER, "has no operator seed"));
    }
    Seed::parse(&seed.0).map_err(|_| broken(BROKER, "has an operator seed that cannot be used"))
}

// === space ===

impl SpaceAccount {
    /// Fresh data account of a space under this broker.
    pub fn create(broker: &BrokerTrust, space: &Space, entropy: &dyn Entropy, now: UnixSecs) -> Self {
        let (account, signing) = (Seed::generate(entropy), Seed::generate(entropy));
        let jwt = Self::encode(&broker.operator, space, &account, &signing, now);
        Self { space: space.clone(), account, jwt, signing }
    }

    fn encode(
        operator: &Seed<Operator>,
        space: &Space,
        account: &Seed<Account>,
        signing: &Seed<Account>,
        now: UnixSecs,
    ) -> String {
        let claims = AccountClaims {
            name: space.token().to_string(),
            subject: account.public().clone(),
            signing_keys: vec![signing.public().clone()],
            jetstream: true,
            authorization: None,
        };
        jwt::encode_account(&claims, operator, now)
    }

    /// The same account with a fresh signing key, and that key alone (contract 01 §3.2): every user that the earlier
    /// key signed is out once the broker has the new JWT.
    pub fn rotate_data_signer(
        &self,
        broker: &BrokerTrust,
        entropy: &dyn Entropy,
        now: UnixSecs,
    ) -> Result<Self, BundleError> {
        self.check_signed_by(broker)?;
        let signing = Seed::generate(entropy);
        let jwt = Self::encode(&broker.operator, &self.space, &self.account, &signing, now);
        Ok(Self { space: self.space.clone(), account: self.account.clone(), jwt, signing })
    }

    /// The persisted document `auth/account.<hex>.json`.
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write(&AccountDocument {
            space: self.space.to_string(),
            account: AccountKeys {
                r#pub: self.account.public().to_string(),
                seed: SecretText(self.account.expose()),
                jwt: self.jwt.clone(),
                signing_seed: SecretText(self.signing.expose()),
                signing_pub: self.signing.public().to_string(),
            },
        })
    }

    /// Reads and validates the persisted document for `space`. Which operator signed the account is for
    /// [`Self::check_signed_by`].
    pub fn from_document(text: &str, space: &Space) -> Result<Self, BundleError> {
        let document: AccountDocument = document::read(ACCOUNT, text)?;
        if document.space != space.as_str() {
            return Err(broken(ACCOUNT, "is of another space"));
        }
        let keys = document.account;
        let account = Seed::<Account>::parse(&keys.seed.0)
            .map_err(|_| broken(ACCOUNT, "has an account seed that cannot be used"))?;
        let signing = Seed::<Account>::parse(&keys.signing_seed.0)
            .map_err(|_| broken(ACCOUNT, "has a signing seed that cannot be used"))?;
        if account.public().as_str() != keys.r#pub {
            return Err(broken(ACCOUNT, "has an account seed of another key"));
        }
        if signing.public().as_str() != keys.signing_pub {
            return Err(broken(ACCOUNT, "has a signing seed of another key"));
        }
        let loaded = Self { space: space.clone(), account, jwt: keys.jwt, signing };
        loaded.check_jwt()?;
        Ok(loaded)
    }

    /// The claims hold together: subject, name and the one signing key. Returns them.
    fn check_jwt(&self) -> Result<Value, BundleError> {
        let claims = verified(ACCOUNT, "account JWT", &self.jwt)?;
        if text(&claims, "/sub") != Some(self.account.public().as_str())
            || text(&claims, "/nats/type") != Some("account")
        {
            return Err(broken(ACCOUNT, "has an account JWT of another account"));
        }
        if text(&claims, "/name") != Some(self.space.token().as_str()) {
            return Err(broken(ACCOUNT, "has an account JWT of another name"));
        }
        if !is_sole(claims.pointer("/nats/signing_keys"), self.signing.public().as_str()) {
            return Err(broken(ACCOUNT, "has an account JWT that does not name exactly its signing key"));
        }
        Ok(claims)
    }

    /// The signing half.
    pub fn data_account(&self) -> DataAccount {
        DataAccount { account: self.account.public().clone(), signing: self.signing.clone() }
    }

    /// The compose check: the account JWT's issuer is this broker's operator, and every seed matches its key.
    pub fn check_signed_by(&self, broker: &BrokerTrust) -> Result<(), BundleError> {
        let claims = self.check_jwt()?;
        if text(&claims, "/iss") != Some(broker.operator.public().as_str()) {
            return Err(broken(ACCOUNT, "was signed by another operator than this broker's"));
        }
        Ok(())
    }
}

// === service keys ===

impl DataAccount {
    /// The document `service-keys.json` (contract 04 §6.2).
    pub fn to_document(&self) -> Zeroizing<String> {
        document::write_versioned(&ServiceKeysDocument {
            data_account: ServiceKeys {
                r#pub: self.account.to_string(),
                signing_seed: SecretText(self.signing.expose()),
            },
        })
    }

    /// Reads the document `service-keys.json`.
    pub fn from_document(text: &str) -> Result<Self, BundleError> {
        let keys = document::read_versioned::<ServiceKeysDocument>(SERVICE_KEYS, text)?.data_account;
        Ok(Self {
            account: Nkey::parse(&keys.r#pub)
                .map_err(|_| broken(SERVICE_KEYS, "has no usable data account key"))?,
            signing: Seed::parse(&keys.signing_seed.0)
                .map_err(|_| broken(SERVICE_KEYS, "has no usable signing seed"))?,
        })
    }
}

impl fmt::Debug for BrokerTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrokerTrust(of {})", self.operator.public())
    }
}

impl fmt::Debug for SpaceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpaceAccount({} of {:?})", self.account.public(), self.space)
    }
}

impl fmt::Debug for DataAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataAccount({})", self.account)
    }
}

// === shared checks ===

pub(crate) fn broken(what: &str, why: &str) -> BundleError {
    BundleError(format!("{what} {why}; restore it from a backup"))
}

/// The claims of a stored JWT whose signature verifies.
pub(crate) fn verified(what: &str, which: &str, token: &str) -> Result<Value, BundleError> {
    jwt::decode_verified(token).map_err(|_| broken(what, &format!("has no valid {which}")))
}

pub(crate) fn text<'a>(claims: &'a Value, pointer: &str) -> Option<&'a str> {
    claims.pointer(pointer).and_then(Value::as_str)
}

/// Whether this is a list of exactly this one string.
pub(crate) fn is_sole(list: Option<&Value>, only: &str) -> bool {
    matches!(list.and_then(Value::as_array).map(Vec::as_slice), Some([Value::String(one)]) if one == only)
}

/// Kind, subject and issuer of a stored JWT.
pub(crate) fn expect(
    what: &str,
    which: &str,
    claims: &Value,
    kind: &str,
    subject: &str,
    issuer: &Nkey<Operator>,
) -> Result<(), BundleError> {
    if text(claims, "/nats/type") != Some(kind) || text(claims, "/sub") != Some(subject) {
        return Err(broken(what, &format!("has a {which} of another key")));
    }
    if text(claims, "/iss") != Some(issuer.as_str()) {
        return Err(broken(what, &format!("has a {which} signed by another operator")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::system::SystemEntropy;

    const NOW: UnixSecs = UnixSecs(1_700_000_000);

    fn broker() -> BrokerTrust {
        BrokerTrust::create("my space", &SystemEntropy, NOW)
    }

    fn space() -> Space {
        Space::parse("my space").unwrap()
    }

    #[test]
    fn a_broker_prints_and_parses_to_itself_without_its_system_seed() {
        let broker = broker();
        let text = broker.to_document();
        assert!(!text.contains("signingSeed") && !text.contains("\"gen\""));
        assert!(!text.contains(&**broker.sys_signing_seed.as_ref().unwrap().expose()));
        assert!(text.starts_with("{\n  \"operator\": {\n    \"seed\": \"SO"));
        let back = BrokerTrust::from_document(&text).unwrap();
        assert_eq!(back.operator.public(), broker.operator.public());
        assert_eq!(
            (&back.operator_jwt, &back.sys, &back.sys_jwt),
            (&broker.operator_jwt, &broker.sys, &broker.sys_jwt)
        );
        assert!(back.sys_signing_seed.is_none() && back.generation == 0);
        assert_eq!(jwt::decode_verified(&back.operator_jwt).unwrap()["name"], "cotal-my_space");
    }

    #[test]
    fn a_signer_that_is_added_to_the_system_account_leaves_the_account_and_the_earlier_ones_and_is_not_stored()
     {
        let made = broker();
        assert_eq!(made.system_signers().unwrap(), []);
        let one = made.add_system_signer(&SystemEntropy, NOW.plus(1)).unwrap();
        let two = one.add_system_signer(&SystemEntropy, NOW.plus(2)).unwrap();
        let key = |broker: &BrokerTrust| broker.sys_signing_seed.as_ref().unwrap().public().clone();
        assert_eq!(two.system_signers().unwrap(), [key(&one), key(&two)]);
        assert_eq!((&two.sys, &two.operator_jwt, two.generation), (&made.sys, &made.operator_jwt, 0));
        let text = two.to_document();
        assert!(!text.contains(&**two.sys_signing_seed.as_ref().unwrap().expose()));
        let back = BrokerTrust::from_document(&text).unwrap();
        assert_eq!(back.system_signers().unwrap(), two.system_signers().unwrap());
        let rotated = two.rotate_system_account(&SystemEntropy, NOW.plus(3)).unwrap();
        assert_eq!(rotated.system_signers().unwrap(), []);
    }

    #[test]
    fn rotating_the_system_account_is_the_direct_successor_under_the_same_operator() {
        let old = broker();
        let new = old.rotate_system_account(&SystemEntropy, NOW.plus(9)).unwrap();
        assert_eq!(new.operator.public(), old.operator.public());
        assert_ne!(new.sys, old.sys);
        assert_eq!(new.generation, 1);
        assert_eq!(new.sys_signing_seed.as_ref().unwrap().public(), &new.sys);
        let stored = new.to_document();
        assert!(stored.contains("\"gen\": 1"));
        let back = BrokerTrust::from_document(&stored).unwrap();
        assert_eq!((back.generation, &back.sys), (1, &new.sys));
        assert_eq!(jwt::decode_verified(&new.operator_jwt).unwrap()["name"], "cotal-my_space");
        let last = BrokerTrust { generation: MAX_SAFE_INTEGER, ..old };
        assert!(last.rotate_system_account(&SystemEntropy, NOW).is_err());
    }

    type Case<'a> = (&'a dyn Fn(&mut Value), &'a str);

    #[test]
    fn a_broker_document_that_does_not_hold_together_is_refused() {
        let good: Value = serde_json::from_str(&broker().to_document()).unwrap();
        let other: Value = serde_json::from_str(&broker().to_document()).unwrap();
        let cases: [Case<'_>; 12] = [
            (&|d| d["operator"]["seed"] = json!(""), "has no operator seed"),
            (&|d| d["operator"]["seed"] = json!("SOX"), "operator seed that cannot be used"),
            (&|d| d["operator"]["seed"] = other["operator"]["seed"].clone(), "operator JWT of another key"),
            (&|d| d["operator"]["jwt"] = json!(""), "no valid operator JWT"),
            (&|d| d["sys"]["pub"] = json!(""), "no usable system account key"),
            (&|d| d["sys"]["pub"] = other["sys"]["pub"].clone(), "names another system account"),
            (&|d| d["sys"]["jwt"] = other["sys"]["jwt"].clone(), "system account JWT of another key"),
            (&|d| d["gen"] = json!(null), "generation"),
            (&|d| d["gen"] = json!("1"), "generation"),
            (&|d| d["gen"] = json!(1.5), "generation"),
            (&|d| d["gen"] = json!(-1), "generation"),
            (&|d| d["gen"] = json!(MAX_SAFE_INTEGER + 1), "generation"),
        ];
        for (change, why) in cases {
            let mut bad = good.clone();
            change(&mut bad);
            let refusal = BrokerTrust::from_document(&bad.to_string()).unwrap_err().0;
            assert!(refusal.contains(why), "{refusal:?} should say {why:?}");
        }
    }

    /// The members of an object in order, as a derived reader would take them.
    fn flat(object: &Value, members: &[&str]) -> Value {
        members.iter().map(|member| object[*member].clone()).collect()
    }

    #[test]
    fn a_document_of_arrays_in_place_of_objects_is_refused() {
        let broker = broker();
        let account = SpaceAccount::create(&broker, &space(), &SystemEntropy, NOW);
        let keys = account.data_account();
        let good: Value = serde_json::from_str(&broker.to_document()).unwrap();
        let (operator, sys) =
            (flat(&good["operator"], &["seed", "jwt"]), flat(&good["sys"], &["pub", "jwt"]));
        for bad in [
            json!({"operator": operator, "sys": good["sys"]}),
            json!({"operator": good["operator"], "sys": sys}),
            json!([good["operator"], good["sys"]]),
        ] {
            assert!(BrokerTrust::from_document(&bad.to_string()).is_err());
        }
        let good: Value = serde_json::from_str(&account.to_document()).unwrap();
        let members = flat(&good["account"], &["pub", "seed", "jwt", "signingSeed", "signingPub"]);
        for bad in [json!({"space": "main", "account": members}), json!(["main", good["account"]])] {
            assert!(SpaceAccount::from_document(&bad.to_string(), &space()).is_err());
        }
        let good: Value = serde_json::from_str(&keys.to_document()).unwrap();
        let members = flat(&good["dataAccount"], &["pub", "signingSeed"]);
        assert!(DataAccount::from_document(&json!({"ver": 1, "dataAccount": members}).to_string()).is_err());
    }

    #[test]
    fn a_space_account_prints_parses_and_composes_with_its_own_broker_only() {
        let broker = broker();
        let account = SpaceAccount::create(&broker, &space(), &SystemEntropy, NOW);
        let back = SpaceAccount::from_document(&account.to_document(), &space()).unwrap();
        assert_eq!(back.jwt, account.jwt);
        assert_eq!(back.check_signed_by(&broker), Ok(()));
        let refusal = back.check_signed_by(&self::broker()).unwrap_err().0;
        assert!(refusal.contains("another operator"));
        assert!(
            SpaceAccount::from_document(&account.to_document(), &Space::parse("other").unwrap()).is_err()
        );
    }

    #[test]
    fn rotating_the_data_signer_keeps_the_account_and_names_only_the_new_key() {
        let broker = broker();
        let old = SpaceAccount::create(&broker, &space(), &SystemEntropy, NOW);
        let new = old.rotate_data_signer(&broker, &SystemEntropy, NOW).unwrap();
        assert_eq!(new.account.public(), old.account.public());
        assert_ne!(new.signing.public(), old.signing.public());
        assert_eq!(new.check_signed_by(&broker), Ok(()));
        let mixed = SpaceAccount { signing: old.signing.clone(), ..new };
        assert!(mixed.check_signed_by(&broker).is_err(), "the earlier key is named no more");
        assert!(old.rotate_data_signer(&self::broker(), &SystemEntropy, NOW).is_err());
    }

    #[test]
    fn an_account_document_that_does_not_hold_together_is_refused() {
        let broker = broker();
        let make = || {
            let account = SpaceAccount::create(&broker, &space(), &SystemEntropy, NOW);
            serde_json::from_str::<Value>(&account.to_document()).unwrap()
        };
        let (good, other) = (make(), make());
        for (member, why) in [
            ("seed", "account seed of another key"),
            ("pub", "account seed of another key"),
            ("signingSeed", "signing seed of another key"),
            ("signingPub", "signing seed of another key"),
            ("jwt", "account JWT of another account"),
        ] {
            let mut bad = good.clone();
            bad["account"][member] = other["account"][member].clone();
            let refusal = SpaceAccount::from_document(&bad.to_string(), &space()).unwrap_err().0;
            assert!(refusal.contains(why), "{refusal:?} should say {why:?}");
            bad["account"][member] = json!("");
            assert!(SpaceAccount::from_document(&bad.to_string(), &space()).is_err());
        }
    }

    #[test]
    fn service_keys_print_and_parse_to_themselves() {
        let data = SpaceAccount::create(&broker(), &space(), &SystemEntropy, NOW).data_account();
        let text = data.to_document();
        assert!(text.starts_with("{\n  \"ver\": 1,\n  \"dataAccount\": {\n    \"pub\": \"A"));
        let back = DataAccount::from_document(&text).unwrap();
        assert_eq!(back.account, data.account);
        assert_eq!(back.signing.public(), data.signing.public());
        assert!(DataAccount::from_document(&text.replace("\"ver\": 1", "\"ver\": 2")).is_err());
        assert!(!format!("{data:?}").contains("SA"));
    }

    proptest! {
        #[test]
        fn arbitrary_documents_never_panic(text in ".{0,200}") {
            let _ = BrokerTrust::from_document(&text);
            let _ = SpaceAccount::from_document(&text, &space());
            let _ = DataAccount::from_document(&text);
            let _ = crate::callout_account::CalloutAuth::from_document(&text);
            let _ = crate::issuer::IssuerKeySet::from_document(&text, &space());
            let _ = crate::owner::OwnerSecret::from_document(&text);
        }
    }
}
