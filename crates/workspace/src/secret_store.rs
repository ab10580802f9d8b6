//! The secret store seam (contract 01 §9.3, 08 §2.2).
use crate::root::Root;
use async_trait::async_trait;
use zeroize::Zeroizing;

/// A store that did not answer or refused a key. Never carries a value.
#[derive(Debug, thiserror::Error)]
#[error("secret store: {0}")]
pub struct StoreError(pub String);

/// Which store this is: equal identities are one store.
#[derive(Debug, Clone)]
pub enum StoreIdentity {
    /// The filesystem store of a root.
    Fs {
        /// The workspace root.
        root: String,
        /// The random id of `store.id`.
        id: String,
    },
    /// A store injected by a host.
    Injected {
        /// The host's stable coordinate.
        coordinate: String,
    },
}

/// Whole secrets under opaque keys.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// The value, or `None` when absent.
    async fn get(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError>;
    /// Replaces the whole value atomically.
    async fn put(&self, key: &str, value: &str) -> Result<(), StoreError>;
    /// Deletes; idempotent.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;
    /// Stores only while absent, in one atomic step: `true` when it stored, `false` when the key exists.
    async fn create(&self, key: &str, value: &str) -> Result<bool, StoreError>;
    /// The declared identity, if any.
    fn identity(&self) -> Option<StoreIdentity>;
}

/// The store under `<root>/.cotal`.
#[derive(Debug, Clone)]
pub struct FsSecretStore {
    _root: Root,
}

impl FsSecretStore {
    /// The store of a root.
    pub fn open(_root: &Root) -> Result<Self, StoreError> {
        todo!()
    }
}

#[async_trait]
impl SecretStore for FsSecretStore {
    async fn get(&self, _key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
        todo!()
    }
    async fn put(&self, _key: &str, _value: &str) -> Result<(), StoreError> {
        todo!()
    }
    async fn delete(&self, _key: &str) -> Result<(), StoreError> {
        todo!()
    }
    async fn create(&self, _key: &str, _value: &str) -> Result<bool, StoreError> {
        todo!()
    }
    fn identity(&self) -> Option<StoreIdentity> {
        todo!()
    }
}
