//! One NATS session: from one successful CONNECT to the end of that socket, and never a second one.
//!
//! The client library would reconnect by itself, with commands still queued from before the cut, and could not be
//! told to stop while it tries. So each session is one library client that may not reconnect, and
//! [`crate::connection`] opens the next: the end of a session is then a fact, and so is the end of a connection.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{Auth, AuthError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use cotal_trust::{
    bundle::DataAccount,
    creds::Creds,
    jwt::{UserClaims, encode_user},
    nkey::Seed,
};
use cotal_wire::{Clock, EpError, Permissions, User};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::{
    creds_connector::RenewableCreds,
    denials::{Denials, parse_denial},
};

/// One attempt: TCP, TLS, INFO, CONNECT and PONG.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a drain may take before the socket is cut without it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Two unanswered pings cut a session whose broker hangs.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Messages that a subscription holds for its reader, who is meant to be at hand: past that the newest are dropped.
pub(crate) const SUBSCRIPTION_CAPACITY: usize = 8_192;
/// The same where anybody may send, and as large as the broker takes it: what they can make this process hold.
pub const RAIL_CAPACITY: usize = 256;
/// What a connection reads into at first; it grows with a message that is larger. A space has seven connections that
/// mostly wait, and a process may serve a thousand spaces.
const READ_BUFFER: u16 = 8 * 1024;
/// Refuses at once, without a packet leaving the machine: where a session is sent instead of reconnecting.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// What a session presents at CONNECT.
pub(crate) enum Credential {
    /// A user JWT that is signed anew for each session (contract 07 §7.2).
    SelfMinted(SelfMinted),
    /// Creds that were given.
    Creds(Creds),
    /// Creds of one user whose JWT is replaced while the connection lives: each session presents the newest.
    Renewable(RenewableCreds),
    /// The space's sentinel, and the bearer that the auth callout decides by.
    Bearer(Creds, Zeroizing<String>),
}

/// A user of the data account whose JWT this service signs itself.
pub(crate) struct SelfMinted {
    pub(crate) user: Seed<User>,
    pub(crate) account: DataAccount,
    pub(crate) permissions: Permissions,
    pub(crate) tags: Vec<String>,
    /// Seconds from each signature to `exp`; unbounded when absent.
    pub(crate) ttl_secs: Option<u64>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Everything a session is opened with, again and again.
pub(crate) struct SessionPlan {
    pub(crate) label: String,
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) inbox_prefix: String,
    pub(crate) credential: Credential,
    /// Messages that each subscription holds.
    pub(crate) capacity: usize,
}

/// A live session.
pub(crate) struct Session {
    pub(crate) client: async_nats::Client,
    pub(crate) server_id: String,
    pub(crate) server_version: String,
    pub(crate) client_id: u64,
    /// Cancelled when the socket is gone, or about to go.
    pub(crate) lost: CancellationToken,
    /// Cancelled when the library has dropped the socket and everything of this session.
    pub(crate) ended: CancellationToken,
}

/// Held by the library's event task, which outlives the socket: its drop proves the end.
struct Ending {
    lost: CancellationToken,
    ended: CancellationToken,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.lost.cancel();
        self.ended.cancel();
    }
}

impl Credential {
    /// Whether the grant names exactly this subject. Creds are not looked into.
    pub(crate) fn allows_publish(&self, subject: &str) -> bool {
        matches!(self, Self::SelfMinted(minted) if minted.permissions.publish.allow.iter().any(|s| s == subject))
    }

    /// The user nkey that signs the nonce.
    pub(crate) fn seed(&self) -> &Seed<User> {
        match self {
            Self::SelfMinted(minted) => &minted.user,
            Self::Creds(creds) | Self::Bearer(creds, _) => &creds.seed,
            Self::Renewable(creds) => creds.seed(),
        }
    }

    /// Answers the server's nonce. A self-minted JWT is as fresh as the session.
    fn present(&self, label: &str, nonce: &[u8]) -> Auth {
        let jwt = match self {
            Self::Creds(creds) | Self::Bearer(creds, _) => creds.jwt.clone(),
            Self::Renewable(creds) => creds.jwt(),
            Self::SelfMinted(minted) => {
                let now = minted.clock.now_secs();
                let claims = UserClaims {
                    name: label.to_owned(),
                    subject: minted.user.public().clone(),
                    issuer_account: minted.account.account.clone(),
                    permissions: minted.permissions.clone(),
                    tags: minted.tags.clone(),
                    exp: minted.ttl_secs.map(|ttl| now.plus(ttl)),
                };
                encode_user(&claims, &minted.account.signing, now)
            }
        };
        let mut auth = Auth::new();
        auth.jwt = Some(jwt);
        auth.signature = Some(self.seed().sign(nonce).to_vec());
        if let Self::Bearer(_, bearer) = self {
            auth.token = Some(bearer.as_str().to_owned());
        }
        auth
    }
}

