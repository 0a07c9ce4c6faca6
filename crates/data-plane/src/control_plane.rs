//! Passes a request to the control plane in process. The request body is read on demand; the response is streamed
//! back. On `/ws`, the only WebSocket route, raw bytes pass both ways after the control plane answered 101.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::response::Parts;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use http_body_util::channel::{Channel, Sender};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use crate::admission::{check_request, client_address, send_rejection};
use crate::body::{next_piece, send_continue};
use crate::listener::{client_disconnected, set_chunked, write_deadline, write_within};
use crate::record::ExchangeError;
use crate::services::Context;
use crate::trace::parent_context;
use access::identity::ClientAddr;
use http1::{AbortCause, opens_socket};
use kernel::dialect::Dialect;
use kernel::ids::RequestId;
use kernel::rejection::{Reason, RejectedRequest, Rejection};
use kernel::shares::SlotGuard;
use kernel::telemetry::traces::attributes::{
    error_attribute, request_attributes, server_status, status_attribute, text_attribute, verb_name,
};
use kernel::telemetry::traces::{Parent, Span, SpanFacts, SpanKind};

/// The only WebSocket route.
const SOCKET_PATH: &str = "/ws";

/// Maximum pieces from the caller that are buffered for a socket.
const INPUT_PIECES: usize = 2;

/// Maximum time for writing one piece to a reader of events.
const READER_MAX: Duration = Duration::from_secs(10);

/// Maximum time for writing one piece to any other caller.
const PIECE_MAX: Duration = Duration::from_secs(60);

/// A request to the control plane, in progress.
struct ControlExchange<'a> {
    context: &'a Context,
    session: &'a mut ServerSession,
    request_id: &'a RequestId,
    /// The facts for its span, if it is traced.
    span_facts: Option<SpanFacts>,
}

/// Passes one request to the control plane and streams its response back.
///
/// # Errors
/// The connection must be aborted.
pub(super) async fn serve(
    context: &Context,
    session: &mut ServerSession,
    request_id: &RequestId,
) -> Result<(), AbortCause> {
    let mut span = ControlSpan::begin(context, session, request_id);
    // Apart: what a `match` looks at lives to its end, and a control connection may last for hours.
    let checked = check_request(session, &context.origins.get(), &context.relay.load);
    let mut exchange = ControlExchange {
        context,
        session: &mut *session,
        request_id,
        span_facts: span.as_ref().map(|span| span.facts.clone()),
    };
    let passed = match checked {
        Ok(()) if is_socket(exchange.session) => exchange.serve_socket().await,
        Ok(()) => exchange.run_request().await,
        Err(rejection) => Err(rejection.into()),
    };
    let answered = match passed {
        Err(ExchangeError::Refused(rejection)) => exchange.reject_request(rejection).await,
        passed => passed,
    };
    if let (Some(span), Some(head)) = (&mut span, session.response_written()) {
        span.status = head.status.as_u16();
    }
    AbortCause::from_write(answered)
}

/// Asks the control plane. A router answers every request: its error type is uninhabited.
async fn ask(context: &Context, request: http::Request<Body>) -> Response {
    let response = context.control.clone().oneshot(request).await;
    response.unwrap_or_else(|never| match never {})
}

