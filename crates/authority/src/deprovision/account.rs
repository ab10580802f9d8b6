//! What a deprovisioning came to, part by part (contract 07 §13).

use std::fmt;

use cotal_wire::EpError;
use serde::{Serialize, Serializer};

/// Rows of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// Looked at.
    pub examined: u64,
    /// Live before, and purged by this call.
    pub deleted: u64,
    /// Not there before.
    pub absent: u64,
    /// Not known to be gone.
    pub refused: u64,
    /// Live at the first look, and gone by another's hand.
    pub disappeared: u64,
}

/// Durable consumers. A consumer that went is never `deleted`: the broker's answer does not say whose removal won.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    /// Looked at.
    pub examined: u64,
    /// Not there before.
    pub absent: u64,
    /// Not known to be gone.
    pub refused: u64,
    /// Removals that the broker acknowledged.
    pub acknowledged: u64,
    /// There at the first look, and gone at the last.
    pub disappeared: u64,
}

/// The account of one deprovisioning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deprovisioned {
    /// The two durables.
    pub consumers: ConsumerCounts,
    /// The read-ACL row.
    pub acls: RowCounts,
    /// The membership rows.
    pub members: RowCounts,
}

/// A deprovisioning of which some part is not known to be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeprovisionError {
    /// What became of every part.
    pub account: Box<Deprovisioned>,
    /// The first failure.
    pub cause: EpError,
}

impl ConsumerCounts {
    /// Zero, or unknown (`null`) once one has disappeared.
    pub fn deleted(&self) -> Option<u64> {
        (self.disappeared == 0).then_some(0)
    }
}

impl Deprovisioned {
    /// Everything looked at.
    pub fn examined(&self) -> u64 {
        self.consumers.examined + self.acls.examined + self.members.examined
    }

    /// Rows that this call purged; unknown (`null`) once a consumer has disappeared.
    pub fn deleted(&self) -> Option<u64> {
        self.consumers.deleted().map(|consumers| consumers + self.acls.deleted + self.members.deleted)
    }

    /// What was not there before.
    pub fn absent(&self) -> u64 {
        self.consumers.absent + self.acls.absent + self.members.absent
    }

    /// What is not known to be gone.
    pub fn refused(&self) -> u64 {
        self.consumers.refused + self.acls.refused + self.members.refused
    }

    /// What was seen before and is gone, by whoever's hand.
    pub fn disappeared(&self) -> u64 {
        self.consumers.disappeared + self.acls.disappeared + self.members.disappeared
    }
}

impl Serialize for ConsumerCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire {
            examined: u64,
            deleted: Option<u64>,
            absent: u64,
            refused: u64,
            acknowledged: u64,
            disappeared: u64,
        }
        let &Self { examined, absent, refused, acknowledged, disappeared } = self;
        let deleted = self.deleted();
        Wire { examined, deleted, absent, refused, acknowledged, disappeared }.serialize(serializer)
    }
}

impl Serialize for Deprovisioned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            examined: u64,
            deleted: Option<u64>,
            absent: u64,
            refused: u64,
            acknowledged: u64,
            disappeared: u64,
            consumers: &'a ConsumerCounts,
            acls: &'a RowCounts,
            members: &'a RowCounts,
        }
        Wire {
            examined: self.examined(),
            deleted: self.deleted(),
            absent: self.absent(),
            refused: self.refused(),
            acknowledged: self.consumers.acknowledged,
            disappeared: self.disappeared(),
            consumers: &self.consumers,
            acls: &self.acls,
            members: &self.members,
        }
        .serialize(serializer)
    }
}

impl fmt::Display for DeprovisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "deprovision: {} of {} parts are not known to be gone: {}; run it again",
            self.account.refused(),
            self.account.examined(),
            self.cause
        )
    }
}

impl std::error::Error for DeprovisionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_written_as_the_contract_writes_it() {
        let account = Deprovisioned {
            consumers: ConsumerCounts { examined: 2, absent: 1, acknowledged: 1, disappeared: 1, refused: 0 },
            acls: RowCounts { examined: 1, deleted: 1, ..RowCounts::default() },
            members: RowCounts { examined: 2, absent: 1, disappeared: 1, ..RowCounts::default() },
        };
        assert_eq!(
            serde_json::to_string(&account).unwrap(),
            "{\"examined\":5,\"deleted\":null,\"absent\":2,\"refused\":0,\"acknowledged\":1,\"disappeared\":2,\
             \"consumers\":{\"examined\":2,\"deleted\":null,\"absent\":1,\"refused\":0,\"acknowledged\":1,\
             \"disappeared\":1},\"acls\":{\"examined\":1,\"deleted\":1,\"absent\":0,\"refused\":0,\"disappeared\":0},\
             \"members\":{\"examined\":2,\"deleted\":0,\"absent\":1,\"refused\":0,\"disappeared\":1}}"
        );
    }

    #[test]
    fn a_row_that_disappeared_leaves_the_deletions_known() {
        let account = Deprovisioned {
            members: RowCounts { examined: 1, disappeared: 1, ..RowCounts::default() },
            ..Deprovisioned::default()
        };
        assert_eq!((account.deleted(), account.disappeared()), (Some(0), 1));
    }
}
