//! Looks for a host's secrets in bytes: of files, and of a process's memory.

use std::{
    collections::BTreeSet,
    io::{Read as _, Seek as _, SeekFrom},
};

use cotal_testkit::disk::{files, is_seed, seeds_in};
use serde_json::Value;

use crate::house::Host;

/// A secret: its name, and the bytes that give it away.
pub(crate) type Needle = (String, Vec<u8>);

/// Every seed and private key in the host's files, as text and as the bytes that a process would hold; the sentinel's is
/// everybody's.
pub(crate) fn secrets_of(host: &Host) -> Vec<Needle> {
    let mut texts = BTreeSet::new();
    for bytes in files(&host.space.root.cotal_dir()).unwrap().values() {
        texts.extend(seeds_in(bytes));
        if let Ok(document) = serde_json::from_slice::<Value>(bytes) {
            collect(&document, &mut texts);
        }
    }
    texts.extend([
        host.space.material.data_account.signing.expose().to_string(),
        host.space.account.data_account().signing.expose().to_string(),
    ]);
    let sentinel = &host.space.material.callout.sentinel_creds;
    texts.retain(|text| !sentinel.contains(text.as_str()));
    texts.iter().flat_map(|text| needles(text)).collect()
}

fn collect(document: &Value, texts: &mut BTreeSet<String>) {
    const MEMBERS: [&str; 4] = ["seed", "signingSeed", "d", "secretB64"];
    match document {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(text) if MEMBERS.contains(&name.as_str()) => drop(texts.insert(text.to_owned())),
                    _ => collect(value, texts),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        _ => {}
    }
}

/// A secret's text and, of an nkey seed, its 32 bytes.
pub(crate) fn needles(text: &str) -> Vec<Needle> {
    let name = format!("{}… of {} characters", &text[..4], text.len());
    let mut needles = vec![(name.clone(), text.as_bytes().to_vec())];
    if is_seed(text) {
        needles.push((name, raw(text)));
    }
    needles
}

/// The 32 bytes of a seed, by hand: base32 without padding, two bytes of roles in front, two of checksum behind.
fn raw(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut bits, mut have, mut out) = (0u32, 0, Vec::new());
    for byte in text.bytes() {
        bits = (bits << 5) | u32::try_from(ALPHABET.iter().position(|b| *b == byte).unwrap()).unwrap();
        have += 5;
        if have >= 8 {
            have -= 8;
            out.push(u8::try_from((bits >> have) & 0xff).unwrap());
        }
    }
    out[2..34].to_vec()
}

/// Which needles are in these bytes.
pub(crate) fn found_in<'n>(bytes: &[u8], needles: &'n [Needle]) -> Vec<&'n str> {
    // Most places are passed over by their first two bytes.
    let mut starts = vec![false; 1 << 16];
    for (_, needle) in needles {
        starts[usize::from(u16::from_le_bytes([needle[0], needle[1]]))] = true;
    }
    let mut found = Vec::new();
    for (at, pair) in bytes.windows(2).enumerate() {
        if starts[usize::from(u16::from_le_bytes([pair[0], pair[1]]))] {
            let here = needles.iter().filter(|(_, needle)| bytes[at..].starts_with(needle));
            found.extend(here.map(|(name, _)| name.as_str()));
        }
    }
    found
}

/// Everything that a process can write to: its heap, its stacks, its data.
pub(crate) fn memory_of(pid: u32) -> Vec<Vec<u8>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut regions = Vec::new();
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")))
    {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (from, to) = (address(from), address(to));
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // A region may go, or never have been touched, between the list and the look.
        if memory.seek(SeekFrom::Start(from)).is_ok() && memory.read_exact(&mut bytes).is_ok() {
            regions.push(bytes);
        }
    }
    regions
}
