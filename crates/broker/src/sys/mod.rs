//! What the system account sees of one data account: who is connected, and who is made to go
//! (contract 01 §1.5 and §5, 03 §E).
//!
//! # When a sweep is complete
//!
//! `gone` may be said of a connection or of a principal only when a complete sweep did not find it. A sweep asks every
//! server at once and takes the answers until a quarter of a second passes without one. It is *unsound*, and tells
//! nothing, when an answer is an error, carries no server envelope, contradicts itself, or when a page that a server
//! owes does not come. Clients may come and go while the pages are read: whoever stays is found (`splice` says why). A
//! sound sweep is complete
//!
//! - on one server: when exactly one server answered and its envelope declares no cluster (contract 03 §E);
//! - in a cluster: when every server that the cluster is known to have answered it, and none of them is one of which
//!   only its own presence tells. The servers themselves say which those are ([`SERVER_STATE`], right after the sweep):
//!   the peers of the JetStream meta group as its leader lists them, whether they are up or not; every server that
//!   answers now or has a route to one that does. One that is no peer of the meta group leaves the sweep incomplete,
//!   also later, when it does not answer any more, for as long as this process lives.
//!
//! A peer that is down is still known, so the sweep is not complete, until it is back or is removed from the meta group,
//! which an operator does on purpose and for good. Servers are told apart by name, which outlives a restart; two of one
//! name at once, a second cluster, a gateway, or a meta group without a leader that can be seen leave a sweep incomplete.
//! A cluster without JetStream has no meta group, so there every sweep is incomplete: such a cluster cannot carry a
//! space.
//!
//! # A departure
//!
//! Contract 03 §E says `unknown` of any cluster, because a server that does not answer there cannot be told from one
//! that does not exist. The meta group is what the contract did not count on: a durable, agreed list of servers that
//! names those that are cut off too, and whose leader has a majority of it. Here a cluster is answered for exactly as
//! far as that list reaches. What remains: a server outside of the meta group that was cut off before this process began
//! is not known. While it is connected, nothing of its cluster is ever gone, so that such a cluster is of no use to begin
//! with; see `docs/src/delivery.md`. An operator who names the servers ([`KnownServers::named`]) need not rely on either.

mod cluster;
mod evictor;
mod page;
mod publisher;
mod splice;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cotal_wire::{
    Account, Entropy, Nkey, Principal,
    grants::delivery::{OBSERVER_INBOX, SERVER_STATE, connections_subject},
};
use parking_lot::Mutex;

use crate::connection::{Connection, NO_RESPONDERS};
use cluster::{Memory, ServerView};
use page::{Page, Server};
use splice::{Cut, Splice};

pub use evictor::Evictor;
pub use page::Seen;
pub use publisher::AccountPublisher;

/// No more answers are expected after this long without one.
const QUIET: Duration = Duration::from_millis(250);
/// The longest wait for answers to one question.
const HARD: Duration = Duration::from_secs(2);
/// Pages of 1024 (contract 01 §5). Each shows the last rows of the one before once more: nearly as many clients may
/// leave while it is asked for, and cost nothing.
const CUT: Cut = Cut { limit: 1024, overlap: 128 };
/// Most questions of one sweep.
const MAX_PAGES: u32 = 64;

/// The servers that a cluster was seen to have, and those that an operator named: kept for a process's life, by whoever
/// sweeps.
#[derive(Default)]
pub struct KnownServers {
    seen: Mutex<Memory>,
    named: BTreeSet<String>,
}

impl KnownServers {
    /// Besides what the servers say of each other, a sweep is complete only when exactly the servers of these names
    /// answered it; of none, what the servers say decides alone.
    pub fn named(names: impl IntoIterator<Item = String>) -> Self {
        Self { seen: Mutex::default(), named: names.into_iter().collect() }
    }
}

/// Sees the connections of one data account.
pub struct Observer {
    connection: Connection,
    account: Nkey<Account>,
    entropy: Arc<dyn Entropy>,
}

/// What a sweep found.
#[derive(Debug)]
pub struct Sweep {
    /// The connections that were seen; empty when the sweep is unsound.
    pub connections: Vec<Seen>,
    /// What may be concluded from what was not seen.
    pub coverage: Coverage,
}

/// How much a sweep proves. The text says why it is not more, for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage {
    /// Every server answered in full: what is not there is gone.
    Complete,
    /// What was seen is there, but a server that may have more did not answer.
    Partial(String),
    /// Nothing may be concluded, not even from what was seen.
    Unsound(String),
}

impl Sweep {
    /// The connections of a principal.
    pub fn of<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Seen> + 'a {
        self.connections.iter().filter(move |seen| seen.principal.as_ref() == Some(principal))
    }

    /// Whether what was not seen is gone.
    pub fn is_complete(&self) -> bool {
        self.coverage == Coverage::Complete
    }

    /// Why it is not complete.
    pub fn note(&self) -> Option<&str> {
        match &self.coverage {
            Coverage::Complete => None,
            Coverage::Partial(why) | Coverage::Unsound(why) => Some(why),
        }
    }
}

impl Observer {
    /// Over a system-account connection whose grant is that of a membership observer of this account.
    pub fn new(connection: Connection, account: Nkey<Account>, entropy: Arc<dyn Entropy>) -> Self {
        Self { connection, account, entropy }
    }

