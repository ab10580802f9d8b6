//! What the system account sees of one data account: who is connected, and who is made to go
//! (contract 01 §1.5 and §5, 03 §E).
//!
//! # When a sweep is complete
//!
//! `gone` may be said of a connection or of a principal only when a complete sweep did not find it. A sweep asks every
//! server at once and takes the answers until a quarter of a second passes without one. It is *unsound*, and tells
//! nothing, when an answer is an error, carries no server envelope, contradicts itself, or when a page that a server
//! owes does not come, or does not follow the one before. A sound sweep is complete
//!
//! - on one server: when exactly one server answered and its envelope declares no cluster (contract 03 §E);
//! - in a cluster: when every server that the cluster is known to have answered it. The servers themselves say which
//!   those are ([`SERVER_STATE`], right after the sweep). Required are the peers of the JetStream meta group as its
//!   leader lists them, whether they are up or not; every server that answers now or has a route to one that does;
//!   and every server that this process has seen in the cluster before and that was no peer of the meta group.
//!
//! A server that is down is still known, so the sweep is not complete, until it is back or is forgotten: a peer when
//! it is removed from the meta group, which an operator does on purpose and for good, another when this process
//! restarts. Servers are told apart by name, which outlives a restart; two of one name at once, a second cluster, a
//! gateway, or a meta group without a leader that can be seen leave a sweep incomplete. A cluster without JetStream
//! has no meta group, so there every sweep is incomplete: such a cluster cannot carry a space.

mod cluster;
mod evictor;
mod page;

