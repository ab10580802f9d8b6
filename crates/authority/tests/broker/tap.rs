//! A wire tap between a connection and the broker: it stops the traffic at a chosen message, so that a test can act
//! in between, or cut the connection, at exactly that moment.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, watch},
};

/// Where the tap stops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before the client's message reaches the broker.
    Before,
    /// After it has, and before any answer comes back.
    Answer,
}

/// A tap. Everything passes until it is told where to stop.
pub(crate) struct Tap {
    url: String,
    wires: Arc<Wires>,
}

struct Wires {
    stop: Mutex<Option<(Vec<u8>, Stop)>>,
    reached: Notify,
    go: Notify,
    answers_held: watch::Sender<bool>,
    cuts: watch::Sender<u64>,
}

impl Tap {
    /// A tap in front of the broker at this port.
    pub(crate) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("nats://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let wires = Arc::new(Wires {
            stop: Mutex::new(None),
            reached: Notify::new(),
            go: Notify::new(),
            answers_held: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
        });
        tokio::spawn({
            let wires = wires.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::spawn(requests(wires.clone(), from_client, to_server));
                    tokio::spawn(answers(wires.clone(), from_server, to_client));
                }
            }
        });
        Self { url, wires }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Stops once, at the first client bytes that contain this text.
    pub(crate) fn stop(&self, text: &str, stop: Stop) {
        *self.wires.stop.lock() = Some((text.as_bytes().to_vec(), stop));
    }

    /// Resolves when it has stopped.
    pub(crate) async fn reached(&self) {
        tokio::time::timeout(std::time::Duration::from_secs(20), self.wires.reached.notified())
            .await
            .expect("the tap sees the message");
    }

    /// Lets everything pass again.
    pub(crate) fn release(&self) {
        self.wires.answers_held.send_replace(false);
        self.wires.go.notify_one();
    }

    /// Cuts every connection; what was held is lost. Later connections pass.
    pub(crate) fn cut(&self) {
        self.wires.cuts.send_modify(|cuts| *cuts += 1);
        self.wires.answers_held.send_replace(false);
    }
}

async fn requests(wires: Arc<Wires>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut cuts = wires.cuts.subscribe();
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = cuts.changed() => return,
        };
        if read == 0 {
            return;
        }
        seen.extend_from_slice(&buffer[..read]);
        let stop = {
            let mut stop = wires.stop.lock();
            let here = stop.as_ref().is_some_and(|(text, _)| {
                // These bytes, and as many before them as the text could have begun in.
                let from = seen.len().saturating_sub(read + text.len() - 1);
                seen[from..].windows(text.len()).any(|w| w == text)
            });
            if here { stop.take().map(|(_, stop)| stop) } else { None }
        };
        // A text that two reads share is found all the same.
        let kept = seen.len().min(512);
        seen.drain(..seen.len() - kept);
        if stop == Some(Stop::Before) {
            seen.clear();
            wires.reached.notify_one();
            tokio::select! {
                () = wires.go.notified() => {}
                _ = cuts.changed() => return,
            }
        }
        if stop == Some(Stop::Answer) {
            seen.clear();
            wires.answers_held.send_replace(true);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        if stop == Some(Stop::Answer) {
            wires.reached.notify_one();
        }
    }
}

async fn answers(wires: Arc<Wires>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut cuts = wires.cuts.subscribe();
    let mut held = wires.answers_held.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = cuts.changed() => return,
        };
        if read == 0 {
            return;
        }
        tokio::select! {
            biased;
            _ = cuts.changed() => return,
            passes = held.wait_for(|held| !held) => drop(passes),
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
