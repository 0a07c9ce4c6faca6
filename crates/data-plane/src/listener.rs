//! The caller's side: accepts connections, within bounds in total and for each address, terminates TLS, reads the heads
//! of HTTP/1 within their clocks, and writes heads and answers.

use std::collections::HashMap;
use std::future::pending;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use pingora::http::ResponseHeader;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::http::{ReusableHttpStream, ServerSession};
use pingora::protocols::l4::stream::Stream as L4Stream;
use pingora::protocols::{ALPN, GetSocketDigest, Peek as _, SocketDigest, Stream};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::record::{ExchangeError, box_in_place};
use crate::{grpc_session, http2};
use http1::{
    AbortCause, CallerStream, ChunkParser, Failure, HeadError, HeadScanner, lingering_close,
    read_first_bytes, read_request_head,
};
use kernel::config::{Derived, Live, Server};
use kernel::dialect::{Dialect, ReplyForm};
use kernel::drain::Drain;
use kernel::ids::RequestId;
use kernel::metrics::{ConnectionCut, Metrics};
use kernel::rejection::{REFUSED, Reason, Rejection, STREAM};
use kernel::shares::SlotGuard;
use kernel::stage::Stage;

/// Maximum time for sending the reason to a rejected connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Maximum rejected connections that are being answered at once; further ones are only closed.
const FAREWELLS_MAX: usize = 256;

/// The application of a listener: its HTTP front end, bounded by `server.max_connections`, and the service behind it.
pub struct Connections<S> {
    pub(super) config: Live,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: Arc<Drain>,
    pub(super) service: S,
    open: AtomicUsize,
    refused: AtomicUsize,
    addresses: AddressCounts,
    tls: Derived<Option<Arc<Acceptor>>>,
}

impl<S: Service> Connections<S> {
    /// Creates the application of a listener with `service` behind it.
    pub(super) fn new(config: Live, metrics: Arc<Metrics>, drain: Arc<Drain>, service: S) -> Self {
        Self {
            tls: Derived::new(&config, |config, _| {
                let serving = config.server.tls.serving.as_ref()?;
                Some(Arc::new(Acceptor::from_server_config(serving.config())))
            }),
            config,
            metrics,
            drain,
            service,
            open: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            addresses: AddressCounts::default(),
        }
    }

