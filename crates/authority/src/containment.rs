//! Containment, shared by the barriers: nothing of an incarnation admits a new connection, and no live one is left
//! (contract 07 §5 step 2, 02 §3.10 steps 2-4).
//!
//! Deny-new before kill-live, always: whoever is evicted must not be able to come back.

use std::collections::BTreeSet;

use cotal_wire::{
    EpError, KeySegment, LifecycleUid, Principal, SessionId,
    rows::{CredentialRow, SourceMember},
};

use crate::{
    barrier::BarrierDeps,
    credential::{RowAt, revoke_row},
    scanner::Scanned,
    session_pairs::SessionPairs,
    store::at_key,
};

/// What containing a family came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contained {
    /// Rows that this run revoked; those that were revoked before do not count.
    pub(crate) revoked_rows: u64,
    /// Principals that were verified gone, in ascending order.
    pub(crate) evicted: Vec<Principal>,
}

/// What the rows of a family say must be contained besides them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Holders of all rows, of those revoked before too.
    pub(crate) holders: BTreeSet<Principal>,
    /// Sessions in any row's lineage.
    pub(crate) sessions: BTreeSet<SessionId>,
}

// === deciding =================================================================================================

/// Reads every row of a scan before anything is moved: a marker is `failed-precondition`, a row that cannot be read
/// `internal`.
pub(crate) fn family(rows: Vec<Scanned>) -> Result<Vec<RowAt>, EpError> {
    let parse = |Scanned { key, revision, value }: Scanned| {
        let Some(value) = value else { return Err(deleted(&key)) };
        Ok((at_key(&key, CredentialRow::parse(&key, &value))?, revision))
    };
    rows.into_iter().map(parse).collect()
}

/// A row of trusted state that somebody deleted.
pub(crate) fn deleted(key: &str) -> EpError {
    EpError::failed_precondition(format!(
        "{}: a deletion marker stands where an authority row was; restore it from a backup",
        key.escape_default()
    ))
}

/// Whom, and which sessions, these rows reach.
pub(crate) fn reach<'a>(rows: impl IntoIterator<Item = &'a CredentialRow>) -> Result<Reach, EpError> {
    let mut reach = Reach::default();
    for row in rows {
        reach.holders.insert(row.holder().clone());
        for member in row.source_chain() {
            if let SourceMember::Session(id) = member {
                reach.sessions.insert(session_id(row, id)?);
            }
        }
    }
    Ok(reach)
}

fn session_id(row: &CredentialRow, id: &KeySegment) -> Result<SessionId, EpError> {
    let id = SessionId::parse(id.as_str())
        .map_err(|_| EpError::internal("a stored credential row derives from what is no session"));
    at_key(&row.key().to_string(), id)
}

// === driving ==================================================================================================

/// Contains the whole family of an incarnation: revokes every row, ends every session pair, and evicts every holder,
/// the alias itself, and whoever served a session.
///
/// `unavailable` when somebody is not verifiably gone.
pub(crate) async fn contain(
    deps: &BarrierDeps,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<Contained, EpError> {
    deps.stores.auth_store().count_request();
    let rows = family(deps.ledger.agent_family(uid).await?)?;
    let Reach { mut holders, sessions } = reach(rows.iter().map(|(row, _)| row))?;
    holders.insert(principal.clone());
    let mut revoked_rows = 0;
    for row in rows {
        revoked_rows += u64::from(revoke_row(deps.stores.auth_store(), row).await?);
    }
    holders.extend(end_sessions(deps.sessions.as_deref(), &sessions).await?);
    let evicted = deps.evict(&holders).await?;
    Ok(Contained { revoked_rows, evicted })
}

/// Ends the pairs of these sessions in ascending order, and says whom else that reaches.
pub(crate) async fn end_sessions(
    pairs: Option<&dyn SessionPairs>,
    sessions: &BTreeSet<SessionId>,
) -> Result<BTreeSet<Principal>, EpError> {
    let mut reached = BTreeSet::new();
    for session in sessions {
        let Some(pairs) = pairs else {
            return Err(EpError::failed_precondition(
                "containment: the family holds a session and nothing here can end its pair",
            ));
        };
        reached.extend(pairs.end(session).await?);
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, Revision};

    use super::*;

    fn scanned(key: &str, holder: &str, chain: &str) -> Scanned {
        let (uid, id) = key.strip_prefix("cred.").unwrap().split_once('.').unwrap();
        let row = format!(
            "{{\"credentialId\":\"{id}\",\"holderPrincipal\":\"{holder}\",\"lifecycleUid\":\"{uid}\",\
             \"sourceChain\":[{chain}],\"state\":\"active\",\"exp\":9}}"
        );
        Scanned { key: key.to_owned(), revision: Revision(1), value: Some(row.into()) }
    }

    fn key(id: &str) -> String {
        format!("cred.{}.{id}", "a".repeat(26))
    }

    #[test]
    fn a_marker_or_a_garbled_row_anywhere_refuses_the_whole_family() {
        let good = scanned(&key("c1"), "local.alice", "\"root\"");
        assert_eq!(family(vec![good.clone()]).unwrap().len(), 1);
        let marker = Scanned { value: None, ..scanned(&key("c2"), "local.alice", "\"root\"") };
        assert_eq!(family(vec![good.clone(), marker]).unwrap_err().code, EpCode::FailedPrecondition);
        let garbled = Scanned { key: key("c3"), ..good.clone() };
        let refusal = family(vec![good, garbled]).unwrap_err();
        assert_eq!(refusal.code, EpCode::Internal);
        assert!(refusal.message.contains(&key("c3")), "{refusal}");
    }

    #[test]
    fn a_family_reaches_every_holder_and_every_session_once() {
        let (s1, s2) = ("s".repeat(22), "t".repeat(22));
        let rows = family(vec![
            scanned(&key("c1"), "local.bob", "\"root\""),
            scanned(&key(&format!("{s2}.c")), "local.alice", &format!("\"session.{s2}\"")),
            scanned(&key(&format!("{s1}.c")), "local.alice", &format!("\"session.{s1}\",\"handle.k.h\"")),
            scanned(&key("c4"), "local.alice", &format!("\"session.{s1}\"")),
        ])
        .unwrap();
        let reach = reach(rows.iter().map(|(row, _)| row)).unwrap();
        let names: Vec<_> = reach.holders.iter().map(Principal::key).collect();
        assert_eq!(names, ["local.alice", "local.bob"]);
        let sessions: Vec<_> = reach.sessions.iter().map(SessionId::as_str).collect();
        assert_eq!(sessions, [s1.as_str(), s2.as_str()]);
    }

    #[test]
    fn a_session_that_cannot_be_one_is_internal() {
        let rows = family(vec![scanned(&key("c1"), "local.alice", "\"session.short\"")]).unwrap();
        assert_eq!(reach(rows.iter().map(|(row, _)| row)).unwrap_err().code, EpCode::Internal);
    }
}
