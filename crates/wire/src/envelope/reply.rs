//! `EndpointReply`: the answer to a request (contract 02 §4.2).

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{ENVELOPE_VERSION, fields::Fields};
use crate::{
    endpoint_token::IdToken,
    error::{EpCode, EpError},
};

/// Longest error code, in bytes.
const MAX_CODE: usize = 64;

/// A code of the catalog, or one that an endpoint's own vocabulary names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyCode {
    /// A catalog code.
    Catalog(EpCode),
    /// A reverse-DNS code of three labels or more.
    Foreign(String),
}

/// Whether the handler ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It did.
    Executed,
    /// It did not: the request was refused before dispatch.
    NotExecuted,
    /// Nobody can tell.
    Unknown,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplyError {
    /// The code.
    pub code: ReplyCode,
    /// One sentence for a person.
    pub message: String,
    /// Objects with a reverse-DNS `kind`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Value>,
    /// Whether the handler ran.
    pub outcome: Outcome,
}

/// A reply. Success carries data, failure an error, never both.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointReply {
    /// The request's id.
    pub id: IdToken,
    /// The answer. Data that is absent validates as null.
    pub result: Result<Option<Value>, ReplyError>,
    /// A receipt reference.
    pub receipt: Option<String>,
}

#[derive(Serialize)]
struct Wire<'a> {
    v: u64,
    id: &'a IdToken,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ReplyError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a str>,
}

impl ReplyCode {
    /// Reads a code.
    pub fn parse(s: &str) -> Option<Self> {
        EpCode::from_token(s)
            .map(Self::Catalog)
            .or_else(|| (s.len() <= MAX_CODE && is_reverse_dns(s)).then(|| Self::Foreign(s.to_owned())))
    }

    /// The code as it stands on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Catalog(code) => code.as_str(),
            Self::Foreign(code) => code,
        }
    }
}

impl Serialize for ReplyCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl ReplyError {
    /// A native refusal, and whether the handler had run when it was raised.
    pub fn new(error: EpError, outcome: Outcome) -> Self {
        Self { code: ReplyCode::Catalog(error.code), message: error.message, details: error.details, outcome }
    }

    fn parse(value: &Value) -> Result<Self, EpError> {
        let error = Fields::of("reply.error", value)?;
        let code = ReplyCode::parse(error.text("code")?)
            .ok_or_else(|| error.bad("code", "a known or reverse-DNS code"))?;
        let message = error
            .get("message")
            .and_then(Value::as_str)
            .ok_or_else(|| error.bad("message", "a string"))?
            .to_owned();
        let details = match error.get("details") {
            None => Vec::new(),
            Some(Value::Array(details)) if details.iter().all(has_kind) => details.clone(),
            Some(_) => return Err(error.bad("details", "a list of objects, each with a reverse-DNS kind")),
        };
        let outcome = match error.get("outcome") {
            None => Outcome::Unknown,
            Some(outcome) => match outcome.as_str() {
                Some("executed") => Outcome::Executed,
                Some("not-executed") => Outcome::NotExecuted,
                Some("unknown") => Outcome::Unknown,
                _ => return Err(error.bad("outcome", "executed, not-executed or unknown")),
            },
        };
        Ok(Self { code, message, details, outcome })
    }
}

impl EndpointReply {
    /// A successful reply.
    pub fn ok(id: IdToken, data: Option<Value>) -> Self {
        Self { id, result: Ok(data), receipt: None }
    }

    /// A failed reply.
    pub fn failed(id: IdToken, error: EpError, outcome: Outcome) -> Self {
        Self { id, result: Err(ReplyError::new(error, outcome)), receipt: None }
    }

