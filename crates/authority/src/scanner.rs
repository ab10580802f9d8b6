//! The sealed scanners: the only readers that enumerate the authority streams, each scan guarded by the plane claim
//! (contract 05 §8.7, 03 §E "Holding invariant").
//!
//! A candidate is an open connection that can do nothing. Only the winner of the claim makes a scanner of it, once.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use bytes::Bytes;
use cotal_broker::{Connection, ConnectionTuple, Connector, Lifetime, SealedScan, kv::Stored};
use cotal_wire::{
    Account, EndpointToken, EpError, InfraRole, InstanceId, KeySegment, LifecycleUid, Names, Nkey, Owner,
    OwnerKind, Revision, Space,
    endpoint_token::MANAGER_ENDPOINT as MANAGER,
    grants::infra,
    names::{
        GOAL_INDEX_SCAN_CONSUMER, LEDGER_SCAN_CONSUMER, RECORDS_SCAN_CONSUMER, session_owner_key_filter,
    },
    rows::{GoalIndexRow, ObligationKey},
};
use parking_lot::Mutex;

use crate::{
    plane_claim::{ClaimHold, When},
    store::at_key,
};

/// How many bytes of rows a scan holds that one tenant writes and waits for: its goals, or the credentials of one instance.
const MOST_OF_A_TENANT: usize = 64 * 1024 * 1024;
/// Longer than any gate of an endpoint, in bytes.
const LONGEST_GATE: usize = 4 * 1024;

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

/// Which of the two authority streams a scanner reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScannerRole {
    /// The auth stream.
    Ledger,
    /// The records stream.
    Records,
}

/// The plane-owned connection of a scanner: it can be watched and closed, and not asked anything.
#[derive(Clone)]
pub struct ScannerConnection {
    connection: Connection,
    tuple: ConnectionTuple,
    role: ScannerRole,
}

/// An open, inert connection that may become the scanner of the auth stream.
pub struct LedgerCandidate(Candidate);

/// An open, inert connection that may become the scanner of the records stream.
pub struct RecordsCandidate(Candidate);

struct Candidate {
    connection: ScannerConnection,
    space: Space,
    account: Nkey<Account>,
}

/// The activated scanner of the auth stream.
pub struct LedgerScanner(Sealed);

/// The activated scanner of the records stream.
pub struct RecordsScanner(Sealed);

/// What every scan of one stream goes through.
struct Sealed {
    connection: ScannerConnection,
    space: Space,
    bucket: String,
    hold: Arc<ClaimHold>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

// === impl ScannerRole ===

impl ScannerRole {
    /// The role's word in logs and operator texts (contract 03 §G).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "auth-ledger",
            Self::Records => "records",
        }
    }
}

// === impl ScannerConnection ===

impl ScannerConnection {
    async fn open(connector: &Connector, role: ScannerRole) -> Result<Self, EpError> {
        let space = connector.space();
        let token = space.token();
        let (infra_role, grants): (_, fn(&_, &_) -> _) = match role {
            ScannerRole::Ledger => (InfraRole::AUTH_SCAN, infra::ledger_scanner),
            ScannerRole::Records => (InfraRole::RECORDS_SCAN, infra::records_scanner),
        };
        let label = infra_role.label(space);
        let connection =
            connector.open(label, &move |inbox| grants(&token, inbox), Lifetime::PlaneOwned).await?;
        let tuple = connection.tuple().cloned();
        let tuple = tuple.ok_or_else(|| EpError::internal("a plane-owned connection has no tuple"))?;
        Ok(Self { connection, tuple, role })
    }

    /// What the claim row pins of it.
    pub fn tuple(&self) -> &ConnectionTuple {
        &self.tuple
    }

    /// Which scanner's it is.
    pub fn role(&self) -> ScannerRole {
        self.role
    }

    /// Resolves when the connection has ended for good, on demand or not: it never reconnects.
    pub async fn gone(&self) {
        self.connection.ended().await;
    }

    /// Closes it; a scan that runs is refused. Again is no error.
    pub async fn close(&self) -> Result<(), EpError> {
        self.connection.close().await
    }
}

// === impl candidates ===

impl LedgerCandidate {
    /// Opens `cotal:auth-scan:<space>`.
    pub async fn open(connector: &Connector) -> Result<Self, EpError> {
        Candidate::open(connector, ScannerRole::Ledger).await.map(Self)
    }

    /// Its connection.
    pub fn connection(&self) -> &ScannerConnection {
        &self.0.connection
    }

