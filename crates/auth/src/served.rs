//! One space's service as a process serves it: the state directory that it alone uses, the context, and the file that
//! says ready (contract 05 §14). The single service is one of these; a full host has one for each lane.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use cotal_authority::issued::ISSUER_TTL_DEFAULT_SECS;
use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, ConnectLimits, Crowd};
use cotal_wire::{EpError, Space};
use cotal_workspace::{file, material::Discovery, root::Root, secret_store::SecretStore};
use parking_lot::Mutex;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use zeroize::Zeroizing;

use crate::{
    composition::Chosen,
    context::{self, ContextInputs},
    daemon::DaemonError,
    handle::{AuthService, CloseError, End},
    host::lane::Threshold,
    member::{CalloutLog, Member},
    public_face::PublicFace,
};

/// What one space's service is told: by flags, or by a manifest.
pub(crate) struct ServiceFlags {
    pub(crate) space: Space,
    pub(crate) servers: Servers,
    pub(crate) port: u16,
    pub(crate) public_face: Option<PublicFace>,
    pub(crate) callout_limits: CalloutLimits,
    /// The host's lanes, when it is one of them.
    pub(crate) crowd: Option<Crowd>,
    /// Standard error when absent.
    pub(crate) callout_log: Option<CalloutLog>,
}

/// A state directory that is this service's alone, and says to nobody that it is ready.
pub(crate) struct TakenDir {
    path: PathBuf,
    _lock: OwnedFd,
}

impl TakenDir {
    /// Takes it, and removes a file left by a start that crashed: it would say ready for one that is not.
    pub(crate) fn take(root: &Root, space: &Space) -> Result<Self, DaemonError> {
        let path = root.user_auth_state_dir(space).map_err(DaemonError::of)?;
        let lock = the_only_one(&path, space)?;
        Discovery::remove(&path).map_err(DaemonError::of)?;
        Ok(Self { path, _lock: lock })
    }

    /// Starts the service in it.
    pub(crate) async fn start(
        self,
        flags: ServiceFlags,
        composition: Chosen,
        root: &Root,
        store: Arc<dyn SecretStore>,
        threshold: Threshold,
    ) -> Result<Served, DaemonError> {
        let ServiceFlags { space, servers, port, public_face, callout_limits, crowd, callout_log } = flags;
        let service = context::start(ContextInputs {
            identity_root: root.space_dir(&space),
            member: Member {
                callout_limits,
                crowd,
                callout_log,
                threshold,
                ..Member::of_root(root, space, servers.clone(), store, self.path.clone())
            },
            composition,
            issuer_ttl_secs: ISSUER_TTL_DEFAULT_SECS,
            platform: None,
            supervision: None,
            port,
            public_face,
            connect_limits: ConnectLimits::default(),
        })
        .await
        .map_err(DaemonError::of)?;
        Ok(Served { service, servers, held: Mutex::new(Some(Held { dir: self, announced: false })) })
    }
}

/// A service that runs.
pub(crate) struct Served {
    service: AuthService,
    servers: Servers,
    /// Given back by a close that has closed everything, so that the next start finds nothing of this one.
    held: Mutex<Option<Held>>,
}

/// The directory as long as something may still serve from it. Dropped by a host that drops the daemon's future, it
/// takes the file that says ready with it: nothing serves behind it any more.
struct Held {
    dir: TakenDir,
    announced: bool,
}

impl Held {
    fn withdraw(&mut self) -> Result<(), DaemonError> {
        if self.announced {
            Discovery::remove(&self.dir.path).map_err(DaemonError::of)?;
            self.announced = false;
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The next start removes one that stays.
        let _ = self.withdraw();
    }
}

impl Served {
    /// Writes the discovery file, whose existence says ready; answers the line that says what is served.
    pub(crate) fn announce(&self) -> Result<String, DaemonError> {
        let discovery = Discovery {
            url: self.service.url().to_owned(),
            pid: std::process::id(),
            cap: Zeroizing::new(self.service.cap().expose().to_owned()),
            public_url: self.service.public_url().map(str::to_owned),
        };
        if let Some(held) = self.held.lock().as_mut() {
            held.announced = true;
            discovery.write(&held.dir.path).map_err(DaemonError::of)?;
        }
        let public = self.service.public_url().map(|url| format!(", public {url}")).unwrap_or_default();
        Ok(format!(
            "auth-service: space \"{}\" on {}, exchange {}{public}",
            self.service.space(),
            self.servers,
            self.service.url()
        ))
    }

    /// Resolves when the service ends.
    pub(crate) async fn ended(&self) -> End {
        self.service.ended().await
    }

    /// Whether a close has come so far that nothing is taken in any more.
    pub(crate) fn takes_nothing_in(&self) -> bool {
        self.service.takes_nothing_in()
    }

    /// Says ready no more, then closes everything and gives the directory back. One that failed may be tried again.
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let removed = self.held.lock().as_mut().map_or(Ok(()), Held::withdraw);
        let closed = self.service.close().await;
        if let Err(DaemonError(sentence)) = removed {
            let failed = EpError::internal(sentence);
            return Err(CloseError(
                closed.err().into_iter().flat_map(|error| error.0).chain([failed]).collect(),
            ));
        }
        closed?;
        drop(self.held.lock().take());
        Ok(())
    }
}

/// Held by the one service that serves a state directory; the kernel lets go of it when the process ends, however it
/// ends. Private to this project: it keeps a second start on this machine from taking the first one's discovery file.
const LOCK_FILE: &str = "auth-service.lock";

/// Removes the discovery file that a service left which was killed, under the lock that a service holds. `false`, and
/// nothing is removed, while one serves from this directory, whoever started it.
pub fn withdraw_left_discovery(state_dir: &Path) -> io::Result<bool> {
    let path = state_dir.join(LOCK_FILE);
    let lock = file::is_regular(&path)?.then(|| try_lock(&path)).transpose()?;
    if matches!(lock, Some(None)) {
        return Ok(false);
    }
    Discovery::remove(state_dir).map(|()| true).map_err(io::Error::other)
}

fn the_only_one(state_dir: &Path, space: &Space) -> Result<OwnedFd, DaemonError> {
    match try_lock(&state_dir.join(LOCK_FILE)) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(DaemonError(format!(
            "an auth service of space {:?} already runs from this directory; see `cotal status`, or stop it first",
            space.as_str()
        ))),
        Err(error) => {
            Err(DaemonError(format!("the lock of space {:?} cannot be taken: {error}", space.as_str())))
        }
    }
}

/// Takes a lock file, which is made when it is not there (0600, no symlink followed). `None` when another has it.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let lock = file::open_lock(path)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Why a service that ended by itself did, and whether that is a failure: a fence, a dead callout and a connection that
/// was lost are, one that was closed is not (contract 05 §14 step 9).
pub(crate) fn failure(end: &End) -> Option<String> {
    match end {
        End::Fenced(reason) => Some(format!("the authority plane was fenced: {reason}")),
        End::CalloutEnded => Some("the auth callout ended by itself".to_owned()),
        End::BrokerClosed(Some(error)) => Some(format!("the broker connection closed ({error})")),
        End::BrokerClosed(None) | End::Closed => None,
    }
}