    /// Reads a reply; the first failure in the contract's order wins.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|_| EpError::bad_request("a reply must be valid JSON"))?;
        let reply = Fields::of("reply", &value)?;
        reply.version()?;
        let id = reply.token("id")?;
        let ok = reply.flag("ok")?;
        let result = match (ok, reply.get("data"), reply.get("error")) {
            (true, data, None) => Ok(data.cloned()),
            (false, None, Some(error)) => Err(ReplyError::parse(error)?),
            (true, _, Some(_)) => return Err(EpError::bad_request("a successful reply carries no error")),
            (false, Some(_), _) => return Err(EpError::bad_request("a failed reply carries no data")),
            (false, None, None) => return Err(reply.bad("error", "an object when the reply is not ok")),
        };
        let receipt = reply.optional_text("receipt")?.map(str::to_owned);
        Ok(Self { id, result, receipt })
    }

    /// The reply's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (data, error) = match &self.result {
            Ok(data) => (data.as_ref(), None),
            Err(error) => (None, Some(error)),
        };
        crate::rows::compact(&Wire {
            v: ENVELOPE_VERSION,
            id: &self.id,
            ok: self.result.is_ok(),
            data,
            error,
            receipt: self.receipt.as_deref(),
        })
    }
}

fn has_kind(detail: &Value) -> bool {
    detail.get("kind").and_then(Value::as_str).is_some_and(is_reverse_dns)
}

/// Three labels or more of `a-z 0-9 -`, as in `ai.cotal.ep.bind-refused`.
fn is_reverse_dns(s: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    s.split('.').count() >= 3 && s.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn id() -> IdToken {
        IdToken::parse("r1").unwrap()
    }

    fn parse(value: &Value) -> Result<EndpointReply, EpError> {
        EndpointReply::parse(value.to_string().as_bytes())
    }

    #[test]
    fn replies_have_these_bytes_and_read_back() {
        let ok = EndpointReply::ok(id(), Some(json!({ "a": 1 })));
        assert_eq!(ok.to_bytes(), br#"{"v":1,"id":"r1","ok":true,"data":{"a":1}}"#);
        let failed = EndpointReply::failed(id(), EpError::conflict("lost"), Outcome::NotExecuted);
        assert_eq!(
            failed.to_bytes(),
            br#"{"v":1,"id":"r1","ok":false,"error":{"code":"conflict","message":"lost","outcome":"not-executed"}}"#
        );
        for reply in [ok, failed, EndpointReply::ok(id(), None)] {
            assert_eq!(EndpointReply::parse(&reply.to_bytes()).unwrap(), reply);
        }
    }

    #[test]
    fn a_reply_refuses_in_order() {
        let error = json!({ "code": "conflict", "message": "m" });
        for (reply, code) in [
            (json!(7), EpCode::BadRequest),
            (json!({ "v": 2, "id": 7 }), EpCode::UnsupportedVersion),
            (json!({ "v": 1, "id": "a b", "ok": 7 }), EpCode::BadRequest),
            (json!({ "v": 1, "id": "r", "ok": "yes" }), EpCode::BadRequest),
            (json!({ "v": 1, "id": "r", "ok": true, "error": error }), EpCode::BadRequest),
            (json!({ "v": 1, "id": "r", "ok": false, "data": 1, "error": error }), EpCode::BadRequest),
            (json!({ "v": 1, "id": "r", "ok": false }), EpCode::BadRequest),
            (json!({ "v": 1, "id": "r", "ok": true, "receipt": "" }), EpCode::BadRequest),
        ] {
            assert_eq!(parse(&reply).unwrap_err().code, code, "{reply}");
        }
    }

    #[test]
    fn an_error_names_a_known_code_known_kinds_and_a_known_outcome() {
        let reply = |error: Value| parse(&json!({ "v": 1, "id": "r", "ok": false, "error": error }));
        let error =
            reply(json!({ "code": "com.example.busy", "message": "", "details": [{ "kind": "a.b.c" }] }));
        let error = error.unwrap().result.unwrap_err();
        assert_eq!((error.code.as_str(), error.outcome), ("com.example.busy", Outcome::Unknown));
        for bad in [
            json!({ "code": "busy", "message": "m" }),
            json!({ "code": "example.busy", "message": "m" }),
            json!({ "code": format!("a.b.{}", "c".repeat(64)), "message": "m" }),
            json!({ "code": "conflict" }),
            json!({ "code": "conflict", "message": "m", "outcome": "maybe" }),
            json!({ "code": "conflict", "message": "m", "details": [{ "kind": "a.b" }] }),
            json!({ "code": "conflict", "message": "m", "details": {} }),
        ] {
            assert_eq!(reply(bad.clone()).unwrap_err().code, EpCode::BadRequest, "{bad}");
        }
    }
}
