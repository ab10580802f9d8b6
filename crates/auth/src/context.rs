//! Starts one space's service, step by step, and unwinds what it opened when a step fails (contract 05 §15.2).

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_authority::{
    NoLocalManager, Plane, PlaneInputs, ReadLocalManager,
    issued::IssuerSession,
    plane::{CLAIM_PATIENCE, PlaneIdentity},
};
use cotal_broker::{Connection, Connector, Custody, Servers};
use cotal_callout::{Callout, CalloutLimits, CalloutParts, ConnectLimits, Crowd, Limiter};
use cotal_ledger::Ledger;
use cotal_trust::{
    callout_account::CalloutAuth,
    idp::{IdpPin, IdpRefusal},
    issuer::{IssuerKeySet, issuer_urn},
    owner::OwnerSecret,
};
use cotal_wire::{Clock, Entropy, EpError, InfraRole, Space};
use cotal_workspace::{
    instance_identity::InstanceIdentity,
    material::{MaterialError, UserAuthMaterial},
    secret_store::SecretStore,
};

use crate::{
    authority::{ConnectCredentials, ExchangeAuthority},
    bridge::{BridgeConfigError, IdpBridgeParts, PinnedIdp, create_idp_bridge, pinned_jwks_resolver},
    callers::LiveCallers,
    capability::Capability,
    composition::{Composition, CompositionError},
    handle::{AuthService, HandleParts},
    host::lane::{Barred, Threshold},
    hosted::HostedContext,
    http::{
        doors::Doors,
        exchange::Exchange,
        face::{Face, Service},
        listener::Listener,
        mesh::{MeshBundle, MeshParts},
        seats::Seats,
    },
    lines::LineWriter,
    manager::{ManagerAuthority, PartsInputs},
    managers::{ManagerDirectory, PlaneManagers, RootManager},
    past_note::PastNote,
    platform::{Platform, PlatformSupervision},
    public_face::PublicFace,
    sessions::SessionDirectory,
    user_tokens::create_user_token_issuer,
};

pub(crate) use cotal_authority::plane::NATIVE_ISSUANCE_PRUNE;

/// Where the callout's line for each answered connect goes. Called on the runtime's threads: it must not block.
pub type CalloutLog = Arc<dyn Fn(&str) + Send + Sync>;

/// Where the lines go: to the host's log, or to standard error, which is then flushed by a close.
pub(crate) fn log_or_stderr(log: Option<CalloutLog>) -> (CalloutLog, Option<&'static LineWriter>) {
    if let Some(log) = log {
        return (log, None);
    }
    let stderr = LineWriter::stderr();
    (Arc::new(|line: &str| stderr.line(line)), Some(stderr))
}

