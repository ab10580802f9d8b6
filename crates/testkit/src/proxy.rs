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
    /// The far side saw every connection close, and the near side nothing, as when a machine in between dies.
    Vanished,
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
    // A connection that is made while there is no network reaches nobody until it is up.
    if net.wait_for(|net| matches!(net, Net::Up | Net::Cut)).await.is_ok_and(|net| *net == Net::Cut) {
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
        (near.into_split(), far.into_split());
    let gone = |net: &Net| matches!(net, Net::Cut | Net::Vanished);
    tokio::select! {
        () = pump(&mut near_read, &mut far_write, net.clone()) => {}
        () = pump(&mut far_read, &mut near_write, net.clone()) => {}
        _ = net.wait_for(gone) => {}
    }
    drop((far_read, far_write));
    // The near side hears of it when the network is there again.
    let _ = net.wait_for(|net| *net != Net::Vanished).await;
}

async fn pump(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, mut net: watch::Receiver<Net>) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_sent_arrives_waits_or_is_cut_off_as_the_network_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port()).await.unwrap();
        let address = proxy.url().strip_prefix("nats://").unwrap().to_owned();
        let open = async || {
            let near = TcpStream::connect(&address).await.unwrap();
            (near, listener.accept().await.unwrap().0)
        };
        let moment = Duration::from_millis(50);
        let mut byte = [0; 1];

        let (mut near, mut far) = open().await;
        near.write_all(b"a").await.unwrap();
        assert_eq!(far.read(&mut byte).await.unwrap(), 1);
        proxy.set(Net::Stalled);
        near.write_all(b"b").await.unwrap();
        assert!(tokio::time::timeout(moment, far.read(&mut byte)).await.is_err(), "it is kept");
        proxy.set(Net::Up);
        assert_eq!((far.read(&mut byte).await.unwrap(), byte), (1, *b"b"));

        proxy.set(Net::Vanished);
        assert_eq!(far.read(&mut byte).await.unwrap(), 0, "the far side sees the end");
        assert!(tokio::time::timeout(moment, near.read(&mut byte)).await.is_err(), "the near side does not");
        proxy.set(Net::Up);
        assert!(!matches!(near.read(&mut byte).await, Ok(1..)), "it is told later");

        let (mut near, mut far) = open().await;
        proxy.set(Net::Cut);
        assert!(!matches!(near.read(&mut byte).await, Ok(1..)));
        assert!(!matches!(far.read(&mut byte).await, Ok(1..)));
    }
}
