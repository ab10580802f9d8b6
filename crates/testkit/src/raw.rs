//! A raw NATS client of sockets: INFO, CONNECT, PING, PONG, and the errors a broker sends.

use std::{collections::VecDeque, io, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Longer than any deadline of a broker under test.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How a raw connect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// PONG came.
    Connected,
    /// `-ERR '<text>'` came, or the socket failed before PONG.
    Refused(String),
}

/// A message that a subscription received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawMessage {
    /// Subject.
    pub subject: String,
    /// Reply subject.
    pub reply: Option<String>,
    /// The header block as it came, empty when there is none.
    pub headers: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
}

/// A raw connection.
pub struct RawClient {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    info: serde_json::Value,
    messages: VecDeque<RawMessage>,
    next_sid: u64,
}

/// One thing the server said.
enum Said {
    Pong,
    Error(String),
    Message(RawMessage),
    Other,
}

impl RawClient {
    /// Connects with a user JWT and seed (the sentinel), an auth token (the bearer) and a connect name (the nonce).
    pub async fn connect(
        url: &str,
        creds: Option<&str>,
        token: Option<&str>,
        name: Option<&str>,
    ) -> (Option<Self>, ConnectOutcome) {
        let address = url.strip_prefix("nats://").unwrap_or(url);
        match TcpStream::connect(address).await {
            Ok(stream) => Self::connect_over(stream, creds, token, name).await,
            Err(error) => (None, ConnectOutcome::Refused(error.to_string())),
        }
    }

    /// As [`Self::connect`], over a socket that was connected elsewhere, such as from another address.
    pub async fn connect_over(
        stream: TcpStream,
        creds: Option<&str>,
        token: Option<&str>,
        name: Option<&str>,
    ) -> (Option<Self>, ConnectOutcome) {
        match Self::try_connect(stream, creds, token, name).await {
            Ok((client, ConnectOutcome::Connected)) => (Some(client), ConnectOutcome::Connected),
            Ok((_, refused)) => (None, refused),
            Err(error) => (None, ConnectOutcome::Refused(error.to_string())),
        }
    }

