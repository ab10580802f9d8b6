//! One member of a space's callout queue group, checked: what a full service and a callout replica both are.

use std::{path::PathBuf, sync::Arc};

use cotal_authority::{ConnectReader, ReadLocalManager, issuance::IssuanceLog, issued::IssuerSession};
use cotal_broker::{Connection, Connector, Custody, Servers};
use cotal_callout::{Callout, CalloutLimits, CalloutParts, Crowd, Limiter};
use cotal_ledger::Ledger;
use cotal_trust::{
    bundle::DataAccount,
    callout_account::CalloutAuth,
    issuer::{IssuerKeySet, issuer_urn},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, Entropy, Space};
use cotal_workspace::{material::CalloutMaterial, root::Root, secret_store::SecretStore};

use crate::{
    callers::LiveCallers, context::StartError, host::lane::Threshold, hosted::HostedContext,
    lines::LineWriter, managers::RootManager,
};

/// Where the callout's line for each answered connect goes. Called on the runtime's threads: it must not block.
pub type CalloutLog = Arc<dyn Fn(&str) + Send + Sync>;

/// What a member starts from.
#[derive(Clone)]
pub(crate) struct Member {
    pub space: Space,
    pub servers: Servers,
    pub store: Arc<dyn SecretStore>,
    pub state_dir: PathBuf,
    /// The assignment of a hosted one.
    pub context: Option<HostedContext>,
    /// The manager of this host: a root may have one, a hosted member has none (contract 08 §4).
    pub local_manager: Arc<dyn ReadLocalManager>,
    pub callout_limits: CalloutLimits,
    /// The host's lanes, when it is one of them.
    pub crowd: Option<Crowd>,
    pub expected_server_ids: Option<Vec<String>>,
    /// Standard error when absent.
    pub callout_log: Option<CalloutLog>,
    /// Crossed right before the callout starts, which is the first that answers.
    pub threshold: Threshold,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

/// The secrets that a member answers connects with: its own, and in the shapes that their users need.
pub(crate) struct Secrets {
    pub data_account: DataAccount,
    pub callout: Arc<CalloutAuth>,
    pub issuer: Arc<IssuerKeySet>,
}

/// What a member's callout reads and writes at the broker.
pub(crate) struct AtTheBroker {
    pub connection: Connection,
    pub reader: Arc<ConnectReader>,
    pub issuance: Arc<IssuanceLog>,
    pub session: IssuerSession,
}

/// A callout that answers.
pub(crate) struct Answering {
    pub callout: Callout,
    /// Where its lines go, unless the host takes them.
    pub stderr: Option<&'static LineWriter>,
}

impl Member {
    /// Of a space of a root, alone on its machine, with the usual limits.
    pub(crate) fn of_root(
        root: &Root,
        space: Space,
        servers: Servers,
        store: Arc<dyn SecretStore>,
        state_dir: PathBuf,
    ) -> Self {
        Self {
            local_manager: Arc::new(RootManager::of(root.space_dir(&space))),
            space,
            servers,
            store,
            state_dir,
            context: None,
            callout_limits: CalloutLimits::default(),
            crowd: None,
            expected_server_ids: None,
            callout_log: None,
            threshold: Threshold::default(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// Checks whose the stored material is: this space's, and the assigned account's (contract 05 §15.2 steps 2-3).
    pub(crate) fn own(&self, material: CalloutMaterial) -> Result<Secrets, StartError> {
        let CalloutMaterial { data_account, callout, issuer } = material;
        let expected = issuer_urn(&self.space);
        if issuer.issuer() != expected {
            return Err(StartError::IssuerPin { found: issuer.issuer().to_owned(), expected });
        }
        let assigned = self.context.as_ref().map(|context| &context.account_public_key);
        if assigned.is_some_and(|assigned| *assigned != data_account.account) {
            return Err(StartError::Account);
        }
        Ok(Secrets { data_account, callout: Arc::new(callout), issuer: Arc::new(issuer) })
    }

    /// Opens what the member opens in its data account; `custody` keeps it.
    pub(crate) fn connector(&self, secrets: &Secrets, custody: &Custody) -> Connector {
        Connector::new(
            self.servers.as_str(),
            self.space.clone(),
            secrets.data_account.clone(),
            custody.clone(),
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
        )
    }

    /// The space's actors.
    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::at(&self.state_dir)
    }

    /// Who answers for the narrowed views, over this reader.
    pub(crate) fn callers(&self, reader: &Arc<ConnectReader>) -> LiveCallers {
        LiveCallers::new(Arc::clone(reader), Arc::clone(&self.local_manager))
    }

    /// Crosses the threshold, and answers connects from then on.
    pub(crate) async fn answer(
        &self,
        secrets: &Secrets,
        limiter: Arc<Limiter>,
        at: AtTheBroker,
    ) -> Result<Answering, StartError> {
        let AtTheBroker { connection, reader, issuance, session } = at;
        let (log, stderr) = self.log_or_stderr();
        self.threshold.cross()?;
        let parts = CalloutParts {
            space: self.space.clone(),
            callout: Arc::clone(&secrets.callout),
            data_account: secrets.data_account.clone(),
            issuer: Arc::clone(&secrets.issuer),
            ledger: self.ledger(),
            callers: self.callers(&reader).with_issuer(session),
            reader,
            issuance,
            limiter,
            limits: self.callout_limits,
            crowd: self.crowd.clone(),
            expected_server_ids: self.expected_server_ids.clone(),
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&self.entropy),
            log,
        };
        let callout = Callout::start(connection, parts).await.map_err(StartError::Callout)?;
        Ok(Answering { callout, stderr })
    }

    /// Where the lines go: to the host's log, or to standard error, which is then flushed by a close.
    fn log_or_stderr(&self) -> (CalloutLog, Option<&'static LineWriter>) {
        if let Some(log) = &self.callout_log {
            return (Arc::clone(log), None);
        }
        let stderr = LineWriter::stderr();
        (Arc::new(|line: &str| stderr.line(line)), Some(stderr))
    }
}
