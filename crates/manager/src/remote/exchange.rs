//! An agent signs in from this machine (contract 04 §13.2): its secret goes to the exchange that its enrollment named, and
//! to nobody else; the bearer opens one connection.

use std::time::Duration;

use cotal_broker::{Connection, CredsConnector};
use cotal_trust::idp::{Unread, below, http_client, read_body, secret_body};
use cotal_wire::{ConnId, Entropy, EpError, LifecycleUid, es_value::EsValue, routes::EXCHANGE};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    error::RemoteError,
    host::{HostRefusal, RefusalKind, sentence},
    results::Enrolled,
};

/// How long an exchange may take (contract 08 §7.3).
const TIMEOUT: Duration = Duration::from_secs(15);
/// A bearer and three short members.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    owner: &'a str,
    actor: &'a str,
    actor_token: &'a str,
}

/// A refusal by its status, and what the exchange said, which is not trusted either.
fn refusal(status: u16, said: Option<&str>) -> HostRefusal {
    let kind = match status {
        429 => RefusalKind::Throttled,
        503 => RefusalKind::Busy,
        _ => RefusalKind::Denied,
    };
    let said = said.map_or_else(|| format!("HTTP {status}"), sentence);
    HostRefusal { kind, status: Some(status), said: format!("the exchange: {said}"), retry_after_secs: None }
}

/// Exchanges an agent's secret for a bearer at the face that its enrollment named.
pub async fn exchange(
    agent: &Enrolled,
    secret: &Zeroizing<String>,
) -> Result<Zeroizing<String>, RemoteError> {
    let refuse = |kind, status, said: &str| HostRefusal {
        kind,
        status,
        said: said.to_owned(),
        retry_after_secs: None,
    };
    let unreachable =
        |_: reqwest::Error| refuse(RefusalKind::Unreachable, None, "the exchange that the enrollment named");
    let url = below(agent.exchange.clone(), EXCHANGE);
    let body = Body {
        owner: agent.agent.owner.as_str(),
        actor: agent.agent.actor.as_str(),
        actor_token: secret.as_str(),
    };
    let http = http_client(TIMEOUT).map_err(|why| refuse(RefusalKind::NoHost, None, &why.0))?;
    let body = serde_json::to_vec(&body).map(Zeroizing::new);
    let body =
        body.map_err(|_| refuse(RefusalKind::Unsendable, None, "the exchange's request is no JSON"))?;
    let request = http.post(url).header("content-type", "application/json").body(secret_body(body));
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status().as_u16();
    let bytes = read_body(response, MAX_ANSWER_BYTES).await.map_err(|unread| match unread {
        Unread::TooLong => refuse(RefusalKind::Garbled, Some(status), "the exchange's answer is too long"),
        Unread::Broken(error) => unreachable(error),
    })?;
    let answer = EsValue::parse(&bytes).ok();
    let member = |name: &str| answer.as_ref()?.as_object()?.get(name)?.as_text();
    if status != 200 {
        return Err(refusal(status, member("error")).into());
    }
    let bearer = member("token").filter(|token| {
        (1..=16_384).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
    });
    let bound = member("owner") == Some(agent.agent.owner.as_str())
        && member("actor").is_none_or(|actor| actor == agent.agent.actor.as_str());
    match bearer {
        Some(bearer) if bound => Ok(Zeroizing::new(bearer.to_owned())),
        _ => Err(refuse(RefusalKind::Garbled, Some(status), "the exchange answered no bearer of this agent")
            .into()),
    }
}

/// Opens the agent's connection with a bearer, as its own process would.
pub async fn connect(
    connector: &CredsConnector,
    agent: &Enrolled,
    bearer: Zeroizing<String>,
    entropy: &dyn Entropy,
) -> Result<Connection, RemoteError> {
    let nonce = ConnId::parse(LifecycleUid::mint(entropy).as_str())
        .map_err(|_| EpError::internal("a lifecycle token is a nonce"))?;
    Ok(Box::pin(connector.open_bearer(&nonce, &agent.sentinel, bearer)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_exchange_says_is_repeated_on_one_line_and_cut() {
        let long = refusal(401, Some(&"x\n\u{1b}".repeat(MAX_ANSWER_BYTES / 3)));
        assert!(long.said.chars().count() < 500 && !long.said.contains(char::is_control), "{}", long.said);
        for (status, said, kind, told) in [
            (403, Some("no such agent."), RefusalKind::Denied, "the exchange: no such agent"),
            (429, None, RefusalKind::Throttled, "the exchange: HTTP 429"),
            (503, None, RefusalKind::Busy, "the exchange: HTTP 503"),
        ] {
            let refusal = refusal(status, said);
            assert_eq!((refusal.kind, refusal.said.as_str(), refusal.status), (kind, told, Some(status)));
        }
    }
}
