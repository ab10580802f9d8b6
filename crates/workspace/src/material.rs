//! The user-auth material of a space: what `up --user-auth` prepares and the auth service loads (contract 04 §6).
//!
//! The IdP pin and the discovery file are plain files of the state directory; the four secrets go through the
//! [`SecretStore`]. Each document carries `"ver": 1` first. None has a default and none is migrated: a document that
//! does not read is refused, because a fresh one in its place would re-key the space.

use std::{io, path::Path};

use cotal_trust::{
    bundle::DataAccount, callout_account::CalloutAuth, idp::IdpPin, issuer::IssuerKeySet, nkey::Seed,
    owner::OwnerSecret,
};
use cotal_wire::{Account, Clock, Entropy, Nkey, Operator, Space};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::{file, root::space_segment, secret_store::SecretStore};

/// The version that every document carries.
const VERSION: u64 = 1;
const IDP_FILE: &str = "idp.json";
const CALLOUT_FILE: &str = "callout.json";
const ISSUER_FILE: &str = "issuer.json";
const OWNER_SECRET_FILE: &str = "owner-secret.json";
const SERVICE_KEYS_FILE: &str = "service-keys.json";
const DISCOVERY_FILE: &str = "auth-service.json";
/// What makes material that is not there.
const PREPARE_HINT: &str = "run `cotal up --user-auth --idp <url>` on this machine";

/// Material that is missing, garbled or of another space.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MaterialError(pub String);

impl From<io::Error> for MaterialError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

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

/// Kept for signatures that name the account key.
pub type DataAccountKey = Nkey<Account>;

#[derive(Deserialize)]
struct Version {
    ver: u64,
}