    /// Makes it the scanner, under a claim that pins this very connection (else `failed-precondition`).
    pub fn activate(self, hold: &Arc<ClaimHold>) -> Result<LedgerScanner, EpError> {
        self.0.activate(hold).map(LedgerScanner)
    }
}

impl RecordsCandidate {
    /// Opens `cotal:records-scan:<space>`.
    pub async fn open(connector: &Connector) -> Result<Self, EpError> {
        Candidate::open(connector, ScannerRole::Records).await.map(Self)
    }

    /// Its connection.
    pub fn connection(&self) -> &ScannerConnection {
        &self.0.connection
    }

    /// Makes it the scanner, under a claim that pins this very connection (else `failed-precondition`).
    pub fn activate(self, hold: &Arc<ClaimHold>) -> Result<RecordsScanner, EpError> {
        self.0.activate(hold).map(RecordsScanner)
    }
}

impl Candidate {
    async fn open(connector: &Connector, role: ScannerRole) -> Result<Self, EpError> {
        let connection = ScannerConnection::open(connector, role).await?;
        Ok(Self { connection, space: connector.space().clone(), account: connector.account().clone() })
    }

    fn activate(self, hold: &Arc<ClaimHold>) -> Result<Sealed, EpError> {
        let Self { connection, space, account } = self;
        let role = connection.role;
        let pinned = match role {
            ScannerRole::Ledger => &hold.tuples().ledger,
            ScannerRole::Records => &hold.tuples().records,
        };
        if *hold.space() != space || *pinned != connection.tuple {
            return Err(EpError::failed_precondition(format!(
                "the {} scanner of {space} is not the one that the plane claim pins",
                role.as_str()
            )));
        }
        let names = Names::new(&space.token());
        let bucket = match role {
            ScannerRole::Ledger => names.auth_bucket(),
            ScannerRole::Records => names.records_bucket(),
        };
        let turn = turn_of(&account, role);
        Ok(Sealed { connection, space, bucket, hold: hold.clone(), turn })
    }
}

// === impl LedgerScanner ===

impl LedgerScanner {
    /// The claim under which this scanner runs.
    pub(crate) fn claim(&self) -> &ClaimHold {
        &self.0.hold
    }

    /// `cred.<uid>.>`
    pub async fn agent_family(&self, uid: &LifecycleUid) -> Result<Vec<Scanned>, EpError> {
        self.scan(format!("cred.{uid}.>")).await
    }

    /// `epcred.<endpoint>.<instance>.>`
    pub async fn endpoint_family(
        &self,
        endpoint: &EndpointToken,
        instance: &InstanceId,
    ) -> Result<Vec<Scanned>, EpError> {
        self.0.scan(self.over(&format!("epcred.{endpoint}.{instance}.>")).at_most(MOST_OF_A_TENANT)).await
    }

    /// `bysrc.<issuerKeyId>.<id>.>`
    pub async fn by_source(&self, issuer_key: &KeySegment, id: &KeySegment) -> Result<Vec<Scanned>, EpError> {
        self.scan(format!("bysrc.{issuer_key}.{id}.>")).await
    }

    /// `stage.>`: operation intents, and the session pins below `stage.session.`.
    ///
    /// `seen` is told of each row's key and value as it comes, for what may be asked meanwhile; nothing may rest on it.
    pub async fn intents(
        &self,
        seen: &(dyn Fn(&str, Option<&[u8]>) + Send + Sync),
    ) -> Result<Vec<Scanned>, EpError> {
        let seen = |row: &Stored| seen(&row.key, row.value.as_deref());
        self.0.scan_seeing(self.over("stage.>"), &seen).await
    }

    /// `epgate.manager.>`; one that is longer than any gate is cut.
    pub async fn manager_gates(&self) -> Result<Vec<Scanned>, EpError> {
        self.0.scan(self.over(&format!("epgate.{MANAGER}.>")).cutting_at(LONGEST_GATE)).await
    }

    /// `session.>`
    pub async fn sessions(&self) -> Result<Vec<Scanned>, EpError> {
        self.scan("session.>".to_owned()).await
    }

    /// `sessowner.>`: whose sessions are.
    pub async fn session_owners(&self) -> Result<Vec<Scanned>, EpError> {
        self.scan(session_owner_key_filter().to_owned()).await
    }

    /// `epowner.manager.>`: whose the instances of managers are.
    pub async fn manager_owners(&self) -> Result<Vec<Scanned>, EpError> {
        self.scan(format!("epowner.{MANAGER}.>")).await
    }

    /// Refuses `failed-precondition` when a registry of another space would bind this scanner (contract 07 §1).
    pub fn bonded_to(&self, space: &Space) -> Result<(), EpError> {
        self.0.bonded_to(space)
    }

