//! The five standing credentials, kept alive (contract 08 §8.5): all or nothing.
//!
//! Half-way through the shortest of them, a little earlier by chance so that a thousand managers do not ask in step, the
//! host is asked for all five at the epoch that is served. One incarnation has one epoch, and the host refuses a request of
//! another. Only when each of the five has opened a connection are they taken, all of them, and pushed to the connections that stand. Whatever goes
//! wrong before that leaves every last-good credential in place, and a debt: until a renewal has paid it, none is skipped.
//! A host that is busy is asked again within a moment, and the debt is told only when it stays so. It is written down before
//! it is told, and as soon as the host may have acted: one that only named when to come again has begun nothing.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use cotal_authority::landed;
use cotal_broker::{Connection, CredsConnector, Custody, RenewableCreds};
use cotal_trust::creds::Creds;
use cotal_wire::{
    Clock, EpError, Nkey, Space, UnixMillis, User,
    manager_authority::{CredentialName, StandingRole},
};
use cotal_workspace::{
    file,
    root::{Root, space_key},
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    authority::HostAuthority, backoff::Backoff, binding::Issued, error::RemoteError, host::RefusalKind,
    requests::Current, results::Material,
};

/// Shortest and longest pause between two tries while a debt stands.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// First and longest pause of a renewal that a busy host turned away, and how long it is repeated before it is told. A host
/// renews some dozens in a second.
const BUSY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
/// Shortest time from one renewal to the next: what a host signs may begin long ago, or end before it is taken.
const APART_MS: u64 = 1_000;
/// A share of a credential's life by which it may be renewed before its half, out of 256.
const JITTER: u64 = 26;

/// What a renewal that failed leaves (contract 08 §8.5). Recorded before it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Debt {
    /// When it failed so, for the first time in a row.
    pub at: UnixMillis,
    /// At which epoch it was asked.
    pub process_epoch: u64,
    /// Why.
    pub reason: String,
    /// The keys for which the host may have issued credentials that nobody holds.
    pub unadopted_subjects: Vec<Nkey<User>>,
}

impl Debt {
    /// Whether it differs from the other in nothing but the time.
    fn says_what(&self, other: &Self) -> bool {
        let Self { at: _, process_epoch, reason, unadopted_subjects } = self;
        (process_epoch, reason, unadopted_subjects)
            == (&other.process_epoch, &other.reason, &other.unadopted_subjects)
    }
}

/// What a renewal came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// All five are healthy and nothing is owed: nothing was asked.
    Skipped,
    /// All five were taken; the first of them ends then.
    Adopted(UnixMillis),
}

/// What is told while renewals run by themselves.
#[derive(Debug)]
pub enum Told<'a> {
    /// All five were taken.
    Adopted(UnixMillis),
    /// A renewal failed; it is tried again.
    Owing(&'a Debt),
    /// Another start of this manager has taken over, or its registration has ended: nothing is renewed any more.
    Superseded(&'a Debt),
}

/// A debt, and whether it is written down.
struct Owed {
    debt: Debt,
    on_disk: bool,
}

struct Held {
    creds: RenewableCreds,
    life: Mutex<Life>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    from: UnixMillis,
    to: UnixMillis,
}

/// The five standing credentials of one incarnation.
pub struct Standing {
    authority: HostAuthority,
    servers: String,
    current: Current,
    held: BTreeMap<StandingRole, Held>,
    /// When the first of the five is half-way, less its chance. Until then all are healthy.
    due: Mutex<UnixMillis>,
    clock: Arc<dyn Clock>,
    debt_file: PathBuf,
    debt: Mutex<Option<Owed>>,
    pushed_to: Mutex<Vec<Connection>>,
    /// One renewal at a time.
    turn: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
}

/// What the first five are made of.
pub struct First<'a> {
    /// Of `prepare`.
    pub prepared: &'a Material,
    /// Of `activate`.
    pub activated: &'a Material,
}

// === deciding =================================================================================================

/// When a credential is to be renewed: half-way, less up to a tenth of its life by chance.
fn due(life: Life, chance: u8) -> UnixMillis {
    let span = life.to.since(life.from);
    let early = span.saturating_mul(JITTER).saturating_mul(u64::from(chance)) / (256 * 255);
    UnixMillis((life.from.0 + span / 2).saturating_sub(early))
}

