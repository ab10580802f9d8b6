//! Operations that the running auth service is asked for over HTTP.

use std::time::Instant;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use cotal_testkit::raw::RawClient;
use cotal_wire::OpId;
use serde_json::Value;

use crate::{
    Row, debts,
    house::{House, WITHIN},
    journal::{Allowed, hold_to},
    member::{Member, Session},
    minting,
};

/// An operation of the running service.
#[async_trait]
pub(crate) trait Operation: Sync {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// What one run of it is about.
    type Case: Send + Sync;
    /// Prepares a run on something fresh.
    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case>;
    /// What must be the case whenever it is asked.
    async fn before(&self, _: &House, _: &Self::Case) -> Result<()> {
        Ok(())
    }
    /// The question; the same one again resumes what was cut off.
    fn question(&self, case: &Self::Case) -> (&'static str, Value);
    /// Whether a key is of this run.
    fn owns(&self, case: &Self::Case, key: &str) -> bool;
    /// How often each key may be written, over all runs.
    fn check_writes(&self, case: &Self::Case, written: &[String]) -> Result<()>;
    /// The terminal state, and that the name goes on.
    async fn check(&self, house: &House, case: &mut Self::Case) -> Result<()>;
}

/// Runs it uncut, then killed after each of its writes.
pub(crate) async fn row(operation: impl Operation) -> Result<Row> {
    let house = House::start("service").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let written = |case: &_, mark| -> Result<Vec<String>> {
        let mut keys = house.journal.since(mark)?;
        keys.retain(|key| operation.owns(case, key));
        Ok(keys)
    };

    let mut case = operation.prepare(&house, "uncut").await?;
    let mark = house.journal.len()?;
    let (path, body) = operation.question(&case);
    operation.before(&house, &case).await?;
    house.ok(path, &body).await?;
    let uncut = written(&case, mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    operation.check_writes(&case, &uncut)?;
    operation.check(&house, &mut case).await?;

    let mut resumed = 0;
    for nth in 1..=uncut.len() {
        let context = |what: &str| format!("{what}, killed after write {nth} of {uncut:?}");
        let mut case = operation.prepare(&house, &format!("cut{nth}")).await?;
        let mark = house.journal.len()?;
        service.arm(&house.journal, nth)?;
        let (path, body) = operation.question(&case);
        operation.before(&house, &case).await?;
        let answer = house.post(path, &body).await;
        ensure!(answer.is_err(), "{}", context(&format!("it was answered: {answer:?}")));
        service.is_killed().await?;
        let cut = written(&case, mark)?;
        ensure!(cut.len() == nth, "{}", context(&format!("it wrote {cut:?}")));

        house.journal.arm(0)?;
        service = house.start_service().await?;
        operation.before(&house, &case).await?;
        house.ok(path, &body).await.map_err(|error| error.context(context("asked again")))?;
        operation
            .check_writes(&case, &written(&case, mark)?)
            .map_err(|error| error.context(context("its writes")))?;
        operation.check(&house, &mut case).await.map_err(|error| error.context(context("its end")))?;
        resumed += 1;
    }
    Ok(Row { operation: operation.name(), writes: uncut.len(), kills: uncut.len(), resumed })
}

/// An agent's first exchange: activation, mint ceremony, root stamp.
pub(crate) struct Exchange;

#[async_trait]
impl Operation for Exchange {
    fn name(&self) -> &'static str {
        "exchange: activation, mint ceremony, root stamp"
    }

    type Case = Member;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Member> {
        Member::grant(house, actor)
    }

    fn question(&self, member: &Member) -> (&'static str, Value) {
        ("/exchange", member.exchange_body())
    }

    fn owns(&self, member: &Member, key: &str) -> bool {
        member.owns(key)
    }

    fn check_writes(&self, _: &Member, written: &[String]) -> Result<()> {
        // Born and opened; a mint that was cut off has touched it, and the next one touches it again.
        let allowed: Allowed<'_> =
            &[("uid.", 1..=1), ("gate.", 3..=4), ("lifecycle.", 2..=2), ("cred.", 1..=1)];
        let roots = written.iter().filter(|key| key.starts_with("cred.")).count();
        ensure!(roots <= 2, "more roots than runs: {written:?}");
        hold_to(written, allowed)
    }

    async fn check(&self, house: &House, member: &mut Member) -> Result<()> {
        member.enters(house).await
    }
}

/// A person's first exchange: the same ceremony behind a token of the IdP.
pub(crate) struct Login;

#[async_trait]
impl Operation for Login {
    fn name(&self) -> &'static str {
        "exchange of a person: the same ceremony"
    }

