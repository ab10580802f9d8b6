//! The pinned remote key set (contract 04 §3).
//!
//! One URL, fetched without redirects, kept ten minutes. A kid that the set does not have refetches once the cooldown
//! has passed; callers that wait for the same fetch share its outcome, failures included.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::{Clock, Object, UnixMillis};
use ed25519_dalek::VerifyingKey;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use crate::{
    https::{Unread, check_roots, http_client, read_body, transport},
    idp::{IdpRefusal, is_https_or_loopback},
    issuer, jws,
};

const URL_RULE: &str = "JWKS origin must be https (or http on a loopback IP literal for dev)";
const MAX_AGE_MILLIS: u64 = 10 * 60 * 1000;
const COOLDOWN_MILLIS: u64 = 30 * 1000;
/// How long an IdP may take to hand out its key set.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest key set that is read.
const MAX_BODY_LEN: usize = 256 * 1024;

/// How many callers with an unknown kid may wait for a fetch while a fresh set serves everybody else: made-up kids must
/// not hold every place of a face while the IdP is slow.
const UNKNOWN_KID_WAITERS: usize = 8;

const NO_KEY: &str = "the IdP publishes no key for this token";
const MANY_KEYS: &str = "the IdP publishes more than one key for this token";

/// The pinned remote key set: cache 10 min, cooldown 30 s, fetch timeout 5 s, one refetch on an unknown kid.
pub struct JwksResolver {
    uri: Url,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// A place for each caller that waits with an unknown kid.
    unknown: tokio::sync::Semaphore,
    /// Held by the one caller that fetches.
    flight: tokio::sync::Mutex<()>,
    /// Fetches that ended, one way or the other.
    landed: AtomicU64,
}

#[derive(Default)]
struct State {
    cached: Option<(Arc<[Key]>, UnixMillis)>,
    /// How the last fetch failed, if it did.
    failure: Option<IdpRefusal>,
    /// When the last fetch ended.
    attempted: Option<UnixMillis>,
}

struct Key {
    kid: Option<String>,
    key: VerifyingKey,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Map<String, Value>>,
}

impl JwksResolver {
    /// A resolver of this one URL. Refused where it could never fetch: the machine has no root certificates.
    pub fn new(jwks_uri: &str, clock: Arc<dyn Clock>) -> Result<Self, IdpRefusal> {
        let uri = Url::parse(jwks_uri).ok().filter(is_https_or_loopback).ok_or(URL_RULE)?;
        check_roots()?;
        Ok(Self {
            uri,
            clock,
            state: Mutex::default(),
            unknown: tokio::sync::Semaphore::new(UNKNOWN_KID_WAITERS),
            flight: tokio::sync::Mutex::new(()),
            landed: AtomicU64::new(0),
        })
    }

    /// The one URL that it fetches.
    pub fn uri(&self) -> &str {
        self.uri.as_str()
    }

    /// Fetches the document and checks that it has a `keys` array (the probe before a first pin).
    pub async fn probe(&self) -> Result<(), IdpRefusal> {
        self.fetch().await.map(drop)
    }

    /// The one published key that fits this kid.
    pub(crate) async fn resolve(&self, kid: Option<&str>) -> Result<VerifyingKey, IdpRefusal> {
        let (keys, just_fetched) = match self.fresh() {
            Some(keys) => (keys, false),
            None => (self.refetch().await?, true),
        };
        match pick(&keys, kid) {
            Ok(Some(key)) => Ok(key),
            Ok(None) if !just_fetched && !self.is_cooling_down() => {
                let _place = self.unknown.try_acquire().map_err(|_| NO_KEY)?;
                let keys = self.refetch().await?;
                pick(&keys, kid)?.ok_or_else(|| NO_KEY.into())
            }
            Ok(None) => Err(NO_KEY.into()),
            Err(reason) => Err(reason.into()),
        }
    }

    fn fresh(&self) -> Option<Arc<[Key]>> {
        let state = self.state.lock();
        let (keys, fetched) = state.cached.as_ref()?;
        self.is_within(MAX_AGE_MILLIS, *fetched).then(|| Arc::clone(keys))
    }

    /// A failed attempt cools down as well: a flood of made-up kids must not become a flood at the IdP.
    fn is_cooling_down(&self) -> bool {
        let state = self.state.lock();
        state.attempted.is_some_and(|attempted| self.is_within(COOLDOWN_MILLIS, attempted))
    }

    /// Whether less than `millis` passed since `earlier`. A moment that lies ahead is one from before the clock was
    /// set back: nobody knows how long ago it was, so it is not within anything. Asked under the state's lock, as
    /// the moments are taken, so that no other caller's can lie ahead.
    fn is_within(&self, millis: u64, earlier: UnixMillis) -> bool {
        let now = self.clock.now_millis();
        earlier <= now && now.since(earlier) < millis
    }

