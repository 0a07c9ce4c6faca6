//! The connections of the admin listener: their number, and their timeouts.
//!
//! hyper bounds the time for the head of a request and between two requests. This module bounds the time in
//! which a client reads nothing. If all slots are taken, a new connection replaces the one that has been
//! idle longest. Otherwise a response that waits for its client keeps its slot as long as the client's
//! machine responds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use pingora::server::ShutdownWatch;
use pingora::services::background::GenBackgroundService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::ServiceExt as _;

use super::accept_failures::{AcceptFailures, DescriptorReserve};
use super::background::{Background, exit_unopened};
use super::sockets::{HandoverWatch, Socket};
use kernel::metrics::{ConnectionCut, Metrics};

/// Maximum number of connections: 16 consoles with six browser connections each, and space for scrapers and
/// probes.
const CONNECTIONS_MAX: usize = 256;

/// Timeout of the head of a request, from the start of the connection or the end of the last response.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Time after which a connection without a request counts as idle. Well-behaved clients send it at once.
const NEW_FOR: Duration = Duration::from_secs(5);

/// Maximum size of the head of a request, and of buffered response bytes.
const BUFFER_MAX: usize = 64 * 1024;

/// Maximum time in which the client reads no byte of a waiting response.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Maximum time in which response bytes always wait, however slowly the client reads.
const BEHIND_MAX: Duration = Duration::from_secs(120);

/// Returns the service of the admin listener at `socket`. `handover` says when another process accepts connections.
pub(super) fn admin_service(
    socket: Socket,
    handover: HandoverWatch,
    router: axum::Router,
    metrics: Arc<Metrics>,
) -> GenBackgroundService<Background> {
    Background::ending_service("admin", move |ready, shutdown| async move {
        let listener = match socket.into_tokio() {
            Ok(listener) => listener,
            Err(error) => exit_unopened(error).await,
        };
        ready.notify_ready();
        accept_connections(listener, handover, shutdown, router, metrics).await;
    })
}

/// Serves connections until another process accepts them, or until the shutdown.
async fn accept_connections(
    listener: TcpListener,
    handover: HandoverWatch,
    mut shutdown: ShutdownWatch,
    router: axum::Router,
    metrics: Arc<Metrics>,
) {
    let mut leaving = handover.clone();
    let mut slots = Vec::new();
    let mut open = JoinSet::new();
    let (failures, mut reserve) = (AcceptFailures::new("admin"), DescriptorReserve::default());
    reserve.fill();
    loop {
        let accepted = tokio::select! {
            _ = shutdown.changed() => break,
            () = leaving.wait() => break,
            Some(_) = open.join_next() => {
                reserve.fill();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if reserve.release() => {
                failures.log_failure(&error);
                continue;
            }
            Err(error) => {
                failures.log_and_pause(&error).await;
                continue;
            }
        };
        let (slot, full) = take_slot(&mut slots);
        if full {
            metrics.connections_cut[ConnectionCut::AdminFull].inc();
            tracing::debug!(%peer, "admin listener has its maximum number of connections");
        }
        let Some(slot) = slot else { continue };
        let connection = AdminConnection {
            peer,
            router: router.clone(),
            metrics: Arc::clone(&metrics),
            slot,
        };
        open.spawn(connection.serve(socket, handover.clone(), shutdown.clone()));
    }
    drop(listener);
    // Responses in progress are completed, until the process exits.
    while open.join_next().await.is_some() {}
}

/// A connection.
struct AdminConnection {
    peer: SocketAddr,
    router: axum::Router,
    metrics: Arc<Metrics>,
    slot: Arc<ConnectionSlot>,
}

/// The slot of a connection, held by it until it ends.
struct ConnectionSlot {
    /// The time since which no request is in progress; it may be in the future.
    idle_since: Mutex<Option<Instant>>,
    /// Notified when another connection takes the slot: this one must close.
    lost: Notify,
}

impl ConnectionSlot {
    fn idle_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.idle_since.lock()
    }
}

/// Takes a slot, and returns whether all were taken. In that case the slot is that of the connection idle longest, or
/// `None` if none is idle.
fn take_slot(slots: &mut Vec<Arc<ConnectionSlot>>) -> (Option<Arc<ConnectionSlot>>, bool) {
    // The slots of connections that have ended.
    slots.retain(|slot| Arc::strong_count(slot) > 1);
    let now = Instant::now();
    let full = CONNECTIONS_MAX <= slots.len();
    if full {
        let idle = |(n, slot): (usize, &Arc<ConnectionSlot>)| Some(((*slot.idle_since())?, n));
        let longest = slots.iter().enumerate().filter_map(idle).min();
        let Some((_, n)) = longest.filter(|(since, _)| *since <= now) else {
            return (None, full);
        };
        slots.swap_remove(n).lost.notify_one();
    }
    let slot = Arc::new(ConnectionSlot {
        idle_since: Mutex::new(Some(now + NEW_FOR)),
        lost: Notify::new(),
    });
    slots.push(Arc::clone(&slot));
    (Some(slot), full)
}

/// A request in progress. Dropping it marks the connection idle.
struct BusyGuard(Arc<ConnectionSlot>);

