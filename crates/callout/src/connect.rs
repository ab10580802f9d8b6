//! One request, one pass: open, verify, limit, authorize, permit, sign, record, re-check, answer.
//!
//! The order is the contract's (04 §8.4, 05 §8.4) and reads top to bottom in [`Lane::decide`]. The deadline watches
//! from outside: it answers when it passes, and the work stops before its next step. A write in flight is let finish,
//! so a row either exists or was never asked for.

use std::{sync::Arc, time::Duration};

use cotal_authority::issued::{IssuerSession, UserCaller};
use cotal_broker::{Connection, ConnectionState, Message};
use cotal_ledger::LedgerError;
use cotal_trust::{
    Zeroizing,
    bearer::{self, VerifiedBearer},
    jwt::{self, CalloutOutcome, UserClaims, principal_tags},
    xkey::Sealer,
};
use cotal_wire::{
    ConnId, EpError, Permissions, UnixSecs, View, grants::Issued, view::SESSION_CALLER_TTL_SECS,
};
use futures::future;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    admission::{ANSWER_MARGIN, Waiting},
    denial::{Denial, GRANT_CHANGED},
    intake::{self, Dropped, Opened, SERVER_XKEY_HEADER},
    line::{Line, Note, Outcome},
    permit::{self, ManagerPermit, Permit, PermitRefusal, SessionPermit},
    progress::{Cancelled, Progress, Step},
    service::CalloutParts,
};

/// How long a connect waits for its turn to be issued authority, about as long as many issuances take.
const ISSUING_PATIENCE: Duration = Duration::from_millis(500);

/// What every request of one callout is answered from.
pub(crate) struct Lane {
    parts: CalloutParts,
    sealer: Sealer,
    connection: Connection,
    budget: Duration,
    /// Half of the slots: stores that issue slowly must not stop the connects that need none of them.
    issuing: Semaphore,
}

/// What a connect is signed.
struct Granted {
    permissions: Permissions,
    /// When the user JWT expires.
    exp: UnixSecs,
    /// The pair that was issued to it, which is in its permissions.
    issued: Option<Issued>,
}

/// A request on its way to a slot.
pub(crate) enum Request {
    /// As it came.
    Sealed(Message),
    /// Its bearer was looked at, and paid for, before it had a slot.
    Checked(Box<Checked>),
}

impl Request {
    /// Whether its bearer was checked and is not good.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self, Self::Checked(checked) if checked.bearer.is_err())
    }
}

/// An opened request.
pub(crate) struct Asked {
    reply: String,
    opened: Opened,
    progress: Progress,
    received: Instant,
}

/// An opened request and what its bearer is worth.
pub(crate) struct Checked {
    asked: Asked,
    bearer: Result<VerifiedBearer, Denial>,
}

/// Why a request is refused without having had a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unserved {
    /// Its deadline passed while it waited.
    Expired,
    /// Its bearer was checked without a slot, and refused.
    Denied,
    /// Admission shed it.
    Shed {
        /// How long the oldest waiting request had waited.
        waited: Duration,
        /// How many requests were waiting or in progress.
        ahead: usize,
    },
}

/// The longest that a callout that stops waits until the broker has read its answers.
pub(crate) const HANDED_OVER_WITHIN: Duration = Duration::from_secs(2);

/// Why the work of a request ended without a user JWT.
enum Stopped {
    /// Denied; the deadline has not answered.
    Denied(Denial),
    /// The deadline has answered.
    Cancelled,
}

impl From<Denial> for Stopped {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<PermitRefusal> for Stopped {
    fn from(refusal: PermitRefusal) -> Self {
        Self::Denied(refusal.into())
    }
}

impl From<Cancelled> for Stopped {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl Lane {
    pub(crate) fn new(parts: CalloutParts, connection: Connection, budget: Duration) -> Self {
        let sealer = Sealer::new(parts.callout.xkey.clone());
        let issuing = Semaphore::new((parts.limits.max_in_flight / 2).max(1));
        Self { parts, sealer, connection, budget, issuing }
    }

