//! A wire between a client and its broker that writes down what each CONNECT presents, and cuts or holds whom a test names.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// What a client said of itself.
pub(crate) struct Presented {
    /// Its name: an infrastructure connection's label.
    pub(crate) name: String,
    /// Its user JWT.
    pub(crate) jwt: String,
}

/// The wire.
pub(crate) struct Tap {
    port: u16,
    presented: Arc<Mutex<Vec<Presented>>>,
    cut: watch::Sender<BTreeSet<String>>,
    held: watch::Sender<BTreeSet<String>>,
    live: Arc<watch::Sender<usize>>,
    accepting: JoinHandle<()>,
}

impl Tap {
    /// In front of this port.
    pub(crate) async fn start(broker: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let presented: Arc<Mutex<Vec<Presented>>> = Arc::default();
        let (cut, cutting) = watch::channel(BTreeSet::new());
        let (held, holding) = watch::channel(BTreeSet::new());
        let (seen, live) = (Arc::clone(&presented), Arc::new(watch::Sender::new(0)));
        let counted = Arc::clone(&live);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                counted.send_modify(|live| *live += 1);
                let carrying = carry(near, broker, Arc::clone(&seen), cutting.clone(), holding.clone());
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    carrying.await;
                    counted.send_modify(|live| *live -= 1);
                });
            }
        });
        Self { port, presented, cut, held, live, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Everything that was presented since this was asked last.
    pub(crate) fn presented(&self) -> Vec<Presented> {
        std::mem::take(&mut self.presented.lock())
    }

    /// Cuts and holds nobody any more.
    pub(crate) fn heal(&self) {
        self.cut.send_modify(BTreeSet::clear);
        self.held.send_modify(BTreeSet::clear);
    }

    /// Keeps back what the connection of this name sends, as a broker that hangs would leave it unread.
    pub(crate) fn hold(&self, name: &str) {
        self.held.send_modify(|held| {
            held.insert(name.to_owned());
        });
    }

    /// Resolves when every connection has ended.
    pub(crate) async fn quiet(&self) {
        self.live.subscribe().wait_for(|live| *live == 0).await.unwrap();
    }

    /// Cuts the connection of this name, now and whenever it comes back.
    pub(crate) fn cut(&self, name: &str) {
        self.cut.send_modify(|cut| {
            cut.insert(name.to_owned());
        });
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    near: TcpStream,
    broker: u16,
    presented: Arc<Mutex<Vec<Presented>>>,
    mut cut: watch::Receiver<BTreeSet<String>>,
    mut held: watch::Receiver<BTreeSet<String>>,
) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", broker)).await else { return };
    let ((near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    // The broker speaks first.
    let down = async move { copy(&mut far_read, &mut near_write).await };
    let up = async move {
        let mut near_read = BufReader::new(near_read);
        let mut first = String::new();
        near_read.read_line(&mut first).await?;
        let options: Value = first
            .strip_prefix("CONNECT ")
            .and_then(|options| serde_json::from_str(options).ok())
            .unwrap_or_default();
        let text = |member: &str| options[member].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        presented.lock().push(Presented { name: name.clone(), jwt: text("jwt") });
        tokio::select! {
            _ = cut.wait_for(|cut| cut.contains(&name)) => Ok(0),
            copied = async {
                far_write.write_all(first.as_bytes()).await?;
                loop {
                    let sent = near_read.fill_buf().await?;
                    if sent.is_empty() {
                        return Ok::<u64, std::io::Error>(0);
                    }
                    let _ = held.wait_for(|held| !held.contains(&name)).await;
                    far_write.write_all(sent).await?;
                    let length = sent.len();
                    near_read.consume(length);
                }
            } => copied,
        }
    };
    // Whichever ends first, both sockets close.
    tokio::select! {
        _ = up => {}
        _ = down => {}
    }
}
