//! A line of a log that nobody vouches for: what is read of it is short printable text, and reads the same written anew.
#![no_main]

use std::time::Duration;

use cotal_callout::line::{Answered, Line, Note, Outcome, Said};
use cotal_wire::Space;
use libfuzzer_sys::fuzz_target;

/// Longest text of a line.
const LONGEST: usize = 1_000;

fuzz_target!(|data: &[u8]| {
    let line = String::from_utf8_lossy(data);
    let Some(said) = Said::parse(&line) else { return };
    is_plain(said.space());
    // What no space is called is read all the same, and written by nobody.
    let Ok(space) = Space::parse(said.space()) else { return };
    match &said {
        Said::Note { what, .. } => {
            is_plain(what);
            let anew = Note { warns: true, space: &space, what }.to_string();
            assert_eq!(Said::parse(&anew).as_ref(), Some(&said));
        }
        Said::Answered(answered) => {
            let Answered { warns, outcome, user, cid, principal, times, total, .. } = &**answered;
            if let Outcome::Denied { reason } = outcome {
                is_plain(reason);
            }
            let anew = Line {
                outcome: outcome.clone(),
                space: &space,
                user,
                cid: *cid,
                principal: principal.as_ref().map(|(owner, actor)| (owner, actor)),
                times: *times,
                total: *total,
                slow: Duration::MAX,
            };
            let Some(Said::Answered(again)) = Said::parse(&anew.to_string()) else {
                panic!("what was written is no line: {anew}");
            };
            // Whether it warns follows from a bound that a line does not say.
            assert_eq!(*again, Answered { warns: again.warns, ..(**answered).clone() }, "{warns}");
        }
    }
});

fn is_plain(text: &str) {
    assert!(text.len() <= LONGEST && text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
}
