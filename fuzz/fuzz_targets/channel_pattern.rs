//! Channel patterns: grammar, match, cover and collapse, each against a second opinion.
#![no_main]

use std::collections::HashSet;

use cotal_wire::channel::{
    Channel, ChannelPattern, canonical_mentions, channel_in_allow, collapse_overlaps, pattern_covers,
    pattern_in_allow, subject_matches,
};
use libfuzzer_sys::fuzz_target;

/// A segment that no input of a few thousand bytes will hold by chance.
const FRESH: &str = "fresh-segment-of-the-fuzz-target-7f3a";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.splitn(3, '\n');
    let [cap, pattern, channel] = std::array::from_fn(|_| lines.next().unwrap_or(""));

    for entry in [cap, pattern, channel] {
        let parsed = ChannelPattern::parse(entry);
        assert_eq!(parsed.is_ok(), is_pattern(entry), "{entry:?}");
        let concrete = Channel::parse(entry);
        assert_eq!(concrete.is_ok(), is_pattern(entry) && !entry.contains(['*', '>']), "{entry:?}");
        if let Ok(parsed) = parsed {
            assert_eq!(parsed.as_str(), entry, "parsing rewrote a pattern");
            assert_eq!(parsed.as_channel(), concrete.ok());
        }
    }
    assert_eq!(subject_matches(pattern, channel), matches(&split(pattern), &split(channel)));
    assert_eq!(
        channel_in_allow(&[cap, pattern], channel),
        subject_matches(cap, channel) || subject_matches(pattern, channel)
    );

    // Covered means: whatever the pattern matches, the cap matches.
    let covers = pattern_covers(cap, pattern);
    assert_eq!(pattern_in_allow(&[cap], pattern), covers);
    if is_pattern(cap) && is_pattern(pattern) && !text.contains(FRESH) {
        // These two channels decide it: fresh segments, and a tail shorter or longer than anything that the cap names.
        let long = [FRESH].repeat(split(cap).len() + 1).join(".");
        let is_capped = |rest: &str| {
            let witness: Vec<&str> = split(pattern)
                .into_iter()
                .map(|segment| match segment {
                    "*" => FRESH,
                    ">" => rest,
                    literal => literal,
                })
                .collect();
            let witness = witness.join(".");
            assert!(subject_matches(pattern, &witness));
            subject_matches(cap, &witness)
        };
        let decided = is_capped(FRESH) && is_capped(&long);
        assert_eq!(covers, decided, "does {cap:?} cover {pattern:?}");
        if covers && subject_matches(pattern, channel) {
            assert!(subject_matches(cap, channel), "{channel:?} is in {pattern:?} and not in {cap:?}");
        }
    }

    let all = [cap, pattern, channel, cap];
    let kept = collapse_overlaps(&all);
    for one in &all {
        assert!(kept.iter().any(|other| other == one || pattern_covers(other, one)), "{one:?} was lost");
    }
    for (at, one) in kept.iter().enumerate() {
        assert!(all.contains(&one.as_str()));
        let others = kept.iter().enumerate().filter(|(other, _)| *other != at);
        assert!(others.into_iter().all(|(_, other)| other != one && !pattern_covers(other, one)));
    }

    let mentions = canonical_mentions(&all);
    assert_eq!(mentions.iter().collect::<HashSet<_>>().len(), mentions.len());
    assert_eq!(canonical_mentions(&mentions), mentions);
});

fn split(text: &str) -> Vec<&str> {
    text.split('.').collect()
}

fn is_pattern(text: &str) -> bool {
    let segments = split(text);
    text.len() <= 4096
        && segments.iter().enumerate().all(|(at, segment)| match *segment {
            ">" => at + 1 == segments.len(),
            "*" => true,
            "" => false,
            literal => literal.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'),
        })
}

fn matches(pattern: &[&str], subject: &[&str]) -> bool {
    match (pattern, subject) {
        ([">"], [_, ..]) | ([], []) => true,
        ([">", ..], _) => false,
        ([p, pattern @ ..], [s, subject @ ..]) => (*p == "*" || p == s) && matches(pattern, subject),
        _ => false,
    }
}