    /// Answers a request that has a slot, and returns when its work has ended, which may be after the answer. Whether
    /// that was a user whose row alone decided: how long those take is what slots are paced by.
    pub(crate) async fn serve(self: Arc<Self>, request: Waiting<Request>) -> bool {
        let (asked, bearer) = match request.request {
            Request::Sealed(message) => {
                let Some(mut asked) = self.open(message, request.received) else { return false };
                let bearer = self.verify(&mut asked);
                (asked, bearer)
            }
            Request::Checked(checked) => (checked.asked, checked.bearer),
        };
        let deadline = asked.received + self.budget;
        let asks = bearer
            .as_ref()
            .is_ok_and(|bearer| matches!(bearer.act.view, Some(View::SessionCaller | View::ManagerCaller)));

        let work = self.decide(&asked, bearer);
        tokio::pin!(work);
        let verdict = tokio::select! {
            biased;
            verdict = &mut work => verdict,
            () = sleep_until(deadline) => {
                self.time_out(&asked).await;
                // The slot is held until the step in flight has ended: slots count work, not answers.
                let _ = work.await;
                return false;
            }
        };
        match verdict {
            _ if Instant::now() >= deadline => self.time_out(&asked).await,
            Ok(user_jwt) => {
                asked.progress.turn(Step::Sign);
                self.answer(&asked, CalloutOutcome::Allow(&user_jwt), Outcome::Minted).await;
                return !asks;
            }
            Err(Stopped::Denied(denial)) => self.deny(&asked, &denial).await,
            Err(Stopped::Cancelled) => {}
        }
        false
    }

    /// Whether a request comes from a host whose bucket is empty. While no host's is, this looks at nothing.
    pub(crate) fn is_suspect(&self, message: &Message) -> bool {
        let limiter = &self.parts.limiter;
        limiter.some_host_limited()
            && intake::peek_host(&self.sealer, message.header(SERVER_XKEY_HEADER), &message.payload)
                .is_some_and(|host| limiter.host_limited(&host))
    }

    /// Checks a suspect's bearer, and answers nothing: a check is short, whatever a denial costs.
    pub(crate) fn check(&self, request: Waiting<Message>) -> Option<(Request, Instant)> {
        let Waiting { request: message, received, .. } = request;
        let mut asked = self.open(message, received)?;
        let bearer = self.verify(&mut asked);
        asked.progress.turn(Step::Queue);
        Some((Request::Checked(Box::new(Checked { asked, bearer })), received))
    }

    /// Denies a request that never had a slot: no ledger, no store.
    pub(crate) async fn refuse(self: Arc<Self>, request: Waiting<Request>, why: Unserved) {
        let (asked, checked) = match request.request {
            Request::Sealed(message) => {
                let Some(mut asked) = self.open(message, request.received) else { return };
                asked.opened.bearer = Zeroizing::default();
                (asked, None)
            }
            Request::Checked(checked) => (checked.asked, checked.bearer.err()),
        };
        let outcome = match (why, checked) {
            (Unserved::Denied, Some(denial)) => return self.deny(&asked, &denial).await,
            (Unserved::Shed { waited, ahead }, _) => Outcome::Shed { waited, ahead },
            (Unserved::Denied | Unserved::Expired, _) => Outcome::Timeout { at: Step::Queue },
        };
        asked.progress.turn(Step::Sign);
        let reason = Denial::Timeout.text();
        self.answer(&asked, CalloutOutcome::Deny(&reason), outcome).await;
    }

    /// Waits until the broker has read every answer: whoever stops a callout closes its connection next, and a broker that
    /// finds a connection closed may drop what it has not read of it.
    pub(crate) async fn hand_over(&self) {
        // What a lost session has not delivered, no other one will.
        if !matches!(*self.connection.state().borrow(), ConnectionState::Connected(_)) {
            return;
        }
        let _ = timeout(HANDED_OVER_WITHIN, self.connection.flush()).await;
    }

    /// Writes one line that is no answer's, of what should not have happened.
    pub(crate) fn note(&self, what: &str) {
        (self.parts.log)(&Note { warns: true, space: &self.parts.space, what }.to_string());
    }

    /// Writes one line of how this lane is set up.
    pub(crate) fn remark(&self, what: &str) {
        (self.parts.log)(&Note { warns: false, space: &self.parts.space, what }.to_string());
    }

    /// Opens a request, whose bytes are gone then.
    #[allow(clippy::needless_pass_by_value, reason = "the sealed bytes must not outlive this")]
    fn open(&self, message: Message, received: Instant) -> Option<Asked> {
        let progress = Progress::new(received);
        progress.turn(Step::Verify);
        let header = message.header(SERVER_XKEY_HEADER);
        let expected = self.parts.expected_server_ids.as_deref();
        let opened = intake::open(&self.sealer, header, &message.payload, expected)
            .and_then(|opened| Ok((message.reply.ok_or(Dropped::NoReply)?, opened)));
        match opened {
            Ok((reply, opened)) => Some(Asked { reply, opened, progress, received }),
            Err(dropped) => {
                self.note(&dropped.to_string());
                None
            }
        }
    }