    /// Looks at every connection of the account. It never fails: what cannot be seen is said in the coverage.
    pub async fn sweep(&self, known: &KnownServers) -> Sweep {
        self.try_sweep(known)
            .await
            .unwrap_or_else(|why| Sweep { connections: Vec::new(), coverage: Coverage::Unsound(why) })
    }

    async fn try_sweep(&self, known: &KnownServers) -> Result<Sweep, String> {
        // One nonce a call: an answer to an earlier sweep comes to an inbox that nobody reads any more.
        let nonce = self.nonce();
        let mut servers: BTreeMap<String, Splice> = BTreeMap::new();
        let mut offset = 0;
        for number in 0..MAX_PAGES {
            let request = page::request(offset, CUT.limit);
            let expected = (number > 0).then_some(servers.len());
            let answers = self
                .collect(&connections_subject(&self.account), request, &format!("{nonce}.{number}"), expected)
                .await?;
            let mut pages = BTreeMap::new();
            for answer in &answers {
                let page = Page::parse(answer, offset, CUT.limit)?;
                if pages.insert(page.server.id.clone(), page).is_some() {
                    return Err("a server answered one question twice".into());
                }
            }
            if number == 0 {
                servers =
                    pages.iter().map(|(id, page)| (id.clone(), Splice::of(page.server.clone()))).collect();
            }
            for (id, splice) in &mut servers {
                let Some(page) = pages.remove(id) else {
                    return Err(format!("{} did not answer for its next page", splice.server().name));
                };
                splice.take(page, CUT)?;
            }
            if !pages.is_empty() {
                return Err("a server joined during the sweep".into());
            }
            // One question goes to all of them: at the lowest offset that one owes.
            match servers.values().filter_map(Splice::owes).min() {
                Some(owed) => offset = owed,
                None => return self.conclude(servers, known, &nonce).await,
            }
        }
        Err(format!("a server's connections did not fit into {MAX_PAGES} pages, while clients came and went"))
    }

    async fn conclude(
        &self,
        servers: BTreeMap<String, Splice>,
        known: &KnownServers,
        nonce: &str,
    ) -> Result<Sweep, String> {
        let mut answered = Vec::new();
        let mut connections = Vec::new();
        for splice in servers.into_values() {
            let (server, rows) = splice.finish();
            connections.extend(rows.map(|(cid, row)| row.into_seen(&server.id, cid)));
            answered.push(server);
        }
        let coverage = self.coverage(&answered, known, nonce).await;
        Ok(Sweep { connections, coverage })
    }

    async fn coverage(&self, answered: &[Server], known: &KnownServers, nonce: &str) -> Coverage {
        match self.coverage_by_views(answered, known, nonce).await {
            Coverage::Complete => cluster::hold_to_named(answered, &known.named),
            less => less,
        }
    }

    async fn coverage_by_views(&self, answered: &[Server], known: &KnownServers, nonce: &str) -> Coverage {
        if let Some(settled) = cluster::without_views(answered) {
            return settled;
        }
        let views = self.collect(SERVER_STATE, Bytes::new(), &format!("{nonce}.state"), None).await.and_then(
            |answers| answers.iter().map(|answer| ServerView::parse(answer)).collect::<Result<Vec<_>, _>>(),
        );
        match views {
            Ok(views) => cluster::judge(answered, &views, &mut known.seen.lock()),
            Err(why) => Coverage::Partial(format!("the servers of the cluster are not known: {why}")),
        }
    }

    /// Asks every server and takes what comes: until `expected` have answered, where the caller knows how many will,
    /// else until nothing came for a while.
    async fn collect(
        &self,
        subject: &str,
        request: Bytes,
        tail: &str,
        expected: Option<usize>,
    ) -> Result<Vec<Bytes>, String> {
        let lost = |_| "the observer's connection was lost".to_owned();
        let reply = format!("{OBSERVER_INBOX}.evict.{tail}");
        let mut inbox = self.connection.subscribe(&reply, None).await.map_err(lost)?;
        let mut refusal = self
            .connection
            .ask_many(subject, &reply, request)
            .await
            .map_err(|_| "the observer's connection was lost")?;
        let deadline = Instant::now() + HARD;
        let mut quiet_until = deadline;
        let mut answers = Vec::new();
        loop {
            if expected.is_some_and(|expected| answers.len() >= expected) {
                return Ok(answers);
            }
            tokio::select! {
                biased;
                answer = inbox.next() => match answer {
                    Some(answer) if answer.status == Some(NO_RESPONDERS) => {
                        return Err("the observer is no user of the system account".into());
                    }
                    Some(answer) => {
                        answers.push(answer.payload);
                        quiet_until = deadline.min(Instant::now() + QUIET);
                    }
                    None => return Err("the observer's connection was lost".into()),
                },
                () = refusal.denied() => {
                    return Err(format!("the observer's credential does not allow {subject}"));
                }
                () = tokio::time::sleep_until(quiet_until.into()) => {
                    return if answers.is_empty() {
                        Err("no server answered within 2 s".into())
                    } else {
                        Ok(answers)
                    };
                }
            }
        }
    }

    fn nonce(&self) -> String {
        let mut bytes = [0u8; 16];
        self.entropy.fill(&mut bytes);
        bytes.iter().fold(String::with_capacity(32), |mut hex, byte| {
            use std::fmt::Write as _;
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}