    /// Fetches, or takes the outcome of the fetch that was under way.
    async fn refetch(&self) -> Result<Arc<[Key]>, IdpRefusal> {
        let before = self.landed.load(Ordering::Acquire);
        let _flight = self.flight.lock().await;
        if self.landed.load(Ordering::Acquire) == before {
            let outcome = self.fetch().await;
            let mut state = self.state.lock();
            let now = self.clock.now_millis();
            state.attempted = Some(now);
            match outcome {
                Ok(keys) => {
                    state.cached = Some((keys, now));
                    state.failure = None;
                }
                Err(failure) => {
                    tracing::warn!(idp = self.origin(), %failure, "the IdP's keys could not be fetched");
                    state.failure = Some(failure);
                }
            }
            self.landed.fetch_add(1, Ordering::Release);
        }
        let state = self.state.lock();
        match (&state.failure, &state.cached) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some((keys, _))) => Ok(Arc::clone(keys)),
            (None, None) => Err("the IdP's keys have not been fetched".into()),
        }
    }

    /// Scheme, host and port: a path or a user name may be a secret.
    fn origin(&self) -> String {
        self.uri.origin().ascii_serialization()
    }

    async fn fetch(&self) -> Result<Arc<[Key]>, IdpRefusal> {
        // Which of these it is decides where to look; the URL itself may carry what nobody would print.
        let unreachable = |error: reqwest::Error| {
            IdpRefusal(format!(
                "the IdP's key set could not be fetched: {}; is the IdP up, and is the URL its own?",
                transport(&error)
            ))
        };
        let response = fresh_client()
            .await?
            .get(self.uri.clone())
            .header(reqwest::header::ACCEPT, "application/json")
            .send()
            .await
            .map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(IdpRefusal(no_key_set(response.status().as_u16())));
        }
        let body = read_body(response, MAX_BODY_LEN).await.map_err(|unread| match unread {
            Unread::TooLong => "the IdP's key set is larger than 256 KiB".into(),
            Unread::Broken(error) => unreachable(error),
        })?;
        read_keys(&body)
    }
}

/// An answer that is no key set: the IdP is there, and what asks for it is wrong, or it is in trouble itself.
fn no_key_set(status: u16) -> String {
    let why = match status {
        300..=399 => "it sends elsewhere, which is not followed: give the URL that it sends to",
        500..=599 => "it is there and in trouble: try again, then look at its log",
        _ => "something is there, but not its keys: is the URL its auth base URL?",
    };
    format!("the IdP answered HTTP {status} for its key set: {why}")
}

/// A client for one fetch: a set is fetched every ten minutes at most.
async fn fresh_client() -> Result<reqwest::Client, IdpRefusal> {
    // The roots may be read from the disk.
    let built = tokio::task::spawn_blocking(|| http_client(FETCH_TIMEOUT)).await;
    built.map_err(|_| IdpRefusal("no HTTPS client: it could not be built".to_owned()))?
}

/// The keys of a JWKS document that can verify EdDSA.
fn read_keys(document: &[u8]) -> Result<Arc<[Key]>, IdpRefusal> {
    let Object(jwks): Object<Jwks> = serde_json::from_slice(document)
        .map_err(|_| IdpRefusal(
            "what the IdP answered for its key set is not JSON with a list of keys: is the URL its auth base URL?"
                .to_owned(),
        ))?;
    Ok(jwks.keys.iter().filter_map(Key::of_jwk).collect())
}

/// Resolves in a document at hand instead of a fetched one.
#[cfg(fuzzing)]
pub(crate) fn resolve_in(document: &[u8], kid: Option<&str>) -> Result<VerifyingKey, IdpRefusal> {
    pick(&read_keys(document)?, kid)?.ok_or_else(|| NO_KEY.into())
}

impl fmt::Debug for JwksResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksResolver").field("idp", &self.origin()).finish_non_exhaustive()
    }
}

impl Key {
    /// The key of a JWK that can verify EdDSA, `None` for any other.
    fn of_jwk(jwk: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let fits = text("kty") == Some(issuer::KEY_TYPE)
            && text("crv") == Some(issuer::CURVE)
            && text("alg").is_none_or(|alg| alg == jws::ALGORITHM)
            && text("use").is_none_or(|usage| usage == "sig")
            && jwk
                .get("key_ops")
                .and_then(Value::as_array)
                .is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !fits {
            return None;
        }
        let mut bytes = [0u8; 32];
        if URL_SAFE_NO_PAD.decode_slice(text("x")?, &mut bytes) != Ok(bytes.len()) {
            return None;
        }
        let key = VerifyingKey::from_bytes(&bytes).ok()?;
        Some(Self { kid: text("kid").map(str::to_owned), key })
    }
}

/// The only key that fits, `None` when no one does; a token without a kid fits every key.
fn pick(keys: &[Key], kid: Option<&str>) -> Result<Option<VerifyingKey>, jws::Reason> {
    let mut fitting = keys.iter().filter(|key| kid.is_none() || key.kid.as_deref() == kid);
    match (fitting.next(), fitting.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => Ok(Some(key.key)),
        (Some(_), Some(_)) => Err(MANY_KEYS),
    }
}
