//! What the daemon is given, and why it may not start.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_wire::{
    Account, Clock, Entropy, Nkey, Space,
    delivery_admin::{LEASE_TTL_SECS, StoreIdentity},
};
use zeroize::Zeroizing;

/// The credentials that the daemon reads, and re-reads when it is told to or when they near their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredsKind {
    /// `delivery.creds`: the daemon's own user of the data account.
    Delivery,
    /// `membership-rw.creds`: the membership feed's user. This daemon runs no feed; it adopts the renewal and no more.
    MembershipRw,
    /// The system-account user that sees the data account's connections.
    MembershipObserver,
    /// The system-account user that closes connections.
    ConnectionEvictor,
}

impl CredsKind {
    /// The name of the file or key that holds it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery.creds",
            Self::MembershipRw => "membership-rw.creds",
            Self::MembershipObserver => "membership-observer.creds",
            Self::ConnectionEvictor => "connection-evictor.creds",
        }
    }
}

/// Where the creds text lies: a secret store, or files.
#[async_trait]
pub trait CredsSource: Send + Sync {
    /// The whole text, or `None` when there is none. The error is a sentence without content.
    async fn read(&self, which: CredsKind) -> Result<Option<Zeroizing<String>>, String>;
}

/// Everything that a daemon needs.
pub struct DeliveryInputs {
    /// The space.
    pub space: Space,
    /// One or more comma-separated NATS URLs.
    pub servers: String,
    /// The names of the broker's servers, as an operator gives them; with none, the servers say who they are.
    pub cluster: Vec<String>,
    /// The space's data account: what the observer's credential must name, and the delivery credential be of.
    pub data_account: Nkey<Account>,
    /// Where the credentials lie.
    pub creds: Arc<dyn CredsSource>,
    /// Which store that is: what `reloadStoreIdentity` answers.
    pub store_identity: StoreIdentity,
    /// Intervals; the contract's by default.
    pub timing: Timing,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness of nonces.
    pub entropy: Arc<dyn Entropy>,
}

/// Intervals of a daemon. A test shortens them.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long a lease lives that nobody renews: the age limit of its bucket.
    pub lease_ttl: Duration,
    /// How long a start waits for another holder's lease to lapse; zero refuses at once.
    pub lease_wait: Duration,
    /// Pause between two looks at the broker.
    pub broker_probe: Duration,
    /// How long the broker may be away before the daemon ends.
    pub broker_gone: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(LEASE_TTL_SECS),
            lease_wait: Duration::ZERO,
            broker_probe: Duration::from_secs(2),
            broker_gone: Duration::from_secs(15),
        }
    }
}

/// Why a daemon did not start. The sentence says what to do next and carries no credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// A credential is missing, torn, or of another account.
    #[error("{0}")]
    Credential(String),
    /// Another daemon holds the lease.
    #[error(
        "another delivery daemon holds the lease of this space ({holder}); stop it with `cotal down`, or wait until its lease lapses"
    )]
    LeaseHeld {
        /// Who holds it, as its row says.
        holder: String,
    },
    /// The broker cannot be reached, or refuses.
    #[error("{0}")]
    Broker(String),
}
