//! The delivery lease of a space as an operator's command sees it: who holds it, since when, and whether it is ready
//! (contract 01 §4.3, 08 §9).

use cotal_broker::{
    Connector,
    connector::Lifetime,
    kv::{Bucket, LeaderRead},
};
use cotal_wire::{
    ConnId, EpError, InfraRole, Names,
    delivery_admin::{LEASE_KEY, LeaseRow},
    grants::operator,
};

use crate::space_broker::ONE_SHOT_SECS;

/// The lease row; `None` when nobody holds it.
pub async fn read(connector: &Connector) -> Result<Option<LeaseRow>, EpError> {
    let (space, token) = (connector.space(), connector.space().token());
    let bucket = Names::new(&token).delivery_bucket();
    let grants = move |conn: &ConnId| operator::delivery_lease_reader(&token, conn);
    let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_SECS, principal: None };
    let connection = connector.open(InfraRole::OPERATOR_STATUS.label(space), &grants, lifetime).await?;
    let row = read_over(&Bucket::new(&connection, &bucket)).await;
    // What was read stands, however the connection ends.
    let _ = connection.close().await;
    row
}

/// The same over a bucket that is open already. A row that does not read is an error, never nobody.
pub async fn read_over(bucket: &Bucket) -> Result<Option<LeaseRow>, EpError> {
    match bucket.leader_read(LEASE_KEY).await? {
        LeaderRead::Value(entry) => {
            LeaseRow::parse(&entry.value).map(Some).map_err(|error| EpError::internal(error.to_string()))
        }
        LeaderRead::Absent | LeaderRead::Marker(_) => Ok(None),
    }
}
