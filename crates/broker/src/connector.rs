//! Opens connections whose credentials the service signs itself (contract 07 §7.2, 05 §8.1).

use std::sync::Arc;

use cotal_trust::{bundle::DataAccount, creds, jwt::principal_tags, nkey::Seed};
use cotal_wire::{Account, Clock, ConnId, Entropy, EpError, Nkey, Permissions, Principal, Rules, Space};

use crate::{
    connection::{Connection, ConnectionTuple, JETSTREAM_INFO, Reconnect},
    custody::Custody,
    denials::Denials,
    servers::Servers,
    session::{Credential, RAIL_CAPACITY, SUBSCRIPTION_CAPACITY, SelfMinted, Session, SessionPlan},
};

/// Lifetime of a self-minted user JWT, in seconds (contract 07 §7.2).
pub const INFRA_TTL_SECS: u64 = 900;
/// Attempts of the callout connection, the reference client's default: a long outage ends it (contract 05 §15.2).
const CREDS_RECONNECT_ATTEMPTS: u32 = 10;

/// How long a connection's credential lives and whether it is renewed.
#[derive(Debug, Clone)]
pub enum Lifetime {
    /// 900 s, reconnecting for ever.
    ///
    /// The reference signs anew on a timer at half that life and presents the newest JWT at each reconnect. Here
    /// signing cannot fail, so each (re)connect signs its own: never older, and no timer that could stop.
    Renewing,
    /// One call: no reconnect, this TTL in seconds, optional principal tags.
    OneShot {
        /// Lifetime in seconds.
        ttl_secs: u64,
        /// Tags for eviction by principal.
        principal: Option<Principal>,
    },
    /// No `exp`, no reconnect; the server and client ids are proved (contract 07 §7.3).
    PlaneOwned,
}

/// Opens connections of one space's data account.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
    renewing_ttl_secs: u64,
    capacity: usize,
    /// Instead of what the connection would do when it is lost, except never to reconnect.
    on_loss: Option<Reconnect>,
}

/// How a connection is opened, apart from where.
pub(crate) struct Opening<'a> {
    pub(crate) label: String,
    pub(crate) credential: Credential,
    pub(crate) inbox_prefix: &'a str,
    pub(crate) reconnect: Reconnect,
    pub(crate) plane_owned: bool,
    /// Messages that each subscription holds.
    pub(crate) capacity: usize,
}

