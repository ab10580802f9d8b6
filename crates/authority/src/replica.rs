//! What a callout replica holds of a space's authority: its stores, proved, to record connects in (contract 08 §5).
//!
//! No store is created here, no credential minted and no gate written, and the grant of the connection says the same.
//! Deny-new is read by a [`crate::ConnectReader`] of the replica's own.

use std::sync::Arc;

use cotal_broker::{Connection, Connector, Lifetime};
use cotal_wire::{
    Clock, EpError, InfraRole, grants::infra, names::SERVICE_ADMISSION_KEY, rows::ServiceAdmission,
};

use crate::{issuance::IssuanceLog, store::at_key, stores::AuthorityStores};

/// The proved stores of one space, over the store connection of a replica.
pub struct ReplicaStores {
    connection: Connection,
    stores: AuthorityStores,
}

impl ReplicaStores {
    /// Opens `cotal:auth-replica-store:<space>` and proves both stores. One that is absent is `failed-precondition`, and
    /// stays absent.
    pub async fn open(connector: &Connector) -> Result<Self, EpError> {
        let space = connector.space();
        let token = space.token();
        let label = InfraRole::AUTH_REPLICA_STORE.label(space);
        let connection =
            connector.open(label, &|inbox| infra::replica_store(&token, inbox), Lifetime::Renewing).await?;
        match AuthorityStores::bind(&connection, space).await {
            Ok(stores) => Ok(Self { connection, stores }),
            Err(refusal) => {
                // The refusal is what the caller must hear; a close that fails is custody's to report.
                let _ = connection.close().await;
                Err(refusal)
            }
        }
    }

    /// Whether the space admits service endpoints, whose connections no replica can issue (contract 09 §9). What is once
    /// admitted stays so. A row that does not read is `internal`, a marker in its place `failed-precondition`.
    pub async fn admits_service_endpoints(&self) -> Result<bool, EpError> {
        let Some(entry) = self.stores.auth_store().read(SERVICE_ADMISSION_KEY).await? else {
            return Ok(false);
        };
        at_key(SERVICE_ADMISSION_KEY, ServiceAdmission::parse(&entry.value)).map(|_| true)
    }

    /// Records the connects of this replica; the full service prunes.
    pub fn issuance(&self, clock: Arc<dyn Clock>) -> IssuanceLog {
        IssuanceLog::recording(self.stores.clone(), clock)
    }

    /// Resolves, with why, when the connection has ended, or when a row could not be recorded and the stores then failed
    /// their proof or gave none for 5 s.
    pub async fn lost(&self) -> String {
        tokio::select! {
            biased;
            () = self.connection.ended() => {}
            why = self.stores.lost() => return why,
        }
        match self.connection.failure() {
            Some(failure) => failure.message.clone(),
            None => format!("{}: the connection was closed", self.connection.label()),
        }
    }

    /// Closes the connection. One that failed may be tried again.
    pub async fn close(&self) -> Result<(), EpError> {
        self.connection.close().await
    }
}
