//! What the fuzz targets share: keys that never change, and templates.
//!
//! A fuzzer does not guess signatures and checksums. A template is bytes in which a mark, `$` and a letter, stands for
//! such a value; the fuzzer mutates what is around the marks, and the target signs the result where a signature is
//! due.

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::{Entropy, UnixSecs};
use ed25519_dalek::{Signer, SigningKey};

/// When every target runs.
pub const NOW: UnixSecs = UnixSecs(1_800_000_000);

/// More marks than this are left as they stand.
const MAX_MARKS: usize = 64;

/// The same bytes at every run; each call continues with other ones.
#[derive(Default)]
pub struct Counting(std::sync::atomic::AtomicU64);

impl Entropy for Counting {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let next = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // splitmix64: spread enough to make different keys.
            let mut word = next.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Replaces the marks of a template.
pub fn fill<'v>(template: &[u8], value: impl Fn(u8) -> Option<&'v str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(template.len());
    let (mut rest, mut marks) = (template, 0);
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte == b'$'
            && marks < MAX_MARKS
            && let [letter, after @ ..] = tail
            && let Some(value) = value(*letter)
        {
            out.extend_from_slice(value.as_bytes());
            rest = after;
            marks += 1;
        } else {
            out.push(*byte);
        }
    }
    out
}

/// Up to `N` parts of an input, split at newlines: raw newlines have no use inside JSON, and `\n` stays.
pub fn parts<const N: usize>(data: &[u8]) -> [Option<&[u8]>; N] {
    let mut split = data.splitn(N, |byte| *byte == b'\n');
    std::array::from_fn(|_| split.next())
}

/// A compact JWS of these header and payload bytes, whatever they are.
pub fn jws(header: &[u8], payload: &[u8], sign: impl FnOnce(&[u8]) -> [u8; 64]) -> String {
    let mut token = URL_SAFE_NO_PAD.encode(header);
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(payload, &mut token);
    let signature = sign(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    token
}

/// Three keys of JOSE that never change. Deriving one costs more than most inputs do.
pub fn signing_key(which: usize) -> &'static SigningKey {
    static KEYS: LazyLock<[SigningKey; 3]> =
        LazyLock::new(|| [7, 8, 9].map(|byte| SigningKey::from_bytes(&[byte; 32])));
    &KEYS[which]
}

/// Signs with it.
pub fn signer(key: &SigningKey) -> impl FnOnce(&[u8]) -> [u8; 64] {
    |signed| key.sign(signed).to_bytes()
}

/// The JSON of bytes, as every reader of the product has it.
pub fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).expect("what was accepted is JSON")
}
