//! Which manager instance a `manager-caller` bearer is bound to (contract 05 §5).

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use cotal_authority::{
    LocalManager, ManagerVerdict, Plane, ReadLocalManager,
    manager::{ManagerSide, NoManager},
};
use cotal_wire::{DerivedOwner, EpError, InstanceId};
use cotal_workspace::instance_identity;
use serde::Serialize;
use utoipa::ToSchema;

use crate::composition::InteractiveManagerSelection;

/// What a caller is told when what stands in the way of a verdict is for the operator's log alone.
const UNREADABLE: &str = "the managers of this space cannot be looked at; retry";
/// Most instances that a listing names (contract 14 §1).
pub(crate) const MAX_LISTED: usize = 1_000;

/// Why no manager instance was selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionRefusal {
    /// Nothing was named, and no instance of the owner is live.
    #[error("{0}")]
    NoLiveManager(String),
    /// Nothing was named, and more than one instance of the owner is live.
    #[error("{0}")]
    Ambiguous(String),
    /// The named instance is not a candidate, or its name is malformed.
    #[error("{0}")]
    NotACandidate(String),
    /// The gates could not be read.
    #[error("{0}")]
    Unavailable(String),
}

/// Who asks to be bound to a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionArm {
    /// A signed-in person.
    Human,
    /// A managed agent, with its secret.
    Agent,
}

/// One manager instance that an owner might be bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagerInstance {
    /// The instance.
    #[schema(value_type = String, pattern = "^[a-z0-9]{26,32}$")]
    pub instance_id: InstanceId,
    /// Whether it is the host's own manager.
    pub local: bool,
    /// How it is, in the words of a selection's refusal; `candidate` can be bound to.
    pub state: String,
}

/// The manager instances of a space, as its authority sees them now.
#[async_trait]
pub trait ManagerDirectory: Send + Sync {
    /// The instance that a bearer of `owner` is bound to: exactly the requested one, else the only live one.
    async fn select(
        &self,
        owner: &DerivedOwner,
        requested: Option<&InstanceId>,
        arm: SelectionArm,
    ) -> Result<InstanceId, SelectionRefusal>;

    /// The owner's own instances and the host's, in the order of their ids, at most a thousand.
    async fn instances(&self, owner: &DerivedOwner) -> Result<Vec<ManagerInstance>, EpError>;
}

/// The directory over a plane: its sealed scanner finds the gates, its proved reader looks at each of the owner's.
pub struct PlaneManagers {
    plane: Arc<Plane>,
    local: Arc<dyn ReadLocalManager>,
    selection: Option<InteractiveManagerSelection>,
}

impl PlaneManagers {
    /// Over this plane, on a host with this local manager, if any; `selection` is what the composition chose.
    pub fn new(
        plane: Arc<Plane>,
        local: Arc<dyn ReadLocalManager>,
        selection: Option<InteractiveManagerSelection>,
    ) -> Self {
        Self { plane, local, selection }
    }

    async fn verdict(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
        local: Option<&LocalManager>,
    ) -> Result<ManagerVerdict, SelectionRefusal> {
        let verdict = self.plane.reader().manager_verdict(owner, instance, local).await;
        verdict.map_err(|error| unreadable(&error))
    }

    /// An explicit selector wins, whatever the composition chose.
    async fn pinned(
        &self,
        owner: &DerivedOwner,
        instance: &InstanceId,
        local: Option<&LocalManager>,
    ) -> Result<InstanceId, SelectionRefusal> {
        match self.verdict(owner, instance, local).await? {
            ManagerVerdict::Candidate { .. } => Ok(instance.clone()),
            verdict => Err(SelectionRefusal::NotACandidate(not_a_candidate(instance, verdict))),
        }
    }