    /// The member, and what it asks with.
    type Case = (Member, Value);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        let member = Member::grant(house, actor)?;
        member.hand_to_person(house)?;
        let body = member.login_body(house);
        Ok((member, body))
    }

    fn question(&self, (_, body): &Self::Case) -> (&'static str, Value) {
        ("/exchange", body.clone())
    }

    fn owns(&self, (member, _): &Self::Case, key: &str) -> bool {
        member.owns(key)
    }

    fn check_writes(&self, (member, _): &Self::Case, written: &[String]) -> Result<()> {
        Exchange.check_writes(member, written)
    }

    async fn check(&self, house: &House, (member, _): &mut Self::Case) -> Result<()> {
        member.enters_as_person(house).await
    }
}

/// A connect: the broker asks, the service writes down what it is about to issue, and answers. Killed in between it has
/// admitted nobody, and the row that it leaves is of a key that no connection has.
pub(crate) async fn connect_row() -> Result<Row> {
    let house = House::start("connect").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let member = Member::grant(&house, "uncut")?;
    let bearer = member.exchange(&house).await?;
    let mark = house.journal.len()?;
    let _client = house.connect(&bearer).await?;
    let uncut = house.journal.since(mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    hold_to(&uncut, &[("natkey.", 1..=1)])?;
    for nth in 1..=uncut.len() {
        let mark = house.journal.len()?;
        service.arm(&house.journal, nth)?;
        let refused = house.connect(&bearer).await;
        ensure!(refused.is_err(), "a connect was admitted by a service that died before its answer");
        service.is_killed().await?;
        let cut = house.journal.since(mark)?;
        ensure!(cut.len() == nth, "killed after write {nth} of {uncut:?}, it wrote {cut:?}");
        house.journal.arm(0)?;
        service = house.start_service().await?;
        // The same bearer is admitted again, under a key of its own.
        let again = house.journal.len()?;
        let client = house.connect(&bearer).await?;
        let written = house.journal.since(again)?;
        hold_to(&written, &[("natkey.", 1..=1)])?;
        ensure!(written.iter().all(|key| !cut.contains(key)), "a key was issued twice: {cut:?} {written:?}");
        for key in cut.iter().chain(&written) {
            let row = house.json(&house.auth, key).await?;
            ensure!(row["lifecycleUid"] == member.uid.as_str(), "{key}: {row}");
        }
        drop(client);
    }
    Ok(Row {
        operation: "connect: the row of what is issued",
        writes: uncut.len(),
        kills: uncut.len(),
        resumed: uncut.len(),
    })
}

/// A host activates a lifecycle.
pub(crate) struct Activate;

#[async_trait]
impl Operation for Activate {
    fn name(&self) -> &'static str {
        "managed activation"
    }

    type Case = (Member, String);

    async fn prepare(&self, house: &House, actor: &str) -> Result<Self::Case> {
        Ok((Member::grant(house, actor)?, house.space.account.account.public().to_string()))
    }

    fn question(&self, (member, account): &Self::Case) -> (&'static str, Value) {
        let mut body = member.door_body();
        body["accountPublicKey"] = account.as_str().into();
        ("/managed-lifecycle/activate", body)
    }

    fn owns(&self, (member, _): &Self::Case, key: &str) -> bool {
        member.owns(key)
    }

    fn check_writes(&self, _: &Self::Case, written: &[String]) -> Result<()> {
        hold_to(written, &[("uid.", 1..=1), ("gate.", 2..=2), ("lifecycle.", 1..=1)])
    }

    async fn check(&self, house: &House, (member, _): &mut Self::Case) -> Result<()> {
        member.stands(house, None).await?;
        member.enters(house).await
    }
}

