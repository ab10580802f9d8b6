//! Whether a principal holds a redeemed session, and until when (contract 04 §11.2, 03 §R).
//!
//! Asked at the exchange, which was handed the session's grant, and again at every connect, whose bearer carries the
//! coordinates alone. The row decides, read leader-served over the connect reader, then the gate of the manager that serves it,
//! and last the host's own word on whose the session is: one that was closed, has run out, was served by an earlier epoch or is
//! another owner's admits nobody. The exchange, which [`crate::Plane::redeem_session`] answers, gives that word.

use cotal_broker::kv::LeaderRead;
use cotal_wire::{
    EpError, LifecycleUid, Principal, SessionClaim, SessionEndpoint, SessionId, UnixMillis,
    names::session_key,
    rows::{SessionRow, SessionState},
};
use subtle::ConstantTimeEq;

use crate::{
    connect_reader::{ConnectReader, ProvedOn},
    manager_verdict::{LocalManager, ManagerVerdict},
    session_ownership::{self, NotOwn},
    store::at_key,
};

/// Who asks for which session.
#[derive(Clone, Copy)]
pub struct Redemption<'a> {
    /// Owner and actor, as the ledger was just read.
    pub principal: &'a Principal,
    /// The incarnation.
    pub uid: &'a LifecycleUid,
    /// The serving endpoint.
    pub endpoint: &'a SessionEndpoint,
    /// The session.
    pub session: &'a SessionId,
    /// The serving epoch.
    pub epoch: u64,
    /// The signature of the grant: there at the exchange alone.
    pub grant_sig: Option<&'a str>,
}

fn refused(why: &str) -> EpError {
    EpError::permission_denied(format!("session redemption refused: {why}"))
}

// === deciding =================================================================================================

/// What the row must say, in the contract's order.
fn check_row(row: Option<&SessionRow>, asked: &Redemption<'_>, now: UnixMillis) -> Result<(), EpError> {
    let row = row.ok_or_else(|| refused("there is no such session"))?;
    if row.state() != SessionState::Active {
        return Err(refused("the session is not active"));
    }
    if let Some(presented) = asked.grant_sig {
        // Whoever has the signature has the grant: it is compared as a secret is.
        let stored = row.grant_sig().unwrap_or_default();
        if stored.is_empty() || !bool::from(stored.as_bytes().ct_eq(presented.as_bytes())) {
            return Err(refused("the grant is not the one that opened the session"));
        }
    }
    let (holder, uid) = row.holder();
    if holder != asked.principal {
        return Err(refused("another principal holds the session"));
    }
    if uid != asked.uid {
        return Err(refused("another incarnation holds the session"));
    }
    if row.endpoint().as_str() != asked.endpoint.as_str() {
        return Err(refused("another endpoint serves the session"));
    }
    let (_, epoch) = row.serving();
    if epoch != asked.epoch {
        return Err(refused("another epoch serves the session"));
    }
    if row.exp() <= now {
        return Err(refused("the session has expired"));
    }
    Ok(())
}

/// What the serving manager's gate must say.
fn check_manager(verdict: ManagerVerdict, row: &SessionRow) -> Result<(), EpError> {
    let Some(epoch) = verdict.epoch() else {
        return Err(refused(&format!("the manager that serves the session is {verdict}")));
    };
    if epoch != row.serving().1 {
        return Err(refused("the manager that serves the session has registered again since"));
    }
    Ok(())
}

/// What the host itself must have said, if it has said anything.
pub(crate) fn check_owner<T>(own: Result<T, NotOwn>) -> Result<T, EpError> {
    own.map_err(|why| match why {
        NotOwn::Anothers => refused("the session is another owner's"),
        NotOwn::Over => refused("the session has expired"),
    })
}

// === reading ==================================================================================================