    /// The pass. Every `?` on `enter` is a place where a passed deadline stops it.
    async fn decide(
        self: &Arc<Self>,
        asked: &Asked,
        bearer: Result<VerifiedBearer, Denial>,
    ) -> Result<String, Stopped> {
        let Asked { opened, progress, .. } = asked;
        let bearer = Arc::new(bearer?);

        progress.enter(Step::Ledger)?;
        if bearer.act.view == Some(View::ServiceEndpoint) {
            return Err(Denial::Permit(PermitRefusal::NoServiceEndpoints.to_string()).into());
        }
        // Side by side: the disk and the store do not wait for each other. The ledger refuses first.
        let (actor, credential) =
            future::join(self.authorize_actor(&bearer), self.parts.reader.authorize_connect(&bearer)).await;
        actor?;
        credential.map_err(|error| Denial::Credential(error.message))?;

        progress.enter(Step::Policy)?;
        let nonce = ConnId::parse(&opened.name).map_err(|_| Denial::NoNonce)?;
        let granted = match self.permit(&bearer, nonce.clone()).await? {
            Permit::Granted(permissions) => Granted { permissions, exp: bearer.exp, issued: None },
            Permit::Session(session) => self.grant_session(&bearer, session).await?,
            Permit::Manager(manager) => self.grant_manager(&bearer, &manager, &nonce, progress).await?,
        };

        progress.enter(Step::Sign)?;
        let iat = self.parts.clock.now_secs();
        if bearer.exp <= iat || granted.exp <= iat {
            return Err(Denial::ExpiredWhileServed.into());
        }
        // A bearer ends far sooner. A session's row is its manager's word, and no manager's word lasts longer.
        let exp = granted.exp.min(iat.plus(SESSION_CALLER_TTL_SECS));
        let principal = bearer.principal();
        let claims = UserClaims {
            name: principal.name(),
            subject: opened.user.clone(),
            issuer_account: self.parts.data_account.account.clone(),
            permissions: granted.permissions,
            tags: principal_tags(&principal),
            exp: Some(exp),
        };
        let user_jwt = jwt::encode_user(&claims, &self.parts.data_account.signing, iat);

        progress.enter(Step::Ledger)?;
        self.record(opened, &bearer, iat, exp).await?;
        progress.enter(Step::Ledger)?;
        self.recheck(&bearer, nonce, &claims.permissions, granted.issued.as_ref()).await?;
        progress.enter(Step::Sign)?;
        Ok(user_jwt)
    }

    /// Rules 7 and 8 and the connect limits: whoever signed the bearer's principal pays, else the host, which pays for
    /// a connect without any bearer too. The bearer is gone then.
    fn verify(&self, asked: &mut Asked) -> Result<VerifiedBearer, Denial> {
        let (parts, progress) = (&self.parts, &asked.progress);
        let bearer = std::mem::take(&mut asked.opened.bearer);
        if bearer.is_empty() {
            self.charge_host(&asked.opened)?;
            return Err(Denial::NoBearer);
        }
        let refusal = match bearer::validate(&bearer, &parts.issuer, &parts.space, parts.clock.now_secs()) {
            Ok(bearer) => {
                self.charge(&bearer.owner, &bearer.act.actor, progress)?;
                return Ok(bearer);
            }
            Err(refusal) => refusal,
        };
        match &refusal.signed_by {
            Some((owner, actor)) => self.charge(owner, actor, progress)?,
            None => self.charge_host(&asked.opened)?,
        }
        Err(Denial::Bearer(refusal.reason))
    }

    fn charge_host(&self, opened: &Opened) -> Result<(), Denial> {
        let charged = self.parts.limiter.charge_host(&opened.host);
        charged.map_err(|limited| Denial::Limited(limited.host_sentence(&opened.host)))
    }

    fn charge(
        &self,
        owner: &cotal_wire::DerivedOwner,
        actor: &cotal_wire::Actor,
        progress: &Progress,
    ) -> Result<(), Denial> {
        progress.name(owner, actor);
        self.parts
            .limiter
            .charge_principal(owner, actor)
            .map_err(|limited| Denial::Limited(limited.principal_sentence(owner, actor)))
    }

