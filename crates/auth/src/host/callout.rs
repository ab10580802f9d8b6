//! The lane that is a callout replica of its space (contract 08 §5, 09 §9).

use std::sync::Arc;

use async_trait::async_trait;
use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, Crowd};
use cotal_wire::Space;
use cotal_workspace::{file, root::Root, secret_store::SecretStore};

use super::{
    lane::{Lane, LaneRefusal, OpenLane, Threshold},
    lanes::prefix,
    manifest::CalloutHostEntry,
};
use crate::{
    context::StartError,
    handle::CloseError,
    lines::LineWriter,
    member::Member,
    replica::{self, CalloutReplica, ReplicaEnd},
};

/// What every lane of a callout host is given. Nothing else of one lane is another's.
pub(crate) struct ReplicaLanes {
    pub(crate) root: Root,
    pub(crate) store: Arc<dyn SecretStore>,
    pub(crate) servers: Servers,
    pub(crate) callout_limits: CalloutLimits,
    /// All of them share the cores.
    pub(crate) crowd: Crowd,
}

#[async_trait]
impl OpenLane for ReplicaLanes {
    type Entry = CalloutHostEntry;

    fn space<'e>(&self, entry: &'e CalloutHostEntry) -> &'e Space {
        &entry.space
    }

    async fn open(
        &self,
        entry: &CalloutHostEntry,
        threshold: &Threshold,
    ) -> Result<Box<dyn Lane>, LaneRefusal> {
        // The entry says what the store would: nothing needs to be dialled.
        if entry.service_endpoints {
            return Err(LaneRefusal::of(StartError::ServiceEndpoints));
        }
        let (stderr, at) = (LineWriter::stderr(), prefix(&entry.space));
        let (root, of) = (self.root.clone(), entry.space.clone());
        let state_dir = file::blocking(move || root.user_auth_state_dir(&of)).await;
        let state_dir = state_dir.map_err(LaneRefusal::of)?.map_err(LaneRefusal::of)?;
        let (space, servers, store) = (entry.space.clone(), self.servers.clone(), Arc::clone(&self.store));
        let replica = replica::start(Member {
            callout_limits: self.callout_limits,
            crowd: Some(self.crowd.clone()),
            callout_log: Some(Arc::new(move |line| stderr.line(&format!("{at} {line}")))),
            threshold: threshold.clone(),
            ..Member::of_root(&self.root, space, servers, store, state_dir)
        })
        .await
        .map_err(LaneRefusal::of)?;
        Ok(Box::new(replica))
    }
}

#[async_trait]
impl Lane for CalloutReplica {
    async fn ended(&self) -> String {
        match Self::ended(self).await {
            ReplicaEnd::Lost(why) => why,
            ReplicaEnd::Closed => "it was closed".to_owned(),
        }
    }

    async fn close(&self) -> Result<(), CloseError> {
        Self::close(self).await
    }

    fn takes_nothing_in(&self) -> bool {
        Self::takes_nothing_in(self)
    }
}