impl ConnectReader {
    /// The claim to hold a bearer to, its expiry from the session's row.
    ///
    /// Whatever does not admit is `permission-denied`; a garbled row is `internal`; a sessions store that is absent or of
    /// another shape is `failed-precondition`; a reader that cannot read is `unavailable`.
    pub async fn redeem_session(
        &self,
        asked: &Redemption<'_>,
        local: Option<&LocalManager>,
    ) -> Result<SessionClaim, EpError> {
        Ok(self.redeemed(asked, local).await?.0)
    }

    /// The same, and whether the session was bound to its owner before.
    pub(crate) async fn redeemed(
        &self,
        asked: &Redemption<'_>,
        local: Option<&LocalManager>,
    ) -> Result<(SessionClaim, bool), EpError> {
        let row = self.session_row(asked.session).await?;
        check_row(row.as_ref(), asked, self.now_millis())?;
        let row = row.ok_or_else(|| refused("there is no such session"))?;
        let owner = asked.principal.owner.as_derived();
        let owner =
            owner.ok_or_else(|| refused("only an owner that an exchange derives redeems a session"))?;
        let verdict = self.manager_verdict(&owner, row.serving().0, local).await?;
        check_manager(verdict, &row)?;
        // The row says what any manager of the space wrote there.
        let standing = self.decided(|_| session_ownership::standing(self.stores(), asked.session)).await?;
        let until = check_owner(standing.of(&asked.principal.owner, self.now_millis().to_secs()))?;
        let claim = SessionClaim {
            endpoint: asked.endpoint.clone(),
            session_id: asked.session.clone(),
            epoch: asked.epoch,
            exp: until.map_or(row.exp().to_secs(), |until| until.min(row.exp().to_secs())),
        };
        Ok((claim, until.is_some()))
    }

    /// A session's row, leader-served; one that was deleted is none.
    pub async fn session_row(&self, session: &SessionId) -> Result<Option<SessionRow>, EpError> {
        self.decided(|on| self.read_session(on, session)).await
    }

    async fn read_session(&self, on: ProvedOn, session: &SessionId) -> Result<Option<SessionRow>, EpError> {
        let key = session_key(session);
        match self.sessions(on).await?.leader_read(&key).await? {
            LeaderRead::Absent | LeaderRead::Marker(_) => Ok(None),
            LeaderRead::Value(entry) => at_key(&key, SessionRow::parse(session, &entry.value)).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, UnixSecs};

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    fn sid() -> SessionId {
        SessionId::parse(&"s".repeat(22)).unwrap()
    }

    fn row(change: impl FnOnce(String) -> String) -> SessionRow {
        let (uid, instance, sid) = ("a".repeat(26), "i".repeat(26), sid());
        let text = format!(
            "{{\"sessionId\":\"{sid}\",\"endpoint\":\"manager\",\"serving\":{{\"instanceId\":\"{instance}\",\
             \"epoch\":3}},\"holder\":{{\"principal\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli\",\"lifecycleUid\":\"{uid}\"}},\
             \"grantSig\":\"sig\",\"credCaller\":\"{uid}.{sid}.c\",\
             \"credServing\":\"manager.{instance}.{sid}.s\",\"revoked\":{{\"caller\":false,\"serving\":false}},\
             \"state\":\"active\",\"exp\":1700000000001}}"
        );
        SessionRow::parse(&sid, change(text).as_bytes()).unwrap()
    }

    /// Who asks, with what is wrong about it.
    struct Asker {
        principal: Principal,
        uid: LifecycleUid,
        endpoint: SessionEndpoint,
        epoch: u64,
        grant_sig: Option<&'static str>,
    }

    impl Asker {
        fn good() -> Self {
            Self {
                principal: Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli").unwrap(),
                uid: LifecycleUid::parse(&"a".repeat(26)).unwrap(),
                endpoint: SessionEndpoint::parse("manager").unwrap(),
                epoch: 3,
                grant_sig: Some("sig"),
            }
        }

        fn asks(&self, row: Option<&SessionRow>, now: UnixMillis) -> Result<(), EpError> {
            let Self { principal, uid, endpoint, epoch, grant_sig } = self;
            let (epoch, grant_sig, session) = (*epoch, *grant_sig, &sid());
            check_row(row, &Redemption { principal, uid, endpoint, session, epoch, grant_sig }, now)
        }
    }

    /// Each case mends the first fault of the case before it: whoever breaks two rules hears of the earlier.
    #[test]
    fn a_row_is_checked_in_the_contracts_order() {
        let mut asker = Asker {
            principal: Principal::parse_key("u_bbbbbbbbbbbbbbbbbbbbbbbbbb.cli").unwrap(),
            uid: LifecycleUid::parse(&"b".repeat(26)).unwrap(),
            endpoint: SessionEndpoint::parse("other").unwrap(),
            epoch: 4,
            grant_sig: Some("another"),
        };
        let late = UnixMillis(1_700_000_000_001);
        let says = |asker: &Asker, row: Option<&SessionRow>| {
            let refusal = asker.asks(row, late).unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied);
            let prefix = "session redemption refused: ";
            refusal.message.strip_prefix(prefix).expect("the contract's prefix").to_owned()
        };
        let closed = row(|text| text.replace("active", "closed"));
        let active = row(|text| text);
        assert_eq!(says(&asker, None), "there is no such session");
        assert_eq!(says(&asker, Some(&closed)), "the session is not active");
        assert_eq!(says(&asker, Some(&active)), "the grant is not the one that opened the session");
        asker.grant_sig = Some("sig");
        assert_eq!(says(&asker, Some(&active)), "another principal holds the session");
        asker.principal = Asker::good().principal;
        assert_eq!(says(&asker, Some(&active)), "another incarnation holds the session");
        asker.uid = Asker::good().uid;
        assert_eq!(says(&asker, Some(&active)), "another endpoint serves the session");
        asker.endpoint = Asker::good().endpoint;
        assert_eq!(says(&asker, Some(&active)), "another epoch serves the session");
        asker.epoch = 3;
        assert_eq!(says(&asker, Some(&active)), "the session has expired");
        assert_eq!(asker.asks(Some(&active), NOW), Ok(()), "a millisecond before its end");
    }