impl ControlExchange<'_> {
    /// Answers a request that is rejected before its route runs. The control plane formats, counts and records the
    /// rejection like its own.
    async fn reject_request(&mut self, rejection: Rejection) -> Result<(), ExchangeError> {
        let Ok(mut request) = self.build_request(Body::empty()) else {
            // A request that cannot be built for the router has no route.
            let (origins, form) = (self.context.origins.get(), Dialect::Plain.into());
            let (session, id) = (&mut *self.session, self.request_id);
            return send_rejection(session, &origins, id, &rejection, &form).await;
        };
        request.extensions_mut().insert(RejectedRequest(rejection));
        let response = ask(self.context, request).await;
        self.stream_response(response, None).await
    }

    /// Runs a request. An endless response releases its slot among the exchanges: the control plane bounds those
    /// responses itself.
    async fn run_request(&mut self) -> Result<(), ExchangeError> {
        let context = self.context;
        let mut slot = Some(context.relay.load.take_slot()?);
        let (body, mut feed) = feed_body(self.session);
        let request = self.build_request(body)?;
        let response = tokio::select! {
            biased;
            response = ask(context, request) => response,
            () = feed.supply_pieces(context, self.session, &mut slot) => {
                return Err(ExchangeError::CallerLeft);
            }
        };
        feed.end(self.session);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Only a handshake recognized before its body was read may switch protocols.
            return Err(not_a_socket().into());
        }
        self.stream_response(response, slot).await
    }

    /// Streams a response to the caller.
    async fn stream_response(
        &mut self,
        response: Response,
        slot: Option<SlotGuard<'_>>,
    ) -> Result<(), ExchangeError> {
        let (parts, mut body) = response.into_parts();
        let mut head = self.response_head(parts);
        let framed = head.headers.contains_key(header::CONTENT_LENGTH);
        if !framed && head.status != StatusCode::NO_CONTENT {
            set_chunked(self.session, &mut head)?;
        }
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let streams = content_type.is_some_and(|value| value == "text/event-stream");
        // All other responses hold their slot until they are complete.
        let slot = slot.filter(|_| !streams);
        let patience = if streams { READER_MAX } else { PIECE_MAX };
        self.write_head(head).await?;
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = discard_until_gone(self.session) => return Err(ExchangeError::CallerLeft),
            };
            match frame {
                None => break,
                Some(Err(_)) => return Err(ExchangeError::CallerLeft),
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.write_piece(data, patience, streams).await?;
                }
            }
        }
        drop(slot);
        self.write_end().await
    }

    /// Writes one piece to the caller. A caller that does not read it in time counts as gone.
    async fn write_piece(
        &mut self,
        data: Bytes,
        patience: Duration,
        reader: bool,
    ) -> Result<(), ExchangeError> {
        match timeout(patience, self.session.write_response_body(data, false)).await {
            Ok(written) => written.map_err(|_| ExchangeError::CallerLeft),
            Err(_) => {
                if reader {
                    self.context.gateway.metrics.count_event_reader_cut("slow");
                }
                Err(ExchangeError::CallerLeft)
            }
        }
    }

    async fn write_head(&mut self, head: ResponseHeader) -> Result<(), ExchangeError> {
        let deadline = write_deadline(self.session);
        write_within(deadline, self.session.write_response_header(Box::new(head))).await
    }

    async fn write_end(&mut self) -> Result<(), ExchangeError> {
        let deadline = write_deadline(self.session);
        write_within(
            deadline,
            self.session.write_response_body(Bytes::new(), true),
        )
        .await
    }

    /// Opens a socket: after the 101, the request body carries its input and the response body its output.
    ///
    /// The body is not read before the 101 is written. Bytes that came too early are then parsed as frames of the
    /// socket. After a rejection the connection is closed, so they are never parsed as a request.
    async fn serve_socket(&mut self) -> Result<(), ExchangeError> {
        let context = self.context;
        let slot = context.relay.load.take_slot()?;
        self.session.set_keepalive(None);
        let (input, body) = Channel::<Bytes, Infallible>::new(INPUT_PIECES);
        let request = self.build_request(Body::new(body))?;
        let response = ask(context, request).await;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return self.stream_response(response, Some(slot)).await;
        }
        drop(slot);
        let (parts, output) = response.into_parts();
        let head = self.response_head(parts);
        self.write_head(head).await?;
        // The pings of the socket detect a caller that left.
        self.session.set_read_timeout(None);
        self.pump_bytes(input, output).await
    }

    /// Copies raw bytes both ways until one side is done.
    async fn pump_bytes(
        &mut self,
        mut input: Sender<Bytes, Infallible>,
        mut output: Body,
    ) -> Result<(), ExchangeError> {
        // At most one piece waits for the socket. No other is read meanwhile (backpressure).
        let mut waiting: Option<Bytes> = None;
        loop {
            tokio::select! {
                biased;
                frame = output.frame() => match frame {
                    None => break,
                    Some(Err(_)) => return Err(ExchangeError::CallerLeft),
                    Some(Ok(frame)) => {
                        let data = frame.into_data().unwrap_or_default();
                        self.write_piece(data, READER_MAX, true).await?;
                    }
                },
                sent = input.send_data(waiting.clone().unwrap_or_default()), if waiting.is_some() => {
                    if sent.is_err() {
                        break;
                    }
                    waiting = None;
                }
                read = self.session.read_request_body(), if waiting.is_none() => match read {
                    Ok(Some(piece)) => waiting = Some(piece),
                    Ok(None) | Err(_) => return Err(ExchangeError::CallerLeft),
                },
            }
        }
        let _ = self.write_end().await;
        // The connection of a socket carries no further request.
        Err(ExchangeError::CallerLeft)
    }

    /// Builds the head of the response. The control plane has already put the request id into it.
    fn response_head(&self, parts: Parts) -> ResponseHeader {
        let mut head = ResponseHeader::from(parts);
        let origins = self.context.origins.get();
        origins.put_browser_fields(&self.session.req_header().headers, &mut head);
        head
    }

    fn build_request(&self, body: Body) -> Result<http::Request<Body>, Rejection> {
        let head = self.session.req_header();
        // Routes match the path and query only, whatever form the request target had.
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let mut request = http::Request::builder()
            .method(head.method.clone())
            .version(head.version)
            .uri(target);
        if let Some(headers) = request.headers_mut() {
            headers.extend(head.headers.iter().map(|(n, v)| (n.clone(), v.clone())));
        }
        let mut request = request.body(body).map_err(|_| {
            Rejection::new(Reason::InvalidRequest, "the request target is not valid")
        })?;
        request.extensions_mut().insert(self.request_id.clone());
        if let Some(facts) = self.span_facts.clone() {
            request.extensions_mut().insert(facts);
        }
        request.extensions_mut().insert(ClientAddr(client_address(
            self.session,
            &self.context.gateway.config().server,
        )));
        Ok(request)
    }
}

