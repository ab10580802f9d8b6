//! A face: one policy, one closed route table, over what both faces answer from (contract 05 §2.3, §3).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use cotal_wire::{Clock, UnixMillis};
use http::{StatusCode, Uri, request::Parts};
use hyper::body::Body;
use tokio::sync::RwLock;

use super::{
    doors::{Doors, interactive_retire, managed_activate, managed_retire, verify_enrollment},
    exchange::{self, Exchange},
    guard, health, jwks,
    loopback::{self, BadCapability, Loopback},
    manager_authority, manager_instances, mesh, peer,
    public::{self, Admitted, Public},
    reply::Reply,
};
use crate::{capability::Capability, manager::AnswerManagers};

/// What both faces of one space answer from.
pub(crate) struct Service {
    pub issuer: String,
    pub jwks: Bytes,
    pub exchange: Exchange,
    pub manager: Arc<dyn AnswerManagers>,
    /// Read-locked by each request that works on durable state: a close of the context waits for it.
    pub entered: Arc<RwLock<()>>,
    pub clock: Arc<dyn Clock>,
}

/// One listener's policy over a service.
pub(crate) struct Face {
    service: Arc<Service>,
    policy: Policy,
}

/// What differs between the two faces.
pub(crate) enum Policy {
    Loopback(Loopback),
    Public(Public),
}

/// Who a request is charged to, and when.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub peer: String,
    pub now: UnixMillis,
}

impl Face {
    pub(crate) fn loopback(service: Arc<Service>, cap: Capability, doors: Doors) -> Self {
        Self { service, policy: Policy::Loopback(Loopback::new(cap, doors)) }
    }

