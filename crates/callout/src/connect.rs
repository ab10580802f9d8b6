//! One request, one pass: open, verify, limit, authorize, permit, sign, record, re-check, answer.
//!
//! The order is the contract's (04 §8.4, 05 §8.4) and reads top to bottom in [`Lane::decide`]. The deadline watches
//! from outside: it answers when it passes, and the work stops before its next step. A write in flight is let finish,
//! so a row either exists or was never asked for.

use std::{sync::Arc, time::Duration};

use cotal_broker::{Connection, Message};
use cotal_ledger::LedgerError;
use cotal_trust::{
    bearer::{self, VerifiedBearer},
    jwt::{self, CalloutOutcome, UserClaims, principal_tags},
    xkey::Sealer,
};
use cotal_wire::{ConnId, EpError, UnixSecs, View};
use futures::future;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    admission::{ANSWER_MARGIN, Waiting},
    denial::Denial,
    intake::{self, Dropped, Opened, SERVER_XKEY_HEADER},
    line::{Line, Note, Outcome},
    permit::{self, PermitRefusal},
    progress::{Cancelled, Progress, Step},
    service::CalloutParts,
};

/// What every request of one callout is answered from.
pub(crate) struct Lane {
    parts: CalloutParts,
    sealer: Sealer,
    connection: Connection,
    budget: Duration,
}

/// Why a request is refused without having had a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unserved {
    /// Its deadline passed while it waited.
    Expired,
    /// Admission shed it.
    Shed {
        /// How long the oldest waiting request had waited.
        waited: Duration,
        /// How many requests were waiting or in progress.
        ahead: usize,
    },
}

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

impl From<Cancelled> for Stopped {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl Lane {
    pub(crate) fn new(parts: CalloutParts, connection: Connection, budget: Duration) -> Self {
        let sealer = Sealer::new(parts.callout.xkey.clone());
        Self { parts, sealer, connection, budget }
    }

    /// Answers a request that has a slot, and returns when its work has ended, which may be after the answer.
    pub(crate) async fn serve(self: Arc<Self>, request: Waiting<Message>) {
        let progress = Progress::new(request.received);
        progress.turn(Step::Verify);
        let Some((reply, opened)) = self.open(&request.request) else { return };
        let deadline = request.received + self.budget;

        let work = self.decide(&opened, &progress);
        tokio::pin!(work);
        let verdict = tokio::select! {
            biased;
            verdict = &mut work => verdict,
            () = sleep_until(deadline) => {
                self.time_out(&reply, &opened, &progress, request.received).await;
                // The slot is held until the step in flight has ended: slots count work, not answers.
                let _ = work.await;
                return;
            }
        };
        match verdict {
            _ if Instant::now() >= deadline => {
                self.time_out(&reply, &opened, &progress, request.received).await;
            }
            Ok(user_jwt) => {
                progress.turn(Step::Sign);
                let allow = CalloutOutcome::Allow(&user_jwt);
                self.answer(&reply, &opened, &progress, request.received, allow, Outcome::Minted).await;
            }
            Err(Stopped::Denied(denial)) => {
                progress.turn(Step::Sign);
                let reason = denial.text();
                let outcome = Outcome::Denied { reason: reason.clone() };
                let deny = CalloutOutcome::Deny(&reason);
                self.answer(&reply, &opened, &progress, request.received, deny, outcome).await;
            }
            Err(Stopped::Cancelled) => {}
        }
    }

    /// Denies a request that never had a slot: no bearer is looked at, no ledger, no store.
    pub(crate) async fn refuse(self: Arc<Self>, request: Waiting<Message>, why: Unserved) {
        let progress = Progress::new(request.received);
        let outcome = match why {
            Unserved::Expired => Outcome::Timeout { at: Step::Queue },
            Unserved::Shed { waited, ahead } => Outcome::Shed { waited, ahead },
        };
        progress.turn(Step::Verify);
        let Some((reply, opened)) = self.open(&request.request) else { return };
        progress.turn(Step::Sign);
        let reason = Denial::Timeout.text();
        let deny = CalloutOutcome::Deny(&reason);
        self.answer(&reply, &opened, &progress, request.received, deny, outcome).await;
    }

    /// Writes one line that is no answer's.
    pub(crate) fn note(&self, what: &str) {
        (self.parts.log)(&Note { space: &self.parts.space, what }.to_string());
    }

    fn open(&self, message: &Message) -> Option<(String, Opened)> {
        let header = message.header(SERVER_XKEY_HEADER);
        let expected = self.parts.expected_server_ids.as_deref();
        let opened = intake::open(&self.sealer, header, &message.payload, expected)
            .and_then(|opened| Ok((message.reply.clone().ok_or(Dropped::NoReply)?, opened)));
        match opened {
            Ok(opened) => Some(opened),
            Err(dropped) => {
                self.note(&dropped.to_string());
                None
            }
        }
    }

