//! `manager-service-maintenance`: mends a registration that has no proof left (contract 06 §5).

use super::{
    Kind,
    envelope::{Envelope, ProofMember, known},
    fields::Fields,
};
use crate::{delivery_admin::MAX_PRINCIPALS, error::EpError, es_value::EsValue, token::InstanceId};

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceRequest {
    /// Who asks.
    pub envelope: Envelope,
    /// Whose registration is mended.
    pub target_instance_id: InstanceId,
    /// What is done.
    pub mend: Mend,
}

/// What maintenance does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// Ends the connections of holders of the target's credential family, named as text: 1 to
    /// [`MAX_PRINCIPALS`], distinct.
    Evict(Vec<String>),
    /// Reconciles the target's frozen gate.
    Reconcile,
}

impl Mend {
    /// The literal of the member `operation`.
    pub const fn operation(&self) -> &'static str {
        match self {
            Self::Evict(_) => EVICT,
            Self::Reconcile => RECONCILE,
        }
    }
}

const EVICT: &str = "evict-family-principal";
const RECONCILE: &str = "reconcile-registration";

impl MaintenanceRequest {
    /// Reads a request in the contract's order; every refusal is `bad-request`.
    pub fn parse(request: &EsValue) -> Result<Self, EpError> {
        let fields = Fields::of(Kind::Maintenance.as_str(), Some(request))?.closed(&known([
            "operation",
            "targetInstanceId",
            "principals",
        ]))?;
        let evicts = match fields.value("operation").and_then(EsValue::as_text) {
            Some(EVICT) => true,
            Some(RECONCILE) => false,
            _ => return Err(fields.bad("operation", &format!("{EVICT} or {RECONCILE}"))),
        };
        let envelope = Envelope::read(&fields, Kind::Maintenance, ProofMember::Absent)?;
        let target_instance_id = fields.token("targetInstanceId")?;
        let mend = if evicts {
            Mend::Evict(principals(&fields)?)
        } else {
            fields.absent("principals")?;
            Mend::Reconcile
        };
        Ok(Self { envelope, target_instance_id, mend })
    }
}

fn principals(fields: &Fields<'_>) -> Result<Vec<String>, EpError> {
    let rule = format!("an array of 1 to {MAX_PRINCIPALS} distinct non-empty strings");
    let items = fields.array("principals", &rule)?;
    let named: Option<Vec<String>> =
        items.iter().map(|item| item.as_text().filter(|text| !text.is_empty()).map(str::to_owned)).collect();
    let distinct = |named: &Vec<String>| {
        let unique: std::collections::HashSet<_> = named.iter().collect();
        unique.len() == named.len() && (1..=MAX_PRINCIPALS).contains(&named.len())
    };
    named.filter(distinct).ok_or_else(|| fields.bad("principals", &rule))
}
