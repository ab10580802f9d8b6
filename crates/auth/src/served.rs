//! One space's service as a process serves it: the state directory that it alone uses, the context, and the file that
//! says ready (contract 05 §14). The single service is one of these; a full host has one for each lane.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cotal_authority::issued::ISSUER_TTL_DEFAULT_SECS;
use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, ConnectLimits, Crowd};
use cotal_wire::{EpError, Space};
use cotal_workspace::{
    file, lock_file::LockFile, material::Discovery, printed, root::Root, secret_store::SecretStore,
};
use tokio::sync::Mutex;
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
    _lock: LockFile,
}

impl TakenDir {
    /// Takes it, and removes a file left by a start that crashed: it would say ready for one that is not.
    pub(crate) async fn take(root: &Root, space: &Space) -> Result<Self, DaemonError> {
        let (root, space) = (root.clone(), space.clone());
        file::blocking(move || Self::take_now(&root, &space)).await.map_err(DaemonError::of)?
    }

    fn take_now(root: &Root, space: &Space) -> Result<Self, DaemonError> {
        let path = root.user_auth_state_dir(space).map_err(DaemonError::of)?;
        if !file::is_real_dir(&path).map_err(DaemonError::of)? {
            return Err(DaemonError(printed::no_such_space(root, space)));
        }
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
        let held = Held { dir: self, announced: false };
        Ok(Served { service, servers, held: Arc::new(Mutex::new(Some(held))) })
    }
}

/// A service that runs.
pub(crate) struct Served {
    service: AuthService,
    servers: Servers,
    /// Given back by a close that has closed everything, so that the next start finds nothing of this one.
    held: Arc<Mutex<Option<Held>>>,
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
    pub(crate) async fn announce(&self) -> Result<String, DaemonError> {
        let discovery = Discovery {
            url: self.service.url().to_owned(),
            pid: std::process::id(),
            cap: Zeroizing::new(self.service.cap().expose().to_owned()),
            public_url: self.service.public_url().map(str::to_owned),
        };
        self.with_held(move |held| {
            held.announced = true;
            discovery.write(&held.dir.path).map_err(DaemonError::of)
        })
        .await?;
        let public = self.service.public_url().map(|url| format!(", public {url}")).unwrap_or_default();
        Ok(format!(
            "auth-service: space {:?} on {}, exchange {}{public}",
            self.service.space().as_str(),
            self.servers,
            self.service.url()
        ))
    }

    /// Works in the directory, if it is still held. The turn goes along to where the work is done: whoever stops waiting
    /// leaves no file that nobody removes, and who comes next waits for the end of it.
    async fn with_held(
        &self,
        work: impl FnOnce(&mut Held) -> Result<(), DaemonError> + Send + 'static,
    ) -> Result<(), DaemonError> {
        let mut held = Arc::clone(&self.held).lock_owned().await;
        file::blocking(move || held.as_mut().map_or(Ok(()), work)).await.map_err(DaemonError::of)?
    }

    /// Resolves when the service ends.
    pub(crate) async fn ended(&self) -> End {
        self.service.ended().await
    }

    /// Whether a close has come so far that nothing is taken in any more.
    pub(crate) fn takes_nothing_in(&self) -> bool {
        self.service.takes_nothing_in()
    }

    /// Says ready no more, then closes everything and gives the directory back. One that failed may be tried again; under a
    /// disk that hangs it fails once everything else is closed.
    pub(crate) async fn close(&self) -> Result<(), CloseError> {
        let removing = self.with_held(Held::withdraw);
        tokio::pin!(removing);
        // A disk that hangs keeps nothing answering.
        let early = tokio::time::timeout(WITHDRAW_PATIENCE, removing.as_mut()).await;
        let closed = self.service.close().await;
        let removed = match early {
            Ok(removed) => removed,
            Err(_) => match tokio::time::timeout(WITHDRAW_PATIENCE, removing).await {
                Ok(removed) => removed,
                Err(_) => Err(DaemonError(
                    "the file that says ready is not removed: the disk under the state directory does not answer"
                        .to_owned(),
                )),
            },
        };
        if let Err(DaemonError(sentence)) = removed {
            let failed = EpError::internal(sentence);
            return Err(CloseError(
                closed.err().into_iter().flat_map(|error| error.0).chain([failed]).collect(),
            ));
        }
        closed?;
        drop(self.held.lock().await.take());
        Ok(())
    }
}

/// How long a close waits for the file that says ready to be gone before it goes on, and then again once it has.
const WITHDRAW_PATIENCE: Duration = Duration::from_secs(5);

/// Held by the one service that serves a state directory; the kernel lets go of it when the process ends, however it
/// ends. Private to this project: it keeps a second start on this machine from taking the first one's discovery file.
const LOCK_FILE: &str = "auth-service.lock";