impl Session {
    /// Opens a session; the error names the label and the library's kind of failure, never a credential.
    pub(crate) async fn open(plan: &Arc<SessionPlan>, denials: &Arc<Denials>) -> Result<Self, EpError> {
        let ending = Ending { lost: CancellationToken::new(), ended: CancellationToken::new() };
        let (lost, ended) = (ending.lost.clone(), ending.ended.clone());
        let observer = Arc::clone(denials);
        let label = plan.label.clone();
        let presenting = Arc::clone(plan);
        // The second use would be a reconnect, in the moment before the pool is emptied below.
        let presented = AtomicBool::new(false);

        let client = ConnectOptions::with_auth_callback(move |nonce| {
            ready(if presented.swap(true, Ordering::Relaxed) {
                Err(AuthError::new("a session presents its credential once"))
            } else {
                Ok(presenting.credential.present(&presenting.label, &nonce))
            })
        })
        .event_callback(move |event| {
            observe(event, &label, &ending, &observer);
            ready(())
        })
        .name(&plan.label)
        .custom_inbox_prefix(&plan.inbox_prefix)
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_INTERVAL)
        .request_timeout(None)
        .subscription_capacity(plan.capacity)
        .read_buffer_capacity(READ_BUFFER)
        .max_reconnects(plan.servers.len())
        .reconnect_delay_callback(|_| Duration::ZERO)
        .ignore_discovered_servers()
        .connect(plan.servers.clone())
        .await
        .map_err(|error| cannot_connect(&plan.label, error.kind()))?;

        if client.set_server_pool(NOWHERE).await.is_err() {
            return Err(EpError::unavailable(format!("{}: the connection was lost at once", plan.label)));
        }
        let info = client.server_info();
        Ok(Self {
            client,
            server_id: info.server_id,
            server_version: info.version,
            client_id: info.client_id,
            lost,
            ended,
        })
    }

    /// Sends what is queued, unsubscribes, and waits for the end.
    pub(crate) async fn drain(&self) {
        let bounded = async {
            let _ = self.client.flush().await;
            let _ = self.client.drain().await;
            self.ended.cancelled().await;
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, bounded).await.is_err() {
            // A stopped broker never answers the drain's ping. Any command wakes the library, which then ends.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, async {
                let _ = self.client.force_reconnect().await;
                self.ended.cancelled().await;
            })
            .await;
        }
    }
}

fn observe(event: Event, label: &str, ending: &Ending, denials: &Denials) {
    match event {
        Event::Disconnected | Event::Closed => ending.lost.cancel(),
        Event::ServerError(ServerError::Other(text)) => {
            if let Some(denial) = parse_denial(&text) {
                if !denial.answers_a_flush() {
                    tracing::warn!(
                        label,
                        ?denial,
                        "the broker refused what this connection's grant does not name"
                    );
                }
                denials.report(denial);
            } else {
                tracing::info!(label, error = text, "the broker reported an error");
            }
        }
        Event::ServerError(error) => tracing::info!(label, %error, "the broker reported an error"),
        Event::SlowConsumer(_) => tracing::warn!(label, "a subscription is full; a message was dropped"),
        Event::LameDuckMode => tracing::info!(label, "the broker is about to shut down"),
        Event::Connected | Event::Draining | Event::ClientError(_) => {}
    }
}

fn cannot_connect(label: &str, kind: ConnectErrorKind) -> EpError {
    let remedy = match kind {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            "; check that the broker runs with this space's account"
        }
        ConnectErrorKind::ServerParse => "; check the server URL",
        _ => "; check that the broker runs and can be reached",
    };
    EpError::unavailable(format!("{label}: cannot connect to the broker: {kind}{remedy}"))
}

#[cfg(test)]
mod tests {
    use cotal_trust::{jwt::decode_verified, nkey::verify, system::SystemEntropy};
    use cotal_wire::{Account, Rules, UnixMillis};
    use parking_lot::Mutex;

    use super::*;

    struct SetClock(Mutex<u64>);

    impl Clock for SetClock {
        fn now_millis(&self) -> UnixMillis {
            UnixMillis(*self.0.lock() * 1000)
        }
    }

    fn self_minted(ttl_secs: Option<u64>, clock: &Arc<SetClock>) -> Credential {
        let permissions = Permissions {
            publish: Rules { allow: vec!["$JS.API.INFO".into()], deny: vec![] },
            subscribe: Rules { allow: vec!["_INBOX_x.>".into()], deny: vec![] },
        };
        Credential::SelfMinted(SelfMinted {
            user: Seed::generate(&SystemEntropy),
            account: DataAccount {
                account: Seed::<Account>::generate(&SystemEntropy).public().clone(),
                signing: Seed::generate(&SystemEntropy),
            },
            permissions,
            tags: vec!["principal:local.x".into()],
            ttl_secs,
            clock: Arc::<SetClock>::clone(clock),
        })
    }

    #[test]
    fn each_session_presents_a_jwt_signed_at_that_moment_for_the_same_user() {
        let clock = Arc::new(SetClock(Mutex::new(1_000)));
        let credential = self_minted(Some(900), &clock);
        let claims = |nonce: &[u8]| {
            let auth = credential.present("cotal:auth-reader:main", nonce);
            verify(credential.seed().public(), nonce, &auth.signature.unwrap()).unwrap();
            decode_verified(&auth.jwt.unwrap()).unwrap()
        };
        let first = claims(b"n1");
        assert_eq!((&first["iat"], &first["exp"]), (&1_000.into(), &1_900.into()));
        assert_eq!(first["name"], "cotal:auth-reader:main");
        assert_eq!(first["sub"], credential.seed().public().as_str());
        assert_eq!(first["nats"]["pub"]["allow"], serde_json::json!(["$JS.API.INFO"]));
        assert_eq!(first["nats"]["tags"], serde_json::json!(["principal:local.x"]));
        *clock.0.lock() = 1_899;
        let second = claims(b"n2");
        assert_eq!((&second["sub"], &second["exp"]), (&first["sub"], &2_799.into()));
    }

    #[test]
    fn a_plane_owned_credential_never_expires() {
        let credential = self_minted(None, &Arc::new(SetClock(Mutex::new(1))));
        let auth = credential.present("cotal:auth-scan:main", b"nonce");
        assert!(decode_verified(&auth.jwt.unwrap()).unwrap().get("exp").is_none());
    }
}