    /// Serves a connection that was accepted from `peer`, to its end, on this thread. `guard` is dropped at the end.
    pub fn spawn_connection(
        self: &Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        guard: impl Send + 'static,
    ) {
        // It fails on a connection that is closed already, which the first read finds out.
        let _ = socket.set_nodelay(true);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let _guard = guard;
            this.serve_connection(socket, peer).await;
        });
    }

    /// Terminates TLS, if it is configured. `None` if the handshake failed or did not end in time.
    async fn accept_tls(&self, stream: Stream, deadline: Instant) -> Option<Stream> {
        match (*self.tls.get()).clone() {
            None => Some(stream),
            // Boxed, here and below: an established connection should not hold the state of its handshake.
            Some(acceptor) => Box::pin(self.handshake_tls(acceptor, stream, deadline)).await,
        }
    }

    async fn handshake_tls(
        &self,
        acceptor: Arc<Acceptor>,
        stream: Stream,
        deadline: Instant,
    ) -> Option<Stream> {
        let peer = stream.get_socket_digest();
        let peer = peer.and_then(|digest| digest.peer_addr().map(ToString::to_string));
        // The listener is plain TCP, so every connection begins here.
        let mut stream = stream.into_any().downcast::<L4Stream>().ok()?;
        let mut first = [0];
        let begun = timeout_at(deadline, stream.try_peek(&mut first)).await;
        if matches!(begun, Ok(Ok(_))) && first[0].is_ascii_uppercase() {
            self.metrics.connections_cut[ConnectionCut::Handshake].inc();
            // Unencrypted.
            if let Some(_farewell) = SlotGuard::take(&self.refused, FAREWELLS_MAX) {
                let message =
                    "this port speaks TLS (server.tls.cert); write https:// instead of http://";
                let rejection = Rejection::new(Reason::InvalidRequest, message);
                send_farewell(&mut (stream as Stream), &rejection).await;
            }
            return None;
        }
        let why = match timeout_at(deadline, acceptor.tls_handshake(*stream)).await {
            Ok(Ok(stream)) => return Some(Box::new(stream)),
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        // Debug only: any client could otherwise fill the log.
        tracing::debug!(peer, error = why, "TLS handshake failed");
        self.metrics.connections_cut[ConnectionCut::Handshake].inc();
        None
    }

    /// Sends a 503 before closing, unless too many rejected connections are already being answered.
    async fn refuse_connection(&self, stream: Stream, why: ConnectionCut, message: &'static str) {
        self.metrics.connections_cut[why].inc();
        let Some(_farewell) = SlotGuard::take(&self.refused, FAREWELLS_MAX) else {
            return;
        };
        let Some(mut stream) = self.accept_tls(stream, Instant::now() + FAREWELL).await else {
            return;
        };
        // HTTP/2 callers cannot read this. They see a closed connection and should retry as well.
        let rejection =
            Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1));
        send_farewell(&mut stream, &rejection).await;
    }

    /// Records that connections are accepted.
    pub fn mark_open(&self) {
        self.drain.open();
    }

    /// Serves one connection to its end, if there is a slot for it.
    async fn serve_connection(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let (deadline, max, each, proxied, grpc) = {
            let server = &self.config.get().server;
            let each = AddressCounts::limit_for(server, peer.ip(), server.connections_per_address);
            let proxied = is_proxy(server, peer.ip());
            let deadline = Instant::now() + self.config.get().timeouts.request_head;
            (deadline, server.max_connections, each, proxied, server.grpc)
        };
        let Some(_slot) = SlotGuard::take(&self.open, max) else {
            let message = "as many connections as may be are open (server.max_connections)";
            let refused = self.refuse_connection(wrap(socket, peer), ConnectionCut::Full, message);
            return Box::pin(refused).await;
        };
        let _connected = self.drain.count_connection();
        let Some(_of_address) = self.addresses.count_connection(each) else {
            let message = "too many connections from one address (server.connections_per_address)";
            let why = ConnectionCut::Address;
            return Box::pin(self.refuse_connection(wrap(socket, peer), why, message)).await;
        };
        let is_preface = match grpc && self.tls.get().is_none() {
            true => timeout_at(deadline, begins_http2(&socket)).await,
            false => Ok(false),
        };
        let Ok(is_preface) = is_preface else {
            return self.metrics.connections_cut[ConnectionCut::SlowHead].inc();
        };
        let Some(stream) = self.accept_tls(wrap(socket, peer), deadline).await else {
            return;
        };
        if is_preface || matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let host = (&self.config, &*self.metrics, &*self.drain);
            let serve_request = |session, is_beyond| {
                let listener = Arc::clone(self);
                async move {
                    let begun = Instant::now();
                    let served = match is_beyond {
                        false => listener.serve_request(session).await.map(drop),
                        true => refuse_stream(session).await,
                    };
                    let took = begun.elapsed();
                    http2::StreamOutcome { served, took }
                }
            };
            Box::pin(http2::serve(host, stream, deadline, proxied, serve_request)).await;
        } else {
            serve_http1(self, stream, deadline).await;
        }
    }
}

/// Wraps an accepted connection.
fn wrap(socket: TcpStream, peer: SocketAddr) -> Stream {
    let mut stream = L4Stream::from(socket);
    let digest = SocketDigest::from_raw_fd(stream.as_raw_fd());
    let _ = digest.peer_addr.set(Some(peer.into()));
    stream.set_socket_digest(digest);
    Box::new(stream)
}