    /// Its connection.
    pub fn connection(&self) -> &ScannerConnection {
        &self.0.connection
    }

    async fn scan(&self, filter: String) -> Result<Vec<Scanned>, EpError> {
        self.0.scan(self.over(&filter)).await
    }

    fn over(&self, filter: &str) -> SealedScan {
        self.0.over(LEDGER_SCAN_CONSUMER, filter)
    }
}

// === impl RecordsScanner ===

impl RecordsScanner {
    /// Obligation rows, markers included.
    pub async fn obligations(&self, which: &Obligations) -> Result<Vec<Scanned>, EpError> {
        let filter = which.filter();
        if !is_obligation_filter(&filter) {
            return Err(EpError::internal(format!("{filter:?} is no filter of obligations")));
        }
        self.0.scan(self.0.over(RECORDS_SCAN_CONSUMER, &filter)).await
    }

    /// `goalidx.manager.<owner>.>`, checked as contract 05 §8.7 says: a marker is `failed-precondition`, a row that is
    /// garbled or another's is `internal`, and then nothing is returned; 64 MiB of them are `resource-exhausted`. In the order
    /// of their keys.
    pub async fn goal_index(&self, owner: &Owner) -> Result<Vec<GoalIndexRow>, EpError> {
        if owner.kind() == OwnerKind::Local {
            return Err(EpError::bad_request("the goal index is read for a u_ or p_ owner"));
        }
        let filter = format!("goalidx.{MANAGER}.{owner}.>");
        let scan = self.0.over(GOAL_INDEX_SCAN_CONSUMER, &filter).at_most(MOST_OF_A_TENANT);
        let rows = self.0.scan(scan).await?;
        read_goal_index(owner, &rows)
    }

    /// Refuses `failed-precondition` when a registry of another space would bind this scanner (contract 07 §1).
    pub fn bonded_to(&self, space: &Space) -> Result<(), EpError> {
        self.0.bonded_to(space)
    }

    /// Its connection.
    pub fn connection(&self) -> &ScannerConnection {
        &self.0.connection
    }
}

impl Obligations {
    fn filter(&self) -> String {
        match self {
            Self::OfTarget(uid) => ObligationKey::filter(Some(uid), None),
            Self::OfTargetAt(uid, endpoint) => ObligationKey::filter(Some(uid), Some(endpoint)),
            Self::At(endpoint) => ObligationKey::filter(None, Some(endpoint)),
        }
    }
}

// === impl Sealed ===

impl Sealed {
    /// A scan of this stream's bucket.
    fn over(&self, consumer: &'static str, filter: &str) -> SealedScan {
        SealedScan::new(&self.bucket, consumer, filter)
    }

    async fn scan(&self, scan: SealedScan) -> Result<Vec<Scanned>, EpError> {
        self.scan_seeing(scan, &|_| {}).await
    }

    /// One scan at a time; the claim is held before it, and still held after it, or its result is discarded.
    async fn scan_seeing(
        &self,
        scan: SealedScan,
        seen: &(dyn Fn(&Stored) + Send + Sync),
    ) -> Result<Vec<Scanned>, EpError> {
        let _turn = self.turn.lock().await;
        self.hold.assert_held(When::Before).await?;
        let rows = scan.run_seeing(&self.connection.connection, seen).await?;
        self.hold.assert_held(When::After).await?;
        let scanned =
            rows.into_iter().map(|row| Scanned { key: row.key, revision: row.revision, value: row.value });
        Ok(scanned.collect())
    }

    fn bonded_to(&self, space: &Space) -> Result<(), EpError> {
        if self.space == *space {
            return Ok(());
        }
        Err(EpError::failed_precondition(format!(
            "the {} scanner is of space {}, and a registry of {space} cannot bind it",
            self.connection.role.as_str(),
            self.space
        )))
    }
}

/// The turns of a space's stream in this process (contract 05 §12.4). A space is named by its account: one that has only the
/// name in common lies on another broker.
fn turn_of(account: &Nkey<Account>, role: ScannerRole) -> Arc<tokio::sync::Mutex<()>> {
    type Turns = HashMap<(String, ScannerRole), Weak<tokio::sync::Mutex<()>>>;
    static TURNS: LazyLock<Mutex<Turns>> = LazyLock::new(Mutex::default);
    let mut turns = TURNS.lock();
    let key = (account.as_str().to_owned(), role);
    if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
        return turn;
    }
    turns.retain(|_, turn| turn.strong_count() > 0);
    let turn = Arc::default();
    turns.insert(key, Arc::downgrade(&turn));
    turn
}

