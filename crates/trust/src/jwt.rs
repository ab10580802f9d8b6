//! NATS JWTs: operator, account, user, authorization request and response (contract 01 §3.2, 04 §8).
//!
//! Members stand in the contract's order. The claims are serialised once; `jti` is the digest of that text and is
//! appended to it.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use cotal_wire::{
    Account, Curve, Nkey, NkeyRole, Object, Operator, Permissions, Principal, Rules, Server, UnixSecs, User,
    object,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::nkey::{self, Seed, SigningRole};

/// A JWT that is malformed or whose signature does not verify; never echoes content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JwtError(pub &'static str);

const MALFORMED: JwtError = JwtError("the NATS JWT is malformed");
const WRONG_ALGORITHM: JwtError = JwtError("the NATS JWT is not signed with ed25519-nkey");
const BAD_ISSUER: JwtError = JwtError("the NATS JWT names no issuer that can sign it");
const BAD_SIGNATURE: JwtError = JwtError("the NATS JWT's signature does not verify");
const NOT_A_REQUEST: JwtError = JwtError("the NATS JWT is not an authorization request");

/// Longest token that is read: what the broker takes on one control line.
const MAX_TOKEN_LEN: usize = 1 << 17;

const ALGORITHM: &str = "ed25519-nkey";
const AUDIENCE: &str = "NATS";
const REQUEST_AUDIENCE: &str = "nats-authorization-request";
const TYPE_OPERATOR: &str = "operator";
const TYPE_ACCOUNT: &str = "account";
const TYPE_USER: &str = "user";
const TYPE_REQUEST: &str = "authorization_request";
const TYPE_RESPONSE: &str = "authorization_response";
const CLAIMS_VERSION: u8 = 2;
/// base64url of `{"typ":"JWT","alg":"ed25519-nkey"}`.
const ENCODED_HEADER: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ";
const UNLIMITED: i8 = -1;

/// What a user JWT says.
#[derive(Debug, Clone)]
pub struct UserClaims {
    /// JWT `name`.
    pub name: String,
    /// The user.
    pub subject: Nkey<User>,
    /// The account that the signing key stands for.
    pub issuer_account: Nkey<Account>,
    /// `pub` and `sub`.
    pub permissions: Permissions,
    /// `tags`; left out when empty.
    pub tags: Vec<String>,
    /// `exp`; unbounded when absent.
    pub exp: Option<UnixSecs>,
}

/// What an account JWT says beyond the fixed limits.
#[derive(Debug, Clone)]
pub struct AccountClaims {
    /// JWT `name`.
    pub name: String,
    /// The account.
    pub subject: Nkey<Account>,
    /// Plain signing keys; left out when empty.
    pub signing_keys: Vec<Nkey<Account>>,
    /// Whether JetStream limits are -1 (data account) or 0.
    pub jetstream: bool,
    /// The callout arm of an AUTH account.
    pub authorization: Option<CalloutAuthorization>,
}

/// `nats.authorization` of a callout account (contract 04 §8.1).
#[derive(Debug, Clone, Serialize)]
pub struct CalloutAuthorization {
    /// The users that serve the callout.
    pub auth_users: Vec<Nkey<User>>,
    /// The accounts it may place users in.
    pub allowed_accounts: Vec<Nkey<Account>>,
    /// The curve key that requests are sealed to.
    pub xkey: Nkey<Curve>,
}