/// Why a context did not start. Nothing that it had opened is left open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An input is unusable; the sentence names it.
    #[error("{0}")]
    Input(String),
    /// A choice of the composition is outside its bounds.
    #[error(transparent)]
    Composition(#[from] CompositionError),
    /// User-auth material is missing or garbled.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// The stored issuer is another space's.
    #[error(
        "the stored issuer \"{found}\" is not this space's \"{expected}\"; restore the space's own issuer keys"
    )]
    IssuerPin {
        /// What the key set says.
        found: String,
        /// What the space needs.
        expected: String,
    },
    /// The material's data account is not the context's.
    #[error("the stored data account is not the one that this context was assigned")]
    Account,
    /// The broker did not accept the callout credentials.
    #[error("the broker at {servers} does not accept the callout credentials: {source}")]
    Broker {
        /// What was dialled: hosts and ports.
        servers: String,
        /// Why.
        source: EpError,
    },
    /// The identity of the plane's own endpoint is unusable.
    #[error("{0}")]
    Identity(String),
    /// The plane did not open.
    #[error("the authority plane did not open: {0}")]
    Plane(EpError),
    /// The authority stores did not open for a replica, or were not what they must be.
    #[error("the authority stores cannot be used: {0}")]
    Stores(EpError),
    /// A replica's space admits service endpoints (contract 09 §9).
    #[error(
        "this space admits service endpoints, whose connections a callout replica cannot issue; serve it with its full \
         auth service alone, and keep it off every replica manifest"
    )]
    ServiceEndpoints,
    /// The callout did not start.
    #[error("the auth callout did not start: {0}")]
    Callout(EpError),
    /// The pinned IdP is unusable.
    #[error("the pinned identity provider is unusable: {0}")]
    Idp(#[from] IdpRefusal),
    /// The bridge cannot be built.
    #[error(transparent)]
    Bridge(#[from] BridgeConfigError),
    /// A listener did not bind.
    #[error("the {face} listener did not bind 127.0.0.1:{port}: {source}")]
    Listener {
        /// Which face.
        face: &'static str,
        /// The port that was asked for.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The bundle could not be encoded.
    #[error("the discovery bundle could not be encoded: {0}")]
    Bundle(serde_json::Error),
    /// The host of a manifest wanted it no more before anything of it had answered.
    #[error("the manifest does not name it so any more; nothing of it has answered")]
    Unwanted,
    /// The start's task failed.
    #[error("the start did not run to its end: {0}")]
    Interrupted(tokio::task::JoinError),
}

impl From<Barred> for StartError {
    fn from(Barred: Barred) -> Self {
        Self::Unwanted
    }
}

/// Everything that a context starts from.
pub(crate) struct ContextInputs {
    pub space: Space,
    pub servers: Servers,
    pub store: Arc<dyn SecretStore>,
    pub state_dir: PathBuf,
    /// Where the plane's own endpoint identity lies (contract 08 §3.1).
    pub identity_root: PathBuf,
    /// The assignment of a hosted context.
    pub context: Option<HostedContext>,
    /// What the composition chose, checked.
    pub composition: Composition,
    /// The platform that embeds the service, checked.
    pub platform: Option<Platform>,
    /// The platform that supervises managers for its users.
    pub supervision: Option<Arc<dyn PlatformSupervision>>,
    pub port: u16,
    pub public_face: Option<PublicFace>,
    pub callout_limits: CalloutLimits,
    /// The host's lanes, when it is one of them.
    pub crowd: Option<Crowd>,
    pub connect_limits: ConnectLimits,
    pub native_issuance_prune: Duration,
    pub expected_server_ids: Option<Vec<String>>,
    /// Standard error when absent.
    pub callout_log: Option<CalloutLog>,
    /// Crossed right before the callout starts, which is the first that answers.
    pub threshold: Threshold,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

/// What has been opened so far; dropped by unwinding when a later step fails.
#[derive(Default)]
struct Opened {
    plane: Option<Arc<Plane>>,
    connection: Option<Connection>,
    callout: Option<Arc<Callout>>,
    loopback: Option<Listener>,
    public: Option<Listener>,
}

impl Opened {
    /// Closes in the contract's order: public listener, loopback listener, callout connection, plane.
    async fn unwind(self, space: &Space) {
        for listener in [self.public, self.loopback].into_iter().flatten() {
            listener.stop().await;
        }
        if let Some(callout) = self.callout {
            callout.stop().await;
        }
        if let Some(connection) = self.connection
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%space, %error, "unwinding: the callout connection did not close");
        }
        if let Some(plane) = self.plane
            && let Err(error) = plane.close().await
        {
            tracing::warn!(%space, %error, "unwinding: the plane did not close");
        }
    }
}

/// Starts a context, in a task of its own: a caller that goes away halfway leaves nothing half-opened behind. What
/// the task then starts nobody holds, so it closes.
pub(crate) async fn start(inputs: ContextInputs) -> Result<AuthService, StartError> {
    tokio::spawn(start_whole(inputs)).await.unwrap_or_else(|error| Err(StartError::Interrupted(error)))
}

async fn start_whole(inputs: ContextInputs) -> Result<AuthService, StartError> {
    let custody = Custody::new();
    let (mut opened, space) = (Opened::default(), inputs.space.clone());
    match open(inputs, &custody, &mut opened).await {
        Ok(service) => Ok(service),
        Err(error) => {
            opened.unwind(&space).await;
            if let Err(error) = custody.close_remaining().await {
                tracing::warn!(%space, %error, "unwinding: a connection did not close");
            }
            Err(error)
        }
    }
}

/// The material of one space, in the shapes that its users need.
struct Material {
    data_account: cotal_trust::bundle::DataAccount,
    callout: Arc<CalloutAuth>,
    issuer: Arc<IssuerKeySet>,
    owner_secret: OwnerSecret,
    idp: IdpPin,
}

/// Steps 1-3: loads the material, and checks whose it is.
async fn load(inputs: &ContextInputs) -> Result<Material, StartError> {
    let loaded = UserAuthMaterial::load(&*inputs.store, &inputs.state_dir, &inputs.space).await?;
    let expected = issuer_urn(&inputs.space);
    if loaded.issuer.issuer() != expected {
        return Err(StartError::IssuerPin { found: loaded.issuer.issuer().to_owned(), expected });
    }
    if inputs
        .context
        .as_ref()
        .is_some_and(|context| context.account_public_key != loaded.data_account.account)
    {
        return Err(StartError::Account);
    }
    Ok(Material {
        data_account: loaded.data_account,
        callout: Arc::new(loaded.callout),
        issuer: Arc::new(loaded.issuer),
        owner_secret: loaded.owner_secret,
        idp: loaded.idp,
    })
}

async fn open(
    inputs: ContextInputs,
    custody: &Custody,
    opened: &mut Opened,
) -> Result<AuthService, StartError> {
    let material = load(&inputs).await?;
    let connector = Connector::new(
        inputs.servers.as_str(),
        inputs.space.clone(),
        material.data_account.clone(),
        custody.clone(),
        Arc::clone(&inputs.clock),
        Arc::clone(&inputs.entropy),
    );
    prove_reachable(&inputs.space, &connector, &material.callout)
        .await
        .map_err(|source| StartError::Broker { servers: inputs.servers.to_string(), source })?;
    let plane = Plane::open(PlaneInputs {
        connector: connector.clone(),
        clock: Arc::clone(&inputs.clock),
        entropy: Arc::clone(&inputs.entropy),
        identity: plane_identity(&inputs).await?,
        native_issuance_prune: inputs.native_issuance_prune,
        claim_patience: CLAIM_PATIENCE,
        past: Some(Arc::new(PastNote::in_dir(&inputs.state_dir, &inputs.space))),
    })
    .await
    .map_err(StartError::Plane)?;
    opened.plane = Some(Arc::clone(&plane));

    let ledger = Ledger::at(&inputs.state_dir);
    let limiter = Arc::new(Limiter::new(inputs.connect_limits, Arc::clone(&inputs.clock)));
    let connection = connector
        .open_creds(InfraRole::AUTH_SERVICE.label(&inputs.space), &material.callout.callout_creds)
        .await
        .map_err(StartError::Callout)?;
    opened.connection = Some(connection.clone());
    let (log, stderr) = log_or_stderr(inputs.callout_log.clone());
    // It dials at the first connect that must be issued something.
    let issuer = IssuerSession::new(
        connector.clone(),
        Arc::clone(&inputs.entropy),
        inputs.composition.issuer_ttl_secs,
    )
    .map_err(StartError::Callout)?;
    let local = local_manager(&inputs);
    let live = LiveCallers::new(Arc::clone(plane.reader()), Arc::clone(&local));
    inputs.threshold.cross()?;
    let callout = Callout::start(
        connection.clone(),
        CalloutParts {
            space: inputs.space.clone(),
            callout: Arc::clone(&material.callout),
            data_account: material.data_account.clone(),
            issuer: Arc::clone(&material.issuer),
            ledger: ledger.clone(),
            reader: Arc::clone(plane.reader()),
            issuance: Arc::clone(plane.issuance()),
            callers: live.with_issuer(issuer.clone()),
            limiter: Arc::clone(&limiter),
            limits: inputs.callout_limits,
            crowd: inputs.crowd.clone(),
            expected_server_ids: inputs.expected_server_ids.clone(),
            clock: Arc::clone(&inputs.clock),
            entropy: Arc::clone(&inputs.entropy),
            log,
        },
    )
    .await
    .map_err(StartError::Callout)?;
    let callout = Arc::new(callout);
    opened.callout = Some(Arc::clone(&callout));

    let manager = ManagerAuthority::new(PartsInputs {
        space: inputs.space.clone(),
        data_account: material.data_account.clone(),
        ledger: ledger.clone(),
        plane: Arc::clone(&plane),
        connector: connector.clone(),
        issuer: issuer.clone(),
        standing_ttl_secs: inputs.composition.standing_ttl_secs,
        sentinel_creds: material.callout.sentinel_creds.clone(),
        clock: Arc::clone(&inputs.clock),
        entropy: Arc::clone(&inputs.entropy),
    });
    // What managers are asked about runs is heard before anything of this context is answered.
    manager.parts().hear_known_managers().await.map_err(StartError::Plane)?;
    let credentials: Arc<dyn ConnectCredentials> = Arc::clone(&plane) as _;
    let answering = Answering {
        ledger: ledger.clone(),
        credentials,
        sessions: Arc::new(live),
        managers: Arc::new(PlaneManagers::new(Arc::clone(&plane), local, inputs.composition.selection)),
        limiter,
        manager: manager.clone(),
    };
    let service = Arc::new(compose(&inputs, &material, answering)?);
    let entered = Arc::clone(&service.entered);
    let doors = Doors {
        plane: Arc::clone(&plane) as _,
        ledger: ledger.clone(),
        data_account: material.data_account.account.clone(),
        grants: service.exchange.authority.clone(),
        manager: Arc::clone(&service.manager),
    };
    let platform_owners = [
        material.owner_secret.platform_control_owner(&inputs.space, &material.data_account.account),
        material.owner_secret.platform_control_owner_of_text(&inputs.space, &material.data_account.account),
    ];
    let cap = Capability::mint(&*inputs.entropy);
    let face = Arc::new(Face::loopback(Arc::clone(&service), cap.clone(), doors));
    let loopback = Listener::bind(inputs.port, face, Seats::of_process())
        .await
        .map_err(|source| StartError::Listener { face: "loopback", port: inputs.port, source })?;
    let url = format!("http://{}", loopback.addr());
    opened.loopback = Some(loopback);
    let public_url = match &inputs.public_face {
        Some(face) => {
            let (listener, public_url) = open_public(face, &inputs, &material, service).await?;
            manager.parts().exchange_at(public_url.clone());
            opened.public = Some(listener);
            Some(public_url)
        }
        None => None,
    };
    let loopback = opened.loopback.take();
    let public = opened.public.take();
    Ok(AuthService::supervise(HandleParts {
        context: inputs.context,
        space: inputs.space,
        data_account: material.data_account.account,
        composition: inputs.composition,
        platform: inputs.platform,
        supervision: inputs.supervision,
        platform_owners,
        connector,
        entropy: inputs.entropy,
        clock: inputs.clock,
        url,
        public_url,
        cap,
        custody: custody.clone(),
        plane,
        connection,
        callout,
        issuer,
        entered,
        manager,
        stderr,
        listeners: loopback.into_iter().chain(public).collect(),
    }))
}

/// Who the plane's own endpoint is: kept, and made at the first start. A hosted context keeps it in its store, because its
/// disk may not outlive it; a root keeps it in a file (contract 08 §3.1).
async fn plane_identity(inputs: &ContextInputs) -> Result<PlaneIdentity, StartError> {
    let identity = match inputs.context {
        Some(_) => {
            let ContextInputs { store, space, identity_root, entropy, .. } = inputs;
            InstanceIdentity::adopt_into(&**store, space, identity_root, &**entropy).await
        }
        None => InstanceIdentity::load_or_create(&inputs.identity_root, &*inputs.entropy),
    };
    let identity = identity.map_err(|error| StartError::Identity(error.0))?;
    Ok(PlaneIdentity { serve: identity.serve.public().clone(), instance: identity.instance })
}

/// The manager of this host: a root may have one, whose identity lies beside the plane's; a hosted context has none
/// (contract 08 §4).
fn local_manager(inputs: &ContextInputs) -> Arc<dyn ReadLocalManager> {
    match inputs.context {
        Some(_) => Arc::new(NoLocalManager),
        None => Arc::new(RootManager::of(inputs.identity_root.clone())),
    }
}

/// Step 4: the broker answers, and knows the callout user.
pub(crate) async fn prove_reachable(
    space: &Space,
    connector: &Connector,
    callout: &CalloutAuth,
) -> Result<(), EpError> {
    let probe = connector.open_creds(format!("cotal:auth-probe:{space}"), &callout.callout_creds).await?;
    probe.close().await
}

/// Whom both faces ask.
struct Answering {
    ledger: Ledger,
    credentials: Arc<dyn ConnectCredentials>,
    sessions: Arc<dyn SessionDirectory>,
    managers: Arc<dyn ManagerDirectory>,
    limiter: Arc<Limiter>,
    manager: ManagerAuthority,
}

/// Step 7, first half: what both faces answer from.
fn compose(inputs: &ContextInputs, material: &Material, answering: Answering) -> Result<Service, StartError> {
    let Answering { ledger, credentials, sessions, managers, limiter, manager } = answering;
    let clock = &inputs.clock;
    let authority = ExchangeAuthority::new(ledger, credentials);
    let issuer = create_user_token_issuer(&inputs.space, Arc::clone(&material.issuer))?;
    let keys = pinned_jwks_resolver(&material.idp.jwks_uri, Arc::clone(clock))?;
    let bridge = create_idp_bridge(IdpBridgeParts {
        space: inputs.space.clone(),
        idp: PinnedIdp::new(&material.idp.issuer, &material.idp.audience, keys)?,
        space_secret: material.owner_secret.clone(),
        issuer: issuer.clone(),
        hooks: Arc::new(authority.clone()),
        sessions,
        clock: Arc::clone(clock),
    })?;
    Ok(Service {
        issuer: material.issuer.issuer().to_owned(),
        jwks: Bytes::from(material.issuer.jwks()),
        exchange: Exchange { issuer, bridge, authority, limiter, managers, clock: Arc::clone(clock) },
        manager: Arc::new(manager),
        entered: Arc::default(),
        clock: Arc::clone(clock),
    })
}

/// Step 7, second half: binds the public face first, because its bundle names where it is bound.
async fn open_public(
    face: &PublicFace,
    inputs: &ContextInputs,
    material: &Material,
    service: Arc<Service>,
) -> Result<(Listener, String), StartError> {
    let refuse = |source| StartError::Listener { face: "public", port: face.port(), source };
    let socket =
        tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, face.port())).await.map_err(refuse)?;
    let public_url = face.url_at(socket.local_addr().map_err(refuse)?);
    let bundle = MeshBundle::compose(&MeshParts {
        space: &inputs.space,
        server: &face.server_or(&inputs.servers),
        idp: &material.idp,
        public_url: &public_url,
        agent_provisioning_url: face.agent_provisioning_url(),
        sentinel_creds: &material.callout.sentinel_creds,
    });
    let bundle = bundle.to_bytes().map_err(StartError::Bundle)?;
    let public = Arc::new(Face::public(service, face.trusted_proxy(), bundle));
    Ok((Listener::serve(socket, public, Seats::of_process()).map_err(refuse)?, public_url))
}