    #[test]
    fn only_an_active_session_admits() {
        for state in ["issuing", "closed", "expired", "superseded", "retired"] {
            let row = row(|text| text.replace("active", state));
            assert!(Asker::good().asks(Some(&row), NOW).is_err(), "{state}");
        }
    }

    #[test]
    fn a_connect_presents_no_grant_and_an_older_row_opens_for_none() {
        let older = row(|text| text.replace("\"grantSig\":\"sig\",", ""));
        let connect = Asker { grant_sig: None, ..Asker::good() };
        assert_eq!(connect.asks(Some(&older), NOW), Ok(()));
        assert_eq!(connect.asks(Some(&row(|text| text)), NOW), Ok(()));
        for presented in ["", "sig"] {
            let exchange = Asker { grant_sig: Some(presented), ..Asker::good() };
            assert!(exchange.asks(Some(&older), NOW).is_err(), "{presented:?}");
        }
    }

    #[test]
    fn the_serving_manager_is_a_candidate_at_the_sessions_epoch() {
        let row = row(|text| text);
        assert_eq!(check_manager(ManagerVerdict::Candidate { process_epoch: 3 }, &row), Ok(()));
        for verdict in [
            ManagerVerdict::Unknown,
            ManagerVerdict::NotOpen,
            ManagerVerdict::NotThisOwners,
            ManagerVerdict::NotRegistered,
            ManagerVerdict::Candidate { process_epoch: 2 },
            ManagerVerdict::Candidate { process_epoch: 4 },
        ] {
            let refusal = check_manager(verdict, &row).unwrap_err();
            assert_eq!(refusal.code, EpCode::PermissionDenied, "{verdict}");
            assert!(refusal.message.starts_with("session redemption refused: "), "{verdict}");
        }
    }

    #[test]
    fn the_claim_expires_with_the_row_in_whole_seconds() {
        assert_eq!(row(|text| text).exp().to_secs(), UnixSecs(1_700_000_000));
    }
}
