//! A participant, step by step: what it holds after each is what the next one takes (contract 08 §8).
//!
//! [`Participant`] prepares, [`Prepared`] registers, [`Registered`] activates, [`Active`] serves, renews, and looks after its
//! agents. No step leaves anything that the next start of the same identity does not take up or fence: a process that is
//! killed anywhere is followed by one that begins at `prepare` with the identity on disk.

use std::sync::Arc;

use cotal_authority::{rail::nothing_stands, registration::register::Serving};
use cotal_broker::{Connection, CredsConnector, Custody};
use cotal_trust::{creds::Creds, nkey::Seed};
use cotal_wire::{
    Actor, ChannelPattern, Clock, EndpointName, Entropy, EpError, LifecycleUid, Owner, Principal, Role,
    ScopeEntry, Space,
    endpoint_subject::EndpointCaller,
    manager_authority::{
        CredentialName, EnrollmentTarget, Incarnation, RetainedAuthority, StandingRole, serve_principal,
    },
};
use cotal_workspace::{
    file,
    lock_file::LockFile,
    root::{Root, space_key},
};
use zeroize::Zeroizing;

use super::{
    agents::{AgentSecrets, Kept, digest_of},
    authority::HostAuthority,
    contract::ManagerContract,
    error::RemoteError,
    exchange,
    host::ManagerHost,
    identity::{ManagerIdentity, Origin},
    one_shots,
    rail::{Described, RailCaller, ServedBy},
    registration,
    requests::Current,
    results::{Enrolled, Known, Material},
    serving::{ManagerCommands, ManagerEndpoint, Serves},
    standing::{self, First, Standing},
};

/// What a participant is set up with.
pub struct Setup {
    /// Where its identity and its agents' secrets lie.
    pub root: Root,
    /// The space.
    pub space: Space,
    /// The interactive actor whose ledger row decides.
    pub actor: Actor,
    /// The broker: one or more comma-separated NATS URLs.
    pub servers: String,
    /// The host.
    pub host: ManagerHost,
    /// What its endpoint publishes.
    pub contract: ManagerContract,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

/// What every step needs.
struct Base {
    root: Root,
    space: Space,
    servers: String,
    contract: ManagerContract,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    authority: HostAuthority,
    custody: Custody,
    connector: CredsConnector,
    /// Held while this process is this manager.
    _lock: LockFile,
}

/// A manager with its identity, which nobody has let do anything yet.
pub struct Participant {
    base: Base,
    origin: Origin,
}

/// A manager with the credentials to register with.
pub struct Prepared {
    base: Base,
    material: Material,
}

/// A manager whose registration committed.
pub struct Registered {
    base: Base,
    material: Material,
    serving: Serving,
}

/// A manager that may serve.
pub struct Active {
    base: Base,
    standing: Arc<Standing>,
    secrets: AgentSecrets,
}

/// What an agent is to be.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Its role.
    pub role: Option<Role>,
    /// A name for people.
    pub label: Option<String>,
    /// What it may do.
    pub capabilities: Vec<ScopeEntry>,
    /// What it joins.
    pub subscribe: Vec<ChannelPattern>,
    /// What it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// What it may write.
    pub allow_publish: Vec<ChannelPattern>,
}

impl Participant {
    /// Reads or makes the identity. One process at a time is this manager on this root.
    pub fn open(setup: Setup) -> Result<Self, RemoteError> {
        let Setup { root, space, actor, servers, host, contract, clock, entropy } = setup;
        let lock = lock(&root, &space)?;
        file::remove_left_siblings(&root.cotal_dir())?;
        AgentSecrets::of(&root).tidy()?;
        let (identity, origin) = ManagerIdentity::load_or_create(&root, &space, &*entropy)?;
        let authority = HostAuthority::new(Arc::new(identity), actor, host, Arc::clone(&entropy));
        let custody = Custody::new();
        let connector = CredsConnector::new(&servers, custody.clone());
        let base = Base {
            root,
            space,
            servers,
            contract,
            clock,
            entropy,
            authority,
            custody,
            connector,
            _lock: lock,
        };
        Ok(Self { base, origin })
    }

    /// Who this manager is.
    pub fn identity(&self) -> &ManagerIdentity {
        self.base.authority.identity()
    }

