//! Opens connections with credentials that were given, for a process that holds no signing key (contract 08 §9).

use std::sync::Arc;

use cotal_trust::{
    creds::{self, Creds},
    nkey::Seed,
};
use cotal_wire::{ConnId, EpError, Nkey, User};
use parking_lot::RwLock;
use zeroize::Zeroizing;

use crate::{
    connection::{Connection, Reconnect},
    connector::{Opening, connect},
    custody::Custody,
    session::{Credential, RAIL_CAPACITY, SUBSCRIPTION_CAPACITY},
};

/// Opens connections over creds text.
#[derive(Clone)]
pub struct CredsConnector {
    servers: Arc<str>,
    custody: Custody,
}

/// The credential of a standing connection, renewed in place: for the same user alone. Each (re)connect presents the
/// newest, as when the broker cuts a session whose JWT has expired.
#[derive(Clone)]
pub struct RenewableCreds {
    seed: Seed<User>,
    jwt: Arc<RwLock<String>>,
}

impl CredsConnector {
    /// A connector. `servers` is one or more comma-separated NATS URLs, checked when a connection is opened.
    pub fn new(servers: &str, custody: Custody) -> Self {
        Self { servers: servers.into(), custody }
    }

    /// One call: no reconnect. `inbox_prefix` is what the grant lets it subscribe under; the user's own when absent.
    pub async fn open_once(
        &self,
        label: String,
        creds: &Creds,
        inbox_prefix: Option<&str>,
    ) -> Result<Connection, EpError> {
        let own = format!("_INBOX_{}", creds.seed.public());
        let opening = Opening {
            label,
            credential: Credential::Creds(creds.clone()),
            inbox_prefix: inbox_prefix.unwrap_or(&own),
            reconnect: Reconnect::Never,
            plane_owned: false,
            capacity: SUBSCRIPTION_CAPACITY,
        };
        connect(&self.servers, &self.custody, opening).await
    }

    /// One connection of somebody who signed in: the sentinel's creds, a bearer of the exchange, and the inbox nonce under
    /// which it connects. It does not reconnect: a bearer lives for minutes.
    pub async fn open_bearer(
        &self,
        nonce: &ConnId,
        sentinel: &Creds,
        bearer: Zeroizing<String>,
    ) -> Result<Connection, EpError> {
        let opening = Opening {
            // The callout takes the connection's name for its nonce.
            label: nonce.to_string(),
            credential: Credential::Bearer(sentinel.clone(), bearer),
            inbox_prefix: &format!("_INBOX_{nonce}"),
            reconnect: Reconnect::Never,
            plane_owned: false,
            capacity: SUBSCRIPTION_CAPACITY,
        };
        connect(&self.servers, &self.custody, opening).await
    }

    /// The standing connection of a listener that others send to, reconnecting for ever. Its subscriptions hold 256
    /// messages, and past that the newest are dropped: a flood of the largest messages fills no memory.
    pub async fn open_standing(&self, label: String, creds: &RenewableCreds) -> Result<Connection, EpError> {
        let opening = Opening {
            label,
            credential: Credential::Renewable(creds.clone()),
            inbox_prefix: &format!("_INBOX_{}", creds.user()),
            reconnect: Reconnect::Forever,
            plane_owned: false,
            capacity: RAIL_CAPACITY,
        };
        connect(&self.servers, &self.custody, opening).await
    }
}

impl RenewableCreds {
    /// From the first credential.
    pub fn new(creds: Creds) -> Self {
        Self { seed: creds.seed, jwt: Arc::new(RwLock::new(creds.jwt)) }
    }

    /// Whose it is.
    pub fn user(&self) -> &Nkey<User> {
        self.seed.public()
    }

    /// The credential as it is now.
    pub fn current(&self) -> Creds {
        Creds { jwt: self.jwt(), seed: self.seed.clone() }
    }

    /// Takes a newer credential of the same user; another user's is `failed-precondition`.
    pub fn renew(&self, creds: &Creds) -> Result<(), EpError> {
        if creds.seed.public() != self.user() {
            return Err(EpError::failed_precondition(
                "the renewed credential is of another user; a renewal keeps the user nkey, restart to change it",
            ));
        }
        self.jwt.write().clone_from(&creds.jwt);
        Ok(())
    }

    pub(crate) fn seed(&self) -> &Seed<User> {
        &self.seed
    }

    pub(crate) fn jwt(&self) -> String {
        self.jwt.read().clone()
    }
}

/// Reads creds text; the refusal names the label and never the text.
pub fn read_creds(label: &str, text: &str) -> Result<Creds, EpError> {
    creds::parse(text).map_err(|error| EpError::bad_request(format!("{label}: {error}")))
}
