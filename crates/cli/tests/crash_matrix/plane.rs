//! The plane itself: its first start, a later one over a dead claim, and its end.

use anyhow::{Context, Result, ensure};
use cotal_trust::system::SystemEntropy;
use cotal_wire::{EndpointName, InstanceId, names};
use cotal_workspace::instance_identity::InstanceIdentity;

use crate::{
    Row,
    house::{House, Victim},
    journal::{Allowed, hold_to},
    member::Member,
};

/// What one start writes at most, and what both runs of one that was cut off may: the second is a registration of its
/// own when the first had ended. Artifacts and the gate's birth are written once.
const ONE_START: Allowed<'_> =
    &[("plane", 1..=1), ("epgate.auth.", 2..=3), ("govern.auth", 1..=3), ("svc.auth.", 1..=1), ("", 0..=1)];
const TWO_STARTS: Allowed<'_> =
    &[("plane", 1..=2), ("epgate.auth.", 2..=5), ("govern.auth", 1..=6), ("svc.auth.", 1..=2), ("", 0..=1)];

/// A space's first start: the claim, the contract's artifacts, the registration of endpoint `auth`, its serve grant.
pub(crate) async fn first_start() -> Result<Row> {
    let uncut = {
        let house = House::start("first").await?;
        house.journal.arm(0)?;
        let _service = house.start_service().await?;
        let uncut = house.journal.keys()?;
        hold_to(&uncut, ONE_START)?;
        serves(&house, 0, "uncut").await?;
        uncut
    };
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    let mut resumed = 0;
    for nth in 1..=uncut.len() {
        let context = || format!("the first start, killed after write {nth} of {uncut:?}");
        // A space has one first start.
        let house = House::start("first").await?;
        house.journal.arm(nth)?;
        house.spawn_service()?.is_killed().await.with_context(context)?;
        let cut = house.journal.keys()?;
        ensure!(cut.len() == nth, "{}: it wrote {cut:?}", context());
        house.journal.arm(0)?;
        let _service = house.start_service().await.with_context(context)?;
        let written = house.journal.keys()?;
        hold_to(&written, TWO_STARTS).with_context(context)?;
        // Its birth, and two writes a registration: the first one stays at epoch 0.
        let registrations = (gates(&written) - 1) / 2;
        serves(&house, registrations - 1, "cut").await.with_context(context)?;
        resumed += 1;
    }
    Ok(Row {
        operation: "first start: claim, artifacts, registration",
        writes: uncut.len(),
        kills: uncut.len(),
        resumed,
    })
}

/// A start over the claim of a process that was killed: reclaim, and the predecessor's registration fenced.
pub(crate) async fn later_start() -> Result<Row> {
    let house = House::start("later").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    service.kill()?;
    let mark = house.journal.len()?;
    service = house.start_service().await?;
    let uncut = house.journal.since(mark)?;
    ensure!(!uncut.is_empty(), "no journal was kept: the binary has no failpoints");
    hold_to(&uncut, ONE_START)?;
    let mut epoch = 1;
    serves(&house, epoch, "uncut").await?;
    let mut resumed = 0;
    for nth in 1..=uncut.len() {
        let context = || format!("a later start, killed after write {nth} of {uncut:?}");
        service.kill()?;
        let mark = house.journal.len()?;
        house.journal.arm(nth)?;
        house.spawn_service()?.is_killed().await.with_context(context)?;
        let cut = house.journal.since(mark)?;
        ensure!(cut.len() == nth, "{}: it wrote {cut:?}", context());
        house.journal.arm(0)?;
        service = house.start_service().await.with_context(context)?;
        let written = house.journal.since(mark)?;
        hold_to(&written, TWO_STARTS).with_context(context)?;
        epoch += gates(&written) / 2;
        serves(&house, epoch, &format!("cut{nth}")).await.with_context(context)?;
        resumed += 1;
    }
    Ok(Row {
        operation: "later start: reclaim, registration",
        writes: uncut.len(),
        kills: uncut.len(),
        resumed,
    })
}

/// An orderly end gives the claim back.
pub(crate) async fn release() -> Result<Row> {
    let house = House::start("release").await?;
    house.journal.arm(0)?;
    let mut service = house.start_service().await?;
    let mark = house.journal.len()?;
    service.stops().await?;
    let uncut = house.journal.since(mark)?;
    ensure!(uncut == ["plane"], "an end gives the claim back and writes nothing else: {uncut:?}");
    released(&house).await?;
    let mut service = house.start_service().await?;
    service.arm(&house.journal, 1)?;
    service.is_killed_as_it_stops().await?;
    released(&house).await?;
    house.journal.arm(0)?;
    let _service: Victim = house.start_service().await?;
    serves(&house, 2, "released").await?;
    Ok(Row { operation: "release of the claim at a stop", writes: 1, kills: 1, resumed: 1 })
}

/// Writes of the endpoint's gate.
fn gates(written: &[String]) -> u64 {
    written.iter().map(|key| u64::from(key.starts_with("epgate."))).sum()
}

async fn released(house: &House) -> Result<()> {
    let claim = house.json(&house.auth, "plane").await?;
    ensure!(claim["state"] == "released", "the claim: {claim}");
    Ok(())
}

/// The claim is held, endpoint `auth` is registered and ready at this epoch, and an actor can enter.
async fn serves(house: &House, epoch: u64, actor: &str) -> Result<()> {
    let claim = house.json(&house.auth, "plane").await?;
    ensure!(claim["state"] == "held", "the claim: {claim}");
    let (endpoint, instance) = (EndpointName::auth().token(), instance(house)?);
    let gate = house.json(&house.auth, &names::epgate_key(&endpoint, &instance)).await?;
    ensure!(gate["state"] == "open" && gate["processEpoch"] == epoch, "the gate, at epoch {epoch}: {gate}");
    let spec = house.json(&house.records, &names::service_spec_key(&endpoint, &instance)).await?;
    ensure!(spec["endpoint"] == "auth", "the spec: {spec}");
    let status = house.json(&house.records, &names::service_status_key(&endpoint, &instance)).await?;
    ensure!(status["state"] == "ready" && status["epoch"] == epoch, "the status, at epoch {epoch}: {status}");
    let govern = house.json(&house.records, &names::govern_key(&endpoint)).await?;
    ensure!(govern.get("provisional").is_none(), "the governance slot is held still: {govern}");
    Member::grant(house, actor)?.enters(house).await
}

fn instance(house: &House) -> Result<InstanceId> {
    let dir = house.space.root.space_dir(&house.space.space);
    Ok(InstanceIdentity::load_or_create(&dir, &SystemEntropy)?.instance)
}
