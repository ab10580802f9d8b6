//! One callout: its limits, its start and its end.
//!
//! The contract lets whoever runs a callout hook in `prepareConnection(token, nonce)` (04 §8.2, §8.4 rule 11), and
//! refuses to start where a policy wants one and none is given. No policy here wants one, so the hook is not there; its
//! place is in `Lane::decide` (`connect.rs`), between the nonce and the permissions.

use std::{future::Future, sync::Arc, time::Duration};

use cotal_authority::{ConnectReader, IssuanceLog};
use cotal_broker::Connection;
use cotal_ledger::Ledger;
use cotal_trust::{bundle::DataAccount, callout_account::CalloutAuth, issuer::IssuerKeySet, jwt};
use cotal_wire::{Clock, Entropy, EpError, Space};
use tokio::{sync::Mutex, task::JoinHandle, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    admission::ANSWER_MARGIN,
    callers::Callers,
    connect::{HANDED_OVER_WITHIN, Lane},
    dispatcher::Dispatcher,
    limits::Limiter,
    slots::{Crowd, Slots},
};

/// Where nats-server asks (contract 04 §8.2).
pub const AUTH_SUBJECT: &str = "$SYS.REQ.USER.AUTH";
/// The queue group that callouts of one space share (contract 04 §8.2).
pub const QUEUE_GROUP: &str = "cotal-auth-callout";

/// The longest [`CalloutLimits::auth_timeout`]: what fits a flag of whole seconds.
const MAX_AUTH_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);
/// The most [`CalloutLimits::max_in_flight`]: every one of them may hold a thread and a reply.
const MOST_IN_FLIGHT: usize = 65_536;

/// Admission and deadlines (contract 04 §8.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalloutLimits {
    /// Must equal the broker's `authorization { timeout }`; default 2000 ms.
    pub auth_timeout: Duration,
    /// Requests in progress, 65,536 at most; default 32.
    pub max_in_flight: usize,
    /// A line logs at warn above this total; default 500 ms.
    pub slow: Duration,
}

impl Default for CalloutLimits {
    fn default() -> Self {
        Self { auth_timeout: Duration::from_secs(2), max_in_flight: 32, slow: Duration::from_millis(500) }
    }
}

impl CalloutLimits {
    /// How long after its receipt a request must be answered: the broker's timeout less 250 ms.
    pub const fn budget(&self) -> Duration {
        self.auth_timeout.saturating_sub(ANSWER_MARGIN)
    }

    /// Refuses limits under which no request could be answered, or that bound nothing, as `bad-request`.
    pub fn check(&self) -> Result<(), EpError> {
        if self.budget().is_zero() {
            return Err(EpError::bad_request(format!(
                "the callout's timeout must be above {} ms, the time it keeps for its answer: raise authTimeoutMs and \
                 the broker's authorization timeout together",
                ANSWER_MARGIN.as_millis()
            )));
        }
        if self.auth_timeout > MAX_AUTH_TIMEOUT {
            return Err(EpError::bad_request(format!(
                "the callout's timeout must be at most {} s: authTimeoutMs is the broker's own authorization timeout",
                MAX_AUTH_TIMEOUT.as_secs()
            )));
        }
        if !(1..=MOST_IN_FLIGHT).contains(&self.max_in_flight) {
            return Err(EpError::bad_request(format!(
                "the callout's maxInFlight must be from 1 to {MOST_IN_FLIGHT}"
            )));
        }
        Ok(())
    }
}