/// The answer to a callout request.
#[derive(Debug, Clone, Copy)]
pub enum CalloutOutcome<'a> {
    /// The user JWT.
    Allow(&'a str),
    /// The denial text, already folded to printable ASCII.
    Deny(&'a str),
}

/// The members of an authorization request that the callout reads. Strings are as the server sent them.
#[derive(Clone, Default)]
pub struct CalloutRequest {
    /// `iss`.
    pub issuer: String,
    /// `nats.server_id.id`, empty when absent.
    pub server_id: String,
    /// `nats.server_id.xkey`, empty when absent.
    pub server_xkey: String,
    /// `nats.user_nkey`, empty when absent.
    pub user_nkey: String,
    /// `nats.client_info.host`, empty when absent.
    pub client_host: String,
    /// `nats.client_info.id`, zero when absent.
    pub client_id: u64,
    /// `nats.connect_opts.auth_token`, empty when absent.
    pub auth_token: Zeroizing<String>,
    /// `nats.connect_opts.name`, empty when absent.
    pub name: String,
}

impl std::fmt::Debug for CalloutRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CalloutRequest")
            .field("server_id", &self.server_id)
            .field("user_nkey", &self.user_nkey)
            .field("client_host", &self.client_host)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// The `owner:`, `actor:` and `principal:` tags, in that order (contract 01 §1.5).
pub fn principal_tags(principal: &Principal) -> Vec<String> {
    vec![
        format!("owner:{}", principal.owner),
        format!("actor:{}", principal.actor),
        format!("principal:{principal}"),
    ]
}

// === claims as they stand on the wire ===

#[derive(Serialize)]
struct Claims<'a, N> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<UnixSecs>,
    aud: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    sub: &'a str,
    nats: N,
    iss: &'a str,
    iat: UnixSecs,
}

#[derive(Serialize)]
struct OperatorBody<'a> {
    system_account: &'a Nkey<Account>,
    r#type: &'static str,
    version: u8,
}

#[derive(Serialize)]
struct AccountBody<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    signing_keys: &'a [Nkey<Account>],
    limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorization: Option<&'a CalloutAuthorization>,
    r#type: &'static str,
    version: u8,
}

/// Exactly these members: an account without them gets no connections.
#[derive(Serialize)]
struct Limits {
    subs: i8,
    conn: i8,
    leaf: i8,
    imports: i8,
    exports: i8,
    data: i8,
    payload: i8,
    wildcards: bool,
    mem_storage: i8,
    disk_storage: i8,
}

impl Limits {
    fn new(jetstream: bool) -> Self {
        let storage = if jetstream { UNLIMITED } else { 0 };
        Self {
            subs: UNLIMITED,
            conn: UNLIMITED,
            leaf: UNLIMITED,
            imports: UNLIMITED,
            exports: UNLIMITED,
            data: UNLIMITED,
            payload: UNLIMITED,
            wildcards: true,
            mem_storage: storage,
            disk_storage: storage,
        }
    }
}

#[derive(Serialize)]
struct UserBody<'a> {
    data: i8,
    payload: i8,
    subs: i8,
    #[serde(rename = "pub", skip_serializing_if = "RulesBody::is_empty")]
    publish: RulesBody<'a>,
    #[serde(rename = "sub", skip_serializing_if = "RulesBody::is_empty")]
    subscribe: RulesBody<'a>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [String],
    issuer_account: &'a Nkey<Account>,
    r#type: &'static str,
    version: u8,
}

/// An empty list is left out: the broker reads an empty `allow` as unrestricted.
#[derive(Serialize)]
struct RulesBody<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    allow: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    deny: &'a [String],
}

impl<'a> RulesBody<'a> {
    fn new(rules: &'a Rules) -> Self {
        Self { allow: &rules.allow, deny: &rules.deny }
    }

    fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

#[derive(Serialize)]
struct ResponseBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    issuer_account: &'a Nkey<Account>,
    r#type: &'static str,
    version: u8,
}

// === encoding ===

