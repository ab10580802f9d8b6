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
use cotal_wire::{Clock, Entropy, Object, Operator, Space};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::{file, printed::at, root::space_segment, secret_store::SecretStore};

/// The version that every document carries.
const VERSION: u64 = 1;
/// The pin of the identity provider, in the state directory.
pub const IDP_FILE: &str = "idp.json";
const CALLOUT_FILE: &str = "callout.json";
const ISSUER_FILE: &str = "issuer.json";
/// What every owner derives from, in the state directory of a root.
pub const OWNER_SECRET_FILE: &str = "owner-secret.json";
const SERVICE_KEYS_FILE: &str = "service-keys.json";
const DISCOVERY_FILE: &str = "auth-service.json";

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

/// What answers connects and does nothing else: neither the owner secret nor the IdP pin is read for it.
pub struct CalloutMaterial {
    /// `service-keys.json`.
    pub data_account: DataAccount,
    /// `callout.json`.
    pub callout: CalloutAuth,
    /// `issuer.json`.
    pub issuer: IssuerKeySet,
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

/// What stands of a space's material. A run that was cut short leaves a beginning of the order of contract 04 §6.5; what
/// is missing before something that is there was lost.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// `idp.json`; `None` when something is in its place that cannot be examined.
    pub pin: Option<bool>,
    /// `owner-secret.json`, likewise.
    pub owner_secret: Option<bool>,
    /// Any that is made after the owner secret.
    pub after_owner_secret: bool,
}

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
struct DiscoveryDocument<Text> {
    url: Text,
    pid: u32,
    cap: Text,
    #[serde(skip_serializing_if = "Option::is_none", default = "Option::default")]
    public_url: Option<Text>,
}

impl UserAuthMaterial {
    /// Loads all five in the order of contract 05 §15.2 step 1; what is missing is listed in one error, in that order.
    pub async fn load(
        store: &dyn SecretStore,
        state_dir: &Path,
        space: &Space,
    ) -> Result<Self, MaterialError> {
        let data_account = load_data_account(store, space).await?;
        let callout = load_callout(store, space).await?;
        let issuer = load_issuer(store, space).await?;
        let owner_secret = load_owner_secret(store, space).await?;
        let dir = state_dir.to_owned();
        let idp = file::blocking(move || load_idp_pin(&dir)).await??;
        match (data_account, callout, issuer, owner_secret, idp) {
            (Some(data_account), Some(callout), Some(issuer), Some(owner_secret), Some(idp)) => {
                Ok(Self { data_account, callout, issuer, owner_secret, idp })
            }
            (data_account, callout, issuer, owner_secret, idp) => {
                let pin = format!("IdP pin under {}", state_dir.display());
                let found = [
                    ("service keys", data_account.is_some()),
                    ("callout account", callout.is_some()),
                    ("issuer keys", issuer.is_some()),
                    ("owner secret", owner_secret.is_some()),
                    (pin.as_str(), idp.is_some()),
                ];
                Err(lacking(space, &found))
            }
        }
    }
}

impl Standing {
    /// Looks, the last made first, so that somebody who is making them is not taken for a loss. What cannot be examined is
    /// neither there nor lost: its own reader refuses it.
    pub async fn of(store: &dyn SecretStore, state_dir: &Path, space: &Space) -> Self {
        let mut after_owner_secret = false;
        for file in [SERVICE_KEYS_FILE, CALLOUT_FILE, ISSUER_FILE] {
            after_owner_secret |= matches!(store.get(&secret_key(space, file)).await, Ok(Some(_)));
        }
        let owner_secret = store.get(&secret_key(space, OWNER_SECRET_FILE)).await.ok().map(|it| it.is_some());
        let path = state_dir.join(IDP_FILE);
        let pin = file::blocking(move || file::is_regular(&path)).await.and_then(|there| there).ok();
        Self { pin, owner_secret, after_owner_secret }
    }

    /// Whether the owner secret was there and is not any more.
    fn lost_owner_secret(self) -> bool {
        self.after_owner_secret && self.owner_secret == Some(false)
    }
}