/// What a callout answers from.
pub struct CalloutParts {
    /// The space.
    pub space: Space,
    /// AUTH account material.
    pub callout: Arc<CalloutAuth>,
    /// The account users are placed in.
    pub data_account: DataAccount,
    /// Bearer keys.
    pub issuer: Arc<IssuerKeySet>,
    /// The actor ledger.
    pub ledger: Ledger,
    /// Deny-new.
    pub reader: Arc<ConnectReader>,
    /// Issuance rows.
    pub issuance: Arc<IssuanceLog>,
    /// Who is asked about views that the actor's row does not decide.
    pub callers: Callers,
    /// Connect limits, shared with the exchange.
    pub limiter: Arc<Limiter>,
    /// Admission and deadlines.
    pub limits: CalloutLimits,
    /// The lanes of a host that share their cores with this one: then `max_in_flight` is only the most, and the callout
    /// paces itself.
    pub crowd: Option<Crowd>,
    /// Only these servers are answered, when given.
    pub expected_server_ids: Option<Vec<String>>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Entropy.
    pub entropy: Arc<dyn Entropy>,
    /// Where the one line per answered request goes (stderr in the service). Called on the runtime's threads, without
    /// a line break: it must not block.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A serving callout. Dropped, it stops without waiting.
pub struct Callout {
    stop: DropGuard,
    ended: CancellationToken,
    dispatcher: Mutex<JoinHandle<()>>,
    /// How long [`Self::stop`] waits for what is in progress.
    grace: Duration,
}

impl Callout {
    /// Checks the material, subscribes `$SYS.REQ.USER.AUTH` in queue `cotal-auth-callout`, flushes, serves.
    pub async fn start(connection: Connection, parts: CalloutParts) -> Result<Self, EpError> {
        parts.limits.check()?;
        check_material(&parts.callout, &parts.data_account)?;
        let (budget, most) = (parts.limits.budget(), parts.limits.max_in_flight);
        let slots = parts.crowd.clone().map_or(Slots::fixed(most), |crowd| Slots::paced(most, crowd));
        let unlisted = parts.expected_server_ids.is_none();

        let subscription = connection.subscribe(AUTH_SUBJECT, Some(QUEUE_GROUP)).await?;
        connection.flush().await?;
        let lane = Arc::new(Lane::new(parts, connection, budget));
        if unlisted {
            // Of the installation, and no event: a program gives such a list, and the command line never does.
            lane.remark("no list of expected servers: every server that holds this account is answered");
        }

        // Every request that was taken is answered within the budget, and its answer sent within the margin.
        let grace = budget + 2 * ANSWER_MARGIN + HANDED_OVER_WITHIN;
        let dispatcher = Dispatcher::new(lane, slots, budget);
        Ok(Self::run(grace, move |stop| dispatcher.run(subscription, stop)))
    }

    fn run<F>(grace: Duration, dispatch: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let dispatching = dispatch(stop.clone());
        // Dropped with the task, however that ends.
        let guard = ended.clone().drop_guard();
        let dispatcher = tokio::spawn(async move {
            let _guard = guard;
            dispatching.await;
        });
        Self { stop: stop.drop_guard(), ended, dispatcher: Mutex::new(dispatcher), grace }
    }

    /// Stops intake, lets what is in progress end, and returns once the broker has read the answers. Work that is still there
    /// when every request has been answered (a disk that hangs) is cut off.
    pub async fn stop(&self) {
        self.stop.token().cancel();
        if timeout(self.grace, self.ended.cancelled()).await.is_err() {
            self.dispatcher.lock().await.abort();
        }
        self.ended.cancelled().await;
    }

