//! What a broker's sealed request holds once it is opened, and the seal itself.
//!
//! Input: claims. Marks: `$s` the asking server, `$t` another one, `$u` a user, `$x` the server's curve key.
#![no_main]

use std::sync::LazyLock;

use cotal_callout::intake::{self, Dropped};
use cotal_fuzz::{Counting, fill, jws};
use cotal_trust::{
    jwt::{decode_callout_request, decode_verified, encode_callout_request},
    nkey::Seed,
    xkey::{self, Sealer},
};
use cotal_wire::{Curve, Server, UnixSecs, User};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const HEADER: &[u8] = br#"{"typ":"JWT","alg":"ed25519-nkey"}"#;

struct Parties {
    server: Seed<Server>,
    stranger: Seed<Server>,
    user: Seed<User>,
    xkey: Seed<Curve>,
    /// The server's side of the seal.
    seals: Sealer,
    /// Ours.
    opens: Sealer,
    entropy: Counting,
}

static PARTIES: LazyLock<Parties> = LazyLock::new(|| {
    let entropy = Counting::default();
    let (ours, xkey) = (Seed::<Curve>::generate(&entropy), Seed::<Curve>::generate(&entropy));
    let seals = Sealer::new(xkey.clone());
    let opens = Sealer::new(ours.clone());
    // Each side remembers the other once something has opened.
    let hello = xkey::seal(&ours, xkey.public(), b"", &entropy).unwrap();
    seals.open(ours.public(), &hello).unwrap();
    Parties {
        server: Seed::generate(&entropy),
        stranger: Seed::generate(&entropy),
        user: Seed::generate(&entropy),
        xkey,
        seals,
        opens,
        entropy,
    }
});

fn marks(mark: u8) -> Option<&'static str> {
    let parties = &*PARTIES;
    match mark {
        b's' => Some(parties.server.public().as_str()),
        b't' => Some(parties.stranger.public().as_str()),
        b'u' => Some(parties.user.public().as_str()),
        b'x' => Some(parties.xkey.public().as_str()),
        _ => None,
    }
}

fuzz_target!(|data: &[u8]| {
    let parties = &*PARTIES;
    let key = parties.xkey.public();
    assert!(decode_callout_request(data).is_err(), "nobody signed these bytes");
    assert!(parties.opens.open(key, data).is_err(), "what nobody sealed was opened");

    // The same bytes as the claims of a request that the server signed and sealed.
    let claims = fill(data, marks);
    let token = jws(HEADER, &claims, |signed| parties.server.sign(signed));
    let request = decode_callout_request(token.as_bytes());
    let sealed = parties.seals.seal(parties.opens.public(), token.as_bytes(), &parties.entropy).unwrap();
    let open = |sealed: &[u8]| intake::open(&parties.opens, Some(key.as_str()), sealed, None);
    let opened = open(&sealed);
    let host = intake::peek_host(&parties.opens, Some(key.as_str()), &sealed);

    match (&request, &opened) {
        (Err(reason), Err(Dropped::NotSigned(why))) => assert_eq!(reason.0, *why),
        (Err(_), _) => panic!("an unreadable request was opened"),
        (Ok(request), opened) => {
            // A reader skips what it does not know; a number beyond a double, say, is no value to look into.
            let Ok(said) = serde_json::from_slice::<Value>(&claims) else { return };
            let text = |pointer: &str| said.pointer(pointer).and_then(|v| v.as_str()).unwrap_or_default();
            assert_eq!(decode_verified(&token).expect("it is signed"), said);
            assert!(said.is_object() && said["nats"].is_object());
            for member in ["server_id", "client_info", "connect_opts"] {
                assert!(said["nats"].get(member).is_none_or(|v| v.is_object()), "{member} is no object");
            }
            assert_eq!(said["nats"]["type"], "authorization_request");
            assert_eq!(request.issuer, parties.server.public().as_str(), "signed by somebody else");
            assert_eq!(request.server_id, text("/nats/server_id/id"));
            assert_eq!(request.server_xkey, text("/nats/server_id/xkey"));
            assert_eq!(request.user_nkey, text("/nats/user_nkey"));
            assert_eq!(request.auth_token.as_str(), text("/nats/connect_opts/auth_token"));
            assert_eq!(request.name, text("/nats/connect_opts/name"));
            let bearer = request.auth_token.as_str();
            let shown = [&request.server_id, &request.user_nkey, &request.client_host];
            if bearer.len() > 16 && !shown.iter().any(|shown| shown.contains(bearer)) {
                assert!(!format!("{request:?}").contains(bearer), "Debug shows a bearer");
            }

            let again = encode_callout_request(request, &parties.server, UnixSecs(1));
            let again = decode_callout_request(again.as_bytes()).expect("what was encoded decodes");
            assert_eq!((&again.issuer, &again.server_id), (&request.issuer, &request.server_id));
            assert_eq!((&again.user_nkey, &again.name), (&request.user_nkey, &request.name));
            assert_eq!((again.client_id, &again.auth_token), (request.client_id, &request.auth_token));

            if let Ok(opened) = opened {
                assert_eq!(opened.server.as_str(), request.issuer, "answered to a server that did not sign");
                assert_eq!(opened.server.as_str(), request.server_id);
                assert_eq!(opened.server_xkey.as_str(), request.server_xkey, "sealed to another key");
                assert_eq!(opened.server_xkey, *key);
                assert_eq!(opened.user.as_str(), request.user_nkey);
                assert_eq!((opened.cid, &opened.host), (request.client_id, &request.client_host));
                assert_eq!(opened.bearer, request.auth_token);
                let stated = said.pointer("/nats/client_info/host").map(|_| &opened.host);
                assert_eq!(host.as_ref(), stated, "queued by another host than it is charged to");
                let listed = [parties.stranger.public().to_string()];
                let unlisted = intake::open(&parties.opens, Some(key.as_str()), &sealed, Some(&listed));
                assert_eq!(unlisted.err(), Some(Dropped::UnexpectedServer));
            } else {
                assert!(!matches!(opened, Err(Dropped::DoesNotOpen | Dropped::NotSigned(_))));
            }
        }
    }

    // One bit of the seal, and nothing opens; another server's signature, and nothing is believed.
    let mut broken = sealed;
    let at = data.len() % broken.len();
    broken[at] ^= 1;
    assert_eq!(open(&broken).err(), Some(Dropped::DoesNotOpen));
    let foreign = jws(HEADER, &claims, |signed| parties.stranger.sign(signed));
    if let Ok(request) = decode_callout_request(foreign.as_bytes()) {
        assert_eq!(request.issuer, parties.stranger.public().as_str());
    }
});
