//! The principals that a retirement acts as (contract 07 §8): one for each duty and operation, so that its connections
//! can be found and ended.

use sha2::{Digest, Sha256};

use crate::token::{Actor, OpId, Owner, Principal};

/// What a connection of a retirement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpDuty {
    /// Acknowledges pool items that are settled.
    Cleaner,
    /// Settles pool items.
    Executor,
    /// Re-applies one record commit.
    Applier,
    /// Re-enqueues one pool item.
    Reconciler,
    /// Writes one cancelled completion.
    Canceller,
}

impl OpDuty {
    /// The duties of a drain repair, in fence order.
    pub const REPAIRS: [Self; 3] = [Self::Applier, Self::Reconciler, Self::Canceller];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Cleaner => "epcln",
            Self::Executor => "epexe",
            Self::Applier => "epapl",
            Self::Reconciler => "eprec",
            Self::Canceller => "epcan",
        }
    }

    /// `local.<prefix>_<first 16 hex of sha256(opId)>`.
    #[expect(clippy::expect_used, reason = "a prefix, an underscore and hex digits are always an actor")]
    pub fn principal(self, op: &OpId) -> Principal {
        let digest = hex::encode(Sha256::digest(op.as_str()));
        let actor = format!("{}_{}", self.prefix(), &digest[..16]);
        Principal::new(Owner::local(), Actor::parse(&actor).expect("an actor"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_of_an_operation_has_its_own_principal() {
        let op = OpId::parse(&"f".repeat(26)).unwrap();
        let all = [OpDuty::Cleaner, OpDuty::Executor, OpDuty::Applier, OpDuty::Reconciler, OpDuty::Canceller];
        assert_eq!(
            all.map(|duty| duty.principal(&op).key()),
            ["epcln", "epexe", "epapl", "eprec", "epcan"]
                .map(|prefix| format!("local.{prefix}_c44111e32c4a5e38"))
        );
        let other = OpId::parse("b5beb5e4f583874a2f0947bbbd").unwrap();
        assert_eq!(OpDuty::Cleaner.principal(&other).key(), "local.epcln_115cab5f74366b27");
    }
}