    /// Whether the identity was made by this start.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Asks for the first credentials. Nothing is written anywhere.
    pub async fn prepare(self) -> Result<Prepared, RemoteError> {
        let material = self.base.authority.prepare(&Known::default()).await?;
        Ok(Prepared { base: self.base, material })
    }
}

impl Prepared {
    /// The owner that the host derived from the sign-in.
    pub fn owner(&self) -> &Owner {
        &self.material.owner
    }

    /// What was issued.
    pub fn material(&self) -> &Material {
        &self.material
    }

    /// Registers the endpoint with the executor credential, and fences every earlier start of this identity.
    pub async fn register(self) -> Result<Registered, RemoteError> {
        let Self { base, material } = self;
        let executor = base.executor(&material)?;
        // Settled first: what an earlier incarnation owed is of a family that the registration revokes.
        let serving = base
            .once("manager-registration", &executor, async |connection| {
                registration::register(connection, &base.authority, &material.owner, &base.contract).await
            })
            .await?;
        standing::settle(&base.root, &base.space)?;
        Ok(Registered { base, material, serving })
    }
}

impl Registered {
    /// The epoch to serve at.
    pub fn epoch(&self) -> u64 {
        self.serving.registered.process_epoch
    }

    /// The registration's revision.
    pub fn revision(&self) -> u64 {
        self.serving.registered.registration_revision.0
    }

    /// Asks for the serving credentials and the proof of this registration.
    pub async fn activate(self) -> Result<Active, RemoteError> {
        let Self { base, material, serving } = self;
        let known = Known { owner: Some(material.owner.clone()), account: Some(material.account.clone()) };
        let artifacts = base.contract.to_request()?;
        let activated = base.authority.activate(&known, &material.owner, artifacts).await?;
        let proof = activated
            .next_proof
            .clone()
            .ok_or_else(|| RemoteError::State("activation gave no registration proof".into()))?;
        let current = Current {
            owner: material.owner.clone(),
            account: material.account.clone(),
            proof,
            epoch: serving.registered.process_epoch,
        };
        let first = First { prepared: &material, activated: &activated };
        let standing = Standing::new(
            base.authority.clone(),
            &base.servers,
            &base.root,
            current,
            &first,
            Arc::clone(&base.clock),
        )?;
        let secrets = AgentSecrets::of(&base.root);
        Ok(Active { base, standing: Arc::new(standing), secrets })
    }
}

impl Active {
    /// The registration that everything stands on.
    pub fn current(&self) -> &Current {
        self.standing.current()
    }

    /// Who this manager is.
    pub fn identity(&self) -> &ManagerIdentity {
        self.base.authority.identity()
    }

    /// What the host decides for it.
    pub fn authority(&self) -> &HostAuthority {
        &self.base.authority
    }

    /// Its five standing credentials.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// Opens connections with what was granted. Its goodbye ends them.
    pub fn connector(&self) -> &CredsConnector {
        &self.base.connector
    }

    /// The secrets of its agents.
    pub fn secrets(&self) -> &AgentSecrets {
        &self.secrets
    }

    /// Serves the manager endpoint: `describe` and `ping`. A renewed serve credential is pushed to its connection.
    pub async fn serve(&self) -> Result<ManagerEndpoint, RemoteError> {
        self.serving(None).await
    }

    /// The same, with the other commands of its contract.
    pub async fn serve_with(
        &self,
        commands: Arc<dyn ManagerCommands>,
    ) -> Result<ManagerEndpoint, RemoteError> {
        self.serving(Some(commands)).await
    }

    async fn serving(
        &self,
        commands: Option<Arc<dyn ManagerCommands>>,
    ) -> Result<ManagerEndpoint, RemoteError> {
        let creds = self.standing.creds(StandingRole::Serve);
        let creds = creds.ok_or_else(|| RemoteError::State("no serve credential is held".into()))?;
        let current = self.current();
        let serves = Serves {
            space: self.base.space.clone(),
            owner: current.owner.clone(),
            instance: self.identity().instance().clone(),
            epoch: current.epoch,
        };
        let endpoint =
            ManagerEndpoint::open(&self.base.connector, &creds, serves, &self.base.contract, commands)
                .await?;
        self.standing.push_to(endpoint.connection());
        Ok(endpoint)
    }

