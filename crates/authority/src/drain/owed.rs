//! Obligation rows as a scan found them, and what a barrier reads of them (contract 07 §6.3 phases 4 and 6).

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::{
    Command, EndpointToken, EpError, Revision,
    rows::{Obligation, ObligationKey, ObligationState, Owed},
};

use crate::{scanner::Scanned, store::at_key};

/// One obligation, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedRow {
    /// Its key, as stored.
    pub key: String,
    /// Its store revision.
    pub revision: Revision,
    /// What it says.
    pub obligation: Obligation,
}

impl OwedRow {
    /// Reads a scanned row: a marker is `failed-precondition`, a garbled row `internal`.
    pub fn read(row: &Scanned) -> Result<Self, EpError> {
        let Some(value) = &row.value else {
            return Err(EpError::failed_precondition(format!(
                "{}: holds a deletion marker at revision {}; obligations are never deleted, restore it from a backup",
                row.key.escape_default(),
                row.revision.0
            )));
        };
        let obligation = at_key(&row.key, Obligation::parse(value))?;
        Ok(Self { key: row.key.clone(), revision: row.revision, obligation })
    }

    /// Reads all of them; the first that refuses refuses all.
    pub fn read_all(rows: &[Scanned]) -> Result<Vec<Self>, EpError> {
        rows.iter().map(Self::read).collect()
    }

    /// Its endpoint: the third token of its key (`internal` when there is none).
    pub fn endpoint(&self) -> Result<EndpointToken, EpError> {
        let token = self.key.split('.').nth(2).and_then(|token| EndpointToken::parse(token).ok());
        at_key(&self.key, token.ok_or_else(|| EpError::internal("an obligation's key names no endpoint")))
    }

    /// Whether something may still be owed.
    pub fn is_owed(&self) -> bool {
        self.obligation.state().is_owed()
    }

    /// Whether the work is accepted and its decision a fact: what stays as it is once its route is verified.
    pub fn is_accepted_epf(&self) -> bool {
        self.obligation.state() == ObligationState::Accepted && matches!(self.obligation.owed(), Owed::Epf(_))
    }

    /// The pools that accepted work was routed to, by endpoint (contract 07 §6.3 phase 6).
    pub fn pools(rows: &[Self]) -> Result<BTreeMap<EndpointToken, BTreeSet<Command>>, EpError> {
        let mut pools: BTreeMap<EndpointToken, BTreeSet<Command>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.is_accepted_epf()) {
            let Owed::Epf(work) = row.obligation.owed() else { continue };
            if let Some(pool) = at_key(&row.key, work.route.as_pool())? {
                pools.entry(row.endpoint()?).or_default().insert(pool);
            }
        }
        Ok(pools)
    }

    /// The key, when it is one of this endpoint; any other is `permission-denied`, a garbled one `internal`.
    pub(super) fn key_at(&self, endpoint: &EndpointToken) -> Result<ObligationKey, EpError> {
        let mut tokens = self.key.split('.');
        if tokens.clone().count() != 7 || tokens.nth(2) != Some(endpoint.as_str()) {
            return Err(EpError::permission_denied(format!(
                "drain: {} is not an obligation of {endpoint}",
                self.key.escape_default()
            )));
        }
        at_key(&self.key, ObligationKey::parse(&self.key))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_wire::{
        EpCode, OpId,
        rows::{Commit, CommitValue, FactWork},
    };

    use super::*;

    const WHO: &str = "local.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu";

    fn row(key: &str, obligation: &Obligation) -> Scanned {
        Scanned { key: key.to_owned(), revision: Revision(3), value: Some(obligation.to_bytes().into()) }
    }

    fn epf(route: &str) -> Obligation {
        let work = FactWork { fingerprint: "x".into(), source_seq: 1, route: route.parse().unwrap() };
        Obligation::provisional(&OpId::parse(&"f".repeat(26)).unwrap(), Some(1), None, Owed::Epf(work))
            .unwrap()
    }

    fn key(endpoint: &str, id: &str) -> String {
        format!("oblig.tttttttttttttttttttttttttt.{endpoint}.{WHO}.{id}")
    }

    #[test]
    fn a_marker_and_a_garbled_row_refuse_with_their_key() {
        let marker = Scanned { key: key("e", "r1"), revision: Revision(1), value: None };
        let refused = OwedRow::read(&marker).unwrap_err();
        assert_eq!(refused.code, EpCode::FailedPrecondition);
        let garbled = Scanned { value: Some(Bytes::from_static(b"{}")), ..marker };
        let refused = OwedRow::read_all(&[row(&key("e", "r2"), &epf("effects")), garbled]).unwrap_err();
        assert!(refused.code == EpCode::Internal && refused.message.contains(&key("e", "r1")), "{refused}");
    }

    #[test]
    fn the_inventory_is_the_pools_of_accepted_facts_alone() {
        let own = Commit {
            key: "cp.e.t.spec".into(),
            base_revision: 0,
            value: CommitValue::Inline(b"1".to_vec()),
            digest: cotal_wire::canonical::raw_digest(b"1"),
        };
        let own = Obligation::provisional(
            &OpId::parse(&"f".repeat(26)).unwrap(),
            Some(1),
            None,
            Owed::SelfCommit(own),
        );
        let rows = [
            row(&key("b", "1"), &epf("pool.two").accept().unwrap()),
            row(&key("b", "2"), &epf("pool.one").accept().unwrap()),
            row(&key("b", "3"), &epf("pool.one").accept().unwrap()),
            row(&key("a", "4"), &epf("pool.x").accept().unwrap()),
            row(&key("a", "5"), &epf("pool.provisional")),
            row(&key("a", "6"), &epf("pool.rejected").reject().unwrap()),
            row(&key("c", "7"), &epf("effects").accept().unwrap()),
            row(&key("c", "8"), &own.unwrap().accept().unwrap()),
        ];
        let pools = OwedRow::pools(&OwedRow::read_all(&rows).unwrap()).unwrap();
        let printed: Vec<String> = pools
            .iter()
            .flat_map(|(endpoint, pools)| pools.iter().map(move |pool| format!("{endpoint}/{pool}")))
            .collect();
        assert_eq!(printed, ["a/x", "b/one", "b/two"]);
        let wide = [row(&key("a", "9"), &epf("pool.a_b").accept().unwrap())];
        let refused = OwedRow::pools(&OwedRow::read_all(&wide).unwrap()).unwrap_err();
        assert_eq!(refused.code, EpCode::Internal);
    }

    #[test]
    fn a_drain_looks_at_keys_of_its_own_endpoint() {
        let endpoint = EndpointToken::parse("e").unwrap();
        let at = |key: String| OwedRow::read(&row(&key, &epf("effects"))).unwrap().key_at(&endpoint);
        assert_eq!(at(key("e", "r1")).unwrap().to_string(), key("e", "r1"));
        for foreign in [key("f", "r1"), key("e", "r1.more"), "oblig.t.e".to_owned()] {
            assert_eq!(at(foreign.clone()).unwrap_err().code, EpCode::PermissionDenied, "{foreign}");
        }
        assert_eq!(at(key("e", "r1").replace("alice", "al-ice")).unwrap_err().code, EpCode::Internal);
    }
}
