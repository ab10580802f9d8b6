//! How far the past of a space's operations is known to be over, kept by the host between two runs.
//!
//! An intent is never deleted, so a boot that looks at each of them takes the longer the older the space is. What a boot
//! found over stays over: a retired head is its incarnation's last word. So it is enough to know up to which intent of the
//! stream everything was over, but for a few that are named. That knowledge is a note beside the broker, proves nothing by
//! itself, and may be lost: whatever of it the stream does not confirm makes the boot look at everything again.

use std::cmp::Reverse;

use async_trait::async_trait;
use cotal_broker::kv::{Bucket, Entry, LeaderRead, Stored, Tail};
use cotal_wire::{EpError, OpId, Revision, Space, canonical::raw_digest, names};
use serde::{Deserialize, Serialize};

use crate::{
    barrier::BarrierDeps,
    intents::{Discovered, discover_one},
    scanner::Scanned,
};

/// Intents alone: the session pins below `stage.session.` are no operations, and come and go.
const INTENTS: &str = "stage.*";
/// Heads, and no detail of a lifecycle.
const HEADS: &str = "lifecycle.*.*";
/// How many of the newest retirements a note has the heads of: one whose name was given again has another head by now.
const ENDS: usize = 8;
/// Most intents that are read one after the other beyond the note; with more, one scan of everything is cheaper.
const WALK: usize = 512;
/// Most operations that a note names as not over.
const NAMED: usize = 4096;
const VERSION: u32 = 2;

/// Where the host keeps the note. What cannot be read or written is no failure: the next boot looks at everything.
#[async_trait]
pub trait RememberPast: Send + Sync {
    /// The note, if there is one.
    async fn load(&self) -> Option<Vec<u8>>;

    /// Keeps this note in place of the last.
    async fn save(&self, note: Vec<u8>);
}

/// The note, closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Past {
    v: u32,
    space: String,
    /// When the stream of intents was created: one that was made anew counts from 1 again.
    created: String,
    /// How far the stream of heads had come.
    heads: Reach,
    /// The retirements whose heads are the newest, newest first. A stream that holds one of these heads holds every earlier
    /// one, too; one that was restored from an earlier backup does not hold it, however far it has come since.
    ends: Vec<End>,
    /// The last intent that was looked at; none when there was none yet.
    through: Option<Mark>,
    /// Those up to it that were not over.
    open: Vec<String>,
}

/// One message of the stream. A stream that was restored from an older backup has another at its revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    revision: u64,
    key: String,
    digest: String,
}

/// A retirement that was over, and the head that said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    op: String,
    head: Mark,
}

/// How far a stream has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reach {
    created: String,
    last: u64,
}

/// Both streams, as they were before anything of them was looked at.
pub(crate) struct Tails {
    intents: Tail,
    heads: Tail,
}

/// What was looked at of a stream's intents.
pub(crate) struct Looked {
    /// Those that no note vouches for.
    pub(crate) found: Vec<Discovered>,
    /// What a note of it would go by, if there is to be one.
    streams: Option<(String, Reach)>,
    /// Of what the note vouches for.
    ends: Vec<End>,
    through: Option<Mark>,
}

impl Mark {
    fn of(key: &str, revision: Revision, value: &[u8]) -> Self {
        Self { revision: revision.0, key: key.to_owned(), digest: raw_digest(value).as_str().to_owned() }
    }

    fn of_stored(seen: &Stored) -> Option<Self> {
        Some(Self::of(&seen.key, seen.revision, seen.value.as_deref()?))
    }
}

fn is_intent(key: &str) -> bool {
    key.strip_prefix("stage.").is_some_and(|tail| !tail.contains('.'))
}

impl Tails {
    pub(crate) async fn read(deps: &BarrierDeps) -> Result<Self, EpError> {
        deps.stores.auth_store().count_request();
        deps.stores.records_store().count_request();
        let (intents, heads) = futures::try_join!(deps.stores.auth().tail(), deps.stores.records().tail())?;
        Ok(Self { intents, heads })
    }

