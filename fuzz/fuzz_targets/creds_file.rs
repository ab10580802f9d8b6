//! Creds text.
#![no_main]

use cotal_trust::creds;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(parsed) = creds::parse(text) {
        let again = creds::parse(&creds::format(&parsed)).unwrap();
        assert_eq!(again.jwt, parsed.jwt);
        assert_eq!(again.seed.public(), parsed.seed.public());
    }
});
