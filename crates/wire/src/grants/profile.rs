//! Which template a connection gets, and the checks before any (contract 01 §6.0).

use super::{
    Capabilities, InstrumentTier, Issued, Permissions, agent, maintenance, narrow, read_views, rows::Space,
};
use crate::{
    channel::ChannelPattern,
    claims::Act,
    token::{
        ConnId, InstanceId, LifecycleUid, Principal, Role, SessionEndpoint, SessionId, Sha256Hex, SpaceToken,
        TokenError,
    },
    view::View,
};

/// Who connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectPrincipal {
    /// Owner and actor.
    pub principal: Principal,
    /// The inbox nonce.
    pub conn_id: ConnId,
    /// The incarnation, where the profile needs one.
    pub lifecycle_uid: Option<LifecycleUid>,
}

/// What an agent may read, write and ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentGrants {
    /// Channels that it may read.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// Channels that it may post to; none means that it cannot post.
    pub allow_publish: Vec<ChannelPattern>,
    /// The role whose work queue it shares.
    pub role: Option<Role>,
    /// Its endpoint capabilities.
    pub capabilities: Capabilities,
    /// Its issued pair, on a space of the versioned rail.
    pub issued: Option<Issued>,
}

impl AgentGrants {
    /// The grants of a stored actor row, whose lists are not checked on read: each entry is checked here.
    pub fn of_row<S: AsRef<str>>(
        allow_subscribe: &[S],
        allow_publish: &[S],
        role: Option<&str>,
        capabilities: &[S],
    ) -> Result<Self, GrantError> {
        Ok(Self {
            allow_subscribe: ChannelPattern::parse_all(allow_subscribe)?,
            allow_publish: ChannelPattern::parse_all(allow_publish)?,
            role: role.map(Role::parse).transpose()?,
            capabilities: Capabilities::of_scope(capabilities),
            issued: None,
        })
    }
}

/// A profile with its pins. A profile that is not here has no template: nothing falls through to the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// A user connection without a view, or a static agent.
    Agent(AgentGrants),
    /// Reads chat and the registries.
    Observer,
    /// The god view.
    Admin,
    /// Connects, and does nothing.
    Probe,
    /// Purges the space's history.
    Purger,
    /// Writes channel configuration.
    ChannelWriter,
    /// Deletes one channel.
    ChannelPurger,
    /// Speaks as an operator.
    Operator,
    /// Asks the manager as an operator's instrument.
    ControlCaller {
        /// How much of it.
        tier: InstrumentTier,
        /// The issued pair, if any.
        issued: Option<Issued>,
    },
    /// Deploys agents.
    Deployer {
        /// Admin for a static credential, privileged for the view.
        tier: InstrumentTier,
        /// The issued pair, if any.
        issued: Option<Issued>,
    },
    /// Removes the whole space.
    Teardown {
        /// The manager instances whose transfer stores go with it.
        transfers: Vec<InstanceId>,
    },
    /// One redeemed session.
    SessionCaller {
        /// The endpoint.
        endpoint: SessionEndpoint,
        /// The session.
        session: SessionId,
        /// The serving epoch.
        epoch: u64,
    },
    /// One transfer object.
    TransferWriter {
        /// The manager instance whose store it is in.
        instance: InstanceId,
        /// The object's SHA-256.
        hex: Sha256Hex,
    },
    /// One live manager instance.
    ManagerCaller {
        /// The instance.
        instance: InstanceId,
        /// The caller's own capabilities.
        capabilities: Capabilities,
        /// The issued pair, if any.
        issued: Option<Issued>,
    },
}