/// The preface of HTTP/2 (RFC 9113, 3.4), which is no request of HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Pause between two looks for the rest of a preface.
const PREFACE_PAUSE: Duration = Duration::from_millis(10);

/// True if a connection begins with the preface of HTTP/2. Reads nothing, but waits for the first byte.
async fn begins_http2(socket: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    loop {
        match socket.peek(&mut first).await {
            Ok(0) | Err(_) => return false,
            Ok(length) if first[..length] != PREFACE[..length] => return false,
            Ok(length) if length == PREFACE.len() => return true,
            Ok(_) => sleep(PREFACE_PAUSE).await,
        }
    }
}

/// Refuses a stream of HTTP/2 beyond `server.http2_streams`.
async fn refuse_stream(mut session: Box<ServerSession>) -> Result<(), AbortCause> {
    let message = "too many streams on one connection (server.http2_streams)";
    let again = Duration::from_secs(1);
    let rejection = Rejection::new(Reason::Overloaded, message).with_retry_after(again);
    let id = RequestId::random();
    // Of gRPC the answer is turned into a status.
    let _ = grpc_session::open(&mut session);
    let body = rejection.to_body(&ReplyForm::default(), &id);
    let sent = async {
        let head = rejection_head(&rejection, &id, rejection.reason.status(), body.len())?;
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body.into(), true).await?;
        session.finish().await
    };
    match timeout(FAREWELL, sent).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(AbortCause::CallerLeft),
    }
}

/// Sends a rejection on a connection without a request, and closes it.
async fn send_farewell(stream: &mut Stream, rejection: &Rejection) {
    let form = Dialect::Plain.into();
    let answer = format_rejection(rejection, &RequestId::random(), &form, false);
    lingering_close(stream, &answer, FAREWELL).await;
}

/// Returns the address of the peer.
pub(super) fn peer_address(stream: &Stream) -> Option<IpAddr> {
    let digest = stream.get_socket_digest()?;
    digest.peer_addr()?.as_inet().map(SocketAddr::ip)
}

/// Open connections by address. It never has more entries than there are open connections.
#[derive(Default)]
struct AddressCounts(Mutex<HashMap<IpAddr, usize>>);

/// An address and the maximum of its open connections.
type AddressLimit = (IpAddr, usize);

/// A counted connection. Dropping it decrements the count.
struct AddressGuard<'a> {
    addresses: &'a AddressCounts,
    limit: Option<AddressLimit>,
}

impl AddressCounts {
    /// Returns the limit of `peer`, with `max` connections (0: unlimited). `None` if its connections are not counted:
    /// the limit is off, `peer` is a trusted proxy that stands for many callers, or the gateway listens on loopback.
    fn limit_for(server: &Server, peer: IpAddr, max: usize) -> Option<AddressLimit> {
        let address = peer.to_canonical();
        let counts = max > 0 && !is_proxy(server, address) && !server.listen.ip().is_loopback();
        counts.then(|| (one_holder(address), max))
    }

    /// Counts one connection more. `None`: the address has its maximum of open connections.
    fn count_connection(&self, limit: Option<AddressLimit>) -> Option<AddressGuard<'_>> {
        if let Some((address, max)) = limit {
            let mut open = self.0.lock();
            let count = open.entry(address).or_default();
            if *count >= max {
                return None;
            }
            *count += 1;
        }
        let addresses = self;
        Some(AddressGuard { addresses, limit })
    }
}

