//! Whose sessions are: said by the plane, because it alone writes for a space, and removed again once a session is over.

use std::{sync::Arc, time::Duration};

use cotal_broker::kv::WriteOutcome;
use cotal_wire::{Clock, EpError, Owner, SessionClaim, SessionId, UnixSecs, rows::SessionOwnership};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::Plane;
use crate::{
    AuthorityStores, LocalManager, NotOwn, Redemption,
    fence::Fence,
    scanner::{LedgerScanner, Scanned},
    session_ownership::{self, Bound},
    session_redemption::check_owner,
    store::{MARKER_TTL_SECS, ambiguous, unsent},
};

/// How long after its end a binding is kept, in seconds: whoever connected under the session is gone by then.
const KEPT_SECS: u64 = 60 * 60;
/// How often those that are over are looked for, at the most. Nobody looks while no session is bound.
const SWEEP_APART: Duration = Duration::from_secs(60 * 60);

impl Plane {
    /// Binds a session to the owner that is granted a side of it, and says until when anything may be granted.
    pub async fn bind_session(
        &self,
        session: &SessionId,
        owner: &Owner,
    ) -> Result<Result<UnixSecs, NotOwn>, EpError> {
        self.fence.check()?;
        let bound = session_ownership::bind(&self.stores, session, owner, self.clock.now_secs()).await?;
        if let Ok(Bound { here: true, .. }) = bound {
            self.session_bound.notify_one();
        }
        Ok(bound.map(|bound| bound.until))
    }

    /// Redeems a session at the exchange: the claim to stamp into a bearer. From then on the session is its holder's owner's.
    ///
    /// Refused as [`crate::ConnectReader::redeem_session`] refuses.
    pub async fn redeem_session(
        &self,
        asked: &Redemption<'_>,
        local: Option<&LocalManager>,
    ) -> Result<SessionClaim, EpError> {
        let (claim, bound) = self.reader.redeemed(asked, local).await?;
        if bound {
            return Ok(claim);
        }
        let until = check_owner(self.bind_session(asked.session, &asked.principal.owner).await?)?;
        Ok(SessionClaim { exp: claim.exp.min(until), ..claim })
    }
}

/// Removes bindings of sessions that are over.
pub(super) struct SessionSweep {
    pub(super) stores: AuthorityStores,
    pub(super) ledger: Arc<LedgerScanner>,
    pub(super) fence: Arc<Fence>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) bound: Arc<Notify>,
}

impl SessionSweep {
    /// Sweeps when a session was bound, and no more often than that, until it is stopped. What it leaves the next one finds.
    pub(super) async fn run(self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.bound.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            if let Err(refusal) = self.sweep().await {
                tracing::warn!(space = %self.stores.space(), %refusal, "sessions that are over were not all removed");
            }
            tokio::select! {
                () = sleep(SWEEP_APART) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    async fn sweep(&self) -> Result<(), EpError> {
        let rows = self.ledger.session_owners().await?;
        for row in rows.iter().filter(|row| is_over(row, self.clock.now_secs())) {
            self.fence.check()?;
            match self.stores.auth().purge_pinned(&row.key, row.revision, MARKER_TTL_SECS).await {
                WriteOutcome::Written(_) | WriteOutcome::Lost => {}
                WriteOutcome::Ambiguous(why) => return Err(ambiguous("a session that is over", &why)),
                WriteOutcome::Refused(why) => return Err(unsent("a session that is over", &why)),
            }
        }
        Ok(())
    }
}

/// Whether nothing that was granted under the session lives any more. What cannot be read stays, for whoever looks why.
fn is_over(row: &Scanned, now: UnixSecs) -> bool {
    let bound = row.value.as_deref().and_then(|value| SessionOwnership::parse(value).ok());
    bound.is_some_and(|bound| bound.until.plus(KEPT_SECS) < now)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_wire::Revision;

    use super::*;

    #[test]
    fn a_binding_is_over_an_hour_after_its_end_and_one_that_cannot_be_read_never_is() {
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let row = |value: Option<Vec<u8>>| Scanned {
            key: "sessowner.s".to_owned(),
            revision: Revision(1),
            value: value.map(Bytes::from),
        };
        let bound = row(Some(SessionOwnership { owner, until: UnixSecs(9) }.to_bytes()));
        assert!(!is_over(&bound, UnixSecs(9 + KEPT_SECS)));
        assert!(is_over(&bound, UnixSecs(10 + KEPT_SECS)));
        assert!(!is_over(&row(None), UnixSecs(u64::MAX)), "a marker goes by itself");
        assert!(!is_over(&row(Some(b"{}".to_vec())), UnixSecs(u64::MAX)));
    }
}
