//! What it takes to retire a lifecycle (contract 07 §6), over the real processes of a space: `nats-server`,
//! `cotal delivery` and `cotal auth-service`.

mod report;
mod seed;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cotal_authority::{
    plane::{CLAIM_PATIENCE, NATIVE_ISSUANCE_PRUNE, Plane, PlaneIdentity, PlaneInputs},
    retirement::Retirement,
};
use cotal_broker::{
    Connection,
    kv::{Bucket, WriteOutcome},
};
use cotal_testkit::raw::{ConnectOutcome, RawClient};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Names, Principal};
use cotal_workspace::instance_identity::InstanceIdentity;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    door::Door,
    figures::{median, millis},
    population::{Member, Population},
    progress,
    report::{Connects, Machine},
    stack::{AuthService, Stack},
    steady::Steady,
    tap::{Sent, Tap},
};

pub(crate) use report::RetireReport;
use report::{Boot, Crowd};

pub(crate) const LONG_ABOUT: &str = "\
Measure what it takes to retire a lifecycle, over the real processes of a space. JSON on stdout, progress on stderr.

  round_trips        durable round trips of one retirement of an idle lifecycle with one credential, as the library
                     counts them: each read, each conditional write, each STREAM.INFO, and each scan as one
  requests           everything that one such retirement sends to JetStream, as a tap on the broker sees it: the
                     consumer of a scan and the connections that it opens included
  retire_ms          one retirement through the service's door, nothing else going on; median
  kv_update_ms       one revision-pinned update of a key of the same broker; median
  retire_to_update   retire_ms as a multiple of kv_update_ms
  retire_live_ms     from asking until the connection of an actor that is connected has ended; median
  revoke_live_ms     the same for a person: from starting `cotal actor revoke` until that person's connection has
                     ended; null when the revocation leaves it
  connect_p99_ratio  the p99 of a steady load of connects while lifecycles are retired, to the same load alone
  in_flight          the most retirements that were unanswered at once
  boot_ratio         the boot of the service with 10,000 completed retirements on record, to the boot with none: medians of
                     five, of which past_first_ms is the one that looks at all of them, as after the service's note of
                     what is over was lost";

/// Retirements in flight.
const WIDTH: usize = 16;
/// Boots of each kind; the median counts.
const BOOTS: usize = 5;
/// How long a connection may outlive its end.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// How much is measured.
struct Extent {
    singles: usize,
    live: usize,
    updates: usize,
    crowd: usize,
    past: usize,
    idle_load: Duration,
}

const WHOLE: Extent = Extent {
    singles: 40,
    live: 5,
    updates: 400,
    crowd: 1000,
    past: 10_000,
    idle_load: Duration::from_secs(40),
};
const QUICK: Extent =
    Extent { singles: 10, live: 2, updates: 100, crowd: 100, past: 1000, idle_load: Duration::from_secs(8) };

pub(crate) async fn measure(cotal: &Path, quick: bool) -> Result<RetireReport> {
    let extent = if quick { QUICK } else { WHOLE };
    progress("a space comes up");
    let stack = Stack::up(cotal).await?;
    let anything = stack.anything().await?;

    progress("boots with nothing on record");
    let (none_ms, _) = boots(&stack).await?;

    // Before anybody connects: a boot also reads each issuance row that stands, and those are no past.
    progress("boots with a long past");
    let owner = stack.ground.material.owner_secret.derive(&stack.ground.material.idp.issuer, "bench-past")?;
    seed::completed(&anything, &stack.ground.space, &owner, extent.past).await?;
    let (past_ms, past_first_ms) = boots(&stack).await?;

    let service = stack.serve().await?;
    progress("one update of a key");
    let kv_update_ms = kv_update(&anything, &stack, extent.updates).await?;
    progress("idle lifecycles, one at a time");
    let retire_ms = singles(&stack, &service, extent.singles).await?;
    let requests = requests(&stack, &service, &anything).await?;
    progress("lifecycles that are connected");
    let retire_live_ms = live(&stack, &service, extent.live).await?;
    let revoke_live_ms = revoke_live(&stack).await?;
    progress("many lifecycles beside a load of connects");
    let crowd = crowd(&stack, &service, &extent).await?;
    service.stop().await?;

    progress("one lifecycle, by the library");
    let round_trips = count(&stack).await?;

    Ok(RetireReport {
        machine: Machine::here()?,
        round_trips,
        requests: requests.total(),
        requests_by_verb: requests.by_verb(),
        kv_update_ms,
        retire_ms,
        retire_to_update: retire_ms / kv_update_ms,
        retire_live_ms,
        revoke_live_ms,
        connect_p99_ratio: crowd.during.p99_ms / crowd.alone.p99_ms,
        in_flight: crowd.in_flight,
        retired: crowd.retired,
        retire_per_s: crowd.retire_per_s,
        connects_alone: crowd.alone,
        connects_during: crowd.during,
        boot_ratio: past_ms / none_ms,
        boot: Boot { none_ms, past_ms, past_first_ms, past: extent.past },
    })
}

