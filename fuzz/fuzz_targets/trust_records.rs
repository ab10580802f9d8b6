//! The documents of `.cotal/auth`: whatever they hold, reading them refuses or round-trips, and never panics.
#![no_main]

use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    callout_account::CalloutAuth,
    issuer::IssuerKeySet,
    jwt::decode_verified,
    owner::OwnerSecret,
};
use cotal_wire::Space;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let space = Space::parse("main").unwrap();
    let _ = BrokerTrust::from_document(text);
    let _ = SpaceAccount::from_document(text, &space);
    let _ = CalloutAuth::from_document(text);
    if let Ok(set) = IssuerKeySet::from_document(text, &space) {
        let again = IssuerKeySet::from_document(&set.to_document(), &space).unwrap();
        assert_eq!(again.jwks(), set.jwks());
    }
    if let Ok(secret) = OwnerSecret::from_document(text) {
        assert!(OwnerSecret::from_document(&secret.to_document()).is_ok());
    }
    let _ = decode_verified(text);
});