/// Why no permissions were built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The name has a template that the open builder never mints, or none at all.
    #[error("{0} is not a profile that a bearer may connect with: {1}")]
    NotAConnectProfile(&'static str, &'static str),
    /// The profile is lifecycle-keyed, and no lifecycle uid was given.
    #[error("profile {0} needs a lifecycle uid")]
    NoLifecycle(&'static str),
    /// A view came without the pin that it narrows to.
    #[error("view {0} came without what it is pinned to")]
    NoPin(&'static str),
    /// A stored entry is not what its list holds.
    #[error(transparent)]
    Entry(#[from] TokenError),
}

impl Profile {
    /// The profile of a view, pinned by the bearer's own claims: a view's name is its profile's name
    /// (contract 01 §6.11). The capability checks and the live re-verifications are the callout's.
    pub fn of_view(view: View, act: &Act) -> Result<Self, GrantError> {
        let pin = GrantError::NoPin(view.as_str());
        Ok(match view {
            View::Admin => Self::Admin,
            View::Purger => Self::Purger,
            View::ChannelPurger => Self::ChannelPurger,
            View::ChannelWriter => Self::ChannelWriter,
            View::Deployer => Self::Deployer { tier: InstrumentTier::Privileged, issued: None },
            View::ManagerService => {
                return Err(GrantError::NotAConnectProfile(
                    view.as_str(),
                    "its material comes from the typed exchange alone",
                ));
            }
            View::ServiceEndpoint => {
                return Err(GrantError::NotAConnectProfile(
                    view.as_str(),
                    "only the fenced serve mint emits its rows",
                ));
            }
            View::ManagerCaller => Self::ManagerCaller {
                instance: act.manager_instance_id.clone().ok_or(pin)?,
                capabilities: Capabilities::of_scope(act.scope.as_deref().unwrap_or_default()),
                issued: None,
            },
            View::SessionCaller => {
                let session = act.session.clone().ok_or(pin)?;
                Self::SessionCaller {
                    endpoint: session.endpoint,
                    session: session.session_id,
                    epoch: session.epoch,
                }
            }
            View::TransferWriter => {
                let object = act.transfer_writer.clone().ok_or(pin)?;
                Self::TransferWriter { instance: object.instance_id, hex: object.hex }
            }
        })
    }

    /// The profile's name: the label of a static user's JWT.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Agent(_) => "agent",
            Self::Observer => "observer",
            Self::Admin => "admin",
            Self::Probe => "probe",
            Self::Purger => "purger",
            Self::ChannelWriter => "channel-writer",
            Self::ChannelPurger => "channel-purger",
            Self::Operator => "operator",
            Self::ControlCaller { tier: InstrumentTier::Privileged, .. } => "control-caller-privileged",
            Self::ControlCaller { tier: InstrumentTier::Admin, .. } => "control-caller-admin",
            Self::Deployer { .. } => "deployer",
            Self::Teardown { .. } => "teardown",
            Self::SessionCaller { .. } => "session-caller",
            Self::TransferWriter { .. } => "transfer-writer",
            Self::ManagerCaller { .. } => "manager-caller",
        }
    }
}

/// The permissions of one connection of a space.
pub fn permissions(
    space: &SpaceToken,
    who: &ConnectPrincipal,
    profile: &Profile,
) -> Result<Permissions, GrantError> {
    let space = &Space::new(space);
    let uid = || who.lifecycle_uid.as_ref().ok_or(GrantError::NoLifecycle(profile.name()));
    Ok(match profile {
        Profile::Agent(grants) => agent::agent(space, who, uid()?, grants),
        Profile::Observer => read_views::observer(space, who),
        Profile::Admin => read_views::admin(space, who),
        Profile::Probe => maintenance::probe(who),
        Profile::Purger => maintenance::purger(space, who),
        Profile::ChannelWriter => maintenance::channel_writer(space, who),
        Profile::ChannelPurger => maintenance::channel_purger(space, who),
        Profile::Operator => maintenance::operator(space, who),
        Profile::ControlCaller { tier, issued } => {
            maintenance::control_caller(space, who, uid()?, *tier, issued.as_ref())
        }
        Profile::Deployer { tier, issued } => {
            maintenance::deployer(space, who, uid()?, *tier, issued.as_ref())
        }
        Profile::Teardown { transfers } => maintenance::teardown(space, who, uid()?, transfers),
        Profile::SessionCaller { endpoint, session, epoch } => {
            narrow::session_caller(space, who, endpoint, session, *epoch)
        }
        Profile::TransferWriter { instance, hex } => narrow::transfer_writer(space, who, instance, hex),
        Profile::ManagerCaller { instance, capabilities, issued } => {
            narrow::manager_caller(space, who, uid()?, instance, *capabilities, issued.as_ref())
        }
    })
}