// === one ======================================================================================================

/// The median of one pinned update of a key of the records store.
async fn kv_update(connection: &Connection, stack: &Stack, count: usize) -> Result<f64> {
    let bucket = Bucket::new(connection, &Names::new(&stack.ground.space.token()).records_bucket());
    let value = vec![b'x'; 256];
    let written = |outcome| match outcome {
        WriteOutcome::Written(revision) => Ok(revision),
        outcome => Err(anyhow::anyhow!("an update did not land: {outcome:?}")),
    };
    let mut at = written(bucket.create("bench.update", value.clone().into()).await)?;
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        at = written(bucket.put_pinned("bench.update", value.clone().into(), at).await)?;
        took.push(millis(started));
    }
    Ok(median(took))
}

/// The median of one retirement through the door.
async fn singles(stack: &Stack, service: &AuthService, count: usize) -> Result<f64> {
    let people = Population::grant(&stack.ground, &service.door, "single", count).await?;
    people.revoke(&stack.ground)?;
    let mut took = Vec::with_capacity(count);
    for member in &people.members {
        let started = Instant::now();
        retire(&service.door, member).await?;
        took.push(millis(started));
    }
    Ok(median(took))
}

/// What one retirement sends to JetStream.
async fn requests(stack: &Stack, service: &AuthService, anything: &Connection) -> Result<Sent> {
    let people = Population::grant(&stack.ground, &service.door, "tapped", 1).await?;
    people.revoke(&stack.ground)?;
    let delivery = Names::new(&stack.ground.space.token()).delivery_bucket();
    let tap = Tap::open(anything).await?;
    retire(&service.door, &people.members[0]).await?;
    // The delivery daemon keeps its lease meanwhile.
    Ok(tap.close(|subject| subject.contains(&delivery)).await)
}

