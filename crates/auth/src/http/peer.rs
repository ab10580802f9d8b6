//! Who a request is attributed to (contract 05 §2.6-2.7).

use std::net::SocketAddr;

use http::HeaderMap;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The longest attribution that is kept: a budget key must not grow with a header.
const KEY_MAX: usize = 256;

/// The peer key of a request. A forwarded hop counts only behind a trusted proxy, and only the last one, which that
/// proxy wrote itself.
pub(crate) fn peer_key(headers: &HeaderMap, remote: SocketAddr, trusted_proxy: bool) -> String {
    if trusted_proxy && let Some(value) = headers.get_all(FORWARDED_FOR).iter().next_back() {
        let value = String::from_utf8_lossy(value.as_bytes());
        let hop = value.rsplit(',').next().unwrap_or_default().trim();
        if !hop.is_empty() {
            return hop.chars().take(KEY_MAX).collect();
        }
    }
    remote.ip().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[&str], trusted: bool) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        peer_key(&headers, "127.0.0.1:9".parse().unwrap(), trusted)
    }

    #[test]
    fn the_last_hop_of_the_last_header_counts_behind_a_trusted_proxy() {
        assert_eq!(key(&["1.1.1.1, 2.2.2.2"], true), "2.2.2.2");
        assert_eq!(key(&["9.9.9.9", "1.1.1.1 ,  3.3.3.3  "], true), "3.3.3.3");
        assert_eq!(key(&["1.1.1.1, "], true), "127.0.0.1", "an empty last hop falls back to the socket");
        assert_eq!(key(&[], true), "127.0.0.1");
    }

    #[test]
    fn without_a_trusted_proxy_the_header_is_ignored() {
        assert_eq!(key(&["1.1.1.1"], false), "127.0.0.1");
    }

    #[test]
    fn a_long_hop_makes_no_long_key() {
        assert_eq!(key(&[&"x".repeat(5_000)], true).len(), KEY_MAX);
    }
}