use std::{
    collections::BTreeMap,
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

pub use evictor::Evictor;
pub use page::Seen;

/// No more answers are expected after this long without one.
const QUIET: Duration = Duration::from_millis(250);
/// The longest wait for answers to one question.
const HARD: Duration = Duration::from_secs(2);
/// Connections of one server in one page.
const PAGE_LIMIT: u64 = 1024;
/// Most pages of one sweep.
const MAX_PAGES: u64 = 64;
/// Sweeps that may be begun again because clients came and went between two pages.
const ATTEMPTS: u32 = 3;

/// The servers that a cluster was seen to have: kept for a process's life, by whoever sweeps.
#[derive(Default)]
pub struct KnownServers(Mutex<Memory>);

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

/// Why one attempt at a sweep came to nothing.
enum Failed {
    /// Clients came and went between two pages.
    Shifted,
    Because(String),
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
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match self.sweep_once(known).await {
                Ok(sweep) => return sweep,
                Err(Failed::Shifted) => {
                    "clients came and went while the pages of a server were read".clone_into(&mut why);
                }
                Err(Failed::Because(reason)) => {
                    why = reason;
                    break;
                }
            }
        }
        Sweep { connections: Vec::new(), coverage: Coverage::Unsound(why) }
    }

    async fn sweep_once(&self, known: &KnownServers) -> Result<Sweep, Failed> {
        // One nonce a call: an answer to an earlier sweep comes to an inbox that nobody reads any more.
        let nonce = self.nonce();
        let mut servers: BTreeMap<String, Answered> = BTreeMap::new();
        for number in 0..MAX_PAGES {
            // Each page begins with the last connection of the one before: a client that left in between shows.
            let offset = number * (PAGE_LIMIT - 1);
            let request = page::request(offset, PAGE_LIMIT);
            let expected = (number > 0).then_some(servers.len());
            let answers = self
                .collect(&connections_subject(&self.account), request, &format!("{nonce}.{number}"), expected)
                .await?;
            let mut pages = BTreeMap::new();
            for answer in &answers {
                let page = Page::parse(answer, offset, PAGE_LIMIT).map_err(Failed::Because)?;
                let id = page.server.id.clone();
                if pages.insert(id, page).is_some() {
                    return Err(Failed::Because("a server answered one question twice".into()));
                }
            }
            if number == 0 {
                servers = pages.into_iter().map(|(id, page)| (id, Answered::first(page))).collect();
            } else {
                for (id, server) in &mut servers {
                    server.follow(pages.remove(id))?;
                }
                if !pages.is_empty() {
                    return Err(Failed::Because("a server joined during the sweep".into()));
                }
            }
            if servers.values().all(|server| !server.owes) {
                let (answered, connections) = finish(servers)?;
                let coverage = self.coverage(&answered, known, &nonce).await?;
                return Ok(Sweep { connections, coverage });
            }
        }
        Err(Failed::Because(format!("a server has more than {MAX_PAGES} pages of connections")))
    }

    async fn coverage(
        &self,
        answered: &[Server],
        known: &KnownServers,
        nonce: &str,
    ) -> Result<Coverage, Failed> {
        if let Some(settled) = cluster::without_views(answered) {
            return Ok(settled);
        }
        let answers = match self.collect(SERVER_STATE, Bytes::new(), &format!("{nonce}.state"), None).await {
            Ok(answers) => answers,
            Err(Failed::Because(why)) => {
                return Ok(Coverage::Partial(format!("the servers of the cluster are not known: {why}")));
            }
            Err(shifted) => return Err(shifted),
        };
        let views: Result<Vec<ServerView>, String> = answers.iter().map(|a| ServerView::parse(a)).collect();
        Ok(match views {
            Ok(views) => cluster::judge(answered, &views, &mut known.0.lock()),
            Err(why) => Coverage::Partial(format!("the servers of the cluster are not known: {why}")),
        })
    }

    /// Asks every server and takes what comes: until `expected` have answered, where the caller knows how many will,
    /// else until nothing came for a while.
    async fn collect(
        &self,
        subject: &str,
        request: Bytes,
        tail: &str,
        expected: Option<usize>,
    ) -> Result<Vec<Bytes>, Failed> {
        let lost = |_| Failed::Because("the observer's connection was lost".into());
        let reply = format!("{OBSERVER_INBOX}.evict.{tail}");
        let mut inbox = self.connection.subscribe(&reply, None).await.map_err(lost)?;
        let mut refusal = self
            .connection
            .ask_many(subject, &reply, request)
            .await
            .map_err(|_| Failed::Because("the observer's connection was lost".into()))?;
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
                        return Err(Failed::Because("the observer is no user of the system account".into()));
                    }
                    Some(answer) => {
                        answers.push(answer.payload);
                        quiet_until = deadline.min(Instant::now() + QUIET);
                    }
                    None => return Err(Failed::Because("the observer's connection was lost".into())),
                },
                () = refusal.denied() => {
                    return Err(Failed::Because(format!("the observer's credential does not allow {subject}")));
                }
                () = tokio::time::sleep_until(quiet_until.into()) => {
                    return if answers.is_empty() {
                        Err(Failed::Because("no server answered within 2 s".into()))
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

/// One server's pages so far.
struct Answered {
    server: Server,
    rows: Vec<page::Row>,
    /// Whether more of its pages must come.
    owes: bool,
}

impl Answered {
    fn first(page: Page) -> Self {
        Self { owes: (page.rows.len() as u64) < page.total, server: page.server, rows: page.rows }
    }

    /// Takes the next page; nothing of it counts when the server had none to send.
    fn follow(&mut self, page: Option<Page>) -> Result<(), Failed> {
        let Some(page) = page else {
            return Err(Failed::Because(format!("{} did not answer for its next page", self.server.name)));
        };
        if !self.owes {
            return Ok(());
        }
        let overlap = (self.rows.last().map(page::Row::cid), page.rows.first().map(page::Row::cid));
        // Numbers only grow, so one that still stands where it stood has the same ones before it.
        if overlap.0 != overlap.1 {
            return Err(Failed::Shifted);
        }
        self.rows.extend(page.rows.into_iter().skip(1));
        self.owes = (self.rows.len() as u64) < page.total;
        Ok(())
    }
}

/// All rows of all servers, each server's in ascending order of numbers: the order that paging rests on.
fn finish(servers: BTreeMap<String, Answered>) -> Result<(Vec<Server>, Vec<Seen>), Failed> {
    let mut answered = Vec::new();
    let mut connections = Vec::new();
    for (_, server) in servers {
        if !server.rows.is_sorted_by(|one, next| one.cid() < next.cid()) {
            return Err(Failed::Because(format!(
                "{} lists its connections out of order",
                server.server.name
            )));
        }
        for row in server.rows {
            connections.extend(row.into_seen(&server.server.id).map_err(Failed::Because)?);
        }
        answered.push(server.server);
    }
    Ok((answered, connections))
}