/// Removes the discovery file that a service left which was killed, under the lock that a service holds. `false`, and
/// nothing is removed, while one serves from this directory, whoever started it; one that is just ending is waited for.
pub fn withdraw_left_discovery(state_dir: &Path) -> io::Result<bool> {
    let path = state_dir.join(LOCK_FILE);
    let lock = file::is_regular(&path)?.then(|| LockFile::take(&path)).transpose()?;
    if matches!(lock, Some(None)) {
        return Ok(false);
    }
    Discovery::remove(state_dir).map(|()| true).map_err(io::Error::other)
}

/// Whether a service serves from this directory now, by the lock that it holds for as long as it lives. `None` where there is
/// no lock: no service of this project has ever served from it.
///
/// A process id proves less: the number of a service that was killed may be anybody's by now, and so may its port.
pub fn is_served(state_dir: &Path) -> io::Result<Option<bool>> {
    LockFile::is_held(&state_dir.join(LOCK_FILE))
}

fn the_only_one(state_dir: &Path, space: &Space) -> Result<LockFile, DaemonError> {
    match LockFile::take(&state_dir.join(LOCK_FILE)) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(DaemonError(format!(
            "an auth service of space {:?} already runs from this directory; see `cotal status{}`, or stop it first",
            space.as_str(),
            printed::at(space)
        ))),
        Err(error) => {
            Err(DaemonError(format!("the lock of space {:?} cannot be taken: {error}", space.as_str())))
        }
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

#[cfg(test)]
pub(crate) mod tests {
    use cotal_testkit::{hung_disk::HungDisk, space::TestSpace};
    use cotal_workspace::root::space_segment;

    use super::*;
    use crate::composition::Composition;

    /// What a service of this space alone is told, dialling `server`.
    pub(crate) fn flags_of(space: &TestSpace, server: &str, callout_log: CalloutLog) -> ServiceFlags {
        ServiceFlags {
            space: space.space.clone(),
            servers: Servers::parse(server).unwrap(),
            port: 0,
            public_face: None,
            callout_limits: CalloutLimits::default(),
            crowd: None,
            callout_log: Some(callout_log),
        }
    }

    /// A directory is waited for, and the runtime goes on.
    #[test]
    fn a_directory_is_taken_off_the_runtimes_threads() {
        let dir = tempfile::tempdir().unwrap();
        let (root, space) = (Root::at(dir.path()), Space::parse("demo").unwrap());
        std::fs::create_dir_all(root.auth_dir().join(space_segment(&space))).unwrap();
        HungDisk::runtime().unwrap().block_on(async {
            let disk = HungDisk::hang();
            let taking = TakenDir::take(&root, &space);
            tokio::pin!(taking);
            assert!(futures::poll!(taking.as_mut()).is_pending());
            disk.heal().await;
            let taken = taking.await.unwrap();
            let second = TakenDir::take(&root, &space).await.map(drop).unwrap_err().to_string();
            assert!(second.contains("already runs from this directory"), "{second}");
            drop(taken);
            TakenDir::take(&root, &space).await.unwrap();
        });
    }

    #[tokio::test]
    async fn a_space_that_the_root_does_not_have_is_told_as_that() {
        let dir = tempfile::tempdir().unwrap();
        let (root, space) = (Root::at(dir.path()), Space::parse("zo").unwrap());
        for made in [false, true] {
            if made {
                std::fs::create_dir_all(root.auth_dir()).unwrap();
            }
            let told = TakenDir::take(&root, &space).await.map(drop).unwrap_err().to_string();
            assert!(told.contains("there is no space \"zo\"") && !told.contains("lock"), "{told}");
            assert!(told.contains("`cotal up --user-auth --space 'zo'"), "{told}");
        }
    }

    #[test]
    fn a_close_under_a_disk_that_hangs_closes_everything_else_and_says_so() {
        HungDisk::runtime().unwrap().block_on(async {
            let space = TestSpace::start("demo", "http://127.0.0.1:9/api/auth").await;
            let taken = TakenDir::take(&space.root, &space.space).await.unwrap();
            let composition = Composition::new().check().unwrap();
            let flags = flags_of(&space, &space.server.url(), Arc::new(|_| ()));
            let store = Arc::new(space.store.clone());
            let served =
                taken.start(flags, composition, &space.root, store, Threshold::default()).await.unwrap();
            served.announce().await.unwrap();

            let disk = HungDisk::hang();
            let closing = tokio::time::timeout(Duration::from_secs(60), served.close());
            let failed = closing.await.expect("it ends").unwrap_err().to_string();
            assert!(failed.contains("does not answer"), "{failed}");
            assert!(served.takes_nothing_in());
            assert_eq!(served.service.connections().iter().filter(|owned| !owned.ended).count(), 0);
            assert!(Discovery::load(&space.state_dir).unwrap().is_some(), "it could not be removed");

            disk.heal().await;
            served.close().await.unwrap();
            assert!(Discovery::load(&space.state_dir).unwrap().is_none());
            TakenDir::take(&space.root, &space.space).await.unwrap();
        });
    }
}
