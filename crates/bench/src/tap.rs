//! Counts what is sent to JetStream: every request of its API and every write of a key, whoever sends it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Result;
use cotal_broker::Connection;
use tokio::{sync::Mutex, task::JoinHandle};

/// How long after the last answer a request may still be on its way to the tap.
const SETTLE: Duration = Duration::from_millis(500);

/// A tap on one account.
pub(crate) struct Tap {
    seen: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Tap {
    /// From here on; `connection` may read everything.
    pub(crate) async fn open(connection: &Connection) -> Result<Self> {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let mut readers = Vec::new();
        for subject in ["$JS.API.>", "$KV.>"] {
            let mut messages = connection.subscribe(subject, None).await?;
            let seen = seen.clone();
            readers.push(tokio::spawn(async move {
                while let Some(message) = messages.next().await {
                    seen.lock().await.push(message.subject);
                }
            }));
        }
        connection.flush().await?;
        Ok(Self { seen, readers })
    }

    /// What was sent so far, without what `is_other` says is of somebody else.
    pub(crate) async fn close(self, is_other: impl Fn(&str) -> bool) -> Sent {
        tokio::time::sleep(SETTLE).await;
        for reader in &self.readers {
            reader.abort();
        }
        let mut subjects = std::mem::take(&mut *self.seen.lock().await);
        subjects.retain(|subject| !is_other(subject));
        Sent(subjects)
    }
}

/// The subjects of what was sent.
pub(crate) struct Sent(Vec<String>);

impl Sent {
    /// How many of each verb.
    pub(crate) fn by_verb(&self) -> BTreeMap<String, usize> {
        let mut verbs = BTreeMap::new();
        for subject in &self.0 {
            *verbs.entry(verb(subject)).or_default() += 1;
        }
        verbs
    }

    pub(crate) fn total(&self) -> usize {
        self.0.len()
    }

    /// How many name none of these streams.
    pub(crate) fn beside(&self, streams: &[String]) -> usize {
        let names = |subject: &str| subject.split('.').any(|token| streams.iter().any(|name| name == token));
        self.0.iter().filter(|subject| !names(subject)).count()
    }
}

/// `STREAM.MSG.GET` of `$JS.API.STREAM.MSG.GET.KV_x`, and so on; a write of a key is `KV.PUT`.
fn verb(subject: &str) -> String {
    let Some(api) = subject.strip_prefix("$JS.API.") else { return "KV.PUT".into() };
    let upper = |token: &&str| token.bytes().all(|b| b.is_ascii_uppercase());
    api.split('.').take_while(upper).take(3).collect::<Vec<_>>().join(".")
}
