//! Turns by key: of everyone who asks for the same key one goes at a time, in the order of asking
//! (contract 05 §12.3).

use std::{
    collections::HashMap,
    hash::Hash,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use cotal_wire::{EpError, Principal};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// How many may wait for the turn of one key. Who waits may be one whose caller is long gone: one more is refused, so that no
/// chain grows while its first one is held up.
pub const MAX_WAITING: usize = 16;

type Chains<K> = Arc<Mutex<HashMap<K, Arc<AsyncMutex<()>>>>>;

/// Turns by key; clones share them. A key that nobody holds or waits for takes no room.
#[derive(Debug, Clone)]
pub struct Turns<K: Eq + Hash>(Chains<K>);

/// One turn: the next one of its key begins when it is dropped, however what it was for ended.
#[derive(Debug)]
#[must_use = "a turn ends when it is dropped"]
pub struct Turn<K: Eq + Hash> {
    // Dropped first: whoever waits goes on before the seat is given up.
    _held: OwnedMutexGuard<()>,
    _seat: Seat<K>,
}

/// A place in a key's chain, taken or waiting.
#[derive(Debug)]
struct Seat<K: Eq + Hash> {
    key: K,
    chains: Chains<K>,
}

impl<K: Eq + Hash> Default for Turns<K> {
    fn default() -> Self {
        Self(Chains::default())
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Waits for this key's turn. Dropped while it waits, it leaves the chain. `unavailable` when [`MAX_WAITING`] wait already.
    pub async fn take(&self, key: K) -> Result<Turn<K>, EpError> {
        let chain = {
            let mut chains = self.0.lock();
            let chain = chains.entry(key.clone()).or_default();
            // The map's own, that of whoever has the turn, and one for each that waits: this would be one too many.
            if Arc::strong_count(chain) > 1 + MAX_WAITING {
                return Err(EpError::unavailable(format!(
                    "{MAX_WAITING} requests of the same wait for their turn already; ask again once they are answered"
                )));
            }
            Arc::clone(chain)
        };
        let seat = Seat { key, chains: Arc::clone(&self.0) };
        Ok(Turn { _held: chain.lock_owned().await, _seat: seat })
    }

    /// How many keys are held or waited for.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether no key is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Eq + Hash> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut chains = self.chains.lock();
        // Chains are cloned under this lock alone, so a count of one is the map's own.
        if chains.get(&self.key).is_some_and(|chain| Arc::strong_count(chain) == 1) {
            chains.remove(&self.key);
        }
    }
}

/// The turn of an alias: enrollment and retirement preparation of one actor go one after another in the whole process,
/// over all planes that share a ledger directory.
pub async fn alias_turn(
    ledger_dir: &Path,
    principal: &Principal,
) -> Result<Turn<(PathBuf, Principal)>, EpError> {
    static PROCESS: LazyLock<Turns<(PathBuf, Principal)>> = LazyLock::new(Turns::default);
    PROCESS.take((resolved(ledger_dir).await, principal.clone())).await
}

/// One directory under two spellings is one ledger. What cannot be resolved keeps its own spelling.
async fn resolved(dir: &Path) -> PathBuf {
    match tokio::fs::canonicalize(dir).await {
        Ok(resolved) => resolved,
        Err(_) => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn one_key_goes_one_at_a_time_in_the_order_of_asking() {
        let turns = Turns::<u8>::default();
        let first = turns.take(1).await.unwrap();
        let mut second = std::pin::pin!(turns.take(1));
        let mut third = std::pin::pin!(turns.take(1));
        assert!(poll!(&mut second).is_pending());
        assert!(poll!(&mut third).is_pending());
        let other = turns.take(2).now_or_never().expect("another key does not wait");
        assert_eq!(turns.len(), 2);
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second asked before the third");
        drop(second.await.unwrap());
        drop(third.await.unwrap());
        drop(other);
        assert!(turns.is_empty(), "a key that nobody wants takes no room");
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_the_chain() {
        let turns = Turns::<u8>::default();
        let first = turns.take(1).await.unwrap();
        let mut gone = Box::pin(turns.take(1));
        assert!(poll!(&mut gone).is_pending());
        drop(first);
        drop(gone);
        assert!(turns.is_empty());
        assert!(turns.take(1).now_or_never().is_some());
    }

    #[tokio::test]
    async fn one_more_than_may_wait_is_refused_and_a_place_that_is_given_up_is_free() {
        let turns = Turns::<u8>::default();
        let first = turns.take(1).await.unwrap();
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(turns.take(1))).collect();
        for one in &mut waiting {
            assert!(poll!(one).is_pending());
        }
        let refusal = turns.take(1).now_or_never().expect("it does not wait").unwrap_err();
        assert_eq!(refusal.code, cotal_wire::EpCode::Unavailable);
        assert!(refusal.message.contains("ask again"), "{refusal}");
        assert!(turns.take(2).now_or_never().unwrap().is_ok(), "another key");
        drop(waiting.pop());
        let mut next = Box::pin(turns.take(1));
        assert!(poll!(&mut next).is_pending());
        drop((first, waiting, next));
        assert!(turns.is_empty());
    }

    #[tokio::test]
    async fn a_ledger_is_one_whatever_its_directory_is_called() {
        let dir = std::env::temp_dir();
        assert_eq!(
            resolved(&dir).await,
            resolved(&dir.join(".").join("..").join(dir.file_name().unwrap())).await
        );
        let absent = dir.join("no-such-ledger-directory");
        assert_eq!(resolved(&absent).await, absent);
        let alias = Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.turns").unwrap();
        drop(alias_turn(&dir, &alias).await.unwrap());
        drop(alias_turn(&dir, &alias).await.unwrap());
    }
}
