//! A callout replica: one more member of a space's callout queue group (contract 08 §5, 09 §9).
//!
//! The broker hands each connect to one member, so a replica keeps connects answered while the full service restarts,
//! and adds capacity. It makes the same checks, with the same code, and holds nothing else: no HTTP, no discovery file,
//! no claim, no registration, no rail, no scanner, no sweep. It ends with its broker and its stores, instead of denying
//! connects that another member could answer.

mod admission;
mod run;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
};

use cotal_authority::{
    ConnectReader, ReplicaStores,
    issued::{ISSUER_TTL_DEFAULT_SECS, IssuerSession},
};
use cotal_broker::{Connection, Custody, custody::Owned};
use cotal_callout::{Callout, ConnectLimits, Limiter};
use cotal_wire::{EpError, InfraRole, Space};
use cotal_workspace::{file, material::CalloutMaterial};
use futures::FutureExt;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use admission::admits_service_endpoints;
pub(crate) use run::{run_replica, run_replicas};

use crate::{
    context::{StartError, close_left},
    handle::CloseError,
    hosted::{HostedContext, HostedSpace},
    lines::LineWriter,
    member::{Answering, AtTheBroker, Member, Secrets},
};

/// Why a replica ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEnd {
    /// Its host closed it.
    Closed,
    /// It lost the broker, a store or its callout, and answers no more: one sentence that says which.
    Lost(String),
}

/// A started callout replica; clones are one handle. Dropped, the last of them closes it without waiting: call
/// [`Self::close`] to know how that went.
#[derive(Clone)]
pub struct CalloutReplica {
    inner: Arc<Inner>,
    _released: Arc<DropGuard>,
}

struct Inner {
    context: Option<HostedContext>,
    space: Space,
    custody: Custody,
    stores: ReplicaStores,
    reader: Arc<ConnectReader>,
    /// What issues authority at a connect; it dials when it is first asked.
    issuer: IssuerSession,
    connection: Connection,
    callout: Callout,
    /// Where the callout's lines go, unless the host takes them.
    stderr: Option<&'static LineWriter>,
    closing: CancellationToken,
    /// One close at a time.
    turn: Mutex<()>,
    end: watch::Sender<Option<ReplicaEnd>>,
}

// === impl CalloutReplica ===

impl CalloutReplica {
    /// Starts a replica, with the checks of [`crate::start_auth_service`] as far as it has what they check. It installs no
    /// signal handler and never ends the process. Its connect limits are the defaults (contract 08 §5). Everything that it
    /// opened is closed again when a step fails, and when the future is dropped before it resolves: the start then runs on
    /// to its next end, and closes.
    ///
    /// A space whose service-endpoint admission is open is [`StartError::ServiceEndpoints`].
    pub async fn start(hosted: HostedSpace) -> Result<Self, StartError> {
        let servers = hosted.check_place().await?;
        start(hosted.into_member(servers)?).await
    }

    /// The assignment that a hosted replica serves.
    pub fn context(&self) -> Option<&HostedContext> {
        self.inner.context.as_ref()
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.inner.space
    }

    /// Every connection that the replica ever opened: a detached snapshot.
    pub fn connections(&self) -> Vec<Owned> {
        self.inner.custody.connections()
    }

    /// Resolves when the replica ends: by [`Self::close`], or because it lost what it answers from. It then takes
    /// no connect any more, and closes by itself.
    pub async fn ended(&self) -> ReplicaEnd {
        let mut end = self.inner.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            // The sender lives in `self`, so it cannot be gone.
            Ok(None) | Err(_) => ReplicaEnd::Closed,
        }
    }

    /// Whether it takes no connect any more.
    pub(crate) fn takes_nothing_in(&self) -> bool {
        self.inner.callout.ended().now_or_never().is_some()
    }

    /// Closes: takes no connect any more, answers those in progress, and ends every connection. Callers join one close
    /// after the other; one that failed may be tried again, and none stops when its caller does.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

// === impl Inner ===

impl Inner {
    async fn close(self: &Arc<Self>) -> Result<(), CloseError> {
        let running = tokio::spawn(Arc::clone(self).close_once());
        running.await.unwrap_or_else(|error| {
            Err(CloseError(vec![EpError::internal(format!("the close did not run to its end: {error}"))]))
        })
    }

    /// Each step does nothing when it was done before.
    async fn close_once(self: Arc<Self>) -> Result<(), CloseError> {
        self.closing.cancel();
        let _turn = self.turn.lock().await;
        self.callout.stop().await;
        if let Some(stderr) = self.stderr {
            stderr.flush().await;
        }
        let closed = futures::join!(
            self.issuer.close(),
            self.reader.close(),
            self.stores.close(),
            self.connection.close()
        );
        let failures: Vec<_> =
            [closed.0, closed.1, closed.2, closed.3].into_iter().filter_map(Result::err).collect();
        if !failures.is_empty() {
            return Err(CloseError(failures));
        }
        self.custody.close_remaining().await.map_err(|error| CloseError(vec![error]))?;
        self.custody.complete();
        Ok(())
    }