    pub(crate) fn public(service: Arc<Service>, trusted_proxy: bool, bundle: Bytes) -> Self {
        Self { service, policy: Policy::Public(Public::new(trusted_proxy, bundle)) }
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Admission, before anything of the request is looked at. The loopback face admits everyone.
    pub(crate) fn admit(&self) -> Result<Option<Admitted>, Reply> {
        match &self.policy {
            Policy::Loopback(_) => Ok(None),
            Policy::Public(public) => public.admit().map(Some),
        }
    }

    /// The wall clock of one request, if this face has one.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.policy {
            Policy::Loopback(_) => None,
            Policy::Public(_) => Some(public::DEADLINE),
        }
    }

    /// Routes one request. The key is the raw request target and nothing else: method plays no part in lookup.
    pub(crate) async fn route<B>(&self, parts: &Parts, body: &mut B, remote: SocketAddr) -> Reply
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let outcome = match (&self.policy, raw_target(&parts.uri)) {
            (Policy::Loopback(_), Some(health::PATH)) => Ok(health::reply(&self.service.issuer)),
            (Policy::Public(_), Some(health::PATH)) => {
                guard::get(parts).map(|()| health::reply(&self.service.issuer))
            }
            (_, Some(jwks::PATH)) => guard::get(parts).map(|()| jwks::reply(self.service.jwks.clone())),
            (Policy::Public(public), Some(mesh::PATH)) => {
                guard::get(parts).map(|()| mesh::reply(public.bundle.clone()))
            }
            (_, Some(exchange::PATH)) => match guard::json_post(parts) {
                Ok(()) => Ok(exchange::serve(self, &self.caller(parts, remote), parts, body).await),
                Err(refusal) => Err(refusal),
            },
            (_, Some(manager_authority::PATH)) => match guard::json_post(parts) {
                Ok(()) => Ok(manager_authority::serve(self, &self.caller(parts, remote), parts, body).await),
                Err(refusal) => Err(refusal),
            },
            (_, Some(manager_instances::PATH)) => match guard::json_post(parts) {
                Ok(()) => Ok(manager_instances::serve(self, &self.caller(parts, remote), parts, body).await),
                Err(refusal) => Err(refusal),
            },
            (Policy::Loopback(loopback), Some(target)) => Ok(self.door(loopback, target, parts, body).await),
            _ => Ok(self.unknown_path()),
        };
        outcome.unwrap_or_else(Reply::from)
    }

    /// The lifecycle doors of the loopback face, and what is no path of it.
    async fn door<B>(&self, loopback: &Loopback, target: &str, parts: &Parts, body: &mut B) -> Reply
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let doors = loopback.doors();
        match target {
            interactive_retire::PATH => interactive_retire::serve(doors, loopback, parts, body).await,
            managed_retire::PATH => managed_retire::serve(doors, loopback, parts, body).await,
            managed_activate::PATH => managed_activate::serve(doors, loopback, parts, body).await,
            verify_enrollment::PATH => verify_enrollment::serve(doors, loopback, parts, body).await,
            _ => self.unknown_path(),
        }
    }

    /// The capability guard: the public face has none.
    pub(crate) fn check_capability(&self, parts: &Parts, caller: &Caller) -> Result<(), BadCapability> {
        match &self.policy {
            Policy::Loopback(loopback) => loopback.check_capability(&parts.headers, caller.now),
            Policy::Public(_) => Ok(()),
        }
    }

    /// Whether the capability is right, where one is needed. Unlike [`Self::check_capability`] it remembers nothing of a wrong
    /// one.
    pub(crate) fn has_capability(&self, parts: &Parts) -> bool {
        match &self.policy {
            Policy::Loopback(loopback) => loopback.admits(&parts.headers),
            Policy::Public(_) => true,
        }
    }

    /// Whether a refusal of this caller would be masked as 429. On the public face the check itself is a touch.
    pub(crate) fn is_throttled(&self, caller: &Caller) -> bool {
        match &self.policy {
            Policy::Loopback(loopback) => loopback.is_throttled(caller.now),
            Policy::Public(public) => public.is_throttled(&caller.peer, caller.now),
        }
    }

    /// Counts a refusal against the face or the peer.
    pub(crate) fn record_refusal(&self, caller: &Caller) {
        let now = self.service.clock.now_millis();
        match &self.policy {
            Policy::Loopback(loopback) => loopback.record_refusal(now),
            Policy::Public(public) => public.record_refusal(&caller.peer, now),
        }
    }

    /// What the log lines of its connections and requests are under, so that each names its space.
    pub(crate) fn span(&self) -> tracing::Span {
        tracing::error_span!("face", space = %self.service.exchange.issuer.space())
    }

    /// The face's name in the log.
    pub(crate) fn name(&self) -> &'static str {
        match self.policy {
            Policy::Loopback(_) => "loopback",
            Policy::Public(_) => "public",
        }
    }

    fn caller(&self, parts: &Parts, remote: SocketAddr) -> Caller {
        let trusted_proxy = matches!(&self.policy, Policy::Public(public) if public.trusted_proxy);
        Caller {
            peer: peer::peer_key(&parts.headers, remote, trusted_proxy),
            now: self.service.clock.now_millis(),
        }
    }

    fn unknown_path(&self) -> Reply {
        let paths = match &self.policy {
            Policy::Loopback(_) => &loopback::PATHS[..],
            Policy::Public(_) => &public::PATHS[..],
        };
        Reply::error(StatusCode::NOT_FOUND, &format!("unknown path - {}", paths.join(", ")))
    }
}

/// The request target in origin form, as it was sent; the absolute and authority forms match no route. The HTTP
/// library drops a `#fragment`, which no client sends, before anyone here could see it.
fn raw_target(uri: &Uri) -> Option<&str> {
    if uri.scheme().is_some() || uri.authority().is_some() {
        return None;
    }
    uri.path_and_query().map(http::uri::PathAndQuery::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_origin_form_without_a_query_equals_a_path() {
        for (sent, target) in [
            ("/health", Some("/health")),
            ("/health?", Some("/health?")),
            ("/health?x=1", Some("/health?x=1")),
            ("/health/", Some("/health/")),
            ("//health", Some("//health")),
            ("http://127.0.0.1/health", None),
            ("*", Some("*")),
        ] {
            assert_eq!(raw_target(&sent.parse().unwrap()), target, "{sent}");
        }
    }
}
