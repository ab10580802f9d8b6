//! The lane that is a full service of its space: callout, plane, exchange, and a public face when its entry has one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, Crowd};
use cotal_wire::Space;
use cotal_workspace::{root::Root, secret_store::SecretStore};

use super::{
    lane::{Lane, LaneRefusal, OpenLane, Threshold},
    lanes::prefix,
    manifest::AuthHostEntry,
};
use crate::{
    composition::Chosen,
    daemon::DaemonError,
    handle::CloseError,
    member::CalloutLog,
    served::{Served, ServiceFlags, TakenDir, failure},
};

/// What every lane of a full host is given. Nothing else of one lane is another's.
pub(crate) struct FullLanes {
    pub(crate) root: Root,
    pub(crate) store: Arc<dyn SecretStore>,
    pub(crate) servers: Servers,
    pub(crate) composition: Chosen,
    pub(crate) callout_limits: CalloutLimits,
    /// All of them share the cores.
    pub(crate) crowd: Crowd,
    pub(crate) hold: Option<Duration>,
    /// Where the callout lines of every lane go.
    pub(crate) callout_log: CalloutLog,
    pub(crate) announce: Arc<dyn Fn(&str) + Send + Sync>,
}

#[async_trait]
impl OpenLane for FullLanes {
    type Entry = AuthHostEntry;

    fn space<'e>(&self, entry: &'e AuthHostEntry) -> &'e Space {
        &entry.space
    }

    /// The context crosses the threshold right before its callout starts. What has crossed says ready too: it is an open
    /// lane, which the host then closes.
    async fn open(&self, entry: &AuthHostEntry, threshold: &Threshold) -> Result<Box<dyn Lane>, LaneRefusal> {
        let refuse = |error: DaemonError| LaneRefusal(error.0);
        if entry.service_endpoints {
            return Err(LaneRefusal(
                "unimplemented: serviceEndpoints is not served by this version; take it out of the entry"
                    .to_owned(),
            ));
        }
        let at = prefix(&entry.space);
        let taken = TakenDir::take(&self.root, &entry.space).await.map_err(refuse)?;
        if let Some(hold) = self.hold {
            tokio::time::sleep(hold).await;
        }
        let (log, lines) = (Arc::clone(&self.callout_log), at.clone());
        let flags = ServiceFlags {
            space: entry.space.clone(),
            servers: self.servers.clone(),
            port: 0,
            public_face: entry.public_face.clone(),
            callout_limits: self.callout_limits,
            crowd: Some(self.crowd.clone()),
            callout_log: Some(Arc::new(move |line| log(&format!("{lines} {line}")))),
        };

        let served = taken
            .start(flags, self.composition, &self.root, Arc::clone(&self.store), threshold.clone())
            .await
            .map_err(refuse)?;
        match served.announce().await {
            Ok(line) => (self.announce)(&format!("{at} {line}")),
            Err(error) => {
                if let Err(unclosed) = served.close().await {
                    tracing::error!("{at} {unclosed}");
                }
                return Err(refuse(error));
            }
        }
        Ok(Box::new(served))
    }
}

#[async_trait]
impl Lane for Served {
    async fn ended(&self) -> String {
        let end = Self::ended(self).await;
        failure(&end).unwrap_or_else(|| "the broker connection closed".to_owned())
    }

    async fn close(&self) -> Result<(), CloseError> {
        Self::close(self).await
    }

    fn takes_nothing_in(&self) -> bool {
        Self::takes_nothing_in(self)
    }
}

#[cfg(test)]
mod tests;
