//! The flags of the public face, taken by `up` and handed on to `auth-service` (contract 04 §13, 05 §14).

use cotal_auth::PublicFace;
use serde::{Deserialize, Serialize};

use crate::given_url::GivenUrl;

/// The public face, all off unless the port is named. `up` keeps them in the space's record, for the next `up`.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeFlags {
    /// Also serve the public face on 127.0.0.1 at this port, behind a reverse proxy.
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange_public_port: Option<u16>,
    /// The public https URL that the proxy answers.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange_public_url: Option<GivenUrl>,
    /// Attribute peers by the last X-Forwarded-For hop.
    #[arg(long)]
    #[serde(default)]
    pub exchange_trusted_proxy: bool,
    /// The broker URL that the public face advertises.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertised_server: Option<GivenUrl>,
    /// The agent provisioning URL that the public face advertises.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_provisioning_url: Option<GivenUrl>,
}

impl ExchangeFlags {
    /// Every flag but the port needs the port (contract 05 §14), and each value is one that the service takes.
    pub fn check(&self) -> Result<(), String> {
        if self.exchange_public_port.is_some() {
            return self.check_values();
        }
        let named = [
            ("--exchange-public-url", self.exchange_public_url.is_some()),
            ("--exchange-trusted-proxy", self.exchange_trusted_proxy),
            ("--advertised-server", self.advertised_server.is_some()),
            ("--agent-provisioning-url", self.agent_provisioning_url.is_some()),
        ];
        match named.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(format!("{flag} needs --exchange-public-port")),
            None => Ok(()),
        }
    }

    /// The values alone, by the service's own rules: told before anything is begun, and not by a service that ends over
    /// them.
    pub fn check_values(&self) -> Result<(), String> {
        let checked = PublicFace::on_port(self.exchange_public_port.unwrap_or_default()).with_urls(
            self.exchange_public_url.as_deref(),
            self.advertised_server.as_deref(),
            self.agent_provisioning_url.as_deref(),
        );
        checked.map(drop).map_err(|error| error.to_string())
    }

    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// These flags, and what was remembered for each one that is not among them.
    #[must_use]
    pub fn or(&self, remembered: Self) -> Self {
        Self {
            exchange_public_port: self.exchange_public_port.or(remembered.exchange_public_port),
            exchange_public_url: self.exchange_public_url.clone().or(remembered.exchange_public_url),
            exchange_trusted_proxy: self.exchange_trusted_proxy || remembered.exchange_trusted_proxy,
            advertised_server: self.advertised_server.clone().or(remembered.advertised_server),
            agent_provisioning_url: self.agent_provisioning_url.clone().or(remembered.agent_provisioning_url),
        }
    }

    /// The same flags as arguments.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut pair = |flag: &str, value: Option<String>| {
            arguments.extend(value.map(|value| [flag.to_owned(), value]).into_iter().flatten());
        };
        pair("--exchange-public-port", self.exchange_public_port.map(|port| port.to_string()));
        pair("--exchange-public-url", self.exchange_public_url.clone().map(String::from));
        pair("--advertised-server", self.advertised_server.clone().map(String::from));
        pair("--agent-provisioning-url", self.agent_provisioning_url.clone().map(String::from));
        if self.exchange_trusted_proxy {
            arguments.push("--exchange-trusted-proxy".to_owned());
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ExchangeFlags,
    }

    fn read(words: &[&str]) -> ExchangeFlags {
        Line::try_parse_from(std::iter::once(&"x").chain(words)).unwrap().flags
    }

    #[test]
    fn every_flag_but_the_port_needs_the_port() {
        for words in [
            &["--exchange-public-url", "https://a"][..],
            &["--exchange-trusted-proxy"],
            &["--advertised-server", "tls://b:4222"],
            &["--agent-provisioning-url", "https://c"],
        ] {
            assert_eq!(read(words).check(), Err(format!("{} needs --exchange-public-port", words[0])));
            let with_port: Vec<_> = words.iter().copied().chain(["--exchange-public-port", "8443"]).collect();
            assert_eq!(read(&with_port).check(), Ok(()));
        }
        assert_eq!(read(&[]).check(), Ok(()));
    }

    #[test]
    fn a_value_that_the_service_refuses_is_refused_with_its_own_sentence() {
        for (words, told) in [
            (["--exchange-public-url", "http://a"], "--exchange-public-url must be an https:// URL"),
            (["--exchange-public-url", "https://u:s3cret@a"], "--exchange-public-url carries credentials"),
            (["--advertised-server", "b:4222"], "--advertised-server must be a nats://"),
            (["--agent-provisioning-url", "http://c"], "--agent-provisioning-url must be https://"),
        ] {
            let refused = read(&words).check_values().unwrap_err();
            assert!(refused.starts_with(told) && !refused.contains("s3cret"), "{refused}");
            let with_port = read(&[&words[..], &["--exchange-public-port", "0"]].concat());
            assert_eq!(with_port.check(), Err(refused));
        }
    }

    #[test]
    fn a_flag_replaces_what_was_remembered_of_it_and_nothing_else() {
        let remembered = read(&["--exchange-public-port", "1", "--exchange-public-url", "https://a"]);
        let given = read(&["--exchange-public-url", "https://b", "--exchange-trusted-proxy"]);
        let expected =
            ["--exchange-public-port", "1", "--exchange-public-url", "https://b", "--exchange-trusted-proxy"];
        assert_eq!(given.or(remembered.clone()), read(&expected));
        assert_eq!(ExchangeFlags::default().or(remembered.clone()), remembered);
        assert_eq!(given.or(ExchangeFlags::default()), given);
        let kept = serde_json::to_value(&remembered).unwrap();
        assert_eq!(serde_json::from_value::<ExchangeFlags>(kept).unwrap(), remembered);
    }

    #[test]
    fn flags_handed_on_read_as_they_were_given() {
        let flags = read(&[
            "--exchange-public-port",
            "0",
            "--exchange-public-url",
            "https://a/x",
            "--exchange-trusted-proxy",
            "--advertised-server",
            "tls://b:4222",
            "--agent-provisioning-url",
            "https://c",
        ]);
        let arguments = flags.to_arguments();
        assert_eq!(read(&arguments.iter().map(String::as_str).collect::<Vec<_>>()), flags);
        assert!(flags.any() && !ExchangeFlags::default().any());
    }
}