/// True for a handshake on the only WebSocket route. No other request switches protocols, whatever it asks for.
fn is_socket(session: &ServerSession) -> bool {
    let head = session.req_header();
    head.uri.path() == SOCKET_PATH && opens_socket(head)
}

fn not_a_socket() -> Rejection {
    Rejection::new(
        Reason::InvalidRequest,
        "this request cannot become a WebSocket: send a GET without a body over HTTP/1.1",
    )
}

// The span of a request to the control plane.

/// The span of one request to the control plane. It ends when it is dropped.
struct ControlSpan {
    /// Taken at its end.
    span: Option<Span>,
    /// Facts in which the control plane reports the matched route and the reason of a rejection.
    facts: SpanFacts,
    verb: Method,
    request_id: RequestId,
    tls: bool,
    status: u16,
}

impl ControlSpan {
    /// Begins the span of a request to the control plane. `None` if nothing is traced.
    fn begin(context: &Context, session: &ServerSession, request_id: &RequestId) -> Option<Self> {
        let head = session.req_header();
        let config = context.gateway.config();
        let (traces, parent) = (&context.relay.traces, || parent_context(&head.headers));
        let span = traces.begin_span(&config.telemetry, Parent::Callers, parent)?;
        Some(Self {
            span: Some(span),
            facts: SpanFacts::default(),
            verb: head.method.clone(),
            request_id: request_id.clone(),
            tls: config.server.tls.cert.is_some(),
            status: 0,
        })
    }
}

impl Drop for ControlSpan {
    fn drop(&mut self) {
        let Some(span) = self.span.take().filter(Span::is_recorded) else {
            return;
        };
        let (route, reason) = match self.facts.get() {
            Some((route, reason)) => (Some(route), *reason),
            None => (None, None),
        };
        let mut set = Vec::from(request_attributes(&self.verb, self.tls));
        set.push(text_attribute("a2a.request_id", self.request_id.as_str()));
        set.extend(route.map(|route| text_attribute("http.route", route)));
        if self.status > 0 {
            set.push(status_attribute(self.status));
        }
        set.extend(error_attribute(reason, self.status, 500));
        let verb = verb_name(&self.verb);
        let name = route.map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        span.end(SpanKind::Server, name, set, server_status(self.status));
    }
}