impl BusyGuard {
    fn new(slot: &Arc<ConnectionSlot>) -> Self {
        *slot.idle_since() = None;
        Self(Arc::clone(slot))
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        *self.0.idle_since() = Some(Instant::now());
    }
}

/// The body of a response. The request is in progress until it is dropped.
struct ResponseBody {
    body: Body,
    _busy: BusyGuard,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl AdminConnection {
    async fn serve(
        self,
        socket: TcpStream,
        mut handover: HandoverWatch,
        mut shutdown: ShutdownWatch,
    ) {
        // Responses are written in whole, so Nagle's algorithm only delays them.
        let _ = socket.set_nodelay(true);
        let answer = service_fn(|mut request: Request<Incoming>| {
            // The handlers count failures by client address.
            request.extensions_mut().insert(ConnectInfo(self.peer));
            let (router, busy) = (self.router.clone(), BusyGuard::new(&self.slot));
            async move {
                let answer = router.oneshot(request.map(Body::new)).await;
                // The router is infallible: its error type has no values.
                let answer = answer.unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(answer.map(|body| ResponseBody { body, _busy: busy }))
            }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(BUFFER_MAX)
            .serve_connection(TokioIo::new(TimedSocket::new(socket)), answer);
        let mut served = std::pin::pin!(served);
        // The next request goes to the successor, if there is one.
        let leaves = async {
            tokio::select! {
                () = handover.wait() => {}
                _ = shutdown.changed() => {}
            }
        };
        let ended = tokio::select! {
            ended = &mut served => ended,
            () = self.slot.lost.notified() => return,
            () = leaves => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        let slow = |error: &hyper::Error| {
            let cause = std::error::Error::source(error);
            let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
            cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
        };
        if ended.as_ref().is_err_and(slow) {
            self.metrics.connections_cut[ConnectionCut::AdminSlow].inc();
            tracing::debug!(peer = %self.peer, "client of the admin listener stopped reading");
        }
    }
}

/// A socket that fails with `TimedOut` if its peer does not read: after [`STALLED_MAX`] without a byte, or
/// after [`BEHIND_MAX`] in which bytes always waited.
struct TimedSocket<S> {
    socket: S,
    stall: Option<WriteStall>,
}

/// A write that waits for its peer.
struct WriteStall {
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl<S> TimedSocket<S> {
    fn new(socket: S) -> Self {
        Self {
            socket,
            stall: None,
        }
    }

    /// Handles a write that would block.
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let stall = self.stall.get_or_insert_with(|| {
            let since = Instant::now();
            let alarm = Box::pin(sleep_until(since + STALLED_MAX));
            WriteStall { since, alarm }
        });
        ready!(stall.alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Handles a write of `taken` of `offered` bytes.
    fn record_write(&mut self, taken: usize, offered: usize) {
        if taken >= offered {
            self.stall = None;
        } else if let Some(stall) = &mut self.stall {
            let next = (Instant::now() + STALLED_MAX).min(stall.since + BEHIND_MAX);
            stall.alarm.as_mut().reset(next);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.socket).poll_write(cx, bytes) else {
            return self.poll_stalled(cx);
        };
        let taken = written?;
        self.record_write(taken, bytes.len());
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_gets_the_place_of_who_was_idle_longest_and_of_nobody_else() {
        let mut slots = Vec::new();
        let mut taken: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| take_slot(&mut slots).0.unwrap())
            .collect();
        assert!(take_slot(&mut slots).0.is_none(), "all are new");
        let mut busy: Vec<_> = taken.iter().map(BusyGuard::new).collect();
        tokio::time::advance(NEW_FOR * 2).await;
        assert!(take_slot(&mut slots).0.is_none(), "all are busy");
        drop(busy.remove(7));
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(busy.remove(3));
        let (new, full) = take_slot(&mut slots);
        let new = new.unwrap();
        assert!(full);
        taken[7].lost.notified().await;
        // The evicted connection frees no other slot, and takes none.
        drop(BusyGuard::new(&taken[7]));
        let another = take_slot(&mut slots).0.unwrap();
        taken[3].lost.notified().await;
        assert!(take_slot(&mut slots).0.is_none());
        busy.clear();
        taken.clear();
        let (last, full) = take_slot(&mut slots);
        assert!(!full && slots.len() == 3);
        drop((new, another, last));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let began = Instant::now();
        let error = TimedSocket::new(ours)
            .write_all(&[0; 64])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), STALLED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_has_an_end_too_and_who_catches_up_has_none() {
        let slowly = async |pause: Duration, bytes: usize| {
            let (ours, mut theirs) = tokio::io::duplex(1);
            let read = tokio::spawn(async move {
                while theirs.read_u8().await.is_ok() {
                    sleep(pause).await;
                }
            });
            let mut ours = TimedSocket::new(ours);
            let began = Instant::now();
            let written = ours.write_all(&vec![0; bytes]).await;
            read.abort();
            (written.map_err(|error| error.kind()), began.elapsed())
        };
        let (written, took) = slowly(Duration::from_secs(20), 100).await;
        assert_eq!(written, Err(io::ErrorKind::TimedOut));
        assert!(took <= BEHIND_MAX + STALLED_MAX, "{took:?}");
        let (written, _) = slowly(Duration::from_secs(1), 60).await;
        assert_eq!(written, Ok(()));
    }
}