impl CalloutMaterial {
    /// Loads all three in the order of contract 05 §15.2 step 1; what is missing is listed in one error, in that order.
    pub async fn load(store: &dyn SecretStore, space: &Space) -> Result<Self, MaterialError> {
        let data_account = load_data_account(store, space).await?;
        let callout = load_callout(store, space).await?;
        let issuer = load_issuer(store, space).await?;
        match (data_account, callout, issuer) {
            (Some(data_account), Some(callout), Some(issuer)) => Ok(Self { data_account, callout, issuer }),
            (data_account, callout, issuer) => Err(lacking(
                space,
                &[
                    ("service keys", data_account.is_some()),
                    ("callout account", callout.is_some()),
                    ("issuer keys", issuer.is_some()),
                ],
            )),
        }
    }
}

/// The refusal that lists what was not found.
fn lacking(space: &Space, found: &[(&str, bool)]) -> MaterialError {
    let missing: Vec<_> = found.iter().filter(|(_, found)| !found).map(|(name, _)| *name).collect();
    MaterialError(format!(
        "space {0:?} lacks user-auth material ({1}): run `cotal up --user-auth{2} --idp <url>` on this \
         machine",
        space.as_str(),
        missing.join(", "),
        at(space)
    ))
}

/// The service keys alone: what opens a connection of the space's data account.
pub async fn load_service_keys(store: &dyn SecretStore, space: &Space) -> Result<DataAccount, MaterialError> {
    load_data_account(store, space).await?.ok_or_else(|| lacking(space, &[("service keys", false)]))
}

/// Load-or-create of all five, in the order of contract 04 §6.5 (steps 3-7; the JWKS probe is the caller's). An owner
/// secret that was lost is not made again (contract 04 §6.2).
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
    if Standing::of(store, state_dir, space).await.lost_owner_secret() {
        return Err(MaterialError(format!(
            "space {:?} has lost its owner secret ({}), and with a new one every person would be somebody else: restore \
             it from a backup, or start a new space",
            space.as_str(),
            secret_key(space, OWNER_SECRET_FILE)
        )));
    }
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
    store.put(&key, &data_account.to_document()).await.map_err(|e| MaterialError(format!("{key}: {e}")))?;
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

/// The space's data account, as its service signs for it; `None` when absent.
pub async fn load_data_account(
    store: &dyn SecretStore,
    space: &Space,
) -> Result<Option<DataAccount>, MaterialError> {
    load_secret(store, space, SERVICE_KEYS_FILE, DataAccount::from_document).await
}

/// The space's callout account, or `None` when absent.
pub async fn load_callout(
    store: &dyn SecretStore,
    space: &Space,
) -> Result<Option<CalloutAuth>, MaterialError> {
    load_secret(store, space, CALLOUT_FILE, CalloutAuth::from_document).await
}

/// The space's bearer keys, or `None` when absent.
pub async fn load_issuer(
    store: &dyn SecretStore,
    space: &Space,
) -> Result<Option<IssuerKeySet>, MaterialError> {
    load_secret(store, space, ISSUER_FILE, |text| IssuerKeySet::from_document(text, space)).await
}

/// The space's owner-derivation secret, or `None` when absent: what derives an owner offline (contract 04 §13.1).
pub async fn load_owner_secret(
    store: &dyn SecretStore,
    space: &Space,
) -> Result<Option<OwnerSecret>, MaterialError> {
    load_secret(store, space, OWNER_SECRET_FILE, OwnerSecret::from_document).await
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
    let url = idp_url.ok_or_else(|| no_idp(space))?;
    let pin = IdpPin::from_url(url).map_err(|e| MaterialError(e.to_string()))?;
    file::ensure_private_dir(state_dir)?;
    let text = document(&pin)?;
    if file::create_exclusive(&state_dir.join(IDP_FILE), text.as_bytes())? {
        return Ok(pin);
    }
    let winner = load_idp_pin(state_dir)?.ok_or_else(|| vanished(space, IDP_FILE))?;
    same_idp(winner, space, Some(&pin.url))
}

/// The refusal of a space that has no pin and is given none.
pub fn no_idp(space: &Space) -> MaterialError {
    MaterialError(format!(
        "space {:?} has no IdP yet: name it once with `cotal up --user-auth{} --idp <auth base URL>`",
        space.as_str(),
        at(space)
    ))
}

