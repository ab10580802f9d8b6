//! The daemon's eyes and hand in the system account: opened for one call, closed after it.
//!
//! The credentials are read for each call, so that a rotated system account needs no restart, and no standing
//! connection holds the right to close others.

use std::sync::Arc;

use cotal_broker::{
    CredsConnector, Custody,
    sys::{Evictor, KnownServers, Observer, Sweep},
};
use cotal_trust::creds::Creds;
use cotal_wire::{
    Account, Clock, Entropy, Nkey, Space,
    grants::delivery::{EVICTOR_INBOX, OBSERVER_INBOX},
};

use crate::{credentials::Credentials, inputs::CredsSource};

/// What one space's daemon sees and does in the system account.
pub(crate) struct System {
    pub(crate) space: Space,
    pub(crate) servers: String,
    pub(crate) data_account: Nkey<Account>,
    pub(crate) creds: Arc<dyn CredsSource>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The servers that were ever seen, for as long as the daemon lives.
    pub(crate) known: KnownServers,
}

impl System {
    pub(crate) fn credentials(&self) -> Credentials<'_> {
        Credentials { source: &*self.creds, data_account: &self.data_account, now: self.clock.now_secs() }
    }

    /// An observer, for the sweeps of one call.
    pub(crate) async fn observer(&self) -> Result<Observer, String> {
        let creds = self.credentials().observer().await?;
        let connection = self
            .connector()
            .open_once(format!("cotal:delivery-observer:{}", self.space), &creds, Some(OBSERVER_INBOX))
            .await
            .map_err(|error| error.message)?;
        Ok(Observer::new(connection, self.data_account.clone(), Arc::clone(&self.entropy)))
    }

    /// An evictor, for the kicks of one call.
    pub(crate) async fn evictor(&self, creds: &Creds) -> Result<Evictor, String> {
        let label = format!("cotal:delivery-evictor:{}", self.space);
        let opened = self.connector().open_once(label, creds, Some(EVICTOR_INBOX)).await;
        opened.map(Evictor::new).map_err(|error| error.message)
    }

    /// One sweep of one call.
    pub(crate) async fn sweep(&self) -> Result<Sweep, String> {
        Ok(self.observer().await?.sweep(&self.known).await)
    }

    /// A custody of its own: a call leaves nothing behind in the daemon's.
    pub(crate) fn connector(&self) -> CredsConnector {
        CredsConnector::new(&self.servers, Custody::new())
    }
}