    fn streams(self) -> (String, Reach) {
        (self.intents.created, Reach { created: self.heads.created, last: self.heads.last.0 })
    }
}

impl Past {
    fn parse(bytes: &[u8], space: &Space) -> Option<Self> {
        let past: Self = serde_json::from_slice(bytes).ok()?;
        let bounded = past.open.len() <= NAMED && past.ends.len() <= ENDS;
        (past.v == VERSION && past.space == space.as_str() && bounded).then_some(past)
    }
}

impl End {
    /// The ends with the newest heads, newest first. Each is an operation, and the head that says that it is over.
    pub(crate) fn newest(mut ends: Vec<(OpId, String, Entry)>) -> Vec<Self> {
        ends.sort_unstable_by_key(|(.., head)| Reverse(head.revision));
        ends.truncate(ENDS);
        let end = |(op, key, head): (OpId, String, Entry)| Self {
            op: op.as_str().to_owned(),
            head: Mark::of(&key, head.revision, &head.value),
        };
        ends.into_iter().map(end).collect()
    }

    async fn stands(&self, records: &Bucket) -> Result<bool, EpError> {
        let seen = records.next_under(HEADS, Revision(self.head.revision)).await?;
        Ok(seen.as_ref().and_then(Mark::of_stored).as_ref() == Some(&self.head))
    }
}

/// From which on the stream of heads confirms these ends: all after the first whose head stands. `None` when none stands.
async fn confirmed(records: &Bucket, ends: &[End]) -> Result<Option<usize>, EpError> {
    for (nth, end) in ends.iter().enumerate() {
        if end.stands(records).await? {
            return Ok(Some(nth));
        }
    }
    Ok(ends.is_empty().then_some(0))
}

impl Looked {
    /// Everything, as a scan found it. Without the tails of the streams there will be no note.
    pub(crate) fn at_everything(rows: &[Scanned], found: Vec<Discovered>, tails: Option<Tails>) -> Self {
        let intents = rows.iter().filter(|row| is_intent(&row.key));
        let last = intents.max_by_key(|row| row.revision);
        let through = last.and_then(|row| Some(Mark::of(&row.key, row.revision, row.value.as_deref()?)));
        Self { found, streams: tails.map(Tails::streams), ends: Vec::new(), through }
    }

    /// The note to keep, once it is known which of the found are not over, and whose heads said of the others that they are;
    /// `None` when nothing confirms it later, or there is too much to name.
    pub(crate) fn note(&self, space: &Space, open: &[OpId], ended: &[End]) -> Option<Vec<u8>> {
        if open.len() > NAMED {
            return None;
        }
        let (created, heads) = self.streams.clone()?;
        let mut ends: Vec<_> = self.ends.iter().chain(ended).cloned().collect();
        ends.sort_by_key(|end| Reverse(end.head.revision));
        ends.truncate(ENDS);
        let past = Past {
            v: VERSION,
            space: space.as_str().to_owned(),
            created,
            heads,
            ends,
            through: self.through.clone(),
            open: open.iter().map(|op| op.as_str().to_owned()).collect(),
        };
        serde_json::to_vec(&past).ok()
    }
}

