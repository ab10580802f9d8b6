//! Starts one space's service, step by step, and unwinds what it opened when a step fails (contract 05 §15.2).

use std::{
    io,
    panic::{AssertUnwindSafe, resume_unwind},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use cotal_authority::{
    Plane, PlaneInputs,
    issued::IssuerSession,
    plane::{CLAIM_PATIENCE, PlaneIdentity},
};
use cotal_broker::{Connection, Connector, Custody};
use cotal_callout::{Callout, ConnectLimits, Limiter};
use cotal_trust::{
    callout_account::CalloutAuth,
    idp::{IdpPin, IdpRefusal},
    owner::OwnerSecret,
};
use cotal_wire::{Entropy, EpError, InfraRole, Space};
use cotal_workspace::{
    file,
    instance_identity::InstanceIdentity,
    material::{CalloutMaterial, MaterialError, UserAuthMaterial},
};
use futures::FutureExt as _;

use crate::{
    authority::ExchangeAuthority,
    bridge::{BridgeConfigError, IdpBridgeParts, PinnedIdp, create_idp_bridge, pinned_jwks_resolver},
    callers::LiveCallers,
    capability::Capability,
    composition::{Chosen, CompositionError},
    handle::{AuthService, HandleParts},
    host::lane::Barred,
    http::{
        doors::Doors,
        exchange::Exchange,
        face::{Face, Service},
        listener::Listener,
        mesh::{MeshBundle, MeshParts},
        seats::Seats,
    },
    manager::{ManagerAuthority, PartsInputs},
    managers::PlaneManagers,
    member::{Answering, AtTheBroker, Member, Secrets},
    past_note::PastNote,
    platform::{Platform, PlatformSupervision},
    public_face::PublicFace,
    user_tokens::create_user_token_issuer,
};

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
    pub member: Member,
    /// Where the plane's own endpoint identity lies (contract 08 §3.1).
    pub identity_root: PathBuf,
    /// What the composition chose, checked.
    pub composition: Chosen,
    /// Checked.
    pub issuer_ttl_secs: u64,
    /// The platform that embeds the service, checked.
    pub platform: Option<Platform>,
    /// The platform that supervises managers for its users.
    pub supervision: Option<Arc<dyn PlatformSupervision>>,
    pub port: u16,
    pub public_face: Option<PublicFace>,
    pub connect_limits: ConnectLimits,
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
    let (mut opened, space) = (Opened::default(), inputs.member.space.clone());
    let started = AssertUnwindSafe(open(inputs, &custody, &mut opened)).catch_unwind().await;
    if !matches!(started, Ok(Ok(_))) {
        opened.unwind(&space).await;
        close_left(&custody, &space).await;
    }
    // A panic goes on once nothing is left of the start that it ended.
    started.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Closes what a start that did not come to its end had opened.
pub(crate) async fn close_left(custody: &Custody, space: &Space) {
    if let Err(error) = custody.close_remaining().await {
        tracing::warn!(%space, %error, "unwinding: a connection did not close");
    }
}

/// The material of one space.
struct Material {
    secrets: Secrets,
    owner_secret: OwnerSecret,
    idp: IdpPin,
}

/// Steps 1-3: loads the material, and checks whose it is.
async fn load(member: &Member) -> Result<Material, StartError> {
    let loaded = UserAuthMaterial::load(&*member.store, &member.state_dir, &member.space).await?;
    let UserAuthMaterial { data_account, callout, issuer, owner_secret, idp } = loaded;
    let secrets = member.own(CalloutMaterial { data_account, callout, issuer })?;
    Ok(Material { secrets, owner_secret, idp })
}

async fn open(
    inputs: ContextInputs,
    custody: &Custody,
    opened: &mut Opened,
) -> Result<AuthService, StartError> {
    let member = &inputs.member;
    let (space, clock, entropy) = (&member.space, &member.clock, &member.entropy);
    let material = member.threshold.unless_asked(load(member)).await??;
    let Material { secrets, .. } = &material;
    let connector = member.connector(secrets, custody);
    prove_reachable(space, &connector, &secrets.callout)
        .await
        .map_err(|source| StartError::Broker { servers: member.servers.to_string(), source })?;
    let identity = member.threshold.unless_asked(plane_identity(&inputs)).await??;
    let plane = Plane::open(PlaneInputs {
        connector: connector.clone(),
        clock: Arc::clone(clock),
        entropy: Arc::clone(entropy),
        identity,
        native_issuance_prune: inputs.composition.native_issuance_prune,
        claim_patience: CLAIM_PATIENCE,
        past: Some(Arc::new(PastNote::in_dir(&member.state_dir, space))),
    })
    .await
    .map_err(StartError::Plane)?;
    opened.plane = Some(Arc::clone(&plane));

    let connection = connector
        .open_creds(InfraRole::AUTH_SERVICE.label(space), &secrets.callout.callout_creds)
        .await
        .map_err(StartError::Callout)?;
    opened.connection = Some(connection.clone());
    // It dials at the first connect that must be issued something.
    let issuer = IssuerSession::new(connector.clone(), Arc::clone(entropy), inputs.issuer_ttl_secs)
        .map_err(StartError::Callout)?;
    let limiter = Arc::new(Limiter::new(inputs.connect_limits, Arc::clone(clock)));
    let at = AtTheBroker {
        connection: connection.clone(),
        reader: Arc::clone(plane.reader()),
        issuance: Arc::clone(plane.issuance()),
        session: issuer.clone(),
    };
    let Answering { callout, stderr } = member.answer(secrets, Arc::clone(&limiter), at).await?;
    let callout = Arc::new(callout);
    opened.callout = Some(Arc::clone(&callout));

    let manager = ManagerAuthority::new(PartsInputs {
        space: space.clone(),
        data_account: secrets.data_account.clone(),
        ledger: member.ledger(),
        plane: Arc::clone(&plane),
        connector: connector.clone(),
        issuer: issuer.clone(),
        standing_ttl_secs: inputs.composition.standing_ttl_secs,
        sentinel_creds: secrets.callout.sentinel_creds.clone(),
        clock: Arc::clone(clock),
        entropy: Arc::clone(entropy),
    });
    // What managers are asked about runs is heard before anything that a manager asks of this context is answered.
    manager.parts().hear_known_managers().await.map_err(StartError::Plane)?;
    let asked = Asked { plane: Arc::clone(&plane), limiter, manager: manager.clone() };
    let service = Arc::new(compose(&inputs, &material, asked)?);
    let entered = Arc::clone(&service.entered);
    let account = secrets.data_account.account.clone();
    let doors = Doors {
        plane: Arc::clone(&plane) as _,
        ledger: member.ledger(),
        data_account: account.clone(),
        grants: service.exchange.authority.clone(),
        manager: Arc::clone(&service.manager),
    };
    let platform_owners = [
        material.owner_secret.platform_control_owner(space, &account),
        material.owner_secret.platform_control_owner_of_text(space, &account),
    ];
    let cap = Capability::mint(&**entropy);
    let face = Arc::new(Face::loopback(Arc::clone(&service), cap.clone(), doors));
    let loopback = Listener::bind(inputs.port, face, Seats::of_process())
        .await
        .map_err(|source| StartError::Listener { face: "loopback", port: inputs.port, source })?;
    let url = format!("http://{}", loopback.addr());
    opened.loopback = Some(loopback);
    let public_url = match &inputs.public_face {
        Some(face) => {
            let (listener, public_url) = open_public(face, member, &material, service).await?;
            manager.parts().exchange_at(public_url.clone());
            opened.public = Some(listener);
            Some(public_url)
        }
        None => None,
    };
    let loopback = opened.loopback.take();
    let public = opened.public.take();
    Ok(AuthService::supervise(HandleParts {
        context: inputs.member.context,
        space: inputs.member.space,
        data_account: account,
        composition: inputs.composition,
        platform: inputs.platform,
        supervision: inputs.supervision,
        platform_owners,
        connector,
        entropy: inputs.member.entropy,
        clock: inputs.member.clock,
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
    let ContextInputs { member: Member { store, space, context, entropy, .. }, identity_root, .. } = inputs;
    let identity = match context {
        Some(_) => InstanceIdentity::adopt_into(&**store, space, identity_root, &**entropy).await,
        None => return rooted_identity(identity_root.clone(), Arc::clone(entropy)).await,
    };
    identity.map(of_plane).map_err(|error| StartError::Identity(error.0))
}

/// The same, of a directory.
pub(crate) async fn rooted_identity(
    identity_root: PathBuf,
    entropy: Arc<dyn Entropy>,
) -> Result<PlaneIdentity, StartError> {
    let loaded = file::blocking(move || InstanceIdentity::load_or_create(&identity_root, &*entropy)).await;
    let identity = loaded.map_err(|error| StartError::Identity(error.to_string()))?;
    identity.map(of_plane).map_err(|error| StartError::Identity(error.0))
}

fn of_plane(identity: InstanceIdentity) -> PlaneIdentity {
    PlaneIdentity { serve: identity.serve.public().clone(), instance: identity.instance }
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
struct Asked {
    plane: Arc<Plane>,
    limiter: Arc<Limiter>,
    manager: ManagerAuthority,
}

/// Step 7, first half: what both faces answer from.
fn compose(inputs: &ContextInputs, material: &Material, asked: Asked) -> Result<Service, StartError> {
    let ContextInputs { member, composition, .. } = inputs;
    let Asked { plane, limiter, manager } = asked;
    let clock = &member.clock;
    let keys = &material.secrets.issuer;
    let sessions = Arc::new(LiveCallers::of_plane(Arc::clone(&plane), Arc::clone(&member.local_manager)));
    let managers =
        PlaneManagers::new(Arc::clone(&plane), Arc::clone(&member.local_manager), composition.selection);
    let authority = ExchangeAuthority::new(member.ledger(), plane);
    let issuer = create_user_token_issuer(&member.space, Arc::clone(keys))?;
    let jwks = pinned_jwks_resolver(&material.idp.jwks_uri, Arc::clone(clock))?;
    let bridge = create_idp_bridge(IdpBridgeParts {
        space: member.space.clone(),
        idp: PinnedIdp::new(&material.idp.issuer, &material.idp.audience, jwks)?,
        space_secret: material.owner_secret.clone(),
        issuer: issuer.clone(),
        hooks: Arc::new(authority.clone()),
        sessions,
        clock: Arc::clone(clock),
    })?;
    Ok(Service {
        issuer: keys.issuer().to_owned(),
        jwks: Bytes::from(keys.jwks()),
        exchange: Exchange {
            issuer,
            bridge,
            authority,
            limiter,
            managers: Arc::new(managers),
            clock: Arc::clone(clock),
        },
        manager: Arc::new(manager),
        entered: Arc::default(),
        clock: Arc::clone(clock),
    })
}

/// Step 7, second half: binds the public face first, because its bundle names where it is bound.
async fn open_public(
    face: &PublicFace,
    member: &Member,
    material: &Material,
    service: Arc<Service>,
) -> Result<(Listener, String), StartError> {
    let refuse = |source| StartError::Listener { face: "public", port: face.port(), source };
    let socket =
        tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, face.port())).await.map_err(refuse)?;
    let public_url = face.url_at(socket.local_addr().map_err(refuse)?);
    let bundle = MeshBundle::compose(&MeshParts {
        space: &member.space,
        server: &face.server_or(&member.servers),
        idp: &material.idp,
        public_url: &public_url,
        agent_provisioning_url: face.agent_provisioning_url(),
        sentinel_creds: &material.secrets.callout.sentinel_creds,
    });
    let bundle = bundle.to_bytes().map_err(StartError::Bundle)?;
    let public = Arc::new(Face::public(service, face.trusted_proxy(), bundle));
    Ok((Listener::serve(socket, public, Seats::of_process()).map_err(refuse)?, public_url))
}
