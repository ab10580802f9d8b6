//! Which auth provider a composition uses (contract 04 §14).
//!
//! The registry is a value that a composition holds and passes on; nothing registers itself by being linked, and two
//! registries in one process do not meet. What is kept is the rule: a registry that holds two providers resolves to none,
//! for nobody could say which of them a login would trust.

use std::sync::Arc;

use async_trait::async_trait;
use cotal_trust::idp::{IdpPin, IdpRefusal};
use cotal_wire::Space;
use cotal_workspace::{material, root::space_segment, secret_store::SecretStore};

use crate::http::mesh::AUTH_PROVIDER_NAME;

/// An auth provider: how people of a space log in, and what it keeps for that.
#[async_trait]
pub trait AuthProvider: Send + Sync {
    /// The name that the discovery bundle and the mesh registry call it by.
    fn name(&self) -> &str;

    /// The pins of an IdP at this base URL: issuer, audience and key set, all of them. None may be left open.
    fn pin(&self, base_url: &str) -> Result<IdpPin, IdpRefusal>;

    /// The command of the `cotal` binary that answers a fresh bearer for an agent.
    fn agent_bearer_command(&self) -> &str;

    /// The secret-store keys that this provider keeps for a space: an offline inventory. Nothing is read and nothing
    /// deleted. `None`, the default, says that it has none to declare, and the reset route of a space refuses it.
    fn deprovision_secret_keys(&self, _space: &Space) -> Option<Vec<String>> {
        None
    }

    /// Deletes what [`Self::deprovision_secret_keys`] names. Every key is tried; the failure names those that stayed.
    async fn deprovision_secrets(
        &self,
        store: &dyn SecretStore,
        space: &Space,
    ) -> Result<(), DeprovisionError> {
        let mut failed = Vec::new();
        for key in self.deprovision_secret_keys(space).unwrap_or_default() {
            if let Err(error) = store.delete(&key).await {
                failed.push(format!("{key} ({error})"));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(DeprovisionError(failed)) }
    }
}

/// Keys that could not be deleted, each with the reason; run it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} secret(s) could not be deleted: {}", .0.len(), .0.join(", "))]
pub struct DeprovisionError(pub Vec<String>);

/// Why a registry does not answer one provider, or a provider cannot be reset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// None is registered.
    #[error("no auth provider is registered; register one, or begin with the stock registry")]
    NoneRegistered,
    /// More than one is.
    #[error("{} auth providers are registered ({}); a space has exactly one", .0.len(), .0.join(", "))]
    Several(Vec<String>),
    /// It declares no secrets, so that nobody can review what a reset would delete.
    #[error("auth provider \"{0}\" declares no secret inventory; a space of its cannot be reset this way")]
    NoInventory(String),
    /// It declares a key outside the space's own segments.
    #[error(
        "auth provider \"{0}\" declares a secret key that is not of this space; the space cannot be reset this way"
    )]
    ForeignKey(String),
}

/// The stock provider, `cotal`: an IdP in the shape of Better Auth that signs EdDSA, with its keys at `<base>/jwks`, and
/// its origin as issuer and audience.
///
/// Another IdP is no matter of configuration: a host brings its own login, and builds its exchange on
/// [`crate::create_idp_bridge`] and [`crate::create_user_token_issuer`].
#[derive(Debug, Clone, Copy, Default)]
pub struct CotalAuthProvider;

#[async_trait]
impl AuthProvider for CotalAuthProvider {
    fn name(&self) -> &str {
        AUTH_PROVIDER_NAME
    }

    fn pin(&self, base_url: &str) -> Result<IdpPin, IdpRefusal> {
        IdpPin::from_url(base_url)
    }

    fn agent_bearer_command(&self) -> &'static str {
        "agent-bearer"
    }

    fn deprovision_secret_keys(&self, space: &Space) -> Option<Vec<String>> {
        Some(material::deprovision_secret_keys(space))
    }
}

/// The providers of a composition.
#[derive(Clone, Default)]
pub struct AuthProviders {
    registered: Vec<Arc<dyn AuthProvider>>,
}

impl AuthProviders {
    /// An empty registry: for a composition that brings its own provider.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry with [`CotalAuthProvider`] in it.
    pub fn stock() -> Self {
        let mut providers = Self::new();
        providers.register(Arc::new(CotalAuthProvider));
        providers
    }

    /// Registers a provider. A second one is taken, and makes [`Self::resolve_auth_provider`] refuse.
    pub fn register(&mut self, provider: Arc<dyn AuthProvider>) {
        self.registered.push(provider);
    }

    /// The one registered provider; none, and more than one, refuse.
    pub fn resolve_auth_provider(&self) -> Result<&Arc<dyn AuthProvider>, ProviderError> {
        match self.registered.as_slice() {
            [] => Err(ProviderError::NoneRegistered),
            [only] => Ok(only),
            several => Err(ProviderError::Several(several.iter().map(|one| one.name().to_owned()).collect())),
        }
    }
}