impl Drop for AddressGuard<'_> {
    fn drop(&mut self) {
        let Some((address, _)) = self.limit else {
            return;
        };
        let mut open = self.addresses.0.lock();
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// True if `peer` is a trusted proxy, which stands for many callers.
fn is_proxy(server: &Server, peer: IpAddr) -> bool {
    let address = peer.to_canonical();
    server.trusted_proxies.iter().any(|n| n.contains(&address))
}

/// Returns the address to count by. One holder of IPv6 addresses has a whole /64 network.
fn one_holder(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

/// Maximum time for reading the rest of a rejected request, so that its caller can read the rejection.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

/// The service behind a listener, which answers its requests.
pub trait Service: Send + Sync + 'static {
    /// Serves one request.
    ///
    /// # Errors
    /// The connection, or the stream of HTTP/2, must be aborted.
    fn serve(
        &self,
        session: &mut ServerSession,
    ) -> impl Future<Output = Result<(), AbortCause>> + Send;

    /// Records a request with an unreadable head, and returns the form of its rejection. `path`: if it can be read.
    fn record_unreadable(
        &self,
        path: Option<&str>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) -> ReplyForm;
}

impl<S: Service> Connections<S> {
    /// Serves the one request of a session: an HTTP/2 stream, or HTTP/1 with a complete head. Returns the connection if
    /// another request may follow.
    pub(super) async fn serve_request(
        self: &Arc<Self>,
        mut session: Box<ServerSession>,
    ) -> Result<Option<ReusableHttpStream>, AbortCause> {
        session.set_write_timeout(Some(self.config.get().timeouts.write));
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return Err(AbortCause::CallerLeft),
            Err(error) => {
                refuse_unreadable(&mut session, &error).await;
                return Err(AbortCause::CallerLeft);
            }
        }
        let Some(running) = self.drain.try_count_work() else {
            return Err(AbortCause::CallerLeft);
        };
        let expects = session.req_header().headers.contains_key(header::EXPECT);
        session.set_close_on_response_before_downstream_finish(expects);
        session.set_total_drain_timeout(Some(DRAIN));
        if self.drain.is_leaving() {
            session.set_keepalive(None);
        }
        let served = self.service.serve(&mut session).await;
        // The exchange is recorded.
        drop(running);
        if let Err(broken) = served {
            let _ = timeout(DRAIN, session.shutdown()).await;
            return Err(broken);
        }
        // A close with unread bytes resets the connection, and the caller would never see the rejection.
        if session.get_keepalive().is_none() && !session.is_body_done() {
            let _ = timeout(DRAIN, session.drain_request_body()).await;
        }
        // Boxed: it would be the largest part of every request's future, for its shortest step.
        let finished = write_within(write_deadline(&session), box_in_place(|| session.finish()));
        finished.await.map_err(|_| AbortCause::CallerLeft)
    }
}

/// Rejects a head that is not HTTP, in JSON like every rejection, and closes.
async fn refuse_unreadable(session: &mut ServerSession, error: &pingora::Error) {
    if *error.etype() != pingora::ErrorType::InvalidHTTPHeader {
        return;
    }
    let rejection = Rejection::new(Reason::InvalidRequest, "the request head is not valid HTTP");
    session.set_keepalive(None);
    let request_id = RequestId::random();
    let body = rejection.plain_body(&request_id);
    let status = rejection.reason.status();
    if let Ok(head) = rejection_head(&rejection, &request_id, status, body.len()) {
        let _ = timeout(DRAIN, write_response(session, head, body.into())).await;
    }
    session.shutdown().await;
    if let ServerSession::H1(http1) = session {
        let rest = async { while matches!(http1.idle().await, Ok(1..)) {} };
        let _ = timeout(DRAIN, rest).await;
    }
}

// One HTTP/1 connection. Each head is awaited and read with a clock of its own, validated by `http1`, and
// then passed to Pingora. Between two requests a connection costs no buffer for reading.

/// Keep-alive for Pingora. It never waits for a head here, so the number only enables keep-alive.
const KEEP: Option<u64> = Some(60);