    /// Rule 9, file arm. Off the runtime's threads: a disk that hangs must not stop the deadlines.
    async fn authorize_actor(self: &Arc<Self>, bearer: &Arc<VerifiedBearer>) -> Result<(), Denial> {
        let (lane, bearer) = (Arc::clone(self), Arc::clone(bearer));
        blocking(move || lane.parts.ledger.authorize_connect(&bearer))
            .await?
            .map_err(|error: LedgerError| Denial::Ledger(error.to_string()))
    }

    async fn permit(self: &Arc<Self>, bearer: &Arc<VerifiedBearer>, nonce: ConnId) -> Result<Permit, Denial> {
        let (lane, bearer) = (Arc::clone(self), Arc::clone(bearer));
        blocking(move || {
            permit::build(&lane.parts.space, &bearer, nonce, |claims| lane.parts.ledger.resolve_acl(claims))
        })
        .await?
        .map_err(Denial::from)
    }

    /// A session's rows, until the session ends: its row is read again, whatever the exchange saw (contract 04 §9).
    async fn grant_session(
        &self,
        bearer: &VerifiedBearer,
        SessionPermit { claim, permissions }: SessionPermit,
    ) -> Result<Granted, PermitRefusal> {
        let sessions = self.parts.callers.sessions.as_ref().ok_or(PermitRefusal::NoSessionVerifier)?;
        let uid = bearer.act.lifecycle_uid.as_ref().ok_or(PermitRefusal::NoLifecycle)?;
        let live = sessions.verify_session(&bearer.principal(), uid, &claim).await;
        let live = live.map_err(|error| PermitRefusal::Session(error.message))?;
        if live != claim {
            return Err(PermitRefusal::SessionEndMoved);
        }
        Ok(Granted { permissions, exp: live.exp, issued: None })
    }

    /// One manager's rows, once it is known to serve the owner, with an issued pair for whoever gets one.
    async fn grant_manager(
        &self,
        bearer: &VerifiedBearer,
        permit: &ManagerPermit,
        nonce: &ConnId,
        progress: &Progress,
    ) -> Result<Granted, Stopped> {
        self.authorize_manager(bearer, permit).await?;
        let exp = bearer.exp;
        let Some(issuer) = self.parts.callers.issuer.as_ref().filter(|_| permit.is_issuable()) else {
            let permissions = permit.permissions(None).map_err(PermitRefusal::from)?;
            return Ok(Granted { permissions, exp, issued: None });
        };
        let (permissions, issued) = self.issue(issuer, bearer, permit, nonce, progress).await?;
        Ok(Granted { permissions, exp, issued: Some(issued) })
    }

    async fn authorize_manager(
        &self,
        bearer: &VerifiedBearer,
        permit: &ManagerPermit,
    ) -> Result<(), PermitRefusal> {
        let managers = self.parts.callers.managers.as_ref().ok_or(PermitRefusal::NoManagerAuthorizer)?;
        let authorized = managers.authorize_manager_caller(&bearer.owner, permit.instance()).await;
        authorized.map_err(|error| PermitRefusal::Manager(error.message))
    }

    /// Stages, releases and accepts what this nonce holds from now on, or confirms what it holds already (contract 03
    /// §H.8). Whether or not the connect is answered in time, this runs to its end: the same nonce then finds it.
    async fn issue(
        &self,
        issuer: &IssuerSession,
        bearer: &VerifiedBearer,
        permit: &ManagerPermit,
        nonce: &ConnId,
        progress: &Progress,
    ) -> Result<(Permissions, Issued), Stopped> {
        let Ok(Ok(_turn)) = timeout(ISSUING_PATIENCE, self.issuing.acquire()).await else {
            return Err(PermitRefusal::TooManyIssuing.into());
        };
        progress.enter(Step::Policy)?;
        let uid = bearer.act.lifecycle_uid.clone().ok_or(PermitRefusal::NoLifecycle)?;
        let caller = UserCaller { principal: bearer.principal(), uid, conn_id: nonce.clone() };
        let mut pair = None;
        let minted = issuer.issue_user_caller(&caller, |issued| {
            let permissions = permit.permissions(Some(&issued));
            pair = Some(issued);
            permissions.map_err(|error| EpError::internal(error.to_string()))
        });
        let minted = minted.await.map_err(|error| PermitRefusal::Issuer(error.message))?;
        let pair = pair.ok_or(Denial::Internal)?;
        Ok((minted, pair))
    }