struct Shared {
    servers: String,
    space: Space,
    account: DataAccount,
    custody: Custody,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Connector {
    /// A connector. `servers` is one or more comma-separated NATS URLs, checked when a connection is opened.
    pub fn new(
        servers: &str,
        space: Space,
        account: DataAccount,
        custody: Custody,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        let shared = Shared { servers: servers.to_owned(), space, account, custody, clock, entropy };
        Self {
            shared: Arc::new(shared),
            renewing_ttl_secs: INFRA_TTL_SECS,
            capacity: SUBSCRIPTION_CAPACITY,
            on_loss: None,
        }
    }

    /// The same connector with another lifetime of renewing credentials, in seconds.
    #[must_use]
    pub fn with_renewing_ttl(mut self, ttl_secs: u64) -> Self {
        self.renewing_ttl_secs = ttl_secs;
        self
    }

    /// The same connector, whose renewing credentials expire this many seconds sooner, but live half their time at the
    /// least. Connections that are opened together are then not cut together at every expiry.
    #[must_use]
    pub fn renewing_sooner(&self, secs: u64) -> Self {
        let ttl = self.renewing_ttl_secs;
        Self { renewing_ttl_secs: ttl.saturating_sub(secs).max(ttl.div_ceil(2)), ..self.clone() }
    }

    /// The same connector, whose connections end with their broker: one that was cut is dialled once more, at once.
    /// That is enough after an expiry; a broker that then does not take it back is lost, and nobody waits for it.
    #[must_use]
    pub fn ending_with_the_broker(&self) -> Self {
        Self { on_loss: Some(Reconnect::Attempts(1)), ..self.clone() }
    }

    /// The same connector for a listener that others send to: its subscriptions hold 256 messages, and past that the
    /// newest are dropped. A flood of the largest messages then fills no memory.
    #[must_use]
    pub fn for_rail(&self) -> Self {
        Self { capacity: RAIL_CAPACITY, ..self.clone() }
    }

    /// The space.
    pub fn space(&self) -> &Space {
        &self.shared.space
    }

    /// The account that its connections are placed in.
    pub fn account(&self) -> &Nkey<Account> {
        &self.shared.account.account
    }

    /// Where its connections are in custody.
    pub fn custody(&self) -> &Custody {
        &self.shared.custody
    }

    /// Opens a self-minted connection: fresh user nkey, name = label, inbox prefix `_INBOX_<nkey>`.
    ///
    /// `grants` is given the nkey as inbox nonce. Grants that name nothing in a direction are refused as `internal`,
    /// because the broker would read them as everything. A broker that cannot be reached, or that refuses, is
    /// `unavailable`.
    pub async fn open(
        &self,
        label: String,
        grants: &(dyn Fn(&ConnId) -> Permissions + Send + Sync),
        lifetime: Lifetime,
    ) -> Result<Connection, EpError> {
        let user = Seed::generate(&*self.shared.entropy);
        let permissions = grants(&user.public().conn_id());
        if names_nothing(&permissions.publish) || names_nothing(&permissions.subscribe) {
            return Err(EpError::internal(format!("{label}: the grant names nothing in one direction")));
        }
        let (ttl_secs, tags, reconnect) = match &lifetime {
            Lifetime::Renewing => (Some(self.renewing_ttl_secs), Vec::new(), Reconnect::Forever),
            Lifetime::OneShot { ttl_secs, principal } => (
                Some(*ttl_secs),
                principal.as_ref().map(principal_tags).unwrap_or_default(),
                Reconnect::Never,
            ),
            Lifetime::PlaneOwned => (None, Vec::new(), Reconnect::Never),
        };
        let credential = Credential::SelfMinted(SelfMinted {
            user,
            account: self.shared.account.clone(),
            permissions,
            tags,
            ttl_secs,
            clock: Arc::clone(&self.shared.clock),
        });
        self.connect(label, credential, reconnect, matches!(lifetime, Lifetime::PlaneOwned)).await
    }

    /// Opens a connection with creds text (the callout connection), which reconnects as a NATS client does by
    /// default: a long outage ends it. Creds that cannot be used are `bad-request`.
    pub async fn open_creds(&self, label: String, creds: &str) -> Result<Connection, EpError> {
        let creds = creds::parse(creds).map_err(|error| EpError::bad_request(format!("{label}: {error}")))?;
        self.connect(label, Credential::Creds(creds), Reconnect::Attempts(CREDS_RECONNECT_ATTEMPTS), false)
            .await
    }

    async fn connect(
        &self,
        label: String,
        credential: Credential,
        reconnect: Reconnect,
        plane_owned: bool,
    ) -> Result<Connection, EpError> {
        let inbox_prefix = format!("_INBOX_{}", credential.seed().public());
        let Shared { servers, custody, .. } = &*self.shared;
        let capacity = self.capacity;
        let reconnect = match (reconnect, self.on_loss) {
            (Reconnect::Never, _) | (_, None) => reconnect,
            (_, Some(instead)) => instead,
        };
        let opening =
            Opening { label, credential, inbox_prefix: &inbox_prefix, reconnect, plane_owned, capacity };
        connect(servers, custody, opening).await
    }
}

/// Opens a session and takes it into custody.
pub(crate) async fn connect(
    servers: &str,
    custody: &Custody,
    opening: Opening<'_>,
) -> Result<Connection, EpError> {
    let Opening { label, credential, inbox_prefix, reconnect, plane_owned, capacity } = opening;
    custody.check_open(&label)?;
    let servers = Servers::parse(servers)
        .map_err(|why| EpError::bad_request(format!("{label}: {why}")))?
        .into_addresses();
    let may_ask_info = credential.allows_publish(JETSTREAM_INFO);
    let user = credential.seed().public().clone();
    let inbox_prefix = inbox_prefix.to_owned();
    let plan = Arc::new(SessionPlan { label, servers, inbox_prefix, credential, capacity });
    let denials = Arc::new(Denials::new());
    let session = Session::open(&plan, &denials).await?;
    let tuple = if plane_owned {
        if session.server_id.is_empty() || session.client_id == 0 {
            session.drain().await;
            return Err(EpError::unavailable(format!(
                "{}: the server's INFO names no server_id or client_id",
                plan.label
            )));
        }
        Some(ConnectionTuple {
            server_id: session.server_id.clone(),
            client_id: session.client_id,
            user_nkey: user.clone(),
        })
    } else {
        None
    };
    Connection::supervise(plan, user, may_ask_info, tuple, (session, denials), reconnect, custody).await
}

fn names_nothing(rules: &Rules) -> bool {
    rules.allow.is_empty() && rules.deny.is_empty()
}

#[cfg(test)]
mod tests {
    use cotal_trust::system::{SystemClock, SystemEntropy};

    use super::*;

    #[test]
    fn a_credential_that_expires_sooner_lives_half_its_time_at_the_least() {
        for (ttl, sooner, lives) in [(900, 7, 893), (900, 0, 900), (10, 7, 5), (3, 7, 2), (1, 7, 1)] {
            let space = Space::parse("main").unwrap();
            let account = DataAccount {
                account: Seed::<cotal_wire::Account>::generate(&SystemEntropy).public().clone(),
                signing: Seed::generate(&SystemEntropy),
            };
            let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
            let connector = Connector::new("nats://a:1", space, account, Custody::new(), clock, entropy);
            let sooner = connector.with_renewing_ttl(ttl).renewing_sooner(sooner);
            assert_eq!(sooner.renewing_ttl_secs, lives);
        }
    }
}
