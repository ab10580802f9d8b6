//! What the broker did not send is dropped: no answer, one log line (contract 04 §8.4, rules 1-6).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_trust::{
    Zeroizing,
    jwt::{self, CalloutRequest},
    xkey::Sealer,
};
use cotal_wire::{Curve, Nkey, NkeyRole, Object, Server, User, object};
use serde::Deserialize;

/// The header that carries the server's curve key (contract 04 §8.3).
pub const SERVER_XKEY_HEADER: &str = "Nats-Server-Xkey";

/// A request that the broker sent: opened, signed by the server that it names.
pub struct Opened {
    /// The user key that the broker generated for this connect.
    pub user: Nkey<User>,
    /// The server that asks.
    pub server: Nkey<Server>,
    /// The key that its answer is sealed to.
    pub server_xkey: Nkey<Curve>,
    /// The broker's client id.
    pub cid: u64,
    /// The client's host, as the broker sees it.
    pub host: String,
    /// The bearer, empty when the client sent none. Not checked.
    pub bearer: Zeroizing<String>,
    /// The connect name. Not checked.
    pub name: String,
}

/// Why a request gets no answer. The order of the variants is the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Rule 1.
    #[error("dropped a request without {SERVER_XKEY_HEADER}: it is not sealed; give the account an xkey")]
    Unsealed,
    /// Rule 2, the seal.
    #[error("dropped a request that does not open with this space's xkey")]
    DoesNotOpen,
    /// Rule 2, the JWT.
    #[error("dropped a request that is not signed by a server: {0}")]
    NotSigned(&'static str),
    /// Rule 3.
    #[error("dropped a request without user_nkey or server_id")]
    Nameless,
    /// Rule 4.
    #[error("dropped a request whose issuer is not the server that it names")]
    ForeignIssuer,
    /// Rule 5.
    #[error("dropped a request of a server that is not in the list of expected ones")]
    UnexpectedServer,
    /// Rule 6.
    #[error("dropped a request that is sealed with a key other than its server's")]
    ForeignSeal,
    /// There is nowhere to answer to.
    #[error("dropped a request without a reply subject")]
    NoReply,
}

/// Opens a request and applies rules 1 to 6, in order.
pub fn open(
    sealer: &Sealer,
    header: Option<&str>,
    payload: &[u8],
    expected: Option<&[String]>,
) -> Result<Opened, Dropped> {
    let header = header.filter(|key| !key.is_empty()).ok_or(Dropped::Unsealed)?;
    let sender = Nkey::<Curve>::parse(header).map_err(|_| Dropped::DoesNotOpen)?;
    let plain = sealer.open(&sender, payload).map_err(|_| Dropped::DoesNotOpen)?;
    let request = jwt::decode_callout_request(&plain).map_err(|error| Dropped::NotSigned(error.0))?;
    provenance(request, sender, expected)
}

/// The client's host as a sealed request states it, before any signature is checked: enough to choose its queue by,
/// and for nothing else. A small part of the work of [`open`].
pub fn peek_host(sealer: &Sealer, header: Option<&str>, payload: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Claims {
        #[serde(deserialize_with = "object::read")]
        nats: Nats,
    }
    #[derive(Deserialize)]
    struct Nats {
        #[serde(deserialize_with = "object::read")]
        client_info: ClientInfo,
    }
    #[derive(Deserialize)]
    struct ClientInfo {
        host: String,
    }
    let sender = Nkey::<Curve>::parse(header?).ok()?;
    let plain = sealer.open(&sender, payload).ok()?;
    let claims = plain.split(|byte| *byte == b'.').nth(1)?;
    // It repeats the bearer.
    let claims = Zeroizing::new(URL_SAFE_NO_PAD.decode(claims).ok()?);
    let Object(claims): Object<Claims> = serde_json::from_slice(&claims).ok()?;
    Some(claims.nats.client_info.host)
}

