//! Sockets: accepts on 127.0.0.1, bounds connections and slow readers, and stops in order (contract 05 §2.1, §15.4).

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
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
use rustix::io::Errno;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Mutex, Notify, oneshot},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

use super::{
    face::{Face, Policy},
    public::{Admitted, Public},
    reply::Reply,
    seats::{Row, Seat, Seats},
};

/// Open connections of one listener at most. One more takes the place of the oldest that has no request in progress,
/// so that silent sockets lock nobody out. All listeners of a process together have the bound of [`Seats`].
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

/// The same after a guest was told to leave, who does so at once.
const ROOM_PAUSE: Duration = Duration::from_millis(5);

/// A bound listener that serves one face. Dropped, it stops without waiting.
pub(crate) struct Listener {
    addr: SocketAddr,
    stop: DropGuard,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    /// Binds 127.0.0.1 and serves; port 0 takes an ephemeral one.
    pub(crate) async fn bind(port: u16, face: Arc<Face>, seats: Arc<Seats>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Self::serve(listener, face, seats)
    }

    /// Serves a face on a socket that is already bound.
    pub(crate) fn serve(listener: TcpListener, face: Arc<Face>, seats: Arc<Seats>) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let span = face.span();
        let accepting = tokio::spawn(accept(listener, face, seats, stop.clone()).instrument(span));
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

async fn accept(listener: TcpListener, face: Arc<Face>, seats: Arc<Seats>, stop: CancellationToken) {
    // Every lane has one of these.
    let _lane = matches!(face.policy(), Policy::Loopback(_)).then(|| seats.lane());
    let mut connections = JoinSet::new();
    let row = Arc::new(Row::default());
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    let Some(seat) = seats.take(&row, MAX_CONNECTIONS) else {
                        tracing::debug!(face = face.name(), "a connection over the bound was closed");
                        continue;
                    };
                    let served = serve_connection(stream, remote, Arc::clone(&face), stop.clone(), seat);
                    connections.spawn(served.in_current_span());
                }
                Err(error) => tokio::time::sleep(refused(&error, face.name(), &seats)).await,
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

/// An accept that failed: makes room when the files have run out, and answers how long to pause.
pub(super) fn refused(error: &io::Error, face: &str, seats: &Seats) -> Duration {
    if let Some(times) = seats.failed() {
        tracing::warn!(face, %error, times, "accept failed");
    }
    let ran_out = error.raw_os_error().map(Errno::from_raw_os_error);
    let made_room = matches!(ran_out, Some(Errno::MFILE | Errno::NFILE)) && seats.make_room();
    if made_room { ROOM_PAUSE } else { ACCEPT_PAUSE }
}

async fn serve_connection(
    stream: TcpStream,
    remote: SocketAddr,
    face: Arc<Face>,
    stop: CancellationToken,
    seat: Seat,
) {
    let guest = Arc::clone(&seat.guest);
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
    let routing = async move {
        let (parts, mut body) = request.into_parts();
        let reply = face.route(&parts, &mut body, remote).await;
        if answer.send(reply).is_ok() {
            drain_unwanted(&parts, body).await;
        }
    };
    tokio::spawn(routing.in_current_span());
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
