//! Sockets: accepts on 127.0.0.1, bounds connections and slow readers, and stops in order (contract 05 §2.1, §15.4).

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Mutex, Notify, oneshot},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    face::Face,
    public::{Admitted, Public},
    reply::Reply,
};

/// Open connections of one listener at most. One more takes the place of the oldest that has no request in progress,
/// so that silent sockets lock nobody out.
/// A test needs fewer to fill it.
pub(super) const MAX_CONNECTIONS: usize = if cfg!(test) { 128 } else { 1024 };

/// How long a request's head may take, and how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a request's head may take.
const HEAD_MAX: usize = 64 * 1024;

/// How long a stopping listener waits for requests in flight before it cuts them (contract 05 §15.4).
const SETTLE: Duration = Duration::from_secs(10);

/// How long the answer to a request past its deadline may take to leave.
const FLUSH_GRACE: Duration = Duration::from_millis(250);

/// Bytes and time given to a body that nobody wanted: its sender should be able to read the refusal.
const UNWANTED_MAX: usize = 1024 * 1024;
const UNWANTED_GRACE: Duration = Duration::from_secs(5);

/// Pause after a failed accept: out of file descriptors must not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener that serves one face. Dropped, it stops without waiting.
pub(crate) struct Listener {
    addr: SocketAddr,
    stop: DropGuard,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// Binds 127.0.0.1 and serves; port 0 takes an ephemeral one.
    pub(crate) async fn bind(port: u16, face: Arc<Face>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Self::serve(listener, face)
    }

    /// Serves a face on a socket that is already bound.
    pub(crate) fn serve(listener: TcpListener, face: Arc<Face>) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let accepting = tokio::spawn(accept(listener, face, stop.clone()));
        Ok(Self { addr, stop: stop.drop_guard(), accepting: Mutex::new(Some(accepting)) })
    }

    /// Where it is bound.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting, lets requests in flight end for up to ten seconds, then cuts every connection.
    pub(crate) async fn stop(&self) {
        self.stop.token().cancel();
        if let Some(accepting) = self.accepting.lock().await.take()
            && let Err(error) = accepting.await
        {
            tracing::error!(%error, "a listener did not end cleanly");
        }
    }
}

/// One open connection, as the accept loop knows it.
#[derive(Default)]
struct Guest {
    busy: AtomicBool,
    cut: Notify,
}

/// Guests, oldest first.
#[derive(Default)]
struct Guests {
    seated: VecDeque<Weak<Guest>>,
}

impl Guests {
    fn seat(&mut self) -> Arc<Guest> {
        let guest = Arc::new(Guest::default());
        self.seated.push_back(Arc::downgrade(&guest));
        guest
    }

    /// Cuts the oldest guest without a request in progress; `false` when every one has one.
    fn make_room(&mut self) -> bool {
        self.seated.retain(|guest| guest.strong_count() > 0);
        let idle = |guest: &Weak<Guest>| guest.upgrade().filter(|guest| !guest.busy.load(Ordering::Acquire));
        let Some(oldest) = self.seated.iter().position(|guest| idle(guest).is_some()) else { return false };
        if let Some(guest) = self.seated.remove(oldest).and_then(|guest| guest.upgrade()) {
            guest.cut.notify_one();
        }
        true
    }
}

async fn accept(listener: TcpListener, face: Arc<Face>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let mut guests = Guests::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    if connections.len() >= MAX_CONNECTIONS && !guests.make_room() {
                        tracing::debug!(face = face.name(), max = MAX_CONNECTIONS, "a connection over the bound was closed");
                        continue;
                    }
                    if guests.seated.len() >= 2 * MAX_CONNECTIONS {
                        guests.seated.retain(|guest| guest.strong_count() > 0);
                    }
                    let guest = guests.seat();
                    connections.spawn(serve_connection(stream, remote, Arc::clone(&face), stop.clone(), guest));
                }
                Err(error) => {
                    tracing::warn!(face = face.name(), %error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let settled =
        tokio::time::timeout(SETTLE, async { while connections.join_next().await.is_some() {} }).await;
    if settled.is_err() {
        tracing::warn!(face = face.name(), cut = connections.len(), "requests did not end in time");
        connections.shutdown().await;
    }
}

async fn serve_connection(
    stream: TcpStream,
    remote: SocketAddr,
    face: Arc<Face>,
    stop: CancellationToken,
    guest: Arc<Guest>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay was not set");
    }
    let destroy = Arc::new(Notify::new());
    let service = {
        let (destroy, guest) = (Arc::clone(&destroy), Arc::clone(&guest));
        service_fn(move |request| {
            let (face, destroy, guest) = (Arc::clone(&face), Arc::clone(&destroy), Arc::clone(&guest));
            async move {
                guest.busy.store(true, Ordering::Release);
                let served = serve_request(face, remote, destroy, request).await;
                guest.busy.store(false, Ordering::Release);
                served
            }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = destroy.notified() => {
            connection.as_mut().graceful_shutdown();
            // Past the deadline the connection is destroyed, whatever it still waits for.
            tokio::time::timeout(FLUSH_GRACE, connection).await.unwrap_or(Ok(()))
        }
        () = guest.cut.notified() => Ok(()),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

async fn serve_request(
    face: Arc<Face>,
    remote: SocketAddr,
    destroy: Arc<Notify>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let admitted = match face.admit() {
        Ok(admitted) => admitted,
        Err(busy) => return Ok(busy.into_response(|bytes| ReplyBody::new(bytes, None))),
    };
    let deadline = face.deadline();
    let (answer, answered) = oneshot::channel();
    // A task of its own: neither a client that goes away nor the deadline stops a mint halfway.
    tokio::spawn(async move {
        let (parts, mut body) = request.into_parts();
        let reply = face.route(&parts, &mut body, remote).await;
        if answer.send(reply).is_ok() {
            drain_unwanted(&parts, body).await;
        }
    });
    let answered = match deadline {
        None => answered.await,
        Some(deadline) => tokio::time::timeout(deadline, answered).await.unwrap_or_else(|_| {
            destroy.notify_one();
            Ok(Public::deadline_exceeded())
        }),
    };
    let reply = answered.unwrap_or_else(|_| {
        tracing::error!("a request handler ended without an answer");
        Reply::internal()
    });
    Ok(reply.into_response(|bytes| ReplyBody::new(bytes, admitted)))
}

/// Reads what is left of a body after its answer, within bounds, so that closing the socket does not reset it under
/// the answer. A sender that waits for `100 Continue` has sent nothing.
async fn drain_unwanted(parts: &Parts, mut body: Incoming) {
    if body.is_end_stream() || parts.headers.contains_key(header::EXPECT) {
        return;
    }
    let drained = tokio::time::timeout(UNWANTED_GRACE, async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > UNWANTED_MAX {
                break;
            }
        }
    });
    if drained.await.is_err() {
        tracing::debug!("an unwanted body did not end in time");
    }
}

/// The body of an answer; a public request stays admitted until it is gone.
struct ReplyBody {
    bytes: Option<Bytes>,
    _admitted: Option<Admitted>,
}

impl ReplyBody {
    fn new(bytes: Bytes, admitted: Option<Admitted>) -> Self {
        Self { bytes: (!bytes.is_empty()).then_some(bytes), _admitted: admitted }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