/// The same retirement by the library, whose stores count.
async fn count(stack: &Stack) -> Result<u64> {
    let service = stack.serve().await?;
    let people = Population::grant(&stack.ground, &service.door, "counted", 1).await?;
    people.revoke(&stack.ground)?;
    service.stop().await?;

    let identity = InstanceIdentity::load_or_create(&stack.identity_root(), &SystemEntropy)?;
    let plane = Plane::open(PlaneInputs {
        connector: stack.connector.clone(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        identity: PlaneIdentity { serve: identity.serve.public().clone(), instance: identity.instance },
        native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
        claim_patience: CLAIM_PATIENCE,
        past: None,
    })
    .await?;
    let member = &people.members[0];
    let before = plane.barrier_stores().round_trips();
    let ended = plane
        .retire_managed(&Principal::new(&member.owner, member.actor.clone()), &member.uid)
        .await
        .map_err(|failure| failure.error)?;
    let round_trips = plane.barrier_stores().round_trips() - before;
    plane.close().await?;
    ensure!(matches!(ended, Retirement::Retired { .. }), "the counted lifecycle came to {ended:?}");
    Ok(round_trips)
}

// === live =====================================================================================================

/// From asking for the retirement of a connected actor until its connection has ended.
async fn live(stack: &Stack, service: &AuthService, count: usize) -> Result<f64> {
    let people = Population::grant(&stack.ground, &service.door, "live", count).await?;
    let bearers = people.bearers(&stack.ground)?;
    let mut took = Vec::with_capacity(count);
    for (n, (member, bearer)) in people.members.iter().zip(&bearers).enumerate() {
        let mut client = connect(stack, bearer, &format!("bench-live-{n:04}")).await?;
        member.revoke(&stack.ground)?;
        let started = Instant::now();
        let (retired, ended) = tokio::join!(retire(&service.door, member), async {
            tokio::time::timeout(ENDS_WITHIN, client.ended()).await.map(|_| millis(started))
        });
        retired?;
        took.push(ended.context("a retired actor's connection did not end")?);
    }
    Ok(median(took))
}

/// From starting `cotal actor revoke` until the person's connection has ended.
async fn revoke_live(stack: &Stack) -> Result<Option<f64>> {
    let (sub, _) = stack.stage.login_at_dev_idp(&stack.running.idp, "ada").await?;
    stack.stage.ok(&["actor", "grant", "cli", "--sub", &sub, "--full"])?;
    let running = stack.stage.space().await?;
    let bearer = stack.stage.exchange_human(&running, "cli").await?.map_err(anyhow::Error::msg)?;
    let mut client = connect(stack, &bearer.token, "bench-person").await?;
    let started = Instant::now();
    let command = stack.stage.command(&["actor", "revoke", "cli", "--sub", &sub]);
    let mut revoking = tokio::process::Command::from(command).stdout(std::process::Stdio::null()).spawn()?;
    let (status, ended) = tokio::join!(revoking.wait(), async {
        tokio::time::timeout(ENDS_WITHIN, client.ended()).await.map(|_| millis(started)).ok()
    });
    ensure!(status?.success(), "cotal actor revoke failed");
    Ok(ended)
}

async fn connect(stack: &Stack, bearer: &str, nonce: &str) -> Result<RawClient> {
    let sentinel = &stack.running.sentinel;
    let (client, outcome) =
        RawClient::connect(&stack.running.server, Some(sentinel), Some(bearer), Some(nonce)).await;
    ensure!(outcome == ConnectOutcome::Connected, "a connect was refused: {outcome:?}");
    client.context("no client")
}

// === many =====================================================================================================

/// Retires many with [`WIDTH`] in flight while others connect.
async fn crowd(stack: &Stack, service: &AuthService, extent: &Extent) -> Result<Crowd> {
    let leaving = Population::grant(&stack.ground, &service.door, "leaving", extent.crowd).await?;
    leaving.revoke(&stack.ground)?;
    let steady = Steady::of(stack, &service.door).await?;
    let alone = steady.alone(extent.idle_load).await?;
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let retiring = async {
        let started = Instant::now();
        let retired: Vec<()> = stream::iter(&leaving.members)
            .map(async |member| {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let retired = retire(&service.door, member).await;
                now.fetch_sub(1, Ordering::Relaxed);
                retired
            })
            .buffer_unordered(WIDTH)
            .try_collect()
            .await?;
        Ok((retired.len(), started.elapsed()))
    };
    let ((retired, lasted), during) = steady.beside(retiring).await?;
    #[allow(clippy::cast_precision_loss, reason = "a count of lifecycles")]
    let retire_per_s = retired as f64 / lasted.as_secs_f64();
    progress(&format!("{retired} lifecycles retired, {retire_per_s:.1} a second"));
    let (alone, during) = (Connects::of(&alone.measured()), Connects::of(&during.measured()));
    Ok(Crowd { alone, during, in_flight: most.into_inner(), retired, retire_per_s })
}

async fn retire(door: &Door, member: &Member) -> Result<()> {
    door.retire_managed(&member.owner, &member.actor, &member.uid).await
}

// === boot =====================================================================================================

/// The median of some boots, each after a stop in order, and the first of them.
async fn boots(stack: &Stack) -> Result<(f64, f64)> {
    let mut took = Vec::with_capacity(BOOTS);
    for _ in 0..BOOTS {
        let service = stack.serve().await?;
        took.push(service.boot.as_secs_f64() * 1000.0);
        service.stop().await?;
    }
    let first = took[0];
    let median = median(took);
    progress(&format!("ready after {median:.0} ms, the first time after {first:.0}"));
    Ok((median, first))
}