/// When the first of them is, and not at once, whatever a host's clock or a host says: that would be asked without a pause.
fn first_due(lives: impl Iterator<Item = Life>, chance: u8, now: UnixMillis) -> UnixMillis {
    let first = lives.map(|life| due(life, chance)).min().unwrap_or(now);
    first.max(now.plus(APART_MS))
}

/// How long to wait before the next try of a renewal that is owed.
fn pause(left: u64) -> Duration {
    Duration::from_millis(left / 4).clamp(RETRY.0, RETRY.1)
}

/// Whether the host may have issued something, although nothing of it came.
const fn may_have_issued(kind: RefusalKind) -> bool {
    matches!(kind, RefusalKind::Unreachable | RefusalKind::Failed | RefusalKind::Busy | RefusalKind::Garbled)
}

// === driving ==================================================================================================

impl Standing {
    /// Holds the first five. Refuses material that lacks one of them.
    pub fn new(
        authority: HostAuthority,
        servers: &str,
        root: &Root,
        current: Current,
        first: &First<'_>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, RemoteError> {
        let mut held = BTreeMap::new();
        for role in StandingRole::ALL {
            let seed = authority.identity().seed(role);
            let member = CredentialName::of_role(role);
            let (creds, issued) = first
                .prepared
                .creds(member, seed)
                .or_else(|| first.activated.creds(member, seed))
                .ok_or_else(|| RemoteError::State(format!("no {} credential was issued", role.as_str())))?;
            let life = Mutex::new(life(issued));
            held.insert(role, Held { creds: RenewableCreds::new(creds), life });
        }
        let standing = Self {
            servers: servers.to_owned(),
            debt_file: debt_file(root, authority.identity().space()),
            authority,
            current,
            held,
            due: Mutex::new(UnixMillis(0)),
            clock,
            debt: Mutex::new(None),
            pushed_to: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
        };
        standing.draw_due();
        Ok(standing)
    }

    /// The registration that they stand on.
    pub fn current(&self) -> &Current {
        &self.current
    }

    /// The credential of a role, renewed in place.
    pub fn creds(&self, role: StandingRole) -> Option<RenewableCreds> {
        self.held.get(&role).map(|held| held.creds.clone())
    }

    /// A renewal is pushed to this connection too.
    pub fn push_to(&self, connection: &Connection) {
        self.pushed_to.lock().push(connection.clone());
    }

    /// What is owed.
    pub fn debt(&self) -> Option<Debt> {
        self.debt.lock().as_ref().map(|owed| owed.debt.clone())
    }

    /// When the first of the five ends.
    pub fn ends_at(&self) -> UnixMillis {
        self.lives().map(|life| life.to).min().unwrap_or(UnixMillis(0))
    }

