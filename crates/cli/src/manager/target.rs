//! Which host, which broker and whose sign-in: from the flags, else from this machine's registry, else from what the host
//! says of itself to those who named it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cotal_manager::remote::IdpTokens;
use cotal_trust::idp::{below, http_client, is_https_or_loopback, transport};
use cotal_wire::Space;
use cotal_workspace::registry::{MeshEntry, MeshRegistry};
use url::Url;
use zeroize::Zeroizing;

use crate::{
    context::Context,
    given_url::GivenUrl,
    http_json::Answer,
    idp_client::IdpClient,
    outcome::CliError,
    progress::{if_slow, within},
    session_cache::SessionCache,
};

/// What a host says of itself (contract 05 §3.4).
const BUNDLE_PATH: &str = "/.well-known/cotal-mesh";
const BUNDLE_WITHIN: Duration = Duration::from_secs(15);

/// What was named on the command line.
pub(super) struct Named {
    pub(super) host: Option<GivenUrl>,
    pub(super) server: Option<GivenUrl>,
    pub(super) idp: Option<GivenUrl>,
}

/// Where a remote manager asks, dials and signs in.
pub(super) struct Target {
    pub(super) host: String,
    pub(super) server: String,
    pub(super) idp: String,
}

impl Target {
    /// Finds out what was not named. The host is asked for what it says of itself only when something is missing.
    pub(super) async fn find(named: Named, space: &Space, ctx: &Context) -> Result<Self, CliError> {
        let entry = MeshRegistry::new(ctx.home.clone()).get(space)?;
        let known = Known::of(entry.as_ref());
        let named_or = |named: Option<GivenUrl>, known| named.map(String::from).or(known);
        let host = named_or(named.host, known.host).ok_or_else(|| {
            CliError::usage(format!(
                "this machine's registry names no public face of the space {:?}: give its URL with --host",
                space.as_str()
            ))
        })?;
        let (server, idp) = (named_or(named.server, known.server), named_or(named.idp, known.idp));
        let (server, idp) = match (server, idp) {
            (Some(server), Some(idp)) => (server, idp),
            (server, idp) => {
                let waits = within("waiting for what the host says of itself", BUNDLE_WITHIN);
                let bundle = if_slow(ctx, &waits, Bundle::fetch(&host, space)).await?;
                (server.unwrap_or(bundle.server), idp.unwrap_or(bundle.idp))
            }
        };
        Ok(Self { host, server, idp })
    }
}

/// What the registry says.
#[derive(Default)]
struct Known {
    host: Option<String>,
    server: Option<String>,
    idp: Option<String>,
}

impl Known {
    fn of(entry: Option<&MeshEntry>) -> Self {
        let Some(entry) = entry else { return Self::default() };
        let user = entry.user_auth.as_ref();
        Self {
            host: user.and_then(|user| user.endpoints.as_ref()).and_then(|endpoints| endpoints.url.clone()),
            server: Some(entry.server.clone()),
            idp: user.map(|user| user.idp.url.clone()),
        }
    }
}

/// The part of the bootstrap bundle that is used here.
struct Bundle {
    server: String,
    idp: String,
}

impl Bundle {
    async fn fetch(host: &str, space: &Space) -> Result<Self, CliError> {
        let url = Url::parse(host).map_err(|_| CliError::usage("--host is not a URL"))?;
        if !is_https_or_loopback(&url) {
            return Err(CliError::usage("--host must be https:// (or http:// on a loopback IP literal)"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(CliError::usage("--host carries credentials; leave them out"));
        }
        let unread = |why: &str| {
            CliError::failed(format!(
                "{host} does not say which broker and which identity provider are its space's ({why}): give --server and \
                 --idp"
            ))
        };
        let response = http_client(BUNDLE_WITHIN)?.get(below(url, BUNDLE_PATH)).send().await;
        let response = response.map_err(|error| unread(transport(&error)))?;
        let answer = Answer::read(response).await.map_err(|error| unread(transport(&error)))?;
        if !answer.is_success() {
            return Err(unread(&format!("HTTP {}", answer.status)));
        }
        if answer.text("space") != Some(space.as_str()) {
            return Err(CliError::failed(format!(
                "{host} serves another space than {:?}: name the one that it serves with --space",
                space.as_str()
            )));
        }
        let idp = answer.member("userAuth").and_then(|user| user.get("idp")).and_then(|idp| idp.get("url"));
        let idp =
            idp.and_then(serde_json::Value::as_str).ok_or_else(|| unread("it names no identity provider"))?;
        let server = answer.text("server").ok_or_else(|| unread("it names no broker"))?;
        let tls = answer.member("tlsRequired") != Some(&serde_json::Value::Bool(false));
        Ok(Self { server: if tls { with_tls(server) } else { server.to_owned() }, idp: idp.to_owned() })
    }
}

/// Server URLs that are only dialled with TLS. What is neither NATS nor TLS is refused where it is dialled.
fn with_tls(servers: &str) -> String {
    let with_tls = |server: &str| match server.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("nats") => format!("tls://{rest}"),
        None => format!("tls://{server}"),
        Some(_) => server.to_owned(),
    };
    let servers: Vec<String> = servers.split(',').map(|server| with_tls(server.trim())).collect();
    servers.join(",")
}

/// The sign-in that this machine remembers.
pub(super) struct CachedLogin {
    client: IdpClient,
    session: Zeroizing<String>,
}

impl CachedLogin {
    /// The session at this identity provider, proved by nothing yet.
    pub(super) fn at(idp: &str, ctx: &Context) -> Result<Arc<Self>, CliError> {
        let client = IdpClient::new(idp, ctx)?;
        let session = SessionCache::of(&ctx.home).get(client.base())?.ok_or_else(|| {
            CliError::failed(format!(
                "nobody is signed in at {}; run: cotal login --idp {}",
                client.base(),
                client.base()
            ))
        })?;
        Ok(Arc::new(Self { client, session: session.token }))
    }
}

#[async_trait]
impl IdpTokens for CachedLogin {
    async fn fresh(&self) -> Result<Zeroizing<String>, String> {
        self.client.prove(&self.session).await.map(|proof| proof.token).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_a_host_names_is_dialled_with_tls() {
        assert_eq!(with_tls("nats://b.example:4222"), "tls://b.example:4222");
        assert_eq!(with_tls(" NATS://b.example, nats://c,d"), "tls://b.example,tls://c,tls://d");
        assert_eq!(with_tls("b.example"), "tls://b.example");
        assert_eq!(with_tls("tls://b.example"), "tls://b.example");
        assert_eq!(with_tls("wss://b.example"), "wss://b.example");
    }
}
