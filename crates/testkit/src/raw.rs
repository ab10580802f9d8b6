//! A raw NATS client of sockets: INFO, CONNECT, PING, PONG, and the errors a broker sends.

/// How a raw connect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// PONG came.
    Connected,
    /// `-ERR '<text>'` came.
    Refused(String),
}

/// A raw connection.
pub struct RawClient { _private: () }

impl RawClient {
    /// Connects with a user JWT and seed (the sentinel), an auth token (the bearer) and a connect name (the nonce).
    pub async fn connect(_url: &str, _creds: Option<&str>, _token: Option<&str>, _name: Option<&str>) -> (Option<Self>, ConnectOutcome) { todo!() }
    /// Publishes, then PINGs; the permissions violation the broker answers, if any.
    pub async fn try_publish(&mut self, _subject: &str, _payload: &[u8]) -> Result<(), String> { todo!() }
    /// Subscribes, then PINGs; the permissions violation the broker answers, if any.
    pub async fn try_subscribe(&mut self, _subject: &str, _queue: Option<&str>) -> Result<(), String> { todo!() }
}
