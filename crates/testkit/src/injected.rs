//! The filesystem store of a root, as a host would inject one.

use async_trait::async_trait;
use cotal_workspace::secret_store::{FsSecretStore, SecretStore, StoreError, StoreIdentity};
use zeroize::Zeroizing;

/// It declares the coordinate that it was made with.
pub struct Injected {
    store: FsSecretStore,
    coordinate: &'static str,
}

impl Injected {
    /// Over this store.
    pub const fn over(store: FsSecretStore, coordinate: &'static str) -> Self {
        Self { store, coordinate }
    }
}

#[async_trait]
impl SecretStore for Injected {
    async fn get(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
        self.store.get(key).await
    }
    async fn put(&self, key: &str, value: &str) -> Result<(), StoreError> {
        self.store.put(key, value).await
    }
    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store.delete(key).await
    }
    async fn create(&self, key: &str, value: &str) -> Result<bool, StoreError> {
        self.store.create(key, value).await
    }
    fn identity(&self) -> Option<StoreIdentity> {
        StoreIdentity::injected(self.coordinate).ok()
    }
}
