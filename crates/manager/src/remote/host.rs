//! Carries requests to `POST /manager-service-authority` (contract 06 §2): one deadline, one bound, no redirect, no retry.
//!
//! The host is not trusted: what it answers is read up to a bound, and used only after [`super::binding`] has found it
//! bound to the request. What it says in a refusal is shown to a person, cleaned and cut.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_trust::idp::{
    Unread, below, http_client, is_https_or_loopback, read_body, retry_after_secs, secret_body, transport,
};
use cotal_wire::{es_value::EsValue, manager_authority::ROUTE};
use cotal_workspace::printed::is_plain;
use serde::Serialize;
use url::Url;
use zeroize::Zeroizing;

/// Longer than the 10 s that the public face gives itself.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest request that the route reads.
pub const MAX_REQUEST_BYTES: usize = 65_536;
/// Largest answer of a kind whose answer is one document.
const MAX_ANSWER_BYTES: usize = 512 * 1024;
/// Largest answer of a goal index scan: 10,000 rows with notes of some size.
const MAX_SCAN_BYTES: usize = 64 * 1024 * 1024;
/// Most values of an answer. Read, each takes many times the two bytes that it may have here; 10,000 goals have half as many.
const MAX_VALUES: usize = 500_000;
/// Longest part of a refusal's sentence that is repeated, in characters.
const MAX_SENTENCE: usize = 400;

/// Where a fresh IdP token of the signed-in person comes from.
#[async_trait]
pub trait IdpTokens: Send + Sync {
    /// A token that proves the sign-in now. The sentence of a failure says how to sign in again.
    async fn fresh(&self) -> Result<Zeroizing<String>, String>;
}

/// A host, by the base URL of one of its faces.
#[derive(Clone)]
pub struct ManagerHost {
    url: Url,
    tokens: Arc<dyn IdpTokens>,
    http: reqwest::Client,
}

/// How much of an answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// One document.
    Document,
    /// A list as long as the space has goals.
    Scan,
}

/// What a refusal means for who asked (contract 06 §2). The book's page for participants has a row of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// No proof of a sign-in went with the request.
    NoProof,
    /// There is no host to ask: its URL is none of an auth service's, or this machine can make no client.
    NoHost,
    /// This side would not send the request, or the host did not read it.
    Unsendable,
    /// Scope, owner, proof or registration does not let it; or the host does not serve this.
    Denied,
    /// The name is another lifecycle's, or the epoch is a former one.
    Conflict,
    /// Too many refusals from here within a minute.
    Throttled,
    /// The host is busy, or ended the request at its deadline.
    Busy,
    /// The host failed.
    Failed,
    /// The host did not answer.
    Unreachable,
    /// The answer is none of this route.
    Garbled,
}

/// A request that was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {said}; {next}", what = .kind.what(), next = .kind.next())]
pub struct HostRefusal {
    /// What it means.
    pub kind: RefusalKind,
    /// The HTTP status, when there was one.
    pub status: Option<u16>,
    /// The host's own sentence, or this side's.
    pub said: String,
    /// Seconds to wait, when the host named some.
    pub retry_after_secs: Option<u64>,
}

impl RefusalKind {
    const fn what(self) -> &'static str {
        match self {
            Self::NoProof => "the sign-in cannot be proved",
            Self::NoHost => "the host cannot be asked",
            Self::Unsendable => "the request cannot be sent",
            Self::Denied => "the host refuses",
            Self::Conflict => "the host answers that the state has moved",
            Self::Throttled => "the host counts too many refusals",
            Self::Busy => "the host is busy",
            Self::Failed => "the host failed",
            Self::Unreachable => "the host does not answer",
            Self::Garbled => "the host's answer is none of this route",
        }
    }

    /// What to do next.
    pub const fn next(self) -> &'static str {
        match self {
            Self::NoProof => "sign in again with `cotal login`",
            Self::NoHost => "mend that and ask again",
            Self::Unsendable => "shorten it",
            Self::Denied => {
                "look at the actor's grant (its scope must name \"supervise\") and at the registration"
            }
            Self::Conflict => "read the state again before asking again",
            Self::Throttled => "wait a minute",
            Self::Busy => "ask again shortly",
            Self::Failed => "look into the auth service's log",
            Self::Unreachable => "check the URL and that the service runs, then ask again",
            Self::Garbled => "check that the URL is an auth service's",
        }
    }
}

impl HostRefusal {
    fn new(kind: RefusalKind, said: impl Into<String>) -> Self {
        Self { kind, status: None, said: said.into(), retry_after_secs: None }
    }

    /// Whether the host has too much to do right now. The same request is served when that has passed.
    pub fn is_busy(&self) -> bool {
        matches!(self.kind, RefusalKind::Busy | RefusalKind::Throttled)
    }

    /// Whether this incarnation of the manager is no longer the current one.
    pub fn is_superseded(&self) -> bool {
        self.kind == RefusalKind::Conflict
    }
}

/// The body of the route.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a, R> {
    idp_token: &'a str,
    request: &'a R,
}

