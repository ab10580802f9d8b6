//! A network between two processes that a test cuts, stalls and heals.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// What becomes of what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    /// It arrives.
    Up,
    /// It is kept until the network is up again; connections stay open, as when packets are dropped.
    Stalled,
    /// Every connection is closed, and so is each new one.
    Cut,
}

/// Forwards TCP connections to one port of this machine.
pub struct Proxy {
    addr: SocketAddr,
    net: watch::Sender<Net>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// In front of this port; the network is up.
    pub async fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let (net, state) = watch::channel(Net::Up);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, port, state.clone()));
            }
        });
        Ok(Self { addr, net, accepting })
    }

    /// `nats://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr)
    }

    /// Changes what becomes of what is sent.
    pub fn set(&self, net: Net) {
        self.net.send_replace(net);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Net::Cut);
    }
}

async fn carry(near: TcpStream, port: u16, mut net: watch::Receiver<Net>) {
    // A connection made while the network stalls is accepted by nobody until it is up.
    if !passes(&mut net).await {
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = pump(near_read, far_write, net.clone()) => {}
        () = pump(far_read, near_write, net.clone()) => {}
        _ = net.wait_for(|net| *net == Net::Cut) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut net: watch::Receiver<Net>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        if !passes(&mut net).await || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Waits while the network stalls; whether it is up then.
async fn passes(net: &mut watch::Receiver<Net>) -> bool {
    net.wait_for(|net| *net != Net::Stalled).await.is_ok_and(|net| *net == Net::Up)
}
