//! The durable memberships of one incarnation, listed from keys (contract 01 §4.3).

use std::collections::BTreeSet;

use cotal_broker::kv::{Bucket, LeaderRead};
use cotal_wire::{EpError, LifecycleUid, Principal, names::lifecycle_subject_key};
use futures::{StreamExt, TryStreamExt, stream};

/// Reads on their way at once.
const READS_AT_ONCE: usize = 16;

/// The channels whose rows name exactly this incarnation, sorted. A row whose value cannot be read counts: its key
/// says whose it is. One that was deleted does not, though its key is still listed.
pub(crate) async fn channels(
    members: &Bucket,
    principal: &Principal,
    uid: &LifecycleUid,
) -> Result<Vec<String>, EpError> {
    let tail = lifecycle_subject_key(principal, uid);
    let rows = members.keys(">").await?.into_iter().filter_map(|key| {
        let channel = channel_of(&key, &tail)?.to_owned();
        Some((key, channel))
    });
    let rows: Vec<(String, String)> = rows.collect();
    let found: BTreeSet<String> = stream::iter(rows)
        .map(|(key, channel)| async move {
            let there = matches!(members.leader_read(&key).await?, LeaderRead::Value(_));
            Ok::<_, EpError>(there.then_some(channel))
        })
        .buffer_unordered(READS_AT_ONCE)
        .try_filter_map(|channel| async move { Ok(channel) })
        .try_collect()
        .await?;
    Ok(found.into_iter().collect())
}

/// `<channel>/<owner>.<actor>.<uid>`: the first slash ends the channel.
fn channel_of<'a>(key: &'a str, tail: &str) -> Option<&'a str> {
    let (channel, of) = key.split_once('/')?;
    (!channel.is_empty() && of == tail).then_some(channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_channel_and_exactly_one_incarnation() {
        let uid = "u".repeat(26);
        let tail = format!("local.a.{uid}");
        for (key, channel) in [
            (format!("general/{tail}"), Some("general")),
            (format!("team.backend/{tail}"), Some("team.backend")),
            (format!("/{tail}"), None),
            (tail.clone(), None),
            (format!("general/{tail}x"), None),
            (format!("general/x{tail}"), None),
            (format!("general/b/{tail}"), None),
            (format!("general/local.ab.{uid}"), None),
            (format!("general/local.a.{}", "v".repeat(26)), None),
        ] {
            assert_eq!(channel_of(&key, &tail), channel, "{key}");
        }
    }
}