/// Serves the requests of one connection in sequence. The first head must be complete at `deadline`. A later one is
/// waited for up to `server.keepalive`, and has its own clock from its first byte on.
pub(super) async fn serve_http1<S: Service>(
    listener: &Arc<Connections<S>>,
    stream: Stream,
    deadline: Instant,
) {
    let mut stream = CallerStream::wrap(stream);
    let mut buffer = BytesMut::new();
    let mut first = Some(deadline);
    loop {
        let deadline = match first.take() {
            Some(deadline) => deadline,
            None => match await_next_head(listener, &mut stream, &mut buffer).await {
                Some(deadline) => deadline,
                None => return,
            },
        };
        let mut scan = HeadScanner::default();
        let read = read_request_head(&mut stream, &mut buffer, &mut scan);
        let (whole, chunks) = match timeout_at(deadline, read).await {
            Ok(Ok(Some(read))) => read,
            Ok(Ok(None)) => return,
            Err(_) => {
                return listener.metrics.connections_cut[ConnectionCut::SlowHead].inc();
            }
            Ok(Err(why)) => {
                listener.metrics.connections_cut[ConnectionCut::BadHead].inc();
                // Boxed, here and below: a connection that waits for its next head should hold little.
                let bad = (&*buffer, &scan, why);
                return Box::pin(refuse_head(listener, &mut stream, bad)).await;
            }
        };
        if chunks != ChunkParser::Over {
            stream = CallerStream::expect_chunks(stream, chunks);
        }
        // Drops the empty line that may precede the request line.
        let _ = buffer.split_to(whole.start);
        let mut session = Box::new(ServerSession::new_http1(stream));
        session.set_keepalive(KEEP);
        session.set_pipelining_enabled(true);
        session.set_pipelined_prefix(std::mem::take(&mut buffer));
        // In a box of its own, so that it costs nothing between two requests.
        let request: BoxFuture<'_, _> = box_in_place(|| listener.serve_request(session));
        let Ok(Some(reusable)) = request.await else {
            return;
        };
        let (rest, behind) = reusable.into_parts();
        stream = rest;
        buffer = behind.unwrap_or_default();
    }
}

/// Waits for the first byte of the next head, and returns the time at which the head must be complete. `None` if none
/// came in time, the caller left, or this process shuts down. A hand-over to a new process closes no connection that
/// waits: a request may be on its way, and HTTP/1 has no word for a caller that is between two. It is closed with its
/// next answer, or after `server.keepalive`.
async fn await_next_head<S>(
    listener: &Connections<S>,
    stream: &mut Stream,
    buffer: &mut BytesMut,
) -> Option<Instant> {
    let keepalive = listener.config.get().server.keepalive;
    if buffer.is_empty() {
        tokio::select! {
            biased;
            read = timeout(keepalive, read_first_bytes(stream, buffer)) => match read {
                Ok(Ok(())) if !buffer.is_empty() => {}
                _ => return None,
            },
            () = listener.drain.wait_for_begin() => return None,
        }
    }
    Some(Instant::now() + listener.config.get().timeouts.request_head)
}

/// Rejects an invalid head in the dialect of its route and closes: the start of the next request is unknown.
async fn refuse_head<S: Service>(
    listener: &Connections<S>,
    stream: &mut Stream,
    (buffer, scan, why): (&[u8], &HeadScanner, HeadError),
) {
    let rejection = Rejection::new(Reason::InvalidRequest, why).at(Stage::Http);
    let request_id = RequestId::from_caller(scan.field_value(buffer, "x-request-id"));
    let path = scan.request_path(buffer);
    if listener.drain.is_closed() {
        return;
    }
    let peer = peer_address(stream);
    let form = (listener.service).record_unreadable(path, &request_id, peer, &rejection);
    let answer = format_rejection(&rejection, &request_id, &form, scan.is_head);
    lingering_close(stream, &answer, DRAIN).await;
}

// Writes to the caller: heads with the fields of every answer, whole answers of the gateway's own, and waits that end
// when the caller leaves.