impl ManagerHost {
    /// A host at a base URL: https, or http on a loopback IP literal, without credentials in it.
    pub fn new(base: &str, tokens: Arc<dyn IdpTokens>) -> Result<Self, HostRefusal> {
        let no_host = |why: &str| HostRefusal::new(RefusalKind::NoHost, why);
        let url = Url::parse(base).map_err(|_| no_host("the host's URL is not a URL: it is the auth service's public face, such as https://auth.example"))?;
        if !is_https_or_loopback(&url) {
            return Err(no_host("the host's URL must be https (or http on a loopback IP literal)"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(no_host("the host's URL must carry no user name and no password"));
        }
        let http = http_client(TIMEOUT).map_err(|why| no_host(&why.0))?;
        Ok(Self { url: below(url, ROUTE), tokens, http })
    }

    /// Its origin, for people.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Asks once. An answer that did not come says nothing about whether the host acted: every kind may be asked again.
    pub async fn ask(&self, request: &impl Serialize, answer: Answer) -> Result<EsValue, HostRefusal> {
        let token = self
            .tokens
            .fresh()
            .await
            .map_err(|why| HostRefusal::new(RefusalKind::NoProof, sentence(&why)))?;
        let body = serde_json::to_vec(&Body { idp_token: &token, request });
        let body = body.map(Zeroizing::new).ok().filter(|body| body.len() <= MAX_REQUEST_BYTES);
        let body = body.ok_or_else(|| {
            HostRefusal::new(
                RefusalKind::Unsendable,
                format!("it is longer than the {MAX_REQUEST_BYTES} bytes that the route reads"),
            )
        })?;
        let request = self.http.post(self.url.clone()).header("content-type", "application/json");
        let sent = request.body(secret_body(body)).send().await;
        let unreachable = |error: reqwest::Error| {
            HostRefusal::new(RefusalKind::Unreachable, format!("{}: {}", self.origin(), transport(&error)))
        };
        let response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let garbled = |said: String| HostRefusal {
            status: Some(status),
            ..HostRefusal::new(RefusalKind::Garbled, said)
        };
        let retry_after_secs = retry_after_secs(&response);
        let most = match answer {
            Answer::Scan if status == 200 => MAX_SCAN_BYTES,
            Answer::Document | Answer::Scan => MAX_ANSWER_BYTES,
        };
        let bytes = read_body(response, most).await.map_err(|unread| match unread {
            Unread::TooLong => garbled(format!("it is longer than {most} bytes")),
            Unread::Broken(error) => unreachable(error),
        })?;
        if EsValue::values_at_most(&bytes) > MAX_VALUES {
            return Err(garbled(format!("it holds more than {MAX_VALUES} values")));
        }
        let parsed = EsValue::parse(&bytes).ok();
        if status == 200 {
            return parsed.ok_or_else(|| garbled("it is not JSON".to_owned()));
        }
        Err(refusal(status, parsed.as_ref(), retry_after_secs))
    }
}

/// A refusal by its status, and the sentence in its body when there is one.
fn refusal(status: u16, body: Option<&EsValue>, retry_after_secs: Option<u64>) -> HostRefusal {
    let kind = match status {
        400 => RefusalKind::NoProof,
        401 | 403 => RefusalKind::Denied,
        409 => RefusalKind::Conflict,
        429 => RefusalKind::Throttled,
        503 => RefusalKind::Busy,
        413 | 415 => RefusalKind::Unsendable,
        500..=599 => RefusalKind::Failed,
        _ => RefusalKind::Garbled,
    };
    let said =
        body.and_then(EsValue::as_object).and_then(|body| body.get("error")).and_then(EsValue::as_text);
    let said = said.map_or_else(|| format!("HTTP {status}"), sentence);
    HostRefusal { kind, status: Some(status), said, retry_after_secs }
}

/// A host's sentence on one line: nothing that a terminal would obey, and not without end.
pub(super) fn sentence(said: &str) -> String {
    let mut shown: String =
        said.chars().take(MAX_SENTENCE).map(|c| if is_plain(c) { c } else { ' ' }).collect();
    if said.chars().nth(MAX_SENTENCE).is_some() {
        shown.push('…');
    }
    let trimmed = shown.trim_end_matches(['.', ' ']);
    trimmed.to_owned()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    struct Fixed(Result<&'static str, &'static str>);

    #[async_trait]
    impl IdpTokens for Fixed {
        async fn fresh(&self) -> Result<Zeroizing<String>, String> {
            self.0.map(|token| Zeroizing::new(token.to_owned())).map_err(str::to_owned)
        }
    }

    fn host(base: &str) -> Result<ManagerHost, HostRefusal> {
        ManagerHost::new(base, Arc::new(Fixed(Ok("proof"))))
    }

    /// Answers one request with these bytes, whatever it is; gives back what was asked.
    async fn answering(answer: Vec<u8>) -> (ManagerHost, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            let mut chunk = [0; 4096];
            while !asked.ends_with(b"}}") {
                let read = stream.read(&mut chunk).await.unwrap();
                asked.extend_from_slice(&chunk[..read]);
            }
            // A reader that stops early closes the socket.
            let _ = stream.write_all(&answer).await;
            String::from_utf8(asked).unwrap()
        });
        (host(&base).unwrap(), asked)
    }