    /// No renewal is taken from here on.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    fn lives(&self) -> impl Iterator<Item = Life> {
        self.held.values().map(|held| *held.life.lock())
    }

    /// Says when the five that are held are due. Chance is drawn once for each of their lives.
    fn draw_due(&self) {
        let mut chance = [0u8; 1];
        self.authority.entropy().fill(&mut chance);
        *self.due.lock() = first_due(self.lives(), chance[0], self.clock.now_millis());
    }

    /// Renews all five, unless all are healthy and nothing is owed. A failure is recorded as debt, and keeps all five.
    pub async fn renew(&self) -> Result<Renewal, RemoteError> {
        self.renew_due(&self.stopping).await
    }

    async fn renew_due(&self, stop: &CancellationToken) -> Result<Renewal, RemoteError> {
        let _turn = self.turn.lock().await;
        if self.debt.lock().is_none() && self.clock.now_millis() < *self.due.lock() {
            return Ok(Renewal::Skipped);
        }
        self.renew_now(stop).await.map(Renewal::Adopted)
    }

    /// The same without asking whether it is time: says when the first of the new five ends.
    pub async fn renew_early(&self) -> Result<UnixMillis, RemoteError> {
        let _turn = self.turn.lock().await;
        self.renew_now(&self.stopping).await
    }

    /// Renews, again while the host is busy, until it `stop`s or patience ends. Each failure is a debt from when it happens.
    async fn renew_now(&self, stop: &CancellationToken) -> Result<UnixMillis, RemoteError> {
        let mut pauses = Backoff::new(BUSY.0, BUSY.1, BUSY_PATIENCE);
        loop {
            let (why, unadopted_subjects) = match self.adopt().await {
                Ok(ends_at) => {
                    self.paid().await?;
                    return Ok(ends_at);
                }
                Err(failed) => failed,
            };
            let debt = Debt {
                at: self.clock.now_millis(),
                process_epoch: self.current.epoch,
                reason: why.to_string(),
                unadopted_subjects,
            };
            self.owe(debt);
            let pause = why.busy_for().and_then(|asked| pauses.pause(self.authority.entropy(), asked));
            if pause.is_none() || !why.is_turned_away() {
                self.write_down().await;
            }
            let Some(pause) = pause else { return Err(why) };
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = self.stopping.cancelled() => true,
                () = tokio::time::sleep(pause) => false,
            };
            if stopped {
                self.write_down().await;
                return Err(why);
            }
        }
    }

    fn every_key(&self) -> Vec<Nkey<User>> {
        self.held.values().map(|held| held.creds.user().clone()).collect()
    }

    /// Asks, proves and takes all five.
    async fn adopt(&self) -> Result<UnixMillis, (RemoteError, Vec<Nkey<User>>)> {
        let material = self.authority.standing_bundle(&self.current).await.map_err(|why| {
            let subjects = match &why {
                RemoteError::Host(refusal) if !may_have_issued(refusal.kind) => Vec::new(),
                _ => self.every_key(),
            };
            (why, subjects)
        })?;
        let keys = || self.every_key();
        let mut fresh = Vec::with_capacity(self.held.len());
        for (role, held) in &self.held {
            let seed = self.authority.identity().seed(*role);
            let (creds, issued) = material.creds(CredentialName::of_role(*role), seed).ok_or_else(|| {
                (RemoteError::State(format!("no {} credential came", role.as_str())), keys())
            })?;
            fresh.push((held, creds, life(issued)));
        }
        // Each proved by one connect; nothing of it stays open.
        let prober = CredsConnector::new(&self.servers, Custody::new());
        let space = self.authority.identity().space();
        for (_, creds, _) in &fresh {
            prove(&prober, space, creds).await.map_err(|why| (why.into(), keys()))?;
        }
        if self.stopping.is_cancelled() {
            return Err((RemoteError::State("this manager is stopping".into()), keys()));
        }
        for (held, creds, life) in &fresh {
            // Each is of the key that is held: the seed is the same one.
            held.creds.renew(creds).map_err(|why| (why.into(), keys()))?;
            *held.life.lock() = *life;
        }
        self.draw_due();
        self.pushed_to.lock().iter().for_each(Connection::redial);
        Ok(material.expires_at)
    }

    /// Owes this, unless what is owed says so already: a busy host is asked many times.
    fn owe(&self, debt: Debt) {
        let mut owed = self.debt.lock();
        if owed.as_ref().is_none_or(|owed| !owed.debt.says_what(&debt)) {
            *owed = Some(Owed { debt, on_disk: false });
        }
    }

    /// Writes down what is owed, unless it is. That it cannot be written is told, and stops nothing: it is held here too.
    async fn write_down(&self) {
        let unwritten = |owed: &Owed| (!owed.on_disk).then(|| owed.debt.clone());
        let Some(debt) = self.debt.lock().as_ref().and_then(unwritten) else { return };
        let path = self.debt_file.clone();
        let bytes = serde_json::to_vec_pretty(&debt).map_err(std::io::Error::other);
        match file::blocking(move || file::write_atomic(&path, &bytes?)).await.flatten() {
            Ok(()) => {
                landed("renewal-debt");
                *self.debt.lock() = Some(Owed { debt, on_disk: true });
            }
            Err(error) => tracing::warn!(%error, "standing renewal: the debt cannot be written down"),
        }
    }

    async fn paid(&self) -> Result<(), RemoteError> {
        let path = self.debt_file.clone();
        if file::blocking(move || file::remove_if_present(&path)).await.flatten()? {
            landed("renewal-debt");
        }
        *self.debt.lock() = None;
        Ok(())
    }

    /// Renews by itself until `stop`, or until another start has taken over.
    pub async fn run(&self, stop: &CancellationToken, tell: impl Fn(Told<'_>) + Send + Sync) {
        loop {
            let now = self.clock.now_millis();
            let wait = if self.debt.lock().is_some() {
                pause(self.ends_at().since(now))
            } else {
                Duration::from_millis(self.due.lock().since(now))
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.stopping.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            match self.renew_due(stop).await {
                Ok(Renewal::Adopted(ends_at)) => tell(Told::Adopted(ends_at)),
                // Somebody else renewed them meanwhile.
                Ok(Renewal::Skipped) => {}
                Err(why) => {
                    let Some(debt) = self.debt() else { continue };
                    if why.is_superseded() {
                        tell(Told::Superseded(&debt));
                        return;
                    }
                    tell(Told::Owing(&debt));
                }
            }
        }
    }
}

/// Where a debt of a space is written down on a root.
pub fn debt_file(root: &Root, space: &Space) -> PathBuf {
    root.cotal_dir().join(format!("remote-manager.{}.debt.json", space_key(space)))
}

/// A registration anew settles what an earlier incarnation owed: it revokes the whole credential family.
pub fn settle(root: &Root, space: &Space) -> std::io::Result<bool> {
    let owed = file::remove_if_present(&debt_file(root, space))?;
    if owed {
        landed("renewal-debt");
    }
    Ok(owed)
}

/// One connect with a credential: the broker takes it, or it is not taken here.
async fn prove(prober: &CredsConnector, space: &Space, creds: &Creds) -> Result<(), EpError> {
    let connection = Box::pin(prober.open_once(super::label("manager-probe", space), creds, None)).await?;
    connection.close().await
}

fn life(issued: &Issued) -> Life {
    Life { from: issued.iat.to_millis(), to: issued.exp.to_millis() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(from: u64, to: u64) -> Life {
        Life { from: UnixMillis(from), to: UnixMillis(to) }
    }

    #[test]
    fn a_credential_is_due_half_way_and_by_chance_a_tenth_of_its_life_earlier() {
        assert_eq!(due(of(1_000_000, 1_005_000), 0), UnixMillis(1_002_500));
        let earliest = due(of(1_000_000, 1_005_000), 255);
        assert!((1_001_980..=1_002_000).contains(&earliest.0), "{earliest:?}");
        for chance in 0..=255 {
            let at = due(of(0, 86_400_000), chance).0;
            assert!((34_000_000..=43_200_000).contains(&at), "{chance}: {at}");
        }
        assert_eq!(due(of(5, 5), 255), UnixMillis(5), "one that has no life is due at once");
    }

    #[test]
    fn the_first_of_the_five_is_due_and_never_at_once_however_long_ago_a_host_says_that_it_began() {
        let now = UnixMillis(1_000_000);
        let fresh = of(1_000_000, 1_005_000);
        assert_eq!(first_due([fresh, of(1_000_000, 1_008_000)].into_iter(), 0, now), UnixMillis(1_002_500));
        for odd in [of(0, 1_005_000), of(0, 1), of(900_000, 900_000)] {
            assert_eq!(first_due([fresh, odd].into_iter(), 255, now), UnixMillis(1_001_000), "{odd:?}");
        }
    }

    #[test]
    fn what_is_owed_is_tried_again_sooner_the_less_is_left_and_never_without_a_pause() {
        assert_eq!(pause(0), RETRY.0);
        assert_eq!(pause(2_000), Duration::from_millis(500));
        assert_eq!(pause(u64::MAX), RETRY.1);
    }

    #[test]
    fn only_an_answer_that_may_have_been_lost_leaves_credentials_that_nobody_holds() {
        for kind in [RefusalKind::Unreachable, RefusalKind::Failed, RefusalKind::Busy, RefusalKind::Garbled] {
            assert!(may_have_issued(kind));
        }
        for kind in
            [RefusalKind::NoProof, RefusalKind::Unsendable, RefusalKind::Denied, RefusalKind::Conflict]
        {
            assert!(!may_have_issued(kind));
        }
    }
}
