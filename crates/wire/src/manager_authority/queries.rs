//! The kinds that only ask: the owner's goals, and whether a caller is an admin (contract 06 §10-11).

use super::{
    HolderKind, Kind,
    envelope::{Envelope, Incarnation, ProofMember, known},
    fields::Fields,
};
use crate::{error::EpError, es_value::EsValue};

/// A parsed goal index scan: it has no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalIndexRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
}

impl GoalIndexRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch"]);
        let fields = Fields::of(Kind::GoalIndexScan.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::GoalIndexScan, ProofMember::Required)?;
        Ok(Self { envelope, serve_epoch: fields.integer("serveEpoch", 0)? })
    }
}

/// A parsed admin question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// At which serving epoch.
    pub serve_epoch: u64,
    /// About whom.
    pub caller: Incarnation,
}

impl AdminRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue, holder: HolderKind) -> Result<Self, EpError> {
        let members = known(["registrationProof", "serveEpoch", "caller"]);
        let fields = Fields::of(Kind::AdminAuthorization.as_str(), Some(request))?.closed(&members)?;
        let envelope = Envelope::read(&fields, Kind::AdminAuthorization, ProofMember::Required)?;
        let serve_epoch = fields.integer("serveEpoch", 0)?;
        let caller = Incarnation::read(&fields, "caller", "caller", holder)?;
        Ok(Self { envelope, serve_epoch, caller })
    }
}
