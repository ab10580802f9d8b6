//! A request as it goes on the wire, and the answer as it comes back.

use std::{collections::BTreeMap, net::SocketAddr};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaceName {
    Loopback,
    Public,
}

/// What a full refusal budget answers, on every route that has one.
pub(super) const THROTTLED: &str = "too many refused exchanges - wait a minute and retry";

pub(super) const BOTH: [FaceName; 2] = [FaceName::Loopback, FaceName::Public];

/// One request, as it goes on the wire.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub method: &'static str,
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub without_cap: bool,
    pub body: Vec<u8>,
}

impl Call {
    pub(super) fn get(target: &str) -> Self {
        Self {
            method: "GET",
            target: target.to_owned(),
            headers: BTreeMap::new(),
            without_cap: false,
            body: Vec::new(),
        }
    }

    pub(super) fn exchange(body: impl Into<Vec<u8>>) -> Self {
        let mut call = Self { method: "POST", body: body.into(), ..Self::get("/exchange") };
        call.headers.insert("content-type".into(), "application/json".into());
        call
    }

    pub(super) fn head(&self) -> String {
        let mut head =
            format!("{} {} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head = head + name + ": " + value + "\r\n";
        }
        if !self.body.is_empty() || self.method == "POST" {
            head = head + "content-length: " + &self.body.len().to_string() + "\r\n";
        }
        head + "\r\n"
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [self.head().as_bytes(), &self.body].concat()
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub(super) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends bytes on a fresh connection and reads until the server closes it.
pub(super) async fn raw(addr: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_answer(&mut stream).await
}

pub(super) async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    Answer { status, headers, text: body.to_owned() }
}
