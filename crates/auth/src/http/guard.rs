//! The guards of a route, in the contract's order; a handler never re-checks one (contract 05 §2.4).

use http::{HeaderMap, Method, StatusCode, header, request::Parts};

use super::reply::Reply;

const POST_ONLY: &str = "POST only";
const GET_ONLY: &str = "GET only";
const BROWSER_ORIGIN: &str = "browser-origin requests are not served here";
const JSON_ONLY: &str = "content-type must be application/json";

/// What a guard refused. A route that says more about its refusals adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GuardRefusal {
    pub status: StatusCode,
    pub sentence: &'static str,
}

impl From<GuardRefusal> for Reply {
    fn from(refusal: GuardRefusal) -> Self {
        Self::error(refusal.status, refusal.sentence)
    }
}

/// A GET route: HEAD is refused too.
pub(crate) fn get(parts: &Parts) -> Result<(), GuardRefusal> {
    if parts.method == Method::GET { Ok(()) } else { Err(method_refusal(GET_ONLY)) }
}

/// A POST route that takes JSON: method, then origin, then content type.
pub(crate) fn json_post(parts: &Parts) -> Result<(), GuardRefusal> {
    if parts.method != Method::POST {
        return Err(method_refusal(POST_ONLY));
    }
    if parts.headers.contains_key(header::ORIGIN) {
        return Err(GuardRefusal { status: StatusCode::FORBIDDEN, sentence: BROWSER_ORIGIN });
    }
    if !has_json_content_type(&parts.headers) {
        return Err(GuardRefusal { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence: JSON_ONLY });
    }
    Ok(())
}

fn method_refusal(sentence: &'static str) -> GuardRefusal {
    GuardRefusal { status: StatusCode::METHOD_NOT_ALLOWED, sentence }
}

/// `/^application\/json\b/`, case-sensitive; parameters are allowed, an absent header is the empty string.
fn has_json_content_type(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    value
        .strip_prefix(b"application/json")
        .is_some_and(|rest| rest.first().is_none_or(|b| !(b.is_ascii_alphanumeric() || *b == b'_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri("/exchange");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_content_type_is_a_case_sensitive_prefix_up_to_a_word_boundary() {
        for good in [
            "application/json",
            "application/json; charset=utf-8",
            "application/json+x",
            "application/json-x",
        ] {
            assert!(has_json_content_type(&parts("POST", &[("content-type", good)]).headers), "{good}");
        }
        for bad in [
            "",
            "Application/json",
            "application/JSON",
            "application/jsonx",
            "application/json_",
            "text/plain",
        ] {
            assert!(!has_json_content_type(&parts("POST", &[("content-type", bad)]).headers), "{bad}");
        }
        assert!(!has_json_content_type(&parts("POST", &[]).headers));
    }

    #[test]
    fn method_goes_before_origin_and_origin_before_content_type() {
        let all_wrong = parts("GET", &[("origin", "")]);
        assert_eq!(json_post(&all_wrong).unwrap_err().status, StatusCode::METHOD_NOT_ALLOWED);
        let origin_and_type = parts("POST", &[("origin", "")]);
        assert_eq!(json_post(&origin_and_type).unwrap_err().status, StatusCode::FORBIDDEN);
        assert_eq!(json_post(&parts("POST", &[])).unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert!(json_post(&parts("POST", &[("content-type", "application/json")])).is_ok());
    }

    #[test]
    fn a_get_route_refuses_head() {
        assert!(get(&parts("HEAD", &[])).is_err());
        assert!(get(&parts("GET", &[("origin", "https://x")])).is_ok());
    }
}
