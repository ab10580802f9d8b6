//! Who holds which connection, from open to its proved end (contract 04 §16, 05 §15.3).

/// One row of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// `cotal:<role>:<space>`.
    pub label: String,
    /// Whether its end was proved.
    pub ended: bool,
}

/// The registry of a context's connections.
#[derive(Clone, Default)]
pub struct Custody { _private: () }

impl Custody {
    /// An empty registry.
    pub fn new() -> Self { Self::default() }
    /// A detached snapshot.
    pub fn connections(&self) -> Vec<Owned> { todo!() }
    /// No more connections will be opened.
    pub fn complete(&self) { todo!() }
    /// Resolves with the inventory once `complete` was called and every connection has ended.
    pub async fn closed(&self) -> Vec<Owned> { todo!() }
    /// Closes every live connection in parallel.
    pub async fn close_remaining(&self) -> Result<(), cotal_wire::EpError> { todo!() }
}