/// A self-signed operator JWT.
pub fn encode_operator(
    name: &str,
    operator: &Seed<Operator>,
    system_account: &Nkey<Account>,
    now: UnixSecs,
) -> String {
    let subject = operator.public().as_str();
    let nats = OperatorBody { system_account, r#type: TYPE_OPERATOR, version: CLAIMS_VERSION };
    sign(
        &Claims { exp: None, aud: AUDIENCE, name: Some(name), sub: subject, nats, iss: subject, iat: now },
        operator,
    )
}

/// An account JWT signed by the operator.
pub fn encode_account(claims: &AccountClaims, operator: &Seed<Operator>, now: UnixSecs) -> String {
    let nats = AccountBody {
        signing_keys: &claims.signing_keys,
        limits: Limits::new(claims.jetstream),
        authorization: claims.authorization.as_ref(),
        r#type: TYPE_ACCOUNT,
        version: CLAIMS_VERSION,
    };
    let claims = Claims {
        exp: None,
        aud: AUDIENCE,
        name: Some(&claims.name),
        sub: claims.subject.as_str(),
        nats,
        iss: operator.public().as_str(),
        iat: now,
    };
    sign(&claims, operator)
}

/// A user JWT signed by an account (signing) key.
pub fn encode_user(claims: &UserClaims, signer: &Seed<Account>, now: UnixSecs) -> String {
    let nats = UserBody {
        data: UNLIMITED,
        payload: UNLIMITED,
        subs: UNLIMITED,
        publish: RulesBody::new(&claims.permissions.publish),
        subscribe: RulesBody::new(&claims.permissions.subscribe),
        tags: &claims.tags,
        issuer_account: &claims.issuer_account,
        r#type: TYPE_USER,
        version: CLAIMS_VERSION,
    };
    let claims = Claims {
        exp: claims.exp,
        aud: AUDIENCE,
        name: Some(&claims.name),
        sub: claims.subject.as_str(),
        nats,
        iss: signer.public().as_str(),
        iat: now,
    };
    sign(&claims, signer)
}

/// An authorization response (contract 04 §8.3), signed by the AUTH account's signing key.
pub fn encode_authorization_response(
    user_nkey: &Nkey<User>,
    server_id: &Nkey<Server>,
    issuer_account: &Nkey<Account>,
    outcome: CalloutOutcome<'_>,
    signer: &Seed<Account>,
    now: UnixSecs,
) -> String {
    let (jwt, error) = match outcome {
        CalloutOutcome::Allow(jwt) => (Some(jwt), None),
        CalloutOutcome::Deny(error) => (None, Some(error)),
    };
    let nats = ResponseBody { jwt, error, issuer_account, r#type: TYPE_RESPONSE, version: CLAIMS_VERSION };
    let claims = Claims {
        exp: None,
        aud: server_id.as_str(),
        name: None,
        sub: user_nkey.as_str(),
        nats,
        iss: signer.public().as_str(),
        iat: now,
    };
    sign(&claims, signer)
}

fn sign<N: Serialize, R: SigningRole>(claims: &Claims<'_, N>, signer: &Seed<R>) -> String {
    let mut json = Vec::with_capacity(2048);
    #[allow(clippy::expect_used, reason = "strings, integers and lists of them always serialise")]
    serde_json::to_writer(&mut json, claims).expect("claims of plain strings serialise");
    let jti = STANDARD.encode(Sha512::digest(&json));
    json.pop();
    json.extend_from_slice(b",\"jti\":\"");
    json.extend_from_slice(jti.as_bytes());
    json.extend_from_slice(b"\"}");

    let mut token = String::with_capacity(ENCODED_HEADER.len() + json.len().div_ceil(3) * 4 + 88);
    token.push_str(ENCODED_HEADER);
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(&json, &mut token);
    let signature = signer.sign(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    token
}

// === decoding ===

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    typ: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    alg: std::borrow::Cow<'a, str>,
}

/// The three parts of a token, its header checked and nothing else.
struct Parts<'a> {
    signed: &'a [u8],
    claims: Zeroizing<Vec<u8>>,
    signature: [u8; 64],
}

impl<'a> Parts<'a> {
    fn read(token: &'a [u8]) -> Result<Self, JwtError> {
        if token.len() > MAX_TOKEN_LEN {
            return Err(MALFORMED);
        }
        let mut dots = token.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        let (Some(first), Some(second), None) = (dots.next(), dots.next(), dots.next()) else {
            return Err(MALFORMED);
        };
        let decode = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).map_err(|_| MALFORMED);
        let header = decode(&token[..first])?;
        let Object(header): Object<Header<'_>> = serde_json::from_slice(&header).map_err(|_| MALFORMED)?;
        if !header.typ.eq_ignore_ascii_case("JWT") {
            return Err(MALFORMED);
        }
        if header.alg != ALGORITHM {
            return Err(WRONG_ALGORITHM);
        }
        let claims = Zeroizing::new(decode(&token[first + 1..second])?);
        let signature = decode(&token[second + 1..])?.try_into().map_err(|_| BAD_SIGNATURE)?;
        Ok(Self { signed: &token[..second], claims, signature })
    }

    fn verify_as<R: SigningRole>(&self, issuer: &str) -> Result<(), JwtError> {
        let issuer = Nkey::<R>::parse(issuer).map_err(|_| BAD_ISSUER)?;
        nkey::verify(&issuer, self.signed, &self.signature).map_err(|_| BAD_SIGNATURE)
    }
}