/// The pin, when `idp_url` is left out or is the pinned URL as it is stored.
fn same_idp(pin: IdpPin, space: &Space, idp_url: Option<&str>) -> Result<IdpPin, MaterialError> {
    match idp_url {
        Some(url) if url != pin.url => Err(MaterialError(format!(
            "space {:?} is pinned to the IdP {} and another one would re-key every owner: leave --idp out, or pass \
             exactly that URL. Another IdP needs another space: choose another --space, or bring it up in another directory",
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
    let Object(Version { ver }) = serde_json::from_str(text).ok()?;
    (ver == VERSION).then_some(())?;
    serde_json::from_str::<Object<T>>(text).ok().map(|document| document.0)
}

fn vanished(space: &Space, file: &str) -> MaterialError {
    MaterialError(format!(
        "{file} of space {:?} vanished as it was made; run the command again",
        space.as_str()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cotal_trust::{
        bundle::{BrokerTrust, SpaceAccount},
        system::{SystemClock, SystemEntropy},
    };
    use cotal_wire::UnixSecs;

    use super::*;
    use crate::{root::Root, secret_store::FsSecretStore};

    const IDP: &str = "https://id.example/api/auth";

    struct Place {
        _tmp: tempfile::TempDir,
        store: FsSecretStore,
        dir: std::path::PathBuf,
        space: Space,
        broker: BrokerTrust,
        account: DataAccount,
    }

    impl Place {
        fn new() -> Self {
            let tmp = tempfile::tempdir().unwrap();
            let root = Root::at(tmp.path());
            root.ensure_auth_dir().unwrap();
            let space = Space::parse("main").unwrap();
            let broker = BrokerTrust::create("main", &SystemEntropy, UnixSecs(1_767_225_600));
            let account =
                SpaceAccount::create(&broker, &space, &SystemEntropy, UnixSecs(1_767_225_600)).data_account();
            let (store, dir) =
                (FsSecretStore::open(&root).unwrap(), root.user_auth_state_dir(&space).unwrap());
            Self { _tmp: tmp, store, dir, space, broker, account }
        }

        async fn prepare(&self, idp: Option<&str>) -> Result<UserAuthMaterial, MaterialError> {
            let (operator, account) = (&self.broker.operator, &self.account);
            prepare(&self.store, &self.dir, &self.space, idp, operator, account, &SystemClock, &SystemEntropy)
                .await
        }

        fn text(&self, file: &str) -> String {
            std::fs::read_to_string(self.dir.join(file)).unwrap()
        }
    }

    #[tokio::test]
    async fn a_first_preparation_makes_all_five_and_a_second_keeps_them() {
        let place = Place::new();
        place.prepare(Some(IDP)).await.unwrap();
        let files = ["idp.json", "callout.json", "issuer.json", "owner-secret.json", "service-keys.json"];
        let before = files.map(|file| place.text(file));
        for (file, text) in files.iter().zip(&before) {
            assert!(text.starts_with("{\n  \"ver\": 1,\n  \"") && text.ends_with('}'), "{file}: {text}");
            let mode = std::fs::metadata(place.dir.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert_eq!(std::fs::metadata(&place.dir).unwrap().permissions().mode() & 0o777, 0o700);
        place.prepare(None).await.unwrap();
        assert_eq!(files.map(|file| place.text(file)), before);
        let loaded = UserAuthMaterial::load(&place.store, &place.dir, &place.space).await.unwrap();
        assert_eq!(loaded.data_account.account, place.account.account);
        assert_eq!(loaded.idp.jwks_uri, format!("{IDP}/jwks"));
    }

    #[tokio::test]
    async fn concurrent_preparations_converge_on_one_owner_secret() {
        let place = Place::new();
        let made = futures_of(&place).await;
        let text = place.text("owner-secret.json");
        for material in made {
            assert_eq!(*material.owner_secret.to_document(), text);
            assert_eq!(*material.issuer.to_document(), place.text("issuer.json"));
            assert_eq!(*material.callout.to_document(), place.text("callout.json"));
        }
    }

    async fn futures_of(place: &Place) -> [UserAuthMaterial; 2] {
        let (a, b) = tokio::join!(place.prepare(Some(IDP)), place.prepare(Some(IDP)));
        [a.unwrap(), b.unwrap()]
    }

    #[tokio::test]
    async fn an_owner_secret_that_was_lost_is_not_made_again_and_a_first_run_cut_short_is_gone_on_with() {
        let after = ["issuer.json", "callout.json", "service-keys.json"];
        for kept in after {
            let place = Place::new();
            place.prepare(Some(IDP)).await.unwrap();
            for file in after.iter().filter(|file| **file != kept).chain(&["owner-secret.json"]) {
                std::fs::remove_file(place.dir.join(file)).unwrap();
            }
            let told = place.prepare(Some(IDP)).await.err().unwrap().0;
            assert!(told.contains("auth/space.6d61696e/owner-secret.json"), "{kept}: {told}");
            assert!(!place.dir.join("owner-secret.json").exists());
        }
        let order = ["idp.json", "owner-secret.json", "issuer.json", "callout.json", "service-keys.json"];
        for cut in 0..order.len() {
            let place = Place::new();
            place.prepare(Some(IDP)).await.unwrap();
            let before = order.map(|file| place.text(file));
            for file in &order[cut..] {
                std::fs::remove_file(place.dir.join(file)).unwrap();
            }
            place.prepare(Some(IDP)).await.unwrap();
            for (file, text) in order.iter().zip(&before).take(cut) {
                assert_eq!(place.text(file), *text, "{file}");
            }
        }
    }

    #[tokio::test]
    async fn service_keys_are_overwritten_by_every_preparation() {
        let mut place = Place::new();
        place.prepare(Some(IDP)).await.unwrap();
        place.account.signing = Seed::generate(&SystemEntropy);
        place.prepare(None).await.unwrap();
        let golden = format!(
            "{{\n  \"ver\": 1,\n  \"dataAccount\": {{\n    \"pub\": \"{}\",\n    \"signingSeed\": \"{}\"\n  }}\n}}",
            place.account.account,
            *place.account.signing.expose()
        );
        assert_eq!(place.text("service-keys.json"), golden);
    }

    #[tokio::test]
    async fn without_a_pin_and_a_url_nothing_is_made() {
        let place = Place::new();
        let told = place.prepare(None).await.err().unwrap().0;
        assert!(told.contains(&format!("`cotal up --user-auth{} --idp", at(&place.space))), "{told}");
        assert!(!place.dir.exists());
    }

    #[tokio::test]
    async fn a_pin_is_never_replaced_and_compares_as_it_is_stored() {
        let place = Place::new();
        place.prepare(Some("https://id.example/api/auth/")).await.unwrap();
        let golden = format!(
            "{{\n  \"ver\": 1,\n  \"url\": \"{IDP}\",\n  \"issuer\": \"https://id.example\",\n  \
             \"audience\": \"https://id.example\",\n  \"jwksUri\": \"{IDP}/jwks\"\n}}"
        );
        assert_eq!(place.text("idp.json"), golden);
        place.prepare(Some(IDP)).await.unwrap();
        for other in
            ["https://other.example/api/auth", "https://id.example/api/auth/", "https://ID.example/api/auth"]
        {
            let told = place.prepare(Some(other)).await.err().unwrap().0;
            assert!(told.contains("re-key") && told.contains("another --space"), "{other}: {told}");
        }
        assert_eq!(place.text("idp.json"), golden);
    }

    #[tokio::test]
    async fn what_is_missing_is_listed_in_one_error() {
        let place = Place::new();
        let missing = |error: MaterialError| error.0;
        let all =
            missing(UserAuthMaterial::load(&place.store, &place.dir, &place.space).await.err().unwrap());
        let pin = format!("IdP pin under {}", place.dir.display());
        let named = format!("(service keys, callout account, issuer keys, owner secret, {pin})");
        assert!(all.contains(&named), "{all}");
        for (file, name) in [
            ("service-keys.json", "service keys"),
            ("callout.json", "callout account"),
            ("issuer.json", "issuer keys"),
            ("owner-secret.json", "owner secret"),
            ("idp.json", pin.as_str()),
        ] {
            place.prepare(Some(IDP)).await.unwrap();
            let kept = place.text(file);
            std::fs::remove_file(place.dir.join(file)).unwrap();
            let one =
                missing(UserAuthMaterial::load(&place.store, &place.dir, &place.space).await.err().unwrap());
            assert!(one.contains(&format!("({name})")), "{one}");
            file::write_atomic(&place.dir.join(file), kept.as_bytes()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_garbled_document_is_refused_never_replaced_and_never_repeated() {
        for file in ["idp.json", "callout.json", "issuer.json", "owner-secret.json", "service-keys.json"] {
            let place = Place::new();
            place.prepare(Some(IDP)).await.unwrap();
            let good = place.text(file);
            let versions = [
                good.replacen("\"ver\": 1", "\"ver\": 2", 1),
                good.replacen("\"ver\": 1", "\"ver\": \"1\"", 1),
            ];
            for text in ["", "null", "[]", "{\"ver\":1}", "{\"ver\":1,\"x\":\"SECRETVALUE\"}", "SECRETVALUE"]
                .into_iter()
                .chain(versions.iter().map(String::as_str))
            {
                std::fs::write(place.dir.join(file), text).unwrap();
                let error =
                    UserAuthMaterial::load(&place.store, &place.dir, &place.space).await.err().unwrap().0;
                assert!(error.contains(file) && !error.contains("SECRETVALUE"), "{file} {text:?}: {error}");
                if file != "service-keys.json" {
                    assert!(place.prepare(None).await.is_err(), "{file} {text:?}");
                    assert_eq!(place.text(file), text);
                }
            }
        }
    }

    #[test]
    fn the_discovery_file_is_private_read_back_and_removed() {
        let place = Place::new();
        assert!(Discovery::load(&place.dir).unwrap().is_none());
        std::fs::create_dir(&place.dir).unwrap();
        let discovery = Discovery {
            url: "http://127.0.0.1:1234".into(),
            pid: 7,
            cap: Zeroizing::new("c0ffee".into()),
            public_url: None,
        };
        discovery.write(&place.dir).unwrap();
        let golden = "{\n  \"ver\": 1,\n  \"url\": \"http://127.0.0.1:1234\",\n  \"pid\": 7,\n  \"cap\": \"c0ffee\"\n}";
        assert_eq!(place.text("auth-service.json"), golden);
        assert_eq!(
            std::fs::metadata(place.dir.join("auth-service.json")).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let public = Discovery { public_url: Some("https://auth.example".into()), ..discovery };
        public.write(&place.dir).unwrap();
        let read = Discovery::load(&place.dir).unwrap().unwrap();
        assert_eq!((read.pid, read.cap.as_str()), (7, "c0ffee"));
        assert_eq!(read.public_url.as_deref(), Some("https://auth.example"));
        Discovery::remove(&place.dir).unwrap();
        Discovery::remove(&place.dir).unwrap();
        assert!(Discovery::load(&place.dir).unwrap().is_none());
    }

    #[test]
    fn a_discovery_file_of_another_shape_is_refused() {
        let place = Place::new();
        std::fs::create_dir(&place.dir).unwrap();
        for text in [
            "",
            "{}",
            r#"{"ver":2,"url":"u","pid":1,"cap":"c"}"#,
            r#"{"ver":1,"url":"u","pid":"1","cap":"c"}"#,
            r#"{"ver":1,"url":"u","pid":0,"cap":"c"}"#,
            r#"{"ver":1,"url":"u","pid":1}"#,
            r#"[1,"u",1,"c"]"#,
            r#"{"ver":1,"url":"u","pid":1,"cap":"c","publicUrl":3}"#,
        ] {
            std::fs::write(place.dir.join("auth-service.json"), text).unwrap();
            assert!(Discovery::load(&place.dir).is_err(), "{text}");
        }
    }

    #[test]
    fn deprovisioning_names_the_four_secrets() {
        let keys = deprovision_secret_keys(&Space::parse("main").unwrap());
        let names = ["callout.json", "issuer.json", "owner-secret.json", "service-keys.json"];
        assert_eq!(keys, names.map(|name| format!("auth/space.6d61696e/{name}")));
    }
}