    async fn try_connect(
        stream: TcpStream,
        creds: Option<&str>,
        token: Option<&str>,
        name: Option<&str>,
    ) -> io::Result<(Self, ConnectOutcome)> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let mut client = Self {
            reader: BufReader::new(reader),
            writer,
            info: serde_json::Value::Null,
            messages: VecDeque::new(),
            next_sid: 1,
        };
        let greeting = client.line().await?;
        let info = greeting.strip_prefix("INFO ").ok_or_else(|| io::Error::other("no INFO"))?;
        client.info = serde_json::from_str(info)?;
        let connect = connect_options(&client.info, creds, token, name)?;
        client.send(format!("CONNECT {connect}\r\nPING\r\n").as_bytes()).await?;
        let outcome = match client.until_pong().await? {
            None => ConnectOutcome::Connected,
            Some(error) => ConnectOutcome::Refused(error),
        };
        Ok((client, outcome))
    }

    /// The server's INFO.
    pub fn info(&self) -> &serde_json::Value {
        &self.info
    }

    /// Publishes, then PINGs; the permissions violation the broker answers, if any.
    pub async fn try_publish(&mut self, subject: &str, payload: &[u8]) -> Result<(), String> {
        self.publish(subject, None, payload).await.map_err(|error| error.to_string())?;
        self.ping().await
    }

    /// Subscribes, then PINGs; the permissions violation the broker answers, if any.
    pub async fn try_subscribe(&mut self, subject: &str, queue: Option<&str>) -> Result<(), String> {
        let sid = self.next_sid;
        self.next_sid += 1;
        let queue = queue.map(|queue| format!(" {queue}")).unwrap_or_default();
        self.send(format!("SUB {subject}{queue} {sid}\r\n").as_bytes()).await.map_err(|e| e.to_string())?;
        self.ping().await
    }

    /// Publishes without waiting.
    pub async fn publish(&mut self, subject: &str, reply: Option<&str>, payload: &[u8]) -> io::Result<()> {
        let reply = reply.map(|reply| format!(" {reply}")).unwrap_or_default();
        let mut frame = format!("PUB {subject}{reply} {}\r\n", payload.len()).into_bytes();
        frame.extend_from_slice(payload);
        frame.extend_from_slice(b"\r\n");
        self.send(&frame).await
    }

    /// A message that has come already: one that [`Self::ping`] passed over.
    pub fn take_message(&mut self) -> Option<RawMessage> {
        self.messages.pop_front()
    }

    /// The next message of any subscription, or `None` when the connection ended.
    pub async fn next_message(&mut self) -> Option<RawMessage> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Some(message);
            }
            if let Said::Message(message) = self.said().await.ok()? {
                return Some(message);
            }
        }
    }

    /// Waits for the end of the connection; the last `-ERR` before it, if any.
    pub async fn ended(&mut self) -> Option<String> {
        let mut last = None;
        while let Ok(said) = self.said().await {
            if let Said::Error(error) = said {
                last = Some(error);
            }
        }
        last
    }

    /// PING and PONG; the first `-ERR` in between.
    pub async fn ping(&mut self) -> Result<(), String> {
        self.send(b"PING\r\n").await.map_err(|error| error.to_string())?;
        match self.until_pong().await {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads until PONG, or until the server hangs up after an error.
    async fn until_pong(&mut self) -> io::Result<Option<String>> {
        let mut error = None;
        loop {
            match self.said().await {
                Ok(Said::Pong) => return Ok(error),
                Ok(Said::Error(text)) => error = error.or(Some(text)),
                Ok(Said::Message(message)) => self.messages.push_back(message),
                Ok(Said::Other) => {}
                Err(end) => return error.map(Some).ok_or(end),
            }
        }
    }

    async fn said(&mut self) -> io::Result<Said> {
        let line = self.line().await?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        Ok(match verb {
            "PONG" => Said::Pong,
            "PING" => {
                self.send(b"PONG\r\n").await?;
                Said::Other
            }
            "-ERR" => Said::Error(rest.trim_matches('\'').to_owned()),
            "MSG" | "HMSG" => Said::Message(self.message(rest, verb == "HMSG").await?),
            _ => Said::Other,
        })
    }

    /// `<subject> <sid> [reply] [header length] <total length>` and what follows it.
    async fn message(&mut self, rest: &str, with_headers: bool) -> io::Result<RawMessage> {
        let garbled = || io::Error::other("garbled message");
        let mut parts: VecDeque<&str> = rest.split(' ').collect();
        let total: usize = parts.pop_back().and_then(|n| n.parse().ok()).ok_or_else(garbled)?;
        let header_len: usize = if with_headers {
            parts.pop_back().and_then(|n| n.parse().ok()).ok_or_else(garbled)?
        } else {
            0
        };
        let subject = parts.pop_front().ok_or_else(garbled)?.to_owned();
        let reply = parts.get(1).map(|reply| (*reply).to_owned());
        let mut headers = vec![0; total + 2];
        self.reader.read_exact(&mut headers).await?;
        headers.truncate(total);
        let payload = headers.split_off(header_len.min(total));
        Ok(RawMessage { subject, reply, headers, payload })
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(READ_TIMEOUT, self.reader.read_line(&mut line)).await??;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await
    }
}

fn connect_options(
    info: &serde_json::Value,
    creds: Option<&str>,
    token: Option<&str>,
    name: Option<&str>,
) -> io::Result<serde_json::Value> {
    let mut options = serde_json::json!({
        "verbose": false, "pedantic": false, "lang": "raw", "version": "0",
        "protocol": 1, "headers": true, "no_responders": true,
    });
    if let Some(creds) = creds {
        let creds = cotal_trust::creds::parse(creds).map_err(io::Error::other)?;
        let nonce = info["nonce"].as_str().unwrap_or_default();
        options["jwt"] = creds.jwt.as_str().into();
        options["sig"] = URL_SAFE_NO_PAD.encode(creds.seed.sign(nonce.as_bytes())).into();
    }
    if let Some(token) = token {
        options["auth_token"] = token.into();
    }
    if let Some(name) = name {
        options["name"] = name.into();
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{NatsServer, OPEN_CONFIG};

    #[tokio::test]
    async fn a_raw_client_hears_what_it_publishes() {
        let server = NatsServer::start(OPEN_CONFIG).await;
        let (client, outcome) = RawClient::connect(&server.url(), None, None, Some("raw")).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        let mut client = client.unwrap();
        client.try_subscribe("a.>", None).await.unwrap();
        client.publish("a.b", Some("re"), b"hello\r\nworld").await.unwrap();
        let message = client.next_message().await.unwrap();
        assert_eq!((message.subject.as_str(), message.reply.as_deref()), ("a.b", Some("re")));
        assert_eq!(message.payload, b"hello\r\nworld");
    }

    #[tokio::test]
    async fn a_refused_connect_says_the_servers_words() {
        let server = NatsServer::start("port: {port}\nauthorization { token: right }\n").await;
        let (_, outcome) = RawClient::connect(&server.url(), None, Some("wrong"), None).await;
        assert_eq!(outcome, ConnectOutcome::Refused("Authorization Violation".into()));
        let (client, _) = RawClient::connect(&server.url(), None, Some("right"), None).await;
        assert!(client.is_some());
    }
}