/// The secret keys of a space that is to be reset, reviewed: each of them lies under `auth/space.<hex>/` or
/// `space.<hex>/` of exactly this space. Nothing is read and nothing deleted.
pub fn reviewed_secret_keys(
    provider: &dyn AuthProvider,
    space: &Space,
) -> Result<Vec<String>, ProviderError> {
    let name = || provider.name().to_owned();
    let keys = provider.deprovision_secret_keys(space).ok_or_else(|| ProviderError::NoInventory(name()))?;
    let segment = space_segment(space);
    let is_own = |key: &String| {
        let mut path = key.strip_prefix("auth/").unwrap_or(key).split('/');
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']);
        path.next() == Some(&*segment) && path.clone().next().is_some() && path.all(is_name)
    };
    if keys.iter().all(is_own) { Ok(keys) } else { Err(ProviderError::ForeignKey(name())) }
}

#[cfg(test)]
mod tests {
    use cotal_workspace::secret_store::{StoreError, StoreIdentity};
    use parking_lot::Mutex;
    use zeroize::Zeroizing;

    use super::*;

    /// A provider of a host's own, with the inventory that a test says.
    struct Own(Option<Vec<String>>);

    #[async_trait]
    impl AuthProvider for Own {
        fn name(&self) -> &'static str {
            "own"
        }
        fn pin(&self, base_url: &str) -> Result<IdpPin, IdpRefusal> {
            IdpPin::from_url(base_url)
        }
        fn agent_bearer_command(&self) -> &'static str {
            "own-bearer"
        }
        fn deprovision_secret_keys(&self, _space: &Space) -> Option<Vec<String>> {
            self.0.clone()
        }
    }

    /// Deletes everything but what stays.
    struct Store {
        stays: &'static str,
        deleted: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl SecretStore for Store {
        async fn get(&self, _key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
            panic!("an inventory is not read")
        }
        async fn put(&self, _key: &str, _value: &str) -> Result<(), StoreError> {
            panic!("an inventory is not written")
        }
        async fn delete(&self, key: &str) -> Result<(), StoreError> {
            if key.ends_with(self.stays) {
                return Err(StoreError("sealed".to_owned()));
            }
            self.deleted.lock().push(key.to_owned());
            Ok(())
        }
        async fn create(&self, _key: &str, _value: &str) -> Result<bool, StoreError> {
            panic!("an inventory is not created")
        }
        fn identity(&self) -> Option<StoreIdentity> {
            None
        }
    }

    fn space() -> Space {
        Space::parse("main").unwrap()
    }

    #[test]
    fn exactly_one_registered_provider_resolves() {
        let mut providers = AuthProviders::new();
        assert_eq!(providers.resolve_auth_provider().err(), Some(ProviderError::NoneRegistered));
        providers.register(Arc::new(Own(None)));
        assert_eq!(providers.resolve_auth_provider().unwrap().name(), "own");
        let mut both = AuthProviders::stock();
        assert_eq!(both.resolve_auth_provider().unwrap().name(), "cotal");
        both.register(Arc::new(Own(None)));
        let refusal = both.resolve_auth_provider().err().unwrap();
        assert_eq!(refusal, ProviderError::Several(vec!["cotal".into(), "own".into()]));
        // The other registry of the process knows nothing of it.
        assert!(AuthProviders::stock().resolve_auth_provider().is_ok());
    }

    #[test]
    fn the_stock_provider_pins_all_three() {
        let pin = CotalAuthProvider.pin("https://idp.example/api/auth").unwrap();
        assert_eq!(
            (&*pin.issuer, &*pin.audience, &*pin.jwks_uri),
            ("https://idp.example", "https://idp.example", "https://idp.example/api/auth/jwks")
        );
        assert!(CotalAuthProvider.pin("http://idp.example").is_err());
    }

    #[test]
    fn an_inventory_is_reviewed_before_a_space_is_reset() {
        let stock = reviewed_secret_keys(&CotalAuthProvider, &space()).unwrap();
        assert_eq!(stock.len(), 4);
        assert!(stock.iter().all(|key| key.starts_with("auth/space.6d61696e/")), "{stock:?}");
        let own = |keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            reviewed_secret_keys(&Own(Some(keys)), &space())
        };
        assert!(own(&["space.6d61696e/delivery.creds", "auth/space.6d61696e/a/b"]).is_ok());
        for foreign in [
            "",
            "auth/broker.json",
            "auth/space.6d61696e",
            "auth/space.6d61696e/",
            "auth/space.6d61696f/callout.json",
            "auth/space.6d61696e/../space.6d61696f/callout.json",
            "auth/space.6d61696e/./x",
            "auth/space.6d61696e//x",
            "/auth/space.6d61696e/x",
            "auth/auth/space.6d61696e/x",
            "auth/space.6d61696e/a\\b",
        ] {
            let refusal = own(&["auth/space.6d61696e/fine", foreign]);
            assert_eq!(refusal, Err(ProviderError::ForeignKey("own".into())), "{foreign:?}");
        }
        let refusal = reviewed_secret_keys(&Own(None), &space());
        assert_eq!(refusal, Err(ProviderError::NoInventory("own".into())));
    }

    #[tokio::test]
    async fn every_secret_is_tried_and_those_that_stay_are_named() {
        let store = Store { stays: "issuer.json", deleted: Mutex::default() };
        let error = CotalAuthProvider.deprovision_secrets(&store, &space()).await.unwrap_err();
        assert_eq!(error.0.len(), 1);
        assert!(error.to_string().contains("auth/space.6d61696e/issuer.json"), "{error}");
        assert_eq!(store.deleted.lock().len(), 3);
    }
}