/// The value of `X-Content-Type-Options`.
pub(super) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Says that a preference was applied (RFC 7240).
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Returns the time until which a write to the caller may take: `timeouts.write` at the start of its request.
pub(super) fn write_deadline(session: &ServerSession) -> Instant {
    Instant::now() + session.get_write_timeout().unwrap_or(DRAIN)
}

/// Writes head and body within the session's write timeout.
///
/// # Errors
/// [`ExchangeError::CallerLeft`].
pub(super) async fn write_response(
    session: &mut ServerSession,
    head: ResponseHeader,
    body: Bytes,
) -> Result<(), ExchangeError> {
    let deadline = write_deadline(session);
    let write = async {
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await
    };
    write_within(deadline, write).await
}

/// Sends the head of a stream, with the name by which its caller can resume it.
pub(super) async fn begin_stream(
    session: &mut ServerSession,
    mut head: ResponseHeader,
    name: &str,
) -> Result<(), ExchangeError> {
    head.insert_header(STREAM, name)?;
    if !head.headers.contains_key(header::CACHE_CONTROL) {
        head.insert_header(header::CACHE_CONTROL, "no-cache")?;
    }
    head.insert_header("x-accel-buffering", "no")?;
    set_chunked(session, &mut head)?;
    let deadline = write_deadline(session);
    write_within(deadline, session.write_response_header(Box::new(head))).await
}

/// Sets `X-Request-Id`, which every answer has.
pub(super) fn put_request_id(
    head: &mut ResponseHeader,
    request_id: &RequestId,
) -> pingora::Result<()> {
    head.append_header("x-request-id", request_id.as_str())?;
    Ok(())
}

/// Field that marks a replayed answer, or one that a concurrent request receives as well.
pub(super) const REPLAY: &str = "idempotent-replay";

/// Field that, with the value `false`, marks an answer that is passed on but not stored for replay.
pub(super) const KEPT: &str = "idempotent-kept";

/// True for fields by which a caller distinguishes the gateway's own answers from an agent's.
pub(super) fn is_proof(name: &HeaderName) -> bool {
    matches!(name.as_str(), REFUSED | STREAM | REPLAY | KEPT)
}

/// Waits until the caller is gone. Bytes of a pipelined next request do not count.
pub(super) async fn client_disconnected(session: &mut ServerSession) {
    if let Ok(Some(_)) = session.read_body_or_idle(true).await {
        pending::<()>().await;
    }
}

/// Waits until the caller is gone; forever if there is no caller.
pub(super) async fn caller_gone(session: &mut Option<&mut ServerSession>) {
    match session {
        Some(session) => client_disconnected(session).await,
        None => pending().await,
    }
}

/// Sets the framing of a body of unknown length: chunked for HTTP/1.1. HTTP/2 frames it, and an HTTP/1.0 caller
/// reads until the connection closes.
pub(super) fn set_chunked(
    session: &ServerSession,
    head: &mut ResponseHeader,
) -> pingora::Result<()> {
    if session.req_header().version == http::Version::HTTP_11 {
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

/// Writes to the caller before `deadline`. A write that fails or takes longer means that the caller left.
pub(super) async fn write_within<T>(
    deadline: Instant,
    write: impl Future<Output = pingora::Result<T>>,
) -> Result<T, ExchangeError> {
    match timeout_at(deadline, write).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(ExchangeError::CallerLeft),
    }
}

// A head that cannot be built. Writes go through [`write_within`].
impl From<Box<pingora::Error>> for ExchangeError {
    fn from(error: Box<pingora::Error>) -> Self {
        internal_error(error).into()
    }
}

pub(super) fn internal_error(error: Box<pingora::Error>) -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the answer could not be built; this is a bug",
    )
    .with_cause(Failure(error))
}