/// Rules 3 to 6 over a decoded request that was sealed with `sender`.
fn provenance(
    request: CalloutRequest,
    sender: Nkey<Curve>,
    expected: Option<&[String]>,
) -> Result<Opened, Dropped> {
    if request.user_nkey.is_empty() || request.server_id.is_empty() {
        return Err(Dropped::Nameless);
    }
    // A user key that is none could be named in no answer.
    let user = Nkey::<User>::parse(&request.user_nkey).map_err(|_| Dropped::Nameless)?;
    if request.issuer != request.server_id || !request.server_id.starts_with(Server::PREFIX) {
        return Err(Dropped::ForeignIssuer);
    }
    let server = Nkey::<Server>::parse(&request.server_id).map_err(|_| Dropped::ForeignIssuer)?;
    if expected.is_some_and(|expected| !expected.contains(&request.server_id)) {
        return Err(Dropped::UnexpectedServer);
    }
    if request.server_xkey != sender.as_str() {
        return Err(Dropped::ForeignSeal);
    }
    Ok(Opened {
        user,
        server,
        server_xkey: sender,
        cid: request.client_id,
        host: request.client_host,
        bearer: request.auth_token,
        name: request.name,
    })
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy, xkey};
    use cotal_wire::UnixSecs;
    use proptest::prelude::*;

    use super::*;

    struct Asker {
        seed: Seed<Server>,
        xkey: Seed<Curve>,
        ours: Seed<Curve>,
    }

    fn server() -> Asker {
        Asker {
            seed: Seed::generate(&SystemEntropy),
            xkey: Seed::generate(&SystemEntropy),
            ours: Seed::generate(&SystemEntropy),
        }
    }

    fn request(server: &Asker) -> CalloutRequest {
        CalloutRequest {
            issuer: String::new(),
            server_id: server.seed.public().to_string(),
            server_xkey: server.xkey.public().to_string(),
            user_nkey: Seed::<User>::generate(&SystemEntropy).public().to_string(),
            client_host: "127.0.0.1".to_owned(),
            client_id: 7,
            auth_token: Zeroizing::new("bearer".to_owned()),
            name: "nonce_nonce".to_owned(),
        }
    }

    fn ask(
        server: &Asker,
        signer: &Seed<Server>,
        request: &CalloutRequest,
        header: Option<&str>,
        expected: Option<&[String]>,
    ) -> Result<Opened, Dropped> {
        let token = jwt::encode_callout_request(request, signer, UnixSecs(1_700_000_000));
        let sealed =
            xkey::seal(&server.xkey, server.ours.public(), token.as_bytes(), &SystemEntropy).unwrap();
        open(&Sealer::new(server.ours.clone()), header, &sealed, expected)
    }

    fn header(server: &Asker) -> String {
        server.xkey.public().to_string()
    }

    #[test]
    fn what_the_broker_sent_is_opened() {
        let server = server();
        let opened = ask(&server, &server.seed, &request(&server), Some(&header(&server)), None).unwrap();
        assert_eq!((opened.cid, opened.host.as_str(), opened.bearer.as_str()), (7, "127.0.0.1", "bearer"));
        assert_eq!(&opened.server, server.seed.public());
        assert_eq!(&opened.server_xkey, server.xkey.public());
    }

    #[test]
    fn the_host_is_seen_before_any_signature_is_checked() {
        let server = server();
        let mut token = jwt::encode_callout_request(&request(&server), &server.seed, UnixSecs(1));
        token.truncate(token.rfind('.').unwrap());
        token.push_str(".AAAA");
        let seal = |plain: &str| {
            xkey::seal(&server.xkey, server.ours.public(), plain.as_bytes(), &SystemEntropy).unwrap()
        };
        let (sealer, key) = (Sealer::new(server.ours.clone()), header(&server));
        let sealed = seal(&token);
        assert_eq!(peek_host(&sealer, Some(&key), &sealed).as_deref(), Some("127.0.0.1"));
        assert!(open(&sealer, Some(&key), &sealed, None).is_err());
        assert_eq!(peek_host(&sealer, None, &sealed), None);
        // The last one's claims are arrays of the members in order.
        let arrays = format!("e30.{}.e30", URL_SAFE_NO_PAD.encode(r#"[[["127.0.0.1"]]]"#));
        for nothing in ["", "a", "a.b.c", "..", "e30.e30.e30", &arrays] {
            assert_eq!(peek_host(&sealer, Some(&key), &seal(nothing)), None, "{nothing}");
        }
    }

    #[test]
    fn each_rule_drops_and_the_earlier_one_is_named() {
        let server = server();
        let other = Seed::<Server>::generate(&SystemEntropy);
        let foreign_xkey = Seed::<Curve>::generate(&SystemEntropy);
        let listed = [server.seed.public().to_string()];
        let stranger = ["NOBODY".to_owned()];
        let key = header(&server);

        // Each entry breaks its own rule and every later one.
        let everything_wrong = || CalloutRequest {
            user_nkey: String::new(),
            server_id: "not a server".to_owned(),
            server_xkey: foreign_xkey.public().to_string(),
            ..request(&server)
        };
        let drop = |signer: &Seed<Server>, request: &CalloutRequest, header, expected| {
            ask(&server, signer, request, header, expected).err()
        };
        assert_eq!(drop(&other, &everything_wrong(), None, Some(&stranger)), Some(Dropped::Unsealed));
        assert_eq!(drop(&other, &everything_wrong(), Some(""), Some(&stranger)), Some(Dropped::Unsealed));
        assert_eq!(drop(&other, &everything_wrong(), Some("X"), Some(&stranger)), Some(Dropped::DoesNotOpen));
        let foreign = foreign_xkey.public().to_string();
        assert_eq!(
            drop(&other, &everything_wrong(), Some(&foreign), Some(&stranger)),
            Some(Dropped::DoesNotOpen)
        );
        assert_eq!(drop(&other, &everything_wrong(), Some(&key), Some(&stranger)), Some(Dropped::Nameless));
        let no_server = CalloutRequest { server_id: String::new(), ..request(&server) };
        assert_eq!(drop(&other, &no_server, Some(&key), Some(&stranger)), Some(Dropped::Nameless));
        let not_a_server = CalloutRequest { user_nkey: request(&server).user_nkey, ..everything_wrong() };
        assert_eq!(drop(&other, &not_a_server, Some(&key), Some(&stranger)), Some(Dropped::ForeignIssuer));
        let wrong_seal =
            CalloutRequest { server_xkey: foreign_xkey.public().to_string(), ..request(&server) };
        assert_eq!(drop(&other, &wrong_seal, Some(&key), Some(&stranger)), Some(Dropped::ForeignIssuer));
        assert_eq!(
            drop(&server.seed, &wrong_seal, Some(&key), Some(&stranger)),
            Some(Dropped::UnexpectedServer)
        );
        assert_eq!(drop(&server.seed, &wrong_seal, Some(&key), Some(&listed)), Some(Dropped::ForeignSeal));
        assert_eq!(drop(&server.seed, &request(&server), Some(&key), Some(&listed)), None);
    }

    #[test]
    fn a_token_that_does_not_verify_is_dropped_at_the_second_rule() {
        let server = server();
        let mut token = jwt::encode_callout_request(&request(&server), &server.seed, UnixSecs(1));
        let last = token.pop().unwrap();
        token.push(if last == 'A' { 'Q' } else { 'A' });
        let sealer = Sealer::new(server.ours.clone());
        for plain in [token.as_bytes(), b"", b"a.b.c", b"\xff\xfe"] {
            let sealed = xkey::seal(&server.xkey, server.ours.public(), plain, &SystemEntropy).unwrap();
            let dropped = open(&sealer, Some(&header(&server)), &sealed, None).err();
            assert!(matches!(dropped, Some(Dropped::NotSigned(_))), "{dropped:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_open_by_chance_and_none_panic(
            header in proptest::option::of("\\PC{0,60}|X[A-Z2-7]{55}"), payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let ours = Seed::<Curve>::generate(&SystemEntropy);
            let sealer = Sealer::new(ours);
            prop_assert_eq!(peek_host(&sealer, header.as_deref(), &payload), None);
            prop_assert!(open(&sealer, header.as_deref(), &payload, None).is_err());
        }
    }
}
