//! The operator's choice of a public face, checked once for the command line and for hosts (contract 05 §3.4).

use std::fmt;

use cotal_broker::Servers;
use url::Url;

/// Schemes that a client can dial a broker with.
const BROKER_SCHEMES: [&str; 4] = ["nats", "tls", "ws", "wss"];

/// The flags whose values every caller of the public face reads.
pub(crate) const PUBLIC_URL_FLAG: &str = "--exchange-public-url";
pub(crate) const ADVERTISED_SERVER_FLAG: &str = "--advertised-server";
pub(crate) const PROVISIONING_URL_FLAG: &str = "--agent-provisioning-url";

/// What is wrong with a public face. The flag names are those of `cotal auth-service`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicFaceError {
    /// The public URL is not https.
    #[error(
        "--exchange-public-url must be an https:// URL, got \"{0}\"; terminate TLS in a reverse proxy and name its URL"
    )]
    Url(String),
    /// The advertised broker URL is no URL of a broker.
    #[error("--advertised-server must be a nats://, tls://, ws:// or wss:// URL, got \"{0}\"")]
    AdvertisedServer(String),
    /// A URL that every caller reads carries credentials.
    #[error("{0} carries credentials, and every caller of the public face reads it; leave them out")]
    Credentials(&'static str),
    /// The provisioning URL does not parse.
    #[error("--agent-provisioning-url is not a URL, got \"{0}\"")]
    ProvisioningUrl(String),
    /// The provisioning URL is not https.
    #[error("--agent-provisioning-url must be https:// (the login bearer rides the request), got {0}://")]
    ProvisioningScheme(String),
}

/// A checked public face. It binds 127.0.0.1; a reverse proxy in front of it terminates TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicFace {
    port: u16,
    trusted_proxy: bool,
    url: Option<String>,
    advertised_server: Option<String>,
    agent_provisioning_url: Option<String>,
}

/// A public face as a host asks for it: nothing of it is checked until it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicFaceRequest {
    face: PublicFace,
}

/// A URL as it was given, for debugging: whether there is one. It may carry credentials.
pub(crate) struct Given<'a>(pub(crate) &'a Option<String>);

impl fmt::Debug for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Some(..)" } else { "None" })
    }
}

/// Of a request, too, of which nothing is checked.
impl fmt::Debug for PublicFace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, trusted_proxy, url, advertised_server, agent_provisioning_url } = self;
        f.debug_struct("PublicFace")
            .field("port", port)
            .field("trusted_proxy", trusted_proxy)
            .field("url", &Given(url))
            .field("advertised_server", &Given(advertised_server))
            .field("agent_provisioning_url", &Given(agent_provisioning_url))
            .finish()
    }
}

impl PublicFaceRequest {
    /// A public face on a port of 127.0.0.1; 0 takes an ephemeral one.
    pub fn on_port(port: u16) -> Self {
        Self { face: PublicFace::on_port(port) }
    }

    /// See [`PublicFace::behind_trusted_proxy`].
    #[must_use]
    pub fn behind_trusted_proxy(self, trusted: bool) -> Self {
        Self { face: self.face.behind_trusted_proxy(trusted) }
    }

    /// The `https://` URL that clients reach it under; without one, where it is bound.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.face.url = Some(url.into());
        self
    }

    /// The broker URL that clients are told; without one, the first that the service dials.
    #[must_use]
    pub fn advertised_server(mut self, server: impl Into<String>) -> Self {
        self.face.advertised_server = Some(server.into());
        self
    }

    /// The `https://` URL where people provision agents.
    #[must_use]
    pub fn agent_provisioning_url(mut self, url: impl Into<String>) -> Self {
        self.face.agent_provisioning_url = Some(url.into());
        self
    }

    /// The rules of contract 05 §3.4, in its order.
    pub(crate) fn check(self) -> Result<PublicFace, PublicFaceError> {
        let PublicFace { port, trusted_proxy, url, advertised_server, agent_provisioning_url } = self.face;
        PublicFace::on_port(port).behind_trusted_proxy(trusted_proxy).with_urls(
            url.as_deref(),
            advertised_server.as_deref(),
            agent_provisioning_url.as_deref(),
        )
    }
}

impl From<PublicFace> for PublicFaceRequest {
    fn from(face: PublicFace) -> Self {
        Self { face }
    }
}

impl PublicFace {
    /// A public face on a port of 127.0.0.1; 0 takes an ephemeral one.
    pub fn on_port(port: u16) -> Self {
        Self { port, trusted_proxy: false, url: None, advertised_server: None, agent_provisioning_url: None }
    }

    /// Attribute requests to the last `X-Forwarded-For` hop. Only when nothing but a proxy of yours reaches the port.
    #[must_use]
    pub fn behind_trusted_proxy(mut self, trusted: bool) -> Self {
        self.trusted_proxy = trusted;
        self
    }