/// `oblig.<segments>.>`, each segment `*` or `[A-Za-z0-9_-]+`.
fn is_obligation_filter(filter: &str) -> bool {
    let segments = filter.strip_prefix("oblig.").and_then(|rest| rest.strip_suffix(".>"));
    let is_segment = |segment: &str| {
        segment == "*"
            || !segment.is_empty()
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    segments.is_some_and(|segments| segments.split('.').all(is_segment))
}

fn read_goal_index(owner: &Owner, rows: &[Scanned]) -> Result<Vec<GoalIndexRow>, EpError> {
    if let Some(marker) = rows.iter().find(|row| row.value.is_none()) {
        return Err(EpError::failed_precondition(format!(
            "{} holds a deletion marker at revision {}; the goal index cannot be read whole",
            marker.key.escape_default(),
            marker.revision.0
        )));
    }
    let read = |row: &Scanned| {
        let value = row.value.as_deref().unwrap_or_default();
        let goal = at_key(&row.key, GoalIndexRow::parse(&row.key, value))?;
        if goal.endpoint == MANAGER && goal.owner == owner.as_str() {
            return Ok(goal);
        }
        Err(EpError::internal(format!(
            "{}: the goal is another endpoint's or owner's",
            row.key.escape_default()
        )))
    };
    rows.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};
    use cotal_wire::EpCode;

    use super::*;

    #[test]
    fn obligation_filters_are_segments_and_a_rest() {
        let uid = LifecycleUid::parse(&"a".repeat(26)).unwrap();
        let endpoint = EndpointToken::parse("manager").unwrap();
        for which in [
            Obligations::OfTarget(uid.clone()),
            Obligations::OfTargetAt(uid, endpoint.clone()),
            Obligations::At(endpoint),
        ] {
            assert!(is_obligation_filter(&which.filter()), "{which:?}");
        }
        for bad in [
            "",
            "oblig.>",
            "oblig..>",
            "oblig.a",
            "oblig.a.b",
            "cred.a.>",
            "oblig.a.>.>",
            "oblig.a*.>",
            "oblig.a b.>",
            "oblig.*.*.é.>",
            "oblig.>.a.>",
        ] {
            assert!(!is_obligation_filter(bad), "{bad}");
        }
    }

    #[test]
    fn a_spaces_stream_has_one_turn_however_many_scanners() {
        let [one, other] = [(); 2].map(|()| Seed::<Account>::generate(&SystemEntropy).public().clone());
        let turn = turn_of(&one, ScannerRole::Ledger);
        assert!(Arc::ptr_eq(&turn, &turn_of(&one, ScannerRole::Ledger)));
        assert!(!Arc::ptr_eq(&turn, &turn_of(&one, ScannerRole::Records)));
        assert!(
            !Arc::ptr_eq(&turn, &turn_of(&other, ScannerRole::Ledger)),
            "whatever the two spaces are called"
        );
    }

    #[test]
    fn a_goal_index_is_whole_and_of_its_owner_or_refused() {
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let row = |endpoint: &str, owner: &str, value: Option<&str>| {
            let key = format!("goalidx.{endpoint}.{owner}.alice.uid1.g1");
            let body = format!(
                "{{\"v\":1,\"endpoint\":\"{endpoint}\",\"owner\":\"{owner}\",\"actor\":\"alice\",\"uid\":\"uid1\",\
                 \"goalId\":\"g1\",\"iid\":\"i\"}}"
            );
            let value = Some(Bytes::from(value.map_or(body, str::to_owned)));
            Scanned { key, revision: Revision(1), value }
        };
        let good = row("manager", owner.as_str(), None);
        let marker = Scanned { value: None, ..good.clone() };
        assert_eq!(read_goal_index(&owner, &[]), Ok(Vec::new()));
        let goals = read_goal_index(&owner, std::slice::from_ref(&good)).unwrap();
        assert_eq!((goals.len(), goals[0].goal_id.as_str()), (1, "g1"));
        let code = |rows: &[Scanned]| read_goal_index(&owner, rows).unwrap_err().code;
        // A marker anywhere speaks before a garbled row does.
        let garbled = row("manager", owner.as_str(), Some("{}"));
        assert_eq!(code(&[garbled.clone(), marker]), EpCode::FailedPrecondition);
        assert_eq!(code(&[good.clone(), garbled]), EpCode::Internal);
        assert_eq!(code(&[good.clone(), row("other", owner.as_str(), None)]), EpCode::Internal);
        assert_eq!(code(&[good, row("manager", &format!("u_{}", "b".repeat(26)), None)]), EpCode::Internal);
    }
}