    /// Whatever the replica answers from, its loss ends it; so does the drop of the last handle.
    async fn watch_end(self: Arc<Self>, released: CancellationToken) {
        let end = tokio::select! {
            biased;
            () = self.closing.cancelled() => ReplicaEnd::Closed,
            () = released.cancelled() => ReplicaEnd::Closed,
            why = self.stores.lost() => ReplicaEnd::Lost(why),
            why = self.reader.lost() => ReplicaEnd::Lost(why),
            () = self.callout.ended() => ReplicaEnd::Lost(self.why_callout_ended()),
        };
        if let ReplicaEnd::Lost(why) = &end {
            tracing::error!(space = %self.space, %why, "the callout replica stops answering");
        }
        self.end.send_replace(Some(end));
        if let Err(error) = self.close().await {
            tracing::error!(space = %self.space, %error, "the callout replica did not close");
        }
    }

    /// A callout ends with its connection, which then is the reason.
    fn why_callout_ended(&self) -> String {
        match (self.connection.ended().now_or_never(), self.connection.failure()) {
            (_, Some(failure)) => failure.message.clone(),
            (Some(()), None) => format!("{}: the connection was closed", self.connection.label()),
            (None, None) => "the auth callout ended by itself".to_owned(),
        }
    }
}

// === starting ===

/// Starts a replica, in a task of its own: a caller that goes away halfway leaves nothing half-opened behind. What the
/// task then starts nobody holds, so it closes.
pub(crate) async fn start(member: Member) -> Result<CalloutReplica, StartError> {
    tokio::spawn(start_whole(member)).await.unwrap_or_else(|error| Err(StartError::Interrupted(error)))
}

async fn start_whole(member: Member) -> Result<CalloutReplica, StartError> {
    let (custody, space) = (Custody::new(), member.space.clone());
    let started = AssertUnwindSafe(open(member, &custody)).catch_unwind().await;
    if !matches!(started, Ok(Ok(_))) {
        close_left(&custody, &space).await;
    }
    started.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Opens step by step. The admission is read before anything is opened that a refusal would only close again.
async fn open(member: Member, custody: &Custody) -> Result<CalloutReplica, StartError> {
    let secrets = member.threshold.unless_asked(load(&member)).await??;
    let connector = member.connector(&secrets, custody).ending_with_the_broker();
    let stores = ReplicaStores::open(&connector).await.map_err(StartError::Stores)?;
    if stores.admits_service_endpoints().await.map_err(StartError::Stores)? {
        return Err(StartError::ServiceEndpoints);
    }
    let reader =
        ConnectReader::open(&connector, Arc::clone(&member.clock)).await.map_err(StartError::Stores)?;
    let connection = connector
        .open_creds(InfraRole::AUTH_REPLICA.label(&member.space), &secrets.callout.callout_creds)
        .await
        .map_err(StartError::Callout)?;
    let issuer = IssuerSession::new(connector, Arc::clone(&member.entropy), ISSUER_TTL_DEFAULT_SECS)
        .map_err(StartError::Callout)?;
    let limiter = Arc::new(Limiter::new(ConnectLimits::default(), Arc::clone(&member.clock)));
    let at = AtTheBroker {
        connection: connection.clone(),
        reader: Arc::clone(&reader),
        issuance: Arc::new(stores.issuance(Arc::clone(&member.clock))),
        session: issuer.clone(),
    };
    let Answering { callout, stderr } = member.answer(&secrets, limiter, at).await?;
    let inner = Arc::new(Inner {
        context: member.context,
        space: member.space,
        custody: custody.clone(),
        stores,
        reader,
        issuer,
        connection,
        callout,
        stderr,
        closing: CancellationToken::new(),
        turn: Mutex::default(),
        end: watch::Sender::new(None),
    });
    let released = CancellationToken::new();
    tokio::spawn(Arc::clone(&inner).watch_end(released.clone()));
    Ok(CalloutReplica { inner, _released: Arc::new(released.drop_guard()) })
}

/// The secrets that a callout answers with, checked for whose they are, and the ledger it reads.
async fn load(member: &Member) -> Result<Secrets, StartError> {
    let secrets = member.own(CalloutMaterial::load(&*member.store, &member.space).await?)?;
    // Without it every actor would be refused, here and not where the ledger is.
    let (dir, ledger) = (member.state_dir.clone(), member.state_dir.display());
    match file::blocking(move || file::is_real_dir(&dir)).await.flatten() {
        Ok(true) => Ok(secrets),
        Ok(false) => Err(StartError::Input(format!(
            "{ledger} is not there, and a callout replica reads the actor ledger in it: run it where the space's full \
             auth service keeps its state"
        ))),
        Err(error) => Err(StartError::Input(format!("the state directory {ledger} cannot be used: {error}"))),
    }
}
