//! What a broker's sealed request holds once it is opened, and the seal itself.
#![no_main]

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::{jwt::decode_callout_request, nkey::Seed, system::SystemEntropy, xkey};
use cotal_wire::{Curve, Server};
use libfuzzer_sys::fuzz_target;

static SERVER: LazyLock<Seed<Server>> = LazyLock::new(|| Seed::generate(&SystemEntropy));
static CURVES: LazyLock<(Seed<Curve>, Seed<Curve>)> =
    LazyLock::new(|| (Seed::generate(&SystemEntropy), Seed::generate(&SystemEntropy)));

fuzz_target!(|data: &[u8]| {
    let _ = decode_callout_request(data);
    let (ours, theirs) = &*CURVES;
    assert!(xkey::open(ours, theirs.public(), data).is_err(), "what nobody sealed was opened");
    // The same bytes as the claims of a well-signed request.
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(data));
    let signature = URL_SAFE_NO_PAD.encode(SERVER.sign(signed.as_bytes()));
    let _ = decode_callout_request(format!("{signed}.{signature}").as_bytes());
});
