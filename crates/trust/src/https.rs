//! The HTTPS client, and the one root store of the process behind every one of them.
//!
//! A root store is half a MiB and some milliseconds of reading. Whoever fetches something once in a while makes a client
//! for it and keeps none; the roots stay, and a certificate that is installed while the process runs is seen in time.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::header::RETRY_AFTER;
use rustls::{ClientConfig, crypto::CryptoProvider};
use rustls_platform_verifier::BuilderVerifierExt;
use url::Url;
use zeroize::Zeroizing;

use crate::idp::IdpRefusal;

/// How long the roots are used before they are read again.
const KEPT: Duration = Duration::from_secs(10 * 60);

const NO_ROOTS: &str = "no HTTPS client: this machine's root certificates cannot be read; install its ca-certificates, or \
                        name a file of them in SSL_CERT_FILE";

static OF_THE_PROCESS: Kept<ClientConfig> = Kept::nothing();

/// An HTTPS client with the ring provider and the platform's roots; redirects are never followed, and no proxy is
/// taken from the environment. Refused where the machine has no root certificates. It may read them from the disk.
pub fn http_client(timeout: Duration) -> Result<reqwest::Client, IdpRefusal> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls()?)
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|_| IdpRefusal("no HTTPS client: it could not be built".to_owned()))
}

/// A path below a face's base, of which one trailing slash goes, and query and fragment with it (contract 08 §4): a face
/// knows its exact paths alone.
#[must_use]
pub fn below(mut base: Url, path: &str) -> Url {
    let prefix = base.path();
    let path = format!("{}{path}", prefix.strip_suffix('/').unwrap_or(prefix));
    base.set_path(&path);
    base.set_query(None);
    base.set_fragment(None);
    base
}

/// A request's body that holds a secret: wiped when the client lets go of it, sent or not.
pub fn secret_body(body: Zeroizing<Vec<u8>>) -> reqwest::Body {
    Bytes::from_owner(body).into()
}

/// Why a response's body was not read to its end.
#[derive(Debug)]
pub enum Unread {
    /// It is longer than whoever asked reads.
    TooLong,
    /// It broke off.
    Broken(reqwest::Error),
}

/// A response's body, read up to a bound; wiped when it is let go of, because an answer may be a bearer.
pub async fn read_body(mut response: reqwest::Response, most: usize) -> Result<Zeroizing<Vec<u8>>, Unread> {
    let mut body = Zeroizing::new(Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(Unread::Broken)? {
        if body.len() + chunk.len() > most {
            return Err(Unread::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// `Retry-After` of a response, when it is a number of seconds.
pub fn retry_after_secs(response: &reqwest::Response) -> Option<u64> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// What went wrong on the way, without the URL: it may carry what nobody would print.
pub fn transport(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "it did not answer in time"
    } else if error.is_connect() {
        if is_tls(error) {
            "something is there, but no TLS with it came about"
        } else {
            "it cannot be reached"
        }
    } else {
        "the answer broke off"
    }
}

/// Whether what failed was the handshake: with a server that speaks no TLS, or has a certificate that is not trusted.
fn is_tls(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(deeper) = cause {
        if deeper.is::<rustls::Error>() {
            return true;
        }
        // An I/O error answers the cause of what it wraps, and not that itself.
        cause = match deeper.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => deeper.source(),
        };
    }
    false
}

/// Whether there can be a client at all: better asked at a start than at the first fetch.
pub(crate) fn check_roots() -> Result<(), IdpRefusal> {
    tls().map(drop)
}

fn tls() -> Result<ClientConfig, IdpRefusal> {
    OF_THE_PROCESS.get(Instant::now(), read).map_err(|_| IdpRefusal(NO_ROOTS.to_owned()))
}

fn read() -> Result<ClientConfig, rustls::Error> {
    // Someone else in the process may have chosen a provider before; theirs stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = CryptoProvider::get_default()
        .map_or_else(|| Arc::new(rustls::crypto::ring::default_provider()), Arc::clone);
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// What is made when it is first asked for, and made again when it is old. Clones share what they hold.
struct Kept<T>(Mutex<Option<(T, Instant)>>);

impl<T: Clone> Kept<T> {
    const fn nothing() -> Self {
        Self(Mutex::new(None))
    }

    /// One that is old is better than none: it stays while no new one can be made. A failure is never kept.
    fn get<E>(&self, now: Instant, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut kept = self.0.lock();
        if let Some((value, made)) = &*kept
            && now.saturating_duration_since(*made) < KEPT
        {
            return Ok(value.clone());
        }
        match (make(), &*kept) {
            (Ok(value), _) => {
                *kept = Some((value.clone(), now));
                Ok(value)
            }
            (Err(_), Some((old, _))) => Ok(old.clone()),
            (Err(error), None) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_are_read_once_and_again_when_they_are_old() {
        let (kept, start) = (Kept::nothing(), Instant::now());
        let get = |after: Duration, made: Result<u8, &'static str>| kept.get(start + after, || made);
        assert_eq!(get(Duration::ZERO, Err("none")), Err("none"), "a machine without any");
        assert_eq!(get(Duration::ZERO, Ok(1)), Ok(1), "and once it has some");
        let young = KEPT.saturating_sub(Duration::from_secs(1));
        assert_eq!(get(young, Ok(2)), Ok(1));
        assert_eq!(get(KEPT, Err("gone")), Ok(1), "old ones are better than none");
        assert_eq!(get(KEPT, Ok(3)), Ok(3));
        assert_eq!(get(KEPT + young, Ok(4)), Ok(3));
    }

    #[test]
    fn a_path_lies_below_the_base_without_one_slash_query_and_fragment() {
        for (base, url) in [
            ("https://a.example", "https://a.example/exchange"),
            ("https://a.example/", "https://a.example/exchange"),
            ("https://a.example/x/", "https://a.example/x/exchange"),
            ("https://a.example/x//", "https://a.example/x//exchange"),
            ("https://a.example:8443/x?q=1#f", "https://a.example:8443/x/exchange"),
        ] {
            assert_eq!(below(Url::parse(base).unwrap(), "/exchange").as_str(), url);
        }
    }

    #[test]
    fn every_client_of_the_process_has_the_same_roots() {
        http_client(Duration::from_secs(1)).unwrap();
        let held = || OF_THE_PROCESS.get(Instant::now(), || Err("read again")).unwrap();
        assert!(Arc::ptr_eq(&held().client_auth_cert_resolver, &held().client_auth_cert_resolver));
        check_roots().unwrap();
    }
}
