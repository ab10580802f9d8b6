//! Canonical JSON: canonical text is a fixed point, and its digest is a function of the value.
#![no_main]

use cotal_wire::canonical;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(value) = canonical::parse(data) {
        if let Ok(text) = canonical::to_string(&value) {
            let again = canonical::parse(text.as_bytes()).expect("canonical text parses");
            assert_eq!(canonical::to_string(&again).expect("and prints"), text);
        }
    }
});