    /// Resolves when the callout serves no more: it was stopped, its connection closed, or its dispatcher failed.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// Refuses material that the broker would not accept an answer from (contract 04 §8.1, §8.2): better at the start than
/// at every connect.
fn check_material(callout: &CalloutAuth, data: &DataAccount) -> Result<(), EpError> {
    let refuse = |what: &str| {
        Err(EpError::failed_precondition(format!(
            "the callout account does not hold together: {what}; prepare the space's user auth again"
        )))
    };
    let Ok(claims) = jwt::decode_verified(&callout.jwt) else {
        return refuse("its JWT does not verify");
    };
    let nats = &claims["nats"];
    let names = |list: &serde_json::Value, key: &str| {
        list.as_array().is_some_and(|list| list.iter().any(|entry| entry.as_str() == Some(key)))
    };
    if claims["sub"].as_str() != Some(callout.account.public().as_str()) {
        return refuse("its JWT is another account's");
    }
    if !names(&nats["signing_keys"], callout.signing.public().as_str()) {
        return refuse("its JWT does not name its signing key");
    }
    if nats["authorization"]["xkey"].as_str() != Some(callout.xkey.public().as_str()) {
        return refuse("its JWT names another xkey");
    }
    if !names(&nats["authorization"]["allowed_accounts"], data.account.as_str()) {
        return refuse("its JWT does not allow the space's data account");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cotal_trust::{
        bundle::{BrokerTrust, SpaceAccount},
        nkey::Seed,
        system::SystemEntropy,
    };
    use cotal_wire::{EpCode, UnixSecs};

    use super::*;

    struct Material {
        trust: BrokerTrust,
        space: Space,
        account: SpaceAccount,
        callout: CalloutAuth,
    }

    fn material() -> Material {
        let (entropy, now) = (&SystemEntropy, UnixSecs(1_800_000_000));
        let space = Space::parse("demo").unwrap();
        let trust = BrokerTrust::create("demo", entropy, now);
        let account = SpaceAccount::create(&trust, &space, entropy, now);
        let callout = callout(&trust, &space, &account);
        Material { trust, space, account, callout }
    }

    fn callout(trust: &BrokerTrust, space: &Space, account: &SpaceAccount) -> CalloutAuth {
        let data = &account.data_account().account;
        CalloutAuth::create(space, &trust.operator, data, &SystemEntropy, UnixSecs(1_800_000_000))
    }

    #[test]
    fn material_that_holds_together_starts() {
        let Material { account, callout, .. } = material();
        check_material(&callout, &account.data_account()).unwrap();
    }

    #[test]
    fn material_that_the_broker_would_refuse_at_every_connect_is_refused_at_the_start() {
        let Material { trust, space, account, callout: good } = material();
        let data = account.data_account();
        let refused = |callout: &CalloutAuth, data: &DataAccount| {
            let error = check_material(callout, data).unwrap_err();
            assert_eq!(error.code, EpCode::FailedPrecondition);
            error.message
        };
        let broken = CalloutAuth { jwt: "a.b.c".to_owned(), ..good.clone() };
        assert!(refused(&broken, &data).contains("does not verify"));
        let other = CalloutAuth { jwt: callout(&trust, &space, &account).jwt, ..good.clone() };
        assert!(refused(&other, &data).contains("another account's"));
        let signing = CalloutAuth { signing: Seed::generate(&SystemEntropy), ..good.clone() };
        assert!(refused(&signing, &data).contains("signing key"));
        let xkey = CalloutAuth { xkey: Seed::generate(&SystemEntropy), ..good.clone() };
        assert!(refused(&xkey, &data).contains("another xkey"));
        let elsewhere = DataAccount { account: Seed::generate(&SystemEntropy).public().clone(), ..data };
        assert!(refused(&good, &elsewhere).contains("data account"));
    }

    #[test]
    fn limits_under_which_no_request_could_be_answered_or_that_bound_nothing_are_refused() {
        CalloutLimits::default().check().unwrap();
        let short = CalloutLimits { auth_timeout: ANSWER_MARGIN, ..CalloutLimits::default() };
        assert_eq!(short.check().unwrap_err().code, EpCode::BadRequest);
        for max_in_flight in [0, MOST_IN_FLIGHT + 1, usize::MAX] {
            let none = CalloutLimits { max_in_flight, ..CalloutLimits::default() };
            assert_eq!(none.check().unwrap_err().code, EpCode::BadRequest, "{max_in_flight}");
        }
        let most = CalloutLimits { max_in_flight: MOST_IN_FLIGHT, auth_timeout: MAX_AUTH_TIMEOUT, ..short };
        most.check().unwrap();
        for auth_timeout in [MAX_AUTH_TIMEOUT + Duration::from_nanos(1), Duration::MAX] {
            let long = CalloutLimits { auth_timeout, ..CalloutLimits::default() };
            assert_eq!(long.check().unwrap_err().code, EpCode::BadRequest, "{auth_timeout:?}");
        }
    }

    #[tokio::test]
    async fn a_dispatcher_that_panics_has_ended() {
        let callout = Callout::run(Duration::from_secs(60), |_| async { panic!("a test's panic") });
        timeout(Duration::from_secs(10), callout.ended()).await.expect("the end is seen");
        timeout(Duration::from_secs(10), callout.stop()).await.expect("and a stop does not hang");
    }

    #[tokio::test]
    async fn a_dispatcher_that_is_aborted_has_ended() {
        let callout = Callout::run(Duration::from_secs(60), |_| std::future::pending());
        callout.dispatcher.lock().await.abort();
        timeout(Duration::from_secs(10), callout.ended()).await.expect("the end is seen");
    }

    #[tokio::test]
    async fn a_stop_cuts_off_what_does_not_end_and_waits_for_what_does() {
        let grace = Duration::from_millis(50);
        let callout = Callout::run(grace, |_| std::future::pending());
        let started = std::time::Instant::now();
        timeout(Duration::from_secs(10), callout.stop()).await.expect("cut off");
        assert!(started.elapsed() >= grace);

        let (report, reported) = tokio::sync::oneshot::channel();
        let callout = Callout::run(Duration::from_secs(60), |stop| async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            report.send(()).unwrap();
        });
        timeout(Duration::from_secs(10), callout.stop()).await.expect("no longer than needed");
        reported.await.expect("it ended by itself");
    }

    #[test]
    fn the_budget_is_the_brokers_timeout_less_the_margin() {
        assert_eq!(CalloutLimits::default().budget(), Duration::from_millis(1_750));
    }
}
