//! Who of a retirement is connected: at most one connection for each principal (contract 07 §8).

use std::{collections::BTreeSet, sync::Arc};

use cotal_broker::{Connection, Connector, Lifetime, connector::INFRA_TTL_SECS};
use cotal_wire::{ConnId, EpError, Permissions, Principal};
use parking_lot::Mutex;

/// The principals that are seated, or about to be.
#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<BTreeSet<Principal>>>);

/// A principal's one connection. Dropped, it frees the principal and lets the connection close by itself.
pub(super) struct Seat {
    place: Place,
    connection: Connection,
}

/// Holds a principal's key in the map.
struct Place {
    seats: Seats,
    principal: Principal,
}

impl Seats {
    /// Opens a principal's connection: no reconnect, and tagged so that an eviction finds it.
    ///
    /// `failed-precondition` while the principal is seated or being seated; a failed open frees it again.
    pub(super) async fn open(
        &self,
        principal: &Principal,
        connector: &Connector,
        label: String,
        grants: &(dyn Fn(&ConnId) -> Permissions + Send + Sync),
    ) -> Result<Seat, EpError> {
        let place = self.take(principal)?;
        let lifetime = Lifetime::OneShot { ttl_secs: INFRA_TTL_SECS, principal: Some(principal.clone()) };
        let connection = connector.open(label, grants, lifetime).await?;
        Ok(Seat { place, connection })
    }

    fn take(&self, principal: &Principal) -> Result<Place, EpError> {
        if !self.0.lock().insert(principal.clone()) {
            return Err(EpError::failed_precondition(format!(
                "{principal} is connected already, or about to be; another run of this operation holds it"
            )));
        }
        Ok(Place { seats: self.clone(), principal: principal.clone() })
    }
}

impl Seat {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.place.principal
    }

    /// Closes the connection and frees the principal, whatever the close comes to.
    pub(super) async fn retire(self) -> Result<(), EpError> {
        self.connection.close().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.seats.0.lock().remove(&self.principal);
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    #[test]
    fn a_principal_is_seated_once_and_freed_by_whatever_ends_its_seat() {
        let seats = Seats::default();
        let principal = Principal::parse_key("local.epcln_0123456789abcdef").unwrap();
        let place = seats.take(&principal).unwrap();
        assert_eq!(seats.take(&principal).err().unwrap().code, EpCode::FailedPrecondition);
        assert!(seats.take(&Principal::parse_key("local.other").unwrap()).is_ok());
        drop(place);
        assert!(seats.take(&principal).is_ok());
    }
}
