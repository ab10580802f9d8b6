//! The NATS URLs that a service dials, parsed once.

use std::fmt;

use async_nats::ServerAddr;

const SCHEME_END: &str = "://";
/// The scheme of a URL that names none.
const DEFAULT_SCHEME: &str = "nats";

/// One or more servers. Printed, they are host and port alone.
#[derive(Clone)]
pub struct Servers {
    text: String,
    addresses: Vec<ServerAddr>,
}

impl Servers {
    /// Parses comma-separated NATS URLs. The refusal never repeats them: credentials may stand where none may
    /// (contract 01 §8).
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let addresses: Vec<ServerAddr> = listed(text)
            .map(|server| server.parse().map_err(|_| "a server URL is not valid; write nats://host:port"))
            .collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err("no server URL is given; write nats://host:port");
        }
        // The client library without its WebSocket dials such a server as plain TCP, and then asks for no TLS, whatever the server
        // says.
        if addresses.iter().any(ServerAddr::is_websocket) {
            return Err(
                "a server URL is a WebSocket's, which this program does not speak; write nats:// or tls://host:port",
            );
        }
        if addresses.iter().any(|server| server.host().is_empty()) {
            return Err("a server URL names no host; write nats://host:port");
        }
        if addresses.iter().any(|server| server.has_user_pass() || server.username().is_some()) {
            return Err("a server URL carries credentials; leave them out");
        }
        Ok(Self { text: text.to_owned(), addresses })
    }

    /// As they were given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first, with its scheme: one URL that a client can dial.
    pub fn first_url(&self) -> String {
        let first = listed(&self.text).next().unwrap_or_default();
        if first.contains(SCHEME_END) {
            first.to_owned()
        } else {
            format!("{DEFAULT_SCHEME}{SCHEME_END}{first}")
        }
    }

    pub(crate) fn into_addresses(self) -> Vec<ServerAddr> {
        self.addresses
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Servers({self})")
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, server) in self.addresses.iter().enumerate() {
            let (host, port) = (server.host(), server.port());
            f.write_str(if n == 0 { "" } else { ", " })?;
            if host.contains(':') {
                write!(f, "[{host}]:{port}")?;
            } else {
                write!(f, "{host}:{port}")?;
            }
        }
        Ok(())
    }
}

fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|server| !server.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_comma_separated_and_print_as_hosts_and_ports() {
        for (given, shown, first) in [
            ("nats://a:1, b:2 ,tls://c", "a:1, b:2, c:4222", "nats://a:1"),
            (" ,b:2", "b:2", "nats://b:2"),
            ("tls://[::1]:7", "[::1]:7", "tls://[::1]:7"),
        ] {
            let servers = Servers::parse(given).unwrap();
            assert_eq!((servers.to_string().as_str(), servers.first_url().as_str()), (shown, first));
            assert_eq!(servers.as_str(), given);
            assert_eq!(format!("{servers:?}"), format!("Servers({shown})"));
        }
    }

    #[test]
    fn servers_that_cannot_be_dialled_or_carry_credentials_are_refused_without_being_repeated() {
        for bad in [
            "",
            " , ",
            "http://a",
            "nats://",
            "nats://user:s3cret@a:1",
            "a:1,nats://s3cret@a:1",
            "wss://u:s3cret@a",
        ] {
            let refusal = Servers::parse(bad).unwrap_err();
            assert!(!refusal.contains("s3cret"), "{bad:?}");
        }
    }

    #[test]
    fn a_websocket_is_refused_and_never_dialled_in_plain_text() {
        for bad in ["ws://h", "wss://h:443/path", "WSS://h", "nats://a,wss://h"] {
            assert!(Servers::parse(bad).unwrap_err().contains("WebSocket"), "{bad}");
        }
    }
}