/// The intents that the note does not vouch for, or `None` when all have to be looked at: there is no note, the stream
/// does not confirm it, or too much came after it. Leader reads alone.
pub(crate) async fn look_since(deps: &BarrierDeps, note: Option<&[u8]>) -> Result<Option<Looked>, EpError> {
    let Some(mut past) = note.and_then(|note| Past::parse(note, deps.stores.space())) else {
        return Ok(None);
    };
    let auth = deps.stores.auth();
    let (created, heads) = Tails::read(deps).await?.streams();
    if created != past.created || heads.created != past.heads.created || heads.last < past.heads.last {
        return Ok(None);
    }
    if let Some(through) = &past.through {
        let seen = auth.next_under(INTENTS, Revision(through.revision)).await?;
        if seen.as_ref().and_then(Mark::of_stored).as_ref() != Some(through) {
            return Ok(None);
        }
    }
    let Some(stands) = confirmed(deps.stores.records(), &past.ends).await? else { return Ok(None) };
    let ends = past.ends.split_off(stands);
    let mut found = Vec::new();
    for op in past.open.iter().chain(past.ends.iter().map(|end| &end.op)) {
        let Ok(op) = OpId::parse(op) else { return Ok(None) };
        let key = names::stage_key(&op);
        let LeaderRead::Value(entry) = auth.leader_read(&key).await? else { return Ok(None) };
        found.extend(discover_one(&key, Some(&entry.value))?);
    }
    let mut through = past.through;
    for _ in 0..WALK {
        let next = Revision(through.as_ref().map_or(0, |mark| mark.revision) + 1);
        let Some(seen) = auth.next_under(INTENTS, next).await? else {
            return Ok(Some(Looked { found, streams: Some((created, heads)), ends, through }));
        };
        found.extend(discover_one(&seen.key, seen.value.as_deref())?);
        through = Some(Mark::of(&seen.key, seen.revision, seen.value.as_deref().unwrap_or_default()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, revision: u64) -> Scanned {
        Scanned { key: key.to_owned(), revision: Revision(revision), value: Some("{}".into()) }
    }

    fn tail() -> Tails {
        let tail = |last| Tail { created: "2026-01-02T03:04:05Z".to_owned(), last: Revision(last) };
        Tails { intents: tail(99), heads: tail(44) }
    }

    #[test]
    fn a_note_reads_back_and_marks_the_newest_intent() {
        let space = Space::parse("demo").unwrap();
        let op = OpId::parse(&"a".repeat(26)).unwrap();
        let rows = [row("stage.aa", 7), row("stage.bb", 9), row("stage.session.x", 12)];
        let looked = Looked::at_everything(&rows, Vec::new(), Some(tail()));
        let note = looked.note(&space, std::slice::from_ref(&op), &[]).unwrap();
        let past = Past::parse(&note, &space).unwrap();
        assert_eq!(past.open, [op.as_str()]);
        assert_eq!(past.through, Some(Mark::of("stage.bb", Revision(9), b"{}")));
        let empty = Looked::at_everything(&[], Vec::new(), Some(tail())).note(&space, &[], &[]).unwrap();
        assert_eq!(Past::parse(&empty, &space).unwrap().through, None);
    }

    #[test]
    fn no_note_is_kept_that_nothing_confirms_or_that_names_too_much() {
        let space = Space::parse("demo").unwrap();
        assert!(Looked::at_everything(&[], Vec::new(), None).note(&space, &[], &[]).is_none());
        let many = vec![OpId::parse(&"a".repeat(26)).unwrap(); NAMED + 1];
        assert!(Looked::at_everything(&[], Vec::new(), Some(tail())).note(&space, &many, &[]).is_none());
    }

    #[test]
    fn another_note_than_ones_own_is_none() {
        let space = Space::parse("demo").unwrap();
        let good = Looked::at_everything(&[], Vec::new(), Some(tail())).note(&space, &[], &[]).unwrap();
        let good = String::from_utf8(good).unwrap();
        assert!(Past::parse(good.as_bytes(), &space).is_some());
        assert!(Past::parse(good.as_bytes(), &Space::parse("other").unwrap()).is_none());
        for bad in [
            String::new(),
            "null".into(),
            "[]".into(),
            good.replace("\"v\":2", "\"v\":1"),
            good.replace("\"open\":[]", "\"open\":[1]"),
            good.replace('{', "{\"more\":1,"),
        ] {
            assert!(Past::parse(bad.as_bytes(), &space).is_none(), "{bad}");
        }
    }
}