    /// `local-primary`: the host's own manager or none; nothing is scanned.
    async fn primary(
        &self,
        owner: &DerivedOwner,
        local: Option<&LocalManager>,
    ) -> Result<InstanceId, SelectionRefusal> {
        let Some(local) = local else {
            return Err(SelectionRefusal::NoLiveManager(
                "this host binds callers to its local manager, and has none; start it with `cotal manager start`, or \
                 name an instance with --manager-instance"
                    .to_owned(),
            ));
        };
        match self.verdict(owner, &local.instance, Some(local)).await? {
            ManagerVerdict::Candidate { .. } => Ok(local.instance.clone()),
            verdict => Err(SelectionRefusal::NoLiveManager(format!(
                "this host binds callers to its local manager: {}",
                not_a_candidate(&local.instance, verdict)
            ))),
        }
    }

    async fn unpinned(
        &self,
        owner: &DerivedOwner,
        local: Option<&LocalManager>,
    ) -> Result<InstanceId, SelectionRefusal> {
        let surveyed = self.plane.survey_managers(owner, local).await.map_err(|error| unreadable(&error))?;
        surveyed.select(owner).map_err(|none| match none {
            NoManager::Ambiguous { .. } | NoManager::TooMany { .. } => {
                SelectionRefusal::Ambiguous(none.to_string())
            }
            NoManager::NoneLive { .. } | NoManager::NoCandidate { .. } => {
                SelectionRefusal::NoLiveManager(none.to_string())
            }
        })
    }
}

fn not_a_candidate(instance: &InstanceId, verdict: ManagerVerdict) -> String {
    format!("manager instance {instance} is {verdict}")
}

/// What was in the way goes to the log; a fenced plane says so itself.
fn unreadable(error: &EpError) -> SelectionRefusal {
    tracing::warn!(%error, "the managers of a space could not be looked at");
    SelectionRefusal::Unavailable(UNREADABLE.to_owned())
}

#[async_trait]
impl ManagerDirectory for PlaneManagers {
    async fn select(
        &self,
        owner: &DerivedOwner,
        requested: Option<&InstanceId>,
        arm: SelectionArm,
    ) -> Result<InstanceId, SelectionRefusal> {
        self.plane.check_open().map_err(|error| SelectionRefusal::Unavailable(error.message))?;
        let local = self.local.read_local_manager().await.map_err(|error| unreadable(&error))?;
        match (requested, arm, self.selection) {
            (Some(instance), _, _) => self.pinned(owner, instance, local.as_ref()).await,
            (None, SelectionArm::Human, Some(InteractiveManagerSelection::LocalPrimary)) => {
                self.primary(owner, local.as_ref()).await
            }
            (None, _, _) => self.unpinned(owner, local.as_ref()).await,
        }
    }

    async fn instances(&self, owner: &DerivedOwner) -> Result<Vec<ManagerInstance>, EpError> {
        self.plane.check_open()?;
        let unavailable = |error: EpError| EpError::unavailable(unreadable(&error).to_string());
        let local = self.local.read_local_manager().await.map_err(unavailable)?;
        let surveyed = self.plane.survey_managers(owner, local.as_ref()).await.map_err(unavailable)?;
        let listed = surveyed.managers.into_iter().take(MAX_LISTED).map(|one| ManagerInstance {
            instance_id: one.instance,
            local: one.side == ManagerSide::Local,
            state: one.verdict.to_string(),
        });
        Ok(listed.collect())
    }
}

/// The manager of a workspace root: its kept identity, read from the root's own directory each time.
pub struct RootManager {
    identity_root: PathBuf,
}

impl RootManager {
    /// The manager whose identity is kept in this directory, beside the plane's own.
    pub fn of(identity_root: PathBuf) -> Self {
        Self { identity_root }
    }
}

#[async_trait]
impl ReadLocalManager for RootManager {
    async fn read_local_manager(&self) -> Result<Option<LocalManager>, EpError> {
        let root = self.identity_root.clone();
        let read = tokio::task::spawn_blocking(move || instance_identity::read_manager(&root)).await;
        let identity = read
            .map_err(|error| EpError::internal(format!("the local manager's identity: {error}")))?
            .map_err(|error| EpError::internal(error.0))?;
        Ok(identity.map(|identity| LocalManager {
            serve: identity.serve.public().clone(),
            instance: identity.instance,
        }))
    }
}