#[derive(Deserialize)]
struct RequestClaims {
    iss: String,
    #[serde(deserialize_with = "object::read")]
    nats: RequestBody,
}

#[derive(Deserialize)]
struct RequestBody {
    #[serde(default, deserialize_with = "object::read")]
    server_id: RequestServer,
    #[serde(default)]
    user_nkey: String,
    #[serde(default, deserialize_with = "object::read")]
    client_info: RequestClient,
    #[serde(default, deserialize_with = "object::read")]
    connect_opts: RequestConnect,
    r#type: String,
}

#[derive(Default, Deserialize)]
struct RequestServer {
    #[serde(default)]
    id: String,
    #[serde(default)]
    xkey: String,
}

#[derive(Default, Deserialize)]
struct RequestClient {
    #[serde(default)]
    host: String,
    #[serde(default)]
    id: u64,
}

#[derive(Default, Deserialize)]
struct RequestConnect {
    #[serde(default)]
    auth_token: String,
    #[serde(default)]
    name: String,
}

/// Decodes an authorization request and verifies its signature by its own `iss`, a server key.
///
/// That the issuer is the server that the request names is the callout's check (contract 04 §8.4), not this one's.
pub fn decode_callout_request(token: &[u8]) -> Result<CalloutRequest, JwtError> {
    let parts = Parts::read(token)?;
    let Object(claims): Object<RequestClaims> =
        serde_json::from_slice(&parts.claims).map_err(|_| MALFORMED)?;
    parts.verify_as::<Server>(&claims.iss)?;
    if claims.nats.r#type != TYPE_REQUEST {
        return Err(NOT_A_REQUEST);
    }
    Ok(CalloutRequest {
        issuer: claims.iss,
        server_id: claims.nats.server_id.id,
        server_xkey: claims.nats.server_id.xkey,
        user_nkey: claims.nats.user_nkey,
        client_host: claims.nats.client_info.host,
        client_id: claims.nats.client_info.id,
        auth_token: Zeroizing::new(claims.nats.connect_opts.auth_token),
        name: claims.nats.connect_opts.name,
    })
}

/// Encodes an authorization request as a server does, for tests of a callout without one.
pub fn encode_callout_request(request: &CalloutRequest, server: &Seed<Server>, now: UnixSecs) -> String {
    let nats = serde_json::json!({
        "server_id": { "name": "", "host": "", "id": request.server_id, "xkey": request.server_xkey },
        "user_nkey": request.user_nkey,
        "client_info": { "host": request.client_host, "id": request.client_id },
        "connect_opts": { "auth_token": *request.auth_token, "name": request.name, "protocol": 1 },
        "type": TYPE_REQUEST,
        "version": CLAIMS_VERSION,
    });
    let claims = Claims {
        exp: Some(now.plus(2)),
        aud: REQUEST_AUDIENCE,
        name: None,
        sub: &request.user_nkey,
        nats,
        iss: server.public().as_str(),
        iat: now,
    };
    sign(&claims, server)
}

