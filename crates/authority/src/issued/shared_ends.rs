//! Ends of lifecycles that share an issuer connection.

use cotal_broker::Connector;
use cotal_wire::{EpError, rows::SourceRef};
use futures::FutureExt;

use super::one_shot::retire_lifecycles_issuance;
use crate::sharing::{Bounds, Sharing};

/// Lifecycles that end over one connection.
const MOST: usize = 64;

/// Marks what was issued to lifecycles that end as revoked. Those that end while a connection is at work share the next
/// one: many retirements at once would dial one each, and nearly always find nothing to do over it.
pub(crate) struct IssuanceEnds(Sharing<SourceRef, Result<u64, EpError>>);

impl IssuanceEnds {
    /// Over connections that `connector` opens.
    pub(crate) fn new(connector: Connector) -> Self {
        let bounds = Bounds { lanes: 1, most: MOST, weigh: |_| 1 };
        let work = move |sources: Vec<SourceRef>| {
            let connector = connector.clone();
            async move { retire_lifecycles_issuance(&connector, &sources).await }.boxed()
        };
        Self(Sharing::new(bounds, Box::new(work)))
    }

    /// As [`super::retire_lifecycle_issuance`].
    pub(crate) async fn end(&self, source: SourceRef) -> Result<u64, EpError> {
        self.0.call(source).await.unwrap_or_else(|| {
            Err(EpError::unavailable("ending what was issued: the call that it was part of broke off; retry"))
        })
    }
}