    /// Enrols an agent under this name. Its secret is on disk before the host is asked; an enrollment that was cut off is
    /// asked for again with the same one.
    pub async fn enroll(&self, actor: &Actor, wanted: &Wanted) -> Result<Enrolled, RemoteError> {
        if let Some(uid) = self.secrets.incarnations(actor)?.first() {
            return Err(RemoteError::State(format!(
                "{actor} is enrolled from here already, at lifecycle {uid}; retire that one first"
            )));
        }
        let secret = self.secrets.to_enroll(actor, &*self.base.entropy)?;
        let target = EnrollmentTarget {
            actor: actor.clone(),
            role: wanted.role.clone(),
            label: wanted.label.clone(),
            capabilities: Some(wanted.capabilities.clone()),
            subscribe: Some(wanted.subscribe.clone()),
            allow_subscribe: Some(wanted.allow_subscribe.clone()),
            allow_publish: Some(wanted.allow_publish.clone()),
            token_hash: Some(digest_of(&secret)),
        };
        let enrolled = self.base.authority.enroll(self.current(), target).await?;
        let uid = &enrolled.agent.lifecycle_uid;
        self.secrets.enrolled(actor, uid, &secret, &enrolled.sentinel_text)?;
        Ok(enrolled)
    }

    fn kept(&self, agent: &Incarnation) -> Result<Kept, RemoteError> {
        self.secrets.kept(&agent.actor, &agent.lifecycle_uid)?.ok_or_else(|| {
            RemoteError::State(format!(
                "no secret of {} at {} is kept here",
                agent.actor, agent.lifecycle_uid
            ))
        })
    }

    /// Whether an agent that was enrolled is still who it was, and what it may do now.
    pub async fn validate(&self, agent: &Enrolled) -> Result<RetainedAuthority, RemoteError> {
        let kept = self.kept(&agent.agent)?;
        let current = self.current();
        self.base.authority.validate_retained(current, &agent.agent, &kept.secret, &agent.sentinel_text).await
    }

    /// Signs an agent in, as its own process would: its secret for a bearer at the public face.
    pub async fn exchange(&self, agent: &Enrolled) -> Result<Zeroizing<String>, RemoteError> {
        exchange::exchange(agent, &self.kept(&agent.agent)?.secret).await
    }

    /// Opens an agent's connection with its bearer.
    pub async fn connect(
        &self,
        agent: &Enrolled,
        bearer: Zeroizing<String>,
    ) -> Result<Connection, RemoteError> {
        exchange::connect(&self.base.connector, agent, bearer, &*self.base.entropy).await
    }

    /// What an agent's own connection is told of the manager endpoint.
    pub async fn describe_as(
        &self,
        agent: &Enrolled,
        connection: &Connection,
    ) -> Result<Described, RemoteError> {
        let caller = EndpointCaller {
            principal: Principal::new(agent.agent.owner.clone(), agent.agent.actor.clone()),
            lifecycle_uid: agent.agent.lifecycle_uid.clone(),
            generation: None,
        };
        let rail = self.base.rail(connection, caller);
        Ok(rail.describe(&EndpointName::manager()).await?)
    }

    /// The agents of a name that were enrolled from here and are not known to be retired.
    pub fn left(&self, actor: &Actor) -> Result<Vec<Incarnation>, RemoteError> {
        let owner = &self.current().owner;
        let of = |lifecycle_uid: LifecycleUid| Incarnation {
            owner: owner.clone(),
            actor: actor.clone(),
            lifecycle_uid,
        };
        Ok(self.secrets.incarnations(actor)?.into_iter().map(of).collect())
    }

    /// Retires an agent for good: the host takes its grant and its footprint back, a one-shot requester asks the auth
    /// endpoint for the end, and its secret goes once that is confirmed. Each step may be repeated: a retirement that was
    /// cut off anywhere is begun anew.
    pub async fn retire(&self, agent: &Incarnation) -> Result<(), RemoteError> {
        self.prepare_retirement(agent).await?;
        self.finish_retirement(agent).await
    }

    /// The first half: grant and footprint go, the lifecycle is kept.
    pub async fn prepare_retirement(&self, agent: &Incarnation) -> Result<(), RemoteError> {
        self.base.authority.prepare_retirement(self.current(), agent).await
    }