    /// The external URLs, checked in the contract's order: public URL, advertised broker, agent provisioning.
    pub fn with_urls(
        mut self,
        url: Option<&str>,
        advertised_server: Option<&str>,
        agent_provisioning_url: Option<&str>,
    ) -> Result<Self, PublicFaceError> {
        if let Some(url) = url
            && !url.starts_with("https://")
        {
            return Err(PublicFaceError::Url(without_credentials(url)));
        }
        refuse_credentials(PUBLIC_URL_FLAG, url)?;
        if let Some(server) = advertised_server
            && !Url::parse(server).is_ok_and(|parsed| BROKER_SCHEMES.contains(&parsed.scheme()))
        {
            return Err(PublicFaceError::AdvertisedServer(without_credentials(server)));
        }
        refuse_credentials(ADVERTISED_SERVER_FLAG, advertised_server)?;
        // An empty provisioning URL is one that was not configured.
        let agent_provisioning_url = agent_provisioning_url.filter(|raw| !raw.is_empty());
        if let Some(raw) = agent_provisioning_url {
            let parsed =
                Url::parse(raw).map_err(|_| PublicFaceError::ProvisioningUrl(without_credentials(raw)))?;
            if parsed.scheme() != "https" {
                return Err(PublicFaceError::ProvisioningScheme(parsed.scheme().to_owned()));
            }
            refuse_credentials(PROVISIONING_URL_FLAG, Some(raw))?;
        }
        self.url = url.map(str::to_owned);
        self.advertised_server = advertised_server.map(str::to_owned);
        self.agent_provisioning_url = agent_provisioning_url.map(str::to_owned);
        Ok(self)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn trusted_proxy(&self) -> bool {
        self.trusted_proxy
    }

    /// The configured URL, else the bound one.
    pub(crate) fn url_at(&self, addr: std::net::SocketAddr) -> String {
        self.url.clone().unwrap_or_else(|| format!("http://{addr}"))
    }

    /// The advertised broker URL, else the first that the service dials: a client takes one URL, not a list.
    pub(crate) fn server_or(&self, dialled: &Servers) -> String {
        self.advertised_server.clone().unwrap_or_else(|| dialled.first_url())
    }

    pub(crate) fn agent_provisioning_url(&self) -> Option<&str> {
        self.agent_provisioning_url.as_deref()
    }
}

fn refuse_credentials(flag: &'static str, url: Option<&str>) -> Result<(), PublicFaceError> {
    let carries = url.is_some_and(|url| match Url::parse(url) {
        Ok(url) => !url.username().is_empty() || url.password().is_some(),
        // What no parser takes apart may be credentials up to its last `@`.
        Err(_) => url.contains('@'),
    });
    if carries { Err(PublicFaceError::Credentials(flag)) } else { Ok(()) }
}

/// A URL as an error may print it: what stands before an `@` may be a secret, well-formed or not.
fn without_credentials(url: &str) -> String {
    match url.rsplit_once('@') {
        None => url.to_owned(),
        Some((_, rest)) => format!("..@{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        url: Option<&str>,
        server: Option<&str>,
        provisioning: Option<&str>,
    ) -> Result<PublicFace, PublicFaceError> {
        PublicFace::on_port(0).with_urls(url, server, provisioning)
    }

    #[test]
    fn the_first_failing_rule_refuses() {
        assert!(matches!(checked(Some("http://x"), Some("x"), Some("x")), Err(PublicFaceError::Url(_))));
        assert!(matches!(
            checked(Some("https://x"), Some("http://x"), Some("x")),
            Err(PublicFaceError::AdvertisedServer(_))
        ));
        assert!(matches!(checked(None, None, Some("x")), Err(PublicFaceError::ProvisioningUrl(_))));
    }

    #[test]
    fn refusals_of_the_provisioning_url_have_the_contracts_text() {
        assert_eq!(
            checked(None, None, Some("nope")).unwrap_err().to_string(),
            "--agent-provisioning-url is not a URL, got \"nope\""
        );
        assert_eq!(
            checked(None, None, Some("http://x.example")).unwrap_err().to_string(),
            "--agent-provisioning-url must be https:// (the login bearer rides the request), got http://"
        );
    }

    #[test]
    fn every_broker_scheme_is_advertised_and_an_empty_provisioning_url_is_none() {
        for server in ["nats://h:4222", "tls://h", "ws://h:80", "wss://h"] {
            assert!(checked(None, Some(server), None).is_ok(), "{server}");
        }
        assert_eq!(checked(None, None, Some("")).unwrap().agent_provisioning_url(), None);
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_never_printed() {
        let refused = [
            checked(Some("https://u:s3cret@x"), None, None),
            checked(Some("http://u:s3cret@x"), None, None),
            checked(Some("https://u:s3cret@x:port"), None, None),
            checked(None, Some("nats://u:s3cret@h"), None),
            checked(None, Some("nats://s3cret@h"), None),
            checked(None, Some("http://s3cret@h"), None),
            checked(None, None, Some("https://u:s3cret@x")),
            checked(None, None, Some("u:s3cret@x y")),
        ];
        for refused in refused {
            let text = refused.unwrap_err().to_string();
            assert!(!text.contains("s3cret"), "{text}");
        }
        let asked = PublicFaceRequest::on_port(0)
            .url("https://u:s3cret@x")
            .advertised_server("nats://u:s3cret@x")
            .agent_provisioning_url("https://u:s3cret@x");
        let printed = format!("{asked:?}");
        assert!(printed.contains("url: Some(..)") && !printed.contains("s3cret"), "{printed}");
    }

    #[test]
    fn the_bundle_names_one_server_the_first_when_none_is_advertised() {
        let dialled = Servers::parse("nats://a:1,nats://b:2").unwrap();
        assert_eq!(PublicFace::on_port(0).server_or(&dialled), "nats://a:1");
        let advertised = checked(None, Some("tls://c"), None).unwrap();
        assert_eq!(advertised.server_or(&dialled), "tls://c");
    }
}