/// Formats a rejection as bytes, for a connection without a readable request. The connection is closed after it.
pub(super) fn format_rejection(
    rejection: &Rejection,
    request_id: &RequestId,
    form: &ReplyForm,
    without_body: bool,
) -> Vec<u8> {
    let body = rejection.to_body(form, request_id);
    let status = rejection.status_in(form.dialect);
    let head = rejection_head(rejection, request_id, status, body.len());
    // A request id is visible ASCII, so the head can be built.
    let Ok(head) = head else {
        return Vec::new();
    };
    let phrase = head.status.canonical_reason().unwrap_or_default();
    let mut answer = format!("HTTP/1.1 {status} {phrase}\r\n").into_bytes();
    for (name, value) in &head.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            answer.extend_from_slice(part);
        }
    }
    answer.extend_from_slice(b"connection: close\r\n\r\n");
    if !without_body {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}

pub(super) fn rejection_head(
    rejection: &Rejection,
    request_id: &RequestId,
    status: u16,
    length: usize,
) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(status, Some(10))?;
    let json = HeaderValue::from_static("application/json");
    head.append_header(header::CONTENT_TYPE, json)?;
    head.append_header(header::CONTENT_LENGTH, length)?;
    head.append_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
    head.append_header(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF)?;
    put_request_id(&mut head, request_id)?;
    head.append_header(REFUSED, rejection.reason.as_str())?;
    if let Some(seconds) = rejection.retry_after {
        head.append_header(header::RETRY_AFTER, seconds)?;
    }
    if let Some(allow) = rejection.allow {
        head.append_header(header::ALLOW, allow)?;
    }
    if rejection.reason == Reason::Unauthenticated {
        head.append_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))?;
    }
    for (name, value) in &rejection.fields {
        head.append_header(*name, value.as_str())?;
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::config::Config;
    use kernel::config::load::DEFAULT;

    fn server(listen: &str, proxies: &[&str]) -> Server {
        let mut config: Config = toml::from_str(DEFAULT).unwrap();
        config.server.listen = listen.parse().unwrap();
        config.server.connections_per_address = 2;
        config.server.trusted_proxies = proxies.iter().map(|n| n.parse().unwrap()).collect();
        config.server
    }

    fn limit(server: &Server, peer: &str) -> Option<AddressLimit> {
        let max = server.connections_per_address;
        AddressCounts::limit_for(server, peer.parse().unwrap(), max)
    }

    #[test]
    fn each_holder_of_an_address_has_its_own_places() {
        let server = server("0.0.0.0:1", &["10.1.0.0/16"]);
        let addresses = AddressCounts::default();
        let enter = |peer| addresses.count_connection(limit(&server, peer));
        let one = enter("192.0.2.1").unwrap();
        let _two = enter("::ffff:192.0.2.1").unwrap();
        assert!(enter("192.0.2.1").is_none());
        let _other = enter("192.0.2.2").unwrap();
        drop(one);
        let _again = enter("192.0.2.1").unwrap();
        let _six = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        assert!(enter("2001:db8:0:0:9::3").is_none(), "the same network");
        assert!(enter("2001:db8:0:1::1").is_some());
        let _proxied: Vec<_> = (0..9).map(|_| enter("10.1.2.3").unwrap()).collect();
    }

    #[test]
    fn what_is_left_leaves_nothing() {
        let server = server("0.0.0.0:1", &[]);
        let addresses = AddressCounts::default();
        drop(
            addresses
                .count_connection(limit(&server, "192.0.2.1"))
                .unwrap(),
        );
        assert!(addresses.0.lock().is_empty());
    }

    #[test]
    fn callers_of_this_machine_are_not_counted_where_there_are_no_others() {
        assert_eq!(limit(&server("127.0.0.1:1", &[]), "127.0.0.1"), None);
        assert!(limit(&server("0.0.0.0:1", &[]), "127.0.0.1").is_some());
        let mut off = server("0.0.0.0:1", &[]);
        off.connections_per_address = 0;
        assert_eq!(limit(&off, "192.0.2.1"), None);
    }
}