    /// The pass. Every `?` on `enter` is a place where a passed deadline stops it.
    async fn decide(self: &Arc<Self>, opened: &Opened, progress: &Progress) -> Result<String, Stopped> {
        if opened.bearer.is_empty() {
            return Err(Denial::NoBearer.into());
        }
        let bearer = Arc::new(self.verify(opened, progress)?);

        progress.enter(Step::Ledger)?;
        if bearer.act.view == Some(View::ServiceEndpoint) {
            return Err(Denial::Permit(PermitRefusal::NoServiceEndpoints.to_string()).into());
        }
        let (actor, credential) = self.authority(&bearer).await;
        actor?;
        credential.map_err(|error| Denial::Credential(error.message))?;

        progress.enter(Step::Policy)?;
        let nonce = ConnId::parse(&opened.name).map_err(|_| Denial::NoNonce)?;
        let permissions = self.permit(&bearer, nonce).await?;

        progress.enter(Step::Sign)?;
        let iat = self.parts.clock.now_secs();
        if bearer.exp <= iat {
            return Err(Denial::ExpiredWhileServed.into());
        }
        let principal = bearer.principal();
        let claims = UserClaims {
            name: principal.name(),
            subject: opened.user.clone(),
            issuer_account: self.parts.data_account.account.clone(),
            permissions,
            tags: principal_tags(&principal),
            exp: Some(bearer.exp),
        };
        let user_jwt = jwt::encode_user(&claims, &self.parts.data_account.signing, iat);

        progress.enter(Step::Ledger)?;
        self.record(opened, &bearer, iat).await?;
        progress.enter(Step::Ledger)?;
        self.recheck(&bearer).await?;
        progress.enter(Step::Sign)?;
        Ok(user_jwt)
    }

    /// Rule 8 and the connect limits: whoever signed the bearer's principal pays, else the host.
    fn verify(&self, opened: &Opened, progress: &Progress) -> Result<VerifiedBearer, Denial> {
        let parts = &self.parts;
        let refusal =
            match bearer::validate(&opened.bearer, &parts.issuer, &parts.space, parts.clock.now_secs()) {
                Ok(bearer) => {
                    self.charge(&bearer.owner, &bearer.act.actor, progress)?;
                    return Ok(bearer);
                }
                Err(refusal) => refusal,
            };
        match &refusal.signed_by {
            Some((owner, actor)) => self.charge(owner, actor, progress)?,
            None => parts
                .limiter
                .charge_host(&opened.host)
                .map_err(|limited| Denial::Limited(limited.host_sentence(&opened.host)))?,
        }
        Err(Denial::Bearer(refusal.reason))
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

    /// Both arms of rule 9, side by side: the disk and the store do not wait for each other. The caller refuses in the
    /// contract's order, the ledger first.
    async fn authority(
        self: &Arc<Self>,
        bearer: &Arc<VerifiedBearer>,
    ) -> (Result<(), Denial>, Result<(), EpError>) {
        future::join(self.authorize_actor(bearer), self.parts.reader.authorize_connect(bearer)).await
    }

    async fn permit(
        self: &Arc<Self>,
        bearer: &Arc<VerifiedBearer>,
        nonce: ConnId,
    ) -> Result<cotal_wire::Permissions, Denial> {
        let (lane, bearer) = (Arc::clone(self), Arc::clone(bearer));
        blocking(move || {
            permit::build(&lane.parts.space, &bearer, nonce, |claims| lane.parts.ledger.resolve_acl(claims))
        })
        .await?
        .map_err(|refusal| Denial::Permit(refusal.to_string()))
    }

    /// The issuance row, before the JWT leaves (contract 05 §8.4).
    async fn record(&self, opened: &Opened, bearer: &VerifiedBearer, iat: UnixSecs) -> Result<(), Denial> {
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
            exp: bearer.exp,
        };
        self.parts.issuance.record(&row).await.map_err(|error: EpError| Denial::Issuance(error.message))
    }

    /// Both arms of connect authority once more, so that a revocation cannot slip between check and record.
    async fn recheck(self: &Arc<Self>, bearer: &Arc<VerifiedBearer>) -> Result<(), Denial> {
        let (actor, credential) = self.authority(bearer).await;
        actor.map_err(|denial| Denial::Revoked(denial.to_string()))?;
        credential.map_err(|error| Denial::Revoked(error.message))
    }

    /// Stops the work and denies.
    async fn time_out(&self, reply: &str, opened: &Opened, progress: &Progress, received: Instant) {
        let at = progress.cancel();
        progress.turn(Step::Sign);
        let reason = Denial::Timeout.text();
        let outcome = Outcome::Timeout { at };
        self.answer(reply, opened, progress, received, CalloutOutcome::Deny(&reason), outcome).await;
    }

    /// Signs, seals, sends, and writes the line. What cannot be sent is only logged: nobody waits for it any more.
    async fn answer(
        &self,
        reply: &str,
        opened: &Opened,
        progress: &Progress,
        received: Instant,
        response: CalloutOutcome<'_>,
        outcome: Outcome,
    ) {
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