#[derive(Serialize)]
struct Versioned<T> {
    ver: u64,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceKeysDocument<Text> {
    data_account: ServiceKeysEntry<Text>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceKeysEntry<Text> {
    #[serde(rename = "pub")]
    public: Text,
    signing_seed: Text,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoveryDocument<Text> {
    url: Text,
    pid: u32,
    cap: Text,
    #[serde(skip_serializing_if = "Option::is_none", default = "Option::default")]
    public_url: Option<Text>,
}

impl UserAuthMaterial {
    /// Loads all five; what is missing is listed in one error.
    pub async fn load(
        store: &dyn SecretStore,
        state_dir: &Path,
        space: &Space,
    ) -> Result<Self, MaterialError> {
        let idp = load_idp_pin(state_dir)?;
        let callout = load_secret(store, space, CALLOUT_FILE, CalloutAuth::from_document).await?;
        let issuer =
            load_secret(store, space, ISSUER_FILE, |text| IssuerKeySet::from_document(text, space)).await?;
        let owner_secret = load_secret(store, space, OWNER_SECRET_FILE, OwnerSecret::from_document).await?;
        let data_account = load_secret(store, space, SERVICE_KEYS_FILE, service_keys_from).await?;
        match (data_account, callout, issuer, owner_secret, idp) {
            (Some(data_account), Some(callout), Some(issuer), Some(owner_secret), Some(idp)) => {
                Ok(Self { data_account, callout, issuer, owner_secret, idp })
            }
            (data_account, callout, issuer, owner_secret, idp) => {
                let found = [
                    (IDP_FILE, idp.is_some()),
                    (CALLOUT_FILE, callout.is_some()),
                    (ISSUER_FILE, issuer.is_some()),
                    (OWNER_SECRET_FILE, owner_secret.is_some()),
                    (SERVICE_KEYS_FILE, data_account.is_some()),
                ];
                let missing: Vec<_> =
                    found.iter().filter(|(_, found)| !found).map(|(name, _)| *name).collect();
                Err(MaterialError(format!(
                    "space {:?} lacks user-auth material ({}): {PREPARE_HINT}",
                    space.as_str(),
                    missing.join(", ")
                )))
            }
        }
    }
}

/// Load-or-create of all five, in the order of contract 04 §6.5 (steps 3-7; the JWKS probe is the caller's).
#[allow(
    clippy::too_many_arguments,
    reason = "each is a seam of its own; a struct would only name them twice"
)]
pub async fn prepare(
    store: &dyn SecretStore,
    state_dir: &Path,
    space: &Space,
    idp_url: Option<&str>,
    operator: &Seed<Operator>,
    data_account: &DataAccount,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<UserAuthMaterial, MaterialError> {
    let idp = ensure_pinned_idp(state_dir, space, idp_url)?;
    let owner_secret = load_or_create(store, space, OWNER_SECRET_FILE, OwnerSecret::from_document, || {
        OwnerSecret::generate(entropy).to_document()
    })
    .await?;
    let issuer = load_or_create(
        store,
        space,
        ISSUER_FILE,
        |text| IssuerKeySet::from_document(text, space),
        || IssuerKeySet::create(space, entropy).to_document(),
    )
    .await?;
    let callout = load_or_create(store, space, CALLOUT_FILE, CalloutAuth::from_document, || {
        CalloutAuth::create(space, operator, &data_account.account, entropy, clock.now_secs()).to_document()
    })
    .await?;
    let key = secret_key(space, SERVICE_KEYS_FILE);
    store
        .put(&key, &service_keys_document(data_account)?)
        .await
        .map_err(|e| MaterialError(format!("{key}: {e}")))?;
    Ok(UserAuthMaterial { data_account: data_account.clone(), callout, issuer, owner_secret, idp })
}

/// The pin, or `None` when absent.
pub fn load_idp_pin(state_dir: &Path) -> Result<Option<IdpPin>, MaterialError> {
    let path = state_dir.join(IDP_FILE);
    let Some(text) = file::read_text(&path)? else { return Ok(None) };
    let pin: IdpPin = parse(&path.display().to_string(), &text)?;
    if [&pin.url, &pin.issuer, &pin.audience, &pin.jwks_uri].iter().any(|member| member.is_empty()) {
        return Err(MaterialError(format!(
            "{} has an empty member; restore it from a backup",
            path.display()
        )));
    }
    Ok(Some(pin))
}

/// The pin of a space: the existing one, or a first one of `idp_url` (contract 04 §6.3). Every owner of the space
/// derives from the pinned issuer, so a pin is never replaced.
fn ensure_pinned_idp(
    state_dir: &Path,
    space: &Space,
    idp_url: Option<&str>,
) -> Result<IdpPin, MaterialError> {
    if let Some(pin) = load_idp_pin(state_dir)? {
        return same_idp(pin, space, idp_url);
    }
    let url = idp_url.ok_or_else(|| {
        MaterialError(format!(
            "space {:?} has no IdP yet: name it once with `cotal up --user-auth --idp <auth base URL>`",
            space.as_str()
        ))
    })?;
    let pin = IdpPin::from_url(url).map_err(|e| MaterialError(e.to_string()))?;
    file::ensure_private_dir(state_dir)?;
    let text = document(&pin)?;
    if file::create_exclusive(&state_dir.join(IDP_FILE), text.as_bytes())? {
        return Ok(pin);
    }
    let winner = load_idp_pin(state_dir)?.ok_or_else(|| vanished(space, IDP_FILE))?;
    same_idp(winner, space, Some(&pin.url))
}

/// The pin, when `idp_url` is left out or is the pinned URL as it is stored.
fn same_idp(pin: IdpPin, space: &Space, idp_url: Option<&str>) -> Result<IdpPin, MaterialError> {
    match idp_url {
        Some(url) if url != pin.url => Err(MaterialError(format!(
            "space {:?} is pinned to the IdP {} and another one would re-key every owner: leave --idp out, or pass \
             exactly that URL",
            space.as_str(),
            pin.url
        ))),
        _ => Ok(pin),
    }
}

impl Discovery {
    /// Reads it; `None` when absent.
    pub fn load(state_dir: &Path) -> Result<Option<Self>, MaterialError> {
        let path = state_dir.join(DISCOVERY_FILE);
        let Some(text) = file::read_text(&path)? else { return Ok(None) };
        let document: DiscoveryDocument<String> = parse(&path.display().to_string(), &text)?;
        let cap = Zeroizing::new(document.cap);
        if document.url.is_empty() || cap.is_empty() || document.pid == 0 {
            return Err(MaterialError(format!(
                "{} has an empty member; restart the auth service",
                path.display()
            )));
        }
        Ok(Some(Self { url: document.url, pid: document.pid, cap, public_url: document.public_url }))
    }

    /// Writes it, 0600.
    pub fn write(&self, state_dir: &Path) -> Result<(), MaterialError> {
        let text = document(&DiscoveryDocument {
            url: self.url.as_str(),
            pid: self.pid,
            cap: self.cap.as_str(),
            public_url: self.public_url.as_deref(),
        })?;
        file::write_atomic(&state_dir.join(DISCOVERY_FILE), text.as_bytes()).map_err(Into::into)
    }

    /// Removes it.
    pub fn remove(state_dir: &Path) -> Result<(), MaterialError> {
        file::remove_if_present(&state_dir.join(DISCOVERY_FILE)).map(|_| ()).map_err(Into::into)
    }
}

/// The secret-store keys that deprovisioning a space deletes (contract 04 §14).
pub fn deprovision_secret_keys(space: &Space) -> Vec<String> {
    [CALLOUT_FILE, ISSUER_FILE, OWNER_SECRET_FILE, SERVICE_KEYS_FILE]
        .map(|file| secret_key(space, file))
        .into()
}

/// `auth/space.<hex>/<file>`.
fn secret_key(space: &Space, file: &str) -> String {
    format!("auth/{}/{file}", space_segment(space))
}

fn service_keys_from(text: &str) -> Result<DataAccount, &'static str> {
    let document: ServiceKeysDocument<String> = parse_body(text).ok_or("not a version 1 document")?;
    let seed_text = Zeroizing::new(document.data_account.signing_seed);
    let account = Nkey::parse(&document.data_account.public).map_err(|_| "no account key")?;
    let signing = Seed::parse(&seed_text).map_err(|_| "no account seed")?;
    Ok(DataAccount { account, signing })
}

/// Reads a secret, or makes a first one; whoever stored one in between wins, and its document is the one returned.
async fn load_or_create<T, E: std::fmt::Display>(
    store: &dyn SecretStore,
    space: &Space,
    file: &str,
    read: impl Fn(&str) -> Result<T, E>,
    mint: impl FnOnce() -> Zeroizing<String>,
) -> Result<T, MaterialError> {
    if let Some(found) = load_secret(store, space, file, &read).await? {
        return Ok(found);
    }
    let key = secret_key(space, file);
    store.create(&key, &mint()).await.map_err(|e| MaterialError(format!("{key}: {e}")))?;
    load_secret(store, space, file, &read).await?.ok_or_else(|| vanished(space, file))
}

async fn load_secret<T, E: std::fmt::Display>(
    store: &dyn SecretStore,
    space: &Space,
    file: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, MaterialError> {
    let key = secret_key(space, file);
    let Some(text) = store.get(&key).await.map_err(|e| MaterialError(format!("{key}: {e}")))? else {
        return Ok(None);
    };
    read(&text)
        .map(Some)
        .map_err(|e| MaterialError(format!("{key} cannot be used ({e}); restore it from a backup")))
}

fn service_keys_document(account: &DataAccount) -> Result<Zeroizing<String>, MaterialError> {
    let seed = account.signing.expose();
    let entry = ServiceKeysEntry { public: account.account.as_str(), signing_seed: seed.as_str() };
    document(&ServiceKeysDocument { data_account: entry })
}

/// `{"ver":1, …}` with an indent of two and no newline at the end.
fn document<T: Serialize>(body: &T) -> Result<Zeroizing<String>, MaterialError> {
    serde_json::to_string_pretty(&Versioned { ver: VERSION, body })
        .map(Zeroizing::new)
        .map_err(|_| MaterialError("a document cannot be encoded".into()))
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, MaterialError> {
    parse_body(text)
        .ok_or_else(|| MaterialError(format!("{name} is not a version {VERSION} document of its kind")))
}

/// The body of a document. Why it does not read is not told: a JSON error repeats what it met.
fn parse_body<T: DeserializeOwned>(text: &str) -> Option<T> {
    let Version { ver } = serde_json::from_str(text).ok()?;
    (ver == VERSION).then_some(())?;
    serde_json::from_str(text).ok()
}

fn vanished(space: &Space, file: &str) -> MaterialError {
    MaterialError(format!(
        "{file} of space {:?} vanished as it was made; run the command again",
        space.as_str()
    ))
}
