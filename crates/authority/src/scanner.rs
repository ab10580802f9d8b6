//! The sealed scanners: the only readers that enumerate the authority streams, each scan guarded by the plane claim
//! (contract 05 §8.7, 03 §E "Holding invariant").

use bytes::Bytes;
use cotal_wire::{EndpointToken, EpError, InstanceId, KeySegment, LifecycleUid, Owner, Revision};

/// One row as a scan found it: the last message of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// The key within its bucket.
    pub key: String,
    /// Its store revision.
    pub revision: Revision,
    /// The value; `None` for a deletion marker.
    pub value: Option<Bytes>,
}

/// Which obligations to enumerate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obligations {
    /// `oblig.<uid>.>`
    OfTarget(LifecycleUid),
    /// `oblig.<uid>.<endpoint>.>`
    OfTargetAt(LifecycleUid, EndpointToken),
    /// `oblig.*.<endpoint>.>`
    At(EndpointToken),
}

/// The activated scanner of the auth stream.
pub struct LedgerScanner {}

/// The activated scanner of the records stream.
pub struct RecordsScanner {}

#[allow(clippy::unused_async, unused_variables)]
impl LedgerScanner {
    /// `cred.<uid>.>`
    pub async fn agent_family(&self, uid: &LifecycleUid) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `epcred.<endpoint>.<instance>.>`
    pub async fn endpoint_family(
        &self,
        endpoint: &EndpointToken,
        instance: &InstanceId,
    ) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `bysrc.<issuerKeyId>.<id>.>`
    pub async fn by_source(&self, issuer_key: &KeySegment, id: &KeySegment) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `stage.>`
    pub async fn intents(&self) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `epgate.manager.>`
    pub async fn manager_gates(&self) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `session.>`
    pub async fn sessions(&self) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }
}

#[allow(clippy::unused_async, unused_variables)]
impl RecordsScanner {
    /// Obligation rows, markers included.
    pub async fn obligations(&self, which: &Obligations) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }

    /// `goalidx.manager.<owner>.>`, checked as contract 05 §8.7 says.
    pub async fn goal_index(&self, owner: &Owner) -> Result<Vec<Scanned>, EpError> {
        todo!()
    }
}