    /// The second half: the barrier, and the secret.
    ///
    /// An agent that never signed in has nothing to retire: no lifecycle began, or its name still stands at the one before it,
    /// and with its grant gone that stays so. Whatever else the rail refuses keeps the secret, and the name held
    /// (contract 08 §8.6).
    pub async fn finish_retirement(&self, agent: &Incarnation) -> Result<(), RemoteError> {
        if let Err(refusal) = self.ask_for_the_end(agent).await?
            && !nothing_stands(&refusal, &agent.lifecycle_uid)
        {
            return Err(refusal.into());
        }
        Ok(self.secrets.retired(&agent.actor, &agent.lifecycle_uid)?)
    }

    /// A fresh one-shot requester asks the auth endpoint; the inner refusal is the endpoint's.
    async fn ask_for_the_end(&self, agent: &Incarnation) -> Result<Result<(), EpError>, RemoteError> {
        let current = self.current();
        let requester = Seed::generate(&*self.base.entropy);
        let material = self.base.authority.retirement_requester(current, requester.public(), agent).await?;
        let creds = one_shots::of(&material, CredentialName::RetirementRequester, &requester)?;
        let caller = EndpointCaller {
            principal: serve_principal(&current.owner, self.identity().instance()),
            lifecycle_uid: self.identity().lifecycle().clone(),
            generation: None,
        };
        self.base
            .once("retirement-requester", &creds, async |connection| {
                let endpoint = EndpointName::manager();
                let instance = self.identity().instance();
                let by = ServedBy { endpoint: &endpoint, instance, epoch: current.epoch };
                Ok(self.base.rail(connection, caller.clone()).retire(agent, &by).await)
            })
            .await
    }

    /// Takes this manager out of the registry and ends every connection. Its identity and its gate stay.
    pub async fn goodbye(self, endpoint: Option<ManagerEndpoint>) -> Result<bool, RemoteError> {
        self.standing.stop();
        let closed = match endpoint {
            Some(endpoint) => endpoint.close().await,
            None => Ok(()),
        };
        let executor = self.standing.creds(StandingRole::Executor).map(|creds| creds.current());
        let executor = executor.ok_or_else(|| RemoteError::State("no executor credential is held".into()))?;
        let removed = self
            .base
            .once("manager-registration", &executor, async |connection| {
                registration::deregister(connection, &self.base.authority).await
            })
            .await;
        // Every step runs, whichever failed before; the first failure is told.
        self.base.custody.complete();
        let ended = self.base.custody.close_remaining().await;
        let removed = removed?;
        closed.and(ended)?;
        Ok(removed)
    }
}

impl Base {
    fn executor(&self, material: &Material) -> Result<Creds, RemoteError> {
        one_shots::of(
            material,
            CredentialName::Executor,
            self.authority.identity().seed(StandingRole::Executor),
        )
    }

    fn rail<'a>(&'a self, connection: &'a Connection, caller: EndpointCaller) -> RailCaller<'a> {
        RailCaller { connection, space: &self.space, caller, entropy: &*self.entropy }
    }

    /// One connection for one piece of work: no reconnect, and its end is awaited however the work ends.
    async fn once<T>(
        &self,
        role: &str,
        creds: &Creds,
        work: impl AsyncFnOnce(&Connection) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        // Boxed: a connect's future is large, and every step would hold it.
        let opening = self.connector.open_once(super::label(role, &self.space), creds, None);
        let connection = Box::pin(opening).await?;
        let done = work(&connection).await;
        if let Err(error) = connection.close().await {
            tracing::warn!(%error, "a participant's connection did not end");
        }
        done
    }
}

/// One process at a time is this manager on this root; the lock goes with the process, however it ends.
fn lock(root: &Root, space: &Space) -> Result<LockFile, RemoteError> {
    file::ensure_private_dir(&root.cotal_dir())?;
    let path = root.cotal_dir().join(format!("remote-manager.{}.lock", space_key(space)));
    LockFile::take(&path)?.ok_or_else(|| {
        RemoteError::State(format!(
            "another process is this manager right now ({} is locked); wait for its end, or use another root",
            path.display()
        ))
    })
}
