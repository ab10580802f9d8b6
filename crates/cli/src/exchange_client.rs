//! An agent's exchange as its client sees it: the service on this machine, or a public face (contract 04 §13.2).

use std::{path::Path, time::Duration};

use cotal_trust::idp::{below, http_client, secret_body, transport};
use cotal_wire::{Actor, DerivedOwner, InstanceId, View};
use serde::Serialize;
use url::Url;
use zeroize::Zeroizing;

use crate::{http_json::Answer, loopback::LoopbackService, outcome::CliError, terminal::printable};

/// How long an exchange may take.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The path of the exchange below a face's base.
const EXCHANGE_PATH: &str = "/exchange";
/// The code of a limited actor or owner in a 429 (contract 04 §12).
const RATE_LIMITED: &str = "RATE_LIMITED";

/// Where an exchange is asked for.
pub struct ExchangeFace {
    url: Url,
    /// The capability of the service on this machine; a public face gets none.
    capability: Option<Zeroizing<String>>,
}

/// What an agent asks with.
pub struct AgentExchange {
    /// The owner.
    pub owner: DerivedOwner,
    /// The actor.
    pub actor: Actor,
    /// The agent's secret.
    pub secret: Zeroizing<String>,
    /// Set for a `manager-caller` bearer.
    pub manager: Option<ManagerCall>,
}

/// Which Manager a `manager-caller` bearer is for.
pub struct ManagerCall {
    /// The instance, or the only live one.
    pub instance: Option<InstanceId>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    owner: &'a DerivedOwner,
    actor: &'a Actor,
    actor_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manager_instance_id: Option<&'a InstanceId>,
}

impl ExchangeFace {
    /// The loopback face of the service that serves a state directory; its process must be provably alive.
    pub fn local(state_dir: &Path) -> Result<Self, CliError> {
        if !state_dir.is_dir() {
            return Err(CliError::failed(format!(
                "no auth service runs for {}, which is no directory: name the space's state directory, \
                 .cotal/auth/space.<hex of the name> where the space was brought up",
                state_dir.display()
            )));
        }
        let service = LoopbackService::of(state_dir)?;
        Ok(Self { url: below(service.base, EXCHANGE_PATH), capability: Some(service.capability) })
    }