/// A lifecycle is retired for good, with its root, a session pair, an issuance, a live connection, and what it owes.
pub(crate) struct Retire {
    managed: bool,
    owes: bool,
}

/// An incarnation that is to be retired, and its live connection.
pub(crate) struct Retiring {
    member: Member,
    op: OpId,
    session: Session,
    client: RawClient,
}

impl Retire {
    pub(crate) fn managed() -> Self {
        Self { managed: true, owes: false }
    }

    /// A managed one with obligations of every kind.
    pub(crate) fn owing() -> Self {
        Self { managed: true, owes: true }
    }

    pub(crate) fn interactive() -> Self {
        Self { managed: false, owes: false }
    }
}

#[async_trait]
impl Operation for Retire {
    fn name(&self) -> &'static str {
        match self {
            Self { owes: true, .. } => "managed retirement with a drain and a cleaning",
            Self { managed: true, .. } => "managed retirement",
            Self { .. } => "interactive retirement",
        }
    }

    type Case = Retiring;

    async fn prepare(&self, house: &House, actor: &str) -> Result<Retiring> {
        let member = Member::grant(house, actor)?;
        let bearer = member.exchange(house).await?;
        let client = house.connect(&bearer).await?;
        let session = Session::plant(house, &member).await?;
        minting::issue(&house.connector(), &member.principal(), &member.uid).await?;
        if self.owes {
            debts::plant(house, &member).await?;
        }
        let op = if self.managed {
            member.revoke(house)?;
            OpId::managed_retirement(&member.uid)
        } else {
            member.hand_to_person(house)?;
            OpId::interactive_retirement(&member.uid)
        };
        Ok(Retiring { member, op, session, client })
    }

    fn question(&self, case: &Retiring) -> (&'static str, Value) {
        let path = if self.managed { "/managed-lifecycle/retire" } else { "/interactive-lifecycle/retire" };
        (path, case.member.door_body())
    }

    fn owns(&self, case: &Retiring, key: &str) -> bool {
        case.member.owns(key) || key.contains(case.op.as_str()) || case.session.owns(key)
    }

    fn check_writes(&self, _: &Retiring, written: &[String]) -> Result<()> {
        // Nothing is written twice, whoever was killed: each step is seen before it is done again.
        let mut allowed = vec![
            ("stage.", 1..=1),
            ("gate.", 2..=2),
            ("lifecycle.", 2..=2),
            ("cred.", 1..=1),
            ("session.", 2..=2),
            ("epcred.", 1..=1),
            ("frontier.", 1..=1),
            ("attempt.", 1..=1),
        ];
        if self.owes {
            allowed.extend(["oblig.", "cotal.", "cp.", "lease."].map(|key| (key, 1..=1)));
        }
        hold_to(written, &allowed)
    }

    async fn check(&self, house: &House, case: &mut Retiring) -> Result<()> {
        let Retiring { member, op, session, client } = case;
        member.is_retired(house, op.as_str()).await?;
        session.has_ended(house).await?;
        minting::none_is_live(house, member).await?;
        if self.owes {
            debts::are_settled(house, member).await?;
        }
        let began = Instant::now();
        while client.ping().await.is_ok() {
            ensure!(began.elapsed() < WITHIN, "a retired actor is connected still");
        }
        member.revoke(house)?;
        member.regrant(house)?.enters(house).await
    }
}