// Reads the body of a request to the control plane piece by piece, as the control plane asks for it. None of it is
// read before the credential is proven, and none at all on a route without a body.

/// The next piece of a body; `None` at its end.
type PieceResult = Result<Option<Bytes>, RejectedRequest>;

/// The channel for the next piece.
type PieceSender = oneshot::Sender<PieceResult>;

/// The caller's side of a body.
#[derive(Default)]
struct BodyFeed {
    /// `None` if there is nothing to read.
    wanted: Option<mpsc::Receiver<PieceSender>>,
    begun: bool,
}

/// Returns the body of `session` for the control plane, and the feed that supplies it.
fn feed_body(session: &mut ServerSession) -> (Body, BodyFeed) {
    if session.is_body_done() {
        return (Body::empty(), BodyFeed::default());
    }
    let begun = false;
    let (ask, wanted) = mpsc::channel::<PieceSender>(1);
    let pieces = try_unfold(ask, async |ask| {
        Ok::<_, RejectedRequest>(request_piece(&ask).await?.map(|piece| (piece, ask)))
    });
    let wanted = Some(wanted);
    (Body::from_stream(pieces), BodyFeed { wanted, begun })
}

async fn request_piece(ask: &mpsc::Sender<PieceSender>) -> PieceResult {
    let (wanted, piece) = oneshot::channel();
    if ask.send(wanted).await.is_err() {
        return Err(body_broken_off());
    }
    piece.await.unwrap_or_else(|_| Err(body_broken_off()))
}

/// The caller left, or sent less of the body than it declared.
fn body_broken_off() -> RejectedRequest {
    RejectedRequest(Rejection::new(
        Reason::InvalidRequest,
        "the body broke off before its end",
    ))
}

impl BodyFeed {
    /// Reads the pieces that are asked for. The request gives up its `slot` among the exchanges while its body
    /// arrives. Returns when the caller is gone.
    async fn supply_pieces<'p>(
        &mut self,
        context: &'p Context,
        session: &mut ServerSession,
        slot: &mut Option<SlotGuard<'p>>,
    ) {
        if let Some(wanted) = &mut self.wanted {
            let Some(first) = wanted.recv().await else {
                return pending().await;
            };
            self.begun = true;
            *slot = None;
            if send_continue(session).await.is_err() {
                return;
            }
            let timeouts = &context.gateway.config.snapshot().timeouts;
            let deadline = Instant::now() + timeouts.request_body;
            let mut asked = Some(first);
            while let Some(give) = asked {
                let piece = match next_piece(timeouts, session, deadline).await {
                    Ok(Some(piece)) => Ok(Some(piece)),
                    Ok(None) => context.relay.load.take_slot().map(|taken| {
                        *slot = Some(taken);
                        None
                    }),
                    Err(ExchangeError::Refused(rejection)) => Err(rejection),
                    Err(_) => return,
                };
                let more = matches!(piece, Ok(Some(_)));
                let _ = give.send(piece.map_err(RejectedRequest));
                if !more {
                    break;
                }
                asked = wanted.recv().await;
            }
        }
        if session.is_body_done() {
            client_disconnected(session).await;
        } else {
            pending().await
        }
    }

    /// Ends the feed after the answer. If the body was only partly read, the connection is closed.
    fn end(self, session: &mut ServerSession) {
        if self.begun && !session.is_body_done() {
            session.set_keepalive(None);
        }
    }
}

/// Waits until the caller of an answered request is gone. Discards the rest of its body.
async fn discard_until_gone(session: &mut ServerSession) {
    while !session.is_body_done() {
        match session.read_request_body().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return,
        }
    }
    client_disconnected(session).await;
}