    /// The issuance row, before the JWT leaves (contract 05 §8.4).
    async fn record(
        &self,
        opened: &Opened,
        bearer: &VerifiedBearer,
        iat: UnixSecs,
        exp: UnixSecs,
    ) -> Result<(), Denial> {
        let (Some(lifecycle_uid), Some(credential_id)) =
            (&bearer.act.lifecycle_uid, &bearer.act.credential_id)
        else {
            return Err(Denial::Issuance("the bearer names no lifecycle or credential".to_owned()));
        };
        let row = cotal_authority::NatkeyRow {
            user: opened.user.clone(),
            space: bearer.space.clone(),
            owner: bearer.owner.clone(),
            actor: bearer.act.actor.clone(),
            lifecycle_uid: lifecycle_uid.clone(),
            credential_id: credential_id.clone(),
            view: bearer.act.view,
            iat,
            exp,
        };
        self.parts.issuance.record(&row).await.map_err(|error: EpError| Denial::Issuance(error.message))
    }

    /// Connect authority once more, so that neither a revocation nor a narrower grant can slip between check and
    /// record: the permissions are built again from the row as it is now, and must come out the same.
    async fn recheck(
        self: &Arc<Self>,
        bearer: &Arc<VerifiedBearer>,
        nonce: ConnId,
        granted: &Permissions,
        issued: Option<&Issued>,
    ) -> Result<(), Denial> {
        let (now, credential) = future::join(
            self.permitted_now(bearer, nonce, issued),
            self.parts.reader.authorize_connect(bearer),
        )
        .await;
        let now = now.map_err(|denial| Denial::Revoked(denial.to_string()))?;
        if now != *granted {
            return Err(Denial::Revoked(GRANT_CHANGED.to_owned()));
        }
        credential.map_err(|error| Denial::Revoked(error.message))
    }

    /// What is permitted now to a connect that was issued this pair: whoever was asked is asked again, and nothing is
    /// issued.
    async fn permitted_now(
        self: &Arc<Self>,
        bearer: &Arc<VerifiedBearer>,
        nonce: ConnId,
        issued: Option<&Issued>,
    ) -> Result<Permissions, Denial> {
        match self.permit(bearer, nonce).await? {
            Permit::Granted(permissions) => Ok(permissions),
            Permit::Session(session) => Ok(self.grant_session(bearer, session).await?.permissions),
            Permit::Manager(manager) => {
                self.authorize_manager(bearer, &manager).await?;
                // Whoever may have no issued pair any more gets other permissions than were signed.
                let issuer = self.parts.callers.issuer.is_some();
                let issued = issued.filter(|_| manager.is_issuable() && issuer);
                Ok(manager.permissions(issued).map_err(PermitRefusal::from)?)
            }
        }
    }

    async fn deny(&self, asked: &Asked, denial: &Denial) {
        asked.progress.turn(Step::Sign);
        let reason = denial.text();
        let outcome = Outcome::Denied { reason: reason.clone() };
        self.answer(asked, CalloutOutcome::Deny(&reason), outcome).await;
    }

    /// Stops the work and denies.
    async fn time_out(&self, asked: &Asked) {
        let at = asked.progress.cancel();
        asked.progress.turn(Step::Sign);
        let reason = Denial::Timeout.text();
        self.answer(asked, CalloutOutcome::Deny(&reason), Outcome::Timeout { at }).await;
    }

    /// Signs, seals, sends, and writes the line. What cannot be sent is only logged: nobody waits for it any more.
    async fn answer(&self, asked: &Asked, response: CalloutOutcome<'_>, outcome: Outcome) {
        let Asked { reply, opened, progress, received } = asked;
        let parts = &self.parts;
        let token = jwt::encode_authorization_response(
            &opened.user,
            &opened.server,
            parts.callout.account.public(),
            response,
            &parts.callout.signing,
            parts.clock.now_secs(),
        );
        let sealed = match self.sealer.seal(&opened.server_xkey, token.as_bytes(), &*parts.entropy) {
            Ok(sealed) => sealed,
            Err(error) => {
                return self.note(&format!("could not seal the answer to {}: {error}", opened.user));
            }
        };
        match timeout(ANSWER_MARGIN, self.connection.publish(reply, &[], sealed.into())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return self.note(&format!("could not answer {}: {error}", opened.user)),
            Err(_) => {
                return self.note(&format!("could not answer {}: the connection takes nothing", opened.user));
            }
        }
        let observed = progress.observe();
        let line = Line {
            outcome,
            space: &parts.space,
            user: &opened.user,
            cid: opened.cid,
            principal: observed.principal.as_ref().map(|(owner, actor)| (owner, actor)),
            times: observed.times,
            total: received.elapsed(),
            slow: parts.limits.slow,
        };
        (parts.log)(&line.to_string());
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Denial> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Denial::Internal)
}