/// Decodes any NATS JWT and verifies its signature by its own `iss`; returns the claims object.
pub fn decode_verified(token: &str) -> Result<serde_json::Value, JwtError> {
    let parts = Parts::read(token.as_bytes())?;
    let claims: serde_json::Value = serde_json::from_slice(&parts.claims).map_err(|_| MALFORMED)?;
    let issuer = claims.get("iss").and_then(serde_json::Value::as_str).ok_or(BAD_ISSUER)?;
    match issuer.chars().next() {
        Some(Operator::PREFIX) => parts.verify_as::<Operator>(issuer)?,
        Some(Account::PREFIX) => parts.verify_as::<Account>(issuer)?,
        Some(User::PREFIX) => parts.verify_as::<User>(issuer)?,
        Some(Server::PREFIX) => parts.verify_as::<Server>(issuer)?,
        _ => return Err(BAD_ISSUER),
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use cotal_wire::{Actor, Owner};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::system::SystemEntropy;

    const NOW: UnixSecs = UnixSecs(1_700_000_000);

    fn seed<R: NkeyRole>() -> Seed<R> {
        Seed::generate(&SystemEntropy)
    }

    /// The claim text of a token, `jti` checked against the rest and taken off.
    fn claims_text(token: &str) -> String {
        let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let text = String::from_utf8(body).unwrap();
        let (rest, jti) = text.rsplit_once(",\"jti\":\"").unwrap();
        let rest = format!("{rest}}}");
        assert_eq!(jti, format!("{}\"}}", STANDARD.encode(Sha512::digest(&rest))));
        decode_verified(token).unwrap();
        rest
    }

    #[test]
    fn the_header_is_the_contracts() {
        assert_eq!(URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#), ENCODED_HEADER);
    }

    #[test]
    fn an_operator_jwt_names_its_system_account_and_signs_itself() {
        let (operator, sys) = (seed::<Operator>(), seed::<Account>());
        let (o, s) = (operator.public(), sys.public());
        let token = encode_operator("cotal-main", &operator, s, NOW);
        assert_eq!(
            claims_text(&token),
            format!(
                r#"{{"aud":"NATS","name":"cotal-main","sub":"{o}","nats":{{"system_account":"{s}","type":"operator","version":2}},"iss":"{o}","iat":1700000000}}"#
            )
        );
    }

    #[test]
    fn account_jwts_carry_the_exact_limits() {
        let (operator, account, signing) = (seed::<Operator>(), seed::<Account>(), seed::<Account>());
        let (o, a, k) = (operator.public(), account.public(), signing.public());
        let mut claims = AccountClaims {
            name: "main".to_owned(),
            subject: a.clone(),
            signing_keys: vec![k.clone()],
            jetstream: true,
            authorization: None,
        };
        let limits = |storage: i8| {
            format!(
                r#""limits":{{"subs":-1,"conn":-1,"leaf":-1,"imports":-1,"exports":-1,"data":-1,"payload":-1,"wildcards":true,"mem_storage":{storage},"disk_storage":{storage}}}"#
            )
        };
        assert_eq!(
            claims_text(&encode_account(&claims, &operator, NOW)),
            format!(
                r#"{{"aud":"NATS","name":"main","sub":"{a}","nats":{{"signing_keys":["{k}"],{},"type":"account","version":2}},"iss":"{o}","iat":1700000000}}"#,
                limits(-1)
            )
        );
        claims.signing_keys.clear();
        claims.jetstream = false;
        assert_eq!(
            claims_text(&encode_account(&claims, &operator, NOW)),
            format!(
                r#"{{"aud":"NATS","name":"main","sub":"{a}","nats":{{{},"type":"account","version":2}},"iss":"{o}","iat":1700000000}}"#,
                limits(0)
            )
        );
        let (user, curve) = (seed::<User>(), seed::<Curve>());
        claims.authorization = Some(CalloutAuthorization {
            auth_users: vec![user.public().clone()],
            allowed_accounts: vec![a.clone()],
            xkey: curve.public().clone(),
        });
        assert!(claims_text(&encode_account(&claims, &operator, NOW)).contains(&format!(
            r#""authorization":{{"auth_users":["{}"],"allowed_accounts":["{a}"],"xkey":"{}"}},"type":"account""#,
            user.public(),
            curve.public()
        )));
    }

    #[test]
    fn a_user_jwt_leaves_out_what_its_template_does_not_name() {
        let (account, signing, user) = (seed::<Account>(), seed::<Account>(), seed::<User>());
        let (a, k, u) = (account.public(), signing.public(), user.public());
        let principal = Principal::new(Owner::local(), Actor::parse("alice").unwrap());
        let mut claims = UserClaims {
            name: "local-alice".to_owned(),
            subject: u.clone(),
            issuer_account: a.clone(),
            permissions: Permissions {
                publish: Rules { allow: vec!["a.>".to_owned()], deny: Vec::new() },
                subscribe: Rules::default(),
            },
            tags: principal_tags(&principal),
            exp: Some(UnixSecs(1_700_000_900)),
        };
        assert_eq!(
            claims_text(&encode_user(&claims, &signing, NOW)),
            format!(
                r#"{{"exp":1700000900,"aud":"NATS","name":"local-alice","sub":"{u}","nats":{{"data":-1,"payload":-1,"subs":-1,"pub":{{"allow":["a.>"]}},"tags":["owner:local","actor:alice","principal:local.alice"],"issuer_account":"{a}","type":"user","version":2}},"iss":"{k}","iat":1700000000}}"#
            )
        );
        claims.tags.clear();
        claims.exp = None;
        claims.permissions.publish = Rules::default();
        claims.permissions.subscribe.deny.push(">".to_owned());
        assert_eq!(
            claims_text(&encode_user(&claims, &signing, NOW)),
            format!(
                r#"{{"aud":"NATS","name":"local-alice","sub":"{u}","nats":{{"data":-1,"payload":-1,"subs":-1,"sub":{{"deny":[">"]}},"issuer_account":"{a}","type":"user","version":2}},"iss":"{k}","iat":1700000000}}"#
            )
        );
    }

    #[test]
    fn an_authorization_response_has_no_name_and_no_expiry() {
        let (server, user, account, signing) =
            (seed::<Server>(), seed::<User>(), seed::<Account>(), seed::<Account>());
        let (n, u, a, k) = (server.public(), user.public(), account.public(), signing.public());
        for (outcome, member) in [
            (CalloutOutcome::Allow("x.y.z"), r#""jwt":"x.y.z""#),
            (CalloutOutcome::Deny("no \"way\""), r#""error":"no \"way\"""#),
        ] {
            assert_eq!(
                claims_text(&encode_authorization_response(u, n, a, outcome, &signing, NOW)),
                format!(
                    r#"{{"aud":"{n}","sub":"{u}","nats":{{{member},"issuer_account":"{a}","type":"authorization_response","version":2}},"iss":"{k}","iat":1700000000}}"#
                )
            );
        }
    }

    fn request(server: &Seed<Server>) -> CalloutRequest {
        CalloutRequest {
            issuer: server.public().to_string(),
            server_id: server.public().to_string(),
            server_xkey: seed::<Curve>().public().to_string(),
            user_nkey: seed::<User>().public().to_string(),
            client_host: "127.0.0.1".to_owned(),
            client_id: 7,
            auth_token: Zeroizing::new("a.b.c".to_owned()),
            name: "ibx00000000".to_owned(),
        }
    }

    #[test]
    fn a_request_decodes_to_what_the_server_said() {
        let server = seed::<Server>();
        let sent = request(&server);
        let read = decode_callout_request(encode_callout_request(&sent, &server, NOW).as_bytes()).unwrap();
        assert_eq!(read.issuer, sent.issuer);
        assert_eq!(read.server_id, sent.server_id);
        assert_eq!(read.server_xkey, sent.server_xkey);
        assert_eq!(read.user_nkey, sent.user_nkey);
        assert_eq!(read.client_host, sent.client_host);
        assert_eq!(read.client_id, sent.client_id);
        assert_eq!(*read.auth_token, *sent.auth_token);
        assert_eq!(read.name, sent.name);
        assert!(!format!("{read:?}").contains("a.b.c"), "the bearer is printed nowhere");
    }

    /// Signs any claims under any header.
    fn forge<R: SigningRole>(
        header: &serde_json::Value,
        claims: &serde_json::Value,
        key: &Seed<R>,
    ) -> String {
        let head = URL_SAFE_NO_PAD.encode(header.to_string());
        let body = URL_SAFE_NO_PAD.encode(claims.to_string());
        let signature = URL_SAFE_NO_PAD.encode(key.sign(format!("{head}.{body}").as_bytes()));
        format!("{head}.{body}.{signature}")
    }

    #[test]
    fn a_request_with_absent_members_reads_as_empty_and_wrong_ones_refuse() {
        let server = seed::<Server>();
        let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
        let n = server.public();
        let bare = json!({"iss": n, "nats": {"type": "authorization_request"}});
        let read = decode_callout_request(forge(&header, &bare, &server).as_bytes()).unwrap();
        assert_eq!((read.user_nkey.as_str(), read.client_id), ("", 0));

        let account = seed::<Account>();
        for (token, why) in [
            (forge(&json!({"typ": "JWT", "alg": "ed25519"}), &bare, &server), WRONG_ALGORITHM),
            (forge(&json!({"typ": "x", "alg": "ed25519-nkey"}), &bare, &server), MALFORMED),
            (forge(&header, &json!({"iss": n, "nats": {"type": "user"}}), &server), NOT_A_REQUEST),
            (forge(&header, &json!({"iss": n, "nats": {}}), &server), MALFORMED),
            (forge(&header, &json!({"iss": n}), &server), MALFORMED),
            (forge(&header, &json!([]), &server), MALFORMED),
            // A derived reader would take the members of an object in order.
            (forge(&json!(["JWT", "ed25519-nkey"]), &bare, &server), MALFORMED),
            (forge(&header, &json!([n, {"type": "authorization_request"}]), &server), MALFORMED),
            (
                forge(
                    &header,
                    &json!({"iss": n, "nats": [[n, "X"], "U", ["h", 1], ["t", "n"], "authorization_request"]}),
                    &server,
                ),
                MALFORMED,
            ),
            (
                forge(
                    &header,
                    &json!({"iss": n, "nats": {"type": "authorization_request", "server_id": [n, "X"]}}),
                    &server,
                ),
                MALFORMED,
            ),
            (forge(&header, &bare, &account), BAD_SIGNATURE),
            (
                forge(
                    &header,
                    &json!({"iss": account.public(), "nats": {"type": "authorization_request"}}),
                    &account,
                ),
                BAD_ISSUER,
            ),
        ] {
            assert_eq!(decode_callout_request(token.as_bytes()).unwrap_err(), why);
        }
    }

    #[test]
    fn a_changed_claim_or_signature_refuses() {
        let server = seed::<Server>();
        let token = encode_callout_request(&request(&server), &server, NOW);
        let at = token.find('.').unwrap() + 40;
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(decode_callout_request(&bytes).is_err());
        assert!(decode_callout_request(&token.as_bytes()[..token.len() - 2]).is_err());
        assert!(decode_callout_request(&vec![b'.'; MAX_TOKEN_LEN + 1]).is_err());
        assert!(decode_verified(&format!("{token}.")).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_callout_request(&bytes);
            let token = format!("{ENCODED_HEADER}.{}.{}", URL_SAFE_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode([0; 64]));
            let _ = decode_callout_request(token.as_bytes());
            let _ = decode_verified(&token);
            let _ = decode_verified(&String::from_utf8_lossy(&bytes));
        }
    }
}
