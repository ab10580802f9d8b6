//! Channel patterns and cover: a covered pattern never matches what its cap does not.
#![no_main]

use cotal_wire::channel::{ChannelPattern, collapse_overlaps, pattern_covers, subject_matches};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.splitn(3, '\n');
    let (cap, pattern, channel) =
        (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let (covers, matched) = (pattern_covers(cap, pattern), subject_matches(pattern, channel));
    let _ = collapse_overlaps(&[cap, pattern, channel]);
    if ChannelPattern::parse(cap).is_ok() && ChannelPattern::parse(pattern).is_ok() && covers && matched {
        let concrete = !channel.is_empty() && channel.split('.').all(|s| !s.is_empty() && s != "*" && s != ">");
        assert!(!concrete || subject_matches(cap, channel), "{cap} covers {pattern} and does not match {channel}");
    }
});