    /// A public face: https, and nothing else.
    pub fn remote(base: &str) -> Result<Self, CliError> {
        let url =
            Url::parse(base).map_err(|e| CliError::usage(format!("--exchange-url is not a URL: {e}")))?;
        if url.scheme() != "https" {
            return Err(CliError::usage(
                "--exchange-url must be https:// (the agent's secret rides the request)",
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(CliError::usage("--exchange-url must not carry a user name or a password"));
        }
        Ok(Self { url: below(url, EXCHANGE_PATH), capability: None })
    }

    /// Asks for a bearer.
    pub async fn exchange(&self, agent: &AgentExchange) -> Result<Zeroizing<String>, CliError> {
        let body = Body {
            owner: &agent.owner,
            actor: &agent.actor,
            actor_token: &agent.secret,
            view: agent.manager.as_ref().map(|_| View::ManagerCaller.as_str()),
            manager_instance_id: agent.manager.as_ref().and_then(|call| call.instance.as_ref()),
        };
        let body = serde_json::to_vec(&body).map(Zeroizing::new);
        let body = body.map_err(|e| CliError::failed(format!("the exchange's request is no JSON: {e}")))?;
        let request = http_client(TIMEOUT)?.post(self.url.clone());
        let request = request.header("content-type", "application/json").body(secret_body(body));
        let request = self.capability.iter().fold(request, |request, cap| request.bearer_auth(cap.as_str()));
        let answer = match request.send().await {
            Ok(response) => Answer::read(response).await,
            Err(error) => Err(error),
        };
        let answer = answer.map_err(|e| {
            CliError::failed(format!(
                "no answer from the exchange at {}: {}; try again",
                self.url.origin().ascii_serialization(),
                transport(&e)
            ))
        })?;
        bearer_of(&answer)
    }
}

/// The bearer of an answer, or why there is none.
fn bearer_of(answer: &Answer) -> Result<Zeroizing<String>, CliError> {
    if answer.is_redirect() {
        return Err(CliError::failed(
            "exchange refused: it answered with a redirect, which is never followed",
        ));
    }
    if let Some(limited) = rate_limit(answer) {
        return Err(limited);
    }
    if !answer.is_success() {
        let reason = answer.text("error").map_or_else(|| format!("HTTP {}", answer.status), printable);
        return Err(CliError::failed(format!("exchange refused: {reason}")));
    }
    answer
        .text("token")
        .filter(|token| token.bytes().all(|b| b.is_ascii_graphic()))
        .map(|token| Zeroizing::new(token.to_owned()))
        .ok_or_else(|| CliError::failed("exchange refused: the answer holds no token"))
}

/// A 429 that names the bucket which ran out. Any other 429 is an ordinary refusal.
fn rate_limit(answer: &Answer) -> Option<CliError> {
    if answer.status != 429 || answer.text("code") != Some(RATE_LIMITED) {
        return None;
    }
    let retry_after_secs = answer
        .member("retryAfterSeconds")
        .and_then(serde_json::Value::as_u64)
        .or(answer.retry_after_secs)
        .filter(|seconds| *seconds > 0)?;
    let limit = answer.text("limit").map(printable);
    let remedy = match limit.as_deref() {
        Some("actor") => "Only this actor is limited: let it connect less often.",
        Some("owner") => "The whole account is limited: every actor of this owner draws on it.",
        _ => "Ask again later.",
    };
    let said = answer.text("error").map_or_else(|| "the exchange is rate limited".to_owned(), printable);
    Some(CliError::RateLimited { sentence: format!("{said} {remedy}"), retry_after_secs, limit })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status: u16, body: serde_json::Value) -> Answer {
        Answer { status, retry_after_secs: None, body: Some(body) }
    }

    #[test]
    fn a_public_face_is_https_without_exception() {
        for base in
            ["http://127.0.0.1:1", "http://a.example", "ftp://a", "a.example", "", "https://u:p@a.example"]
        {
            assert!(ExchangeFace::remote(base).is_err(), "{base}");
        }
        let face = ExchangeFace::remote("https://a.example/x/?q=1#f").unwrap();
        assert_eq!(face.url.as_str(), "https://a.example/x/exchange");
        assert!(face.capability.is_none());
    }

    #[test]
    fn a_rate_limit_names_its_bucket_and_its_remedy() {
        for (limit, remedy) in [("actor", "Only this actor"), ("owner", "The whole account")] {
            let body = json!({ "code": "RATE_LIMITED", "retryAfterSeconds": 7, "limit": limit, "error": "Slow down." });
            match bearer_of(&answer(429, body)) {
                Err(CliError::RateLimited { sentence, retry_after_secs: 7, limit: Some(named) }) => {
                    assert!(sentence.starts_with("Slow down. ") && sentence.contains(remedy), "{sentence}");
                    assert_eq!(named, limit);
                }
                _ => panic!("{limit}"),
            }
        }
        let plain = bearer_of(&answer(429, json!({ "error": "too many refused exchanges" })));
        assert!(matches!(plain, Err(CliError::Failed(sentence)) if sentence.contains("too many refused")));
    }

    #[test]
    fn a_refusal_is_told_by_its_error_or_its_status() {
        let refused = |status, body| bearer_of(&answer(status, body)).unwrap_err().to_string();
        assert_eq!(refused(401, json!({ "error": "no" })), "exchange refused: no");
        assert_eq!(refused(500, json!([])), "exchange refused: HTTP 500");
        assert_eq!(refused(403, json!({ "error": "a\u{1b}[2Jb" })), "exchange refused: a\u{fffd}[2Jb");
        assert!(refused(302, json!({ "token": "t" })).contains("redirect"));
        for body in [json!({}), json!({ "token": "" }), json!({ "token": 1 }), json!({ "token": "a\nb" })] {
            assert!(refused(200, body).contains("no token"));
        }
        assert_eq!(bearer_of(&answer(200, json!({ "token": "t", "later": 1 }))).unwrap().as_str(), "t");
    }
}
