//! One answer: a status, compact JSON, and the few headers that a route adds (contract 05 §2.2).

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

/// The only content type that is ever sent; no charset (contract 05 §2.2).
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The body of a 500: everything else about it goes to the log (contract 05 §2.5).
const INTERNAL: &[u8] = br#"{"error":"internal server error"}"#;

/// `{ "error": "<sentence>" }`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody<'a> {
    /// One sentence for a person; clients must not match on it.
    pub error: &'a str,
}

/// Characters of a member's name that a refusal repeats. A body may be one name of 64 KiB, and what a refusal says is logged.
const NAME_SHOWN_MAX: usize = 64;

/// That a closed body has a member which `what` does not know.
pub(crate) fn unknown_field(what: &str, name: &str) -> String {
    let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
    let more = if shown.len() < name.len() { "…" } else { "" };
    format!("{what} carries the unknown field \"{shown}{more}\"")
}

/// An answer that is not yet an HTTP message.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub body: Bytes,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Reply {
    /// `body` as compact JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(status: StatusCode, body: &T) -> Self {
        match serde_json::to_vec(body) {
            Ok(bytes) => Self::raw(status, Bytes::from(bytes)),
            Err(error) => {
                tracing::error!(%error, "an answer could not be encoded");
                Self::internal()
            }
        }
    }

    /// JSON that is already text.
    pub(crate) fn raw(status: StatusCode, body: Bytes) -> Self {
        Self { status, body, headers: Vec::new() }
    }

    /// `{"error": sentence}`.
    pub(crate) fn error(status: StatusCode, sentence: &str) -> Self {
        Self::json(status, &ErrorBody { error: sentence })
    }

    /// The generic 500.
    pub(crate) fn internal() -> Self {
        Self::raw(StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(INTERNAL))
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The message, its body wrapped by the caller.
    pub(crate) fn into_response<B>(self, wrap: impl FnOnce(Bytes) -> B) -> Response<B> {
        let mut response = Response::new(wrap(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, JSON);
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_compact_json_without_a_charset() {
        let response = Reply::error(StatusCode::METHOD_NOT_ALLOWED, "POST only").into_response(|body| body);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(response.headers().len(), 1, "no allow header, no CORS");
        assert_eq!(&response.body()[..], br#"{"error":"POST only"}"#);
    }

    #[test]
    fn of_an_unknown_field_a_refusal_repeats_no_more_than_its_beginning() {
        assert_eq!(unknown_field("it", "extra"), "it carries the unknown field \"extra\"");
        let shown = "é".repeat(NAME_SHOWN_MAX);
        assert_eq!(unknown_field("it", &shown), format!("it carries the unknown field \"{shown}\""));
        let long = "é".repeat(60_000);
        assert_eq!(unknown_field("it", &long), format!("it carries the unknown field \"{shown}…\""));
    }

    #[test]
    fn the_generic_500_says_nothing_else() {
        let expected = serde_json::to_vec(&ErrorBody { error: "internal server error" }).unwrap();
        assert_eq!(&Reply::internal().body[..], &expected[..]);
    }
}