    fn http(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
            .into_bytes()
    }

    #[test]
    fn a_host_is_https_or_a_loopback_literal_and_carries_no_credentials() {
        for base in
            ["https://auth.example", "https://auth.example/base/", "http://127.0.0.1:1", "http://[::1]:1"]
        {
            assert!(host(base).is_ok(), "{base}");
        }
        for base in [
            "http://auth.example",
            "http://localhost:1",
            "ftp://127.0.0.1",
            "https://u@auth.example",
            "https://:p@auth.example",
            "",
        ] {
            let refusal = host(base).err().unwrap();
            assert_eq!(refusal.kind, RefusalKind::NoHost, "{base}");
            assert!(!refusal.to_string().contains("shorten"), "{refusal}");
        }
        assert_eq!(
            host("https://auth.example/base/?q=1#f").unwrap().url.as_str(),
            "https://auth.example/base/manager-service-authority"
        );
    }

    #[tokio::test]
    async fn the_proof_rides_the_body_and_a_200_is_its_json() {
        let (host, asked) = answering(http("200 OK", "{\"b\":1.0,\"a\":2}")).await;
        let answer = host.ask(&serde_json::json!({ "kind": "k" }), Answer::Document).await.unwrap();
        assert_eq!(answer.stringify(), "{\"b\":1,\"a\":2}");
        let asked = asked.await.unwrap();
        assert!(asked.starts_with("POST /manager-service-authority HTTP/1.1\r\n"), "{asked}");
        assert!(asked.to_ascii_lowercase().contains("content-type: application/json\r\n"));
        assert!(!asked.to_ascii_lowercase().contains("authorization:"));
        assert!(asked.ends_with("{\"idpToken\":\"proof\",\"request\":{\"kind\":\"k\"}}"));
    }

    #[tokio::test]
    async fn each_status_is_its_own_kind_of_refusal() {
        for (status, kind) in [
            ("400 x", RefusalKind::NoProof),
            ("401 x", RefusalKind::Denied),
            ("403 x", RefusalKind::Denied),
            ("409 x", RefusalKind::Conflict),
            ("413 x", RefusalKind::Unsendable),
            ("429 x", RefusalKind::Throttled),
            ("500 x", RefusalKind::Failed),
            ("503 x", RefusalKind::Busy),
            ("302 x", RefusalKind::Garbled),
            ("204 x", RefusalKind::Garbled),
        ] {
            let (host, _asked) = answering(http(status, "{\"error\":\"no \\u0007such\\u202ething.\"}")).await;
            let refusal = host.ask(&serde_json::json!({ "k": {} }), Answer::Document).await.unwrap_err();
            assert_eq!(refusal.kind, kind, "{status}");
            if !status.starts_with("204") {
                assert_eq!(refusal.said, "no  such thing", "{status}");
                assert!(refusal.to_string().ends_with(kind.next()));
            }
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_left_off_and_one_that_is_no_json_is_refused() {
        let endless = format!("[{}]", "1,".repeat(MAX_ANSWER_BYTES));
        for body in ["not json", "", "{\"a\":1}{", endless.as_str()] {
            let (host, _asked) = answering(http("200 OK", body)).await;
            let refusal = host.ask(&serde_json::json!({ "k": {} }), Answer::Document).await.unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Garbled);
            assert!(refusal.to_string().len() < 600);
        }
    }

    #[tokio::test]
    async fn an_answer_of_more_values_than_there_are_goals_is_not_read() {
        let many = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        for (body, kind) in [
            (many(MAX_VALUES - 1), None),
            (many(MAX_VALUES), Some(RefusalKind::Garbled)),
            (format!("[\"{}\"]", ",[:".repeat(MAX_VALUES)), None),
        ] {
            let (host, _asked) = answering(http("200 OK", &body)).await;
            let answer = host.ask(&serde_json::json!({ "k": {} }), Answer::Scan).await;
            assert_eq!(answer.err().map(|refusal| refusal.kind), kind, "{} bytes", body.len());
        }
    }

    #[tokio::test]
    async fn without_a_proof_and_beyond_the_bound_nothing_is_sent() {
        let host = ManagerHost::new("http://127.0.0.1:1", Arc::new(Fixed(Err("run: cotal login")))).unwrap();
        let refusal = host.ask(&serde_json::json!({}), Answer::Document).await.unwrap_err();
        assert_eq!((refusal.kind, refusal.said.as_str()), (RefusalKind::NoProof, "run: cotal login"));
        let host = self::host("http://127.0.0.1:1").unwrap();
        let long = serde_json::json!({ "a": "x".repeat(MAX_REQUEST_BYTES) });
        assert_eq!(host.ask(&long, Answer::Document).await.unwrap_err().kind, RefusalKind::Unsendable);
        assert_eq!(
            host.ask(&serde_json::json!({}), Answer::Document).await.unwrap_err().kind,
            RefusalKind::Unreachable
        );
    }
}
