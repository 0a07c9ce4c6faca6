//! The caller's side of a call of gRPC: a session that shows the call as one of JSON-RPC, and turns the answer, which
//! is that of a call of JSON-RPC, back. All stages between the two know nothing of gRPC.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, header};
use parking_lot::Mutex;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::http::v2::server::HttpSession;
use pingora::protocols::http::{HttpTask, ServerSession};
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, Result};
use serde::Deserialize;
use serde_json::value::RawValue;

use a2a::event::{Splitter, event_data, split_blocks};
use grpc::{
    Code, HEALTH, MessageEncoding, Method, REFLECTION, SERVICE, Status, encode_frame,
    encode_message,
};
use kernel::dialect::OWN_DOMAIN;
use kernel::ids::RequestId;
use kernel::offload;
use kernel::rejection::{Delivery, Reason, Rejection};

/// The media type of gRPC.
pub(super) const GRPC: &str = "application/grpc";

/// Fields of an answer that describe its body, which is another one in gRPC, or that HTTP/2 does not have.
const BODY_FIELDS: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::ETAG,
    header::VARY,
    header::DATE,
];

/// The state that the stages and the session of a call share.
pub(super) type SharedState = Arc<Mutex<CallState>>;

/// The state of a call that its stages set.
#[derive(Default)]
pub(super) struct CallState {
    /// The request body that the stages read, once the call was read from its frames.
    pub(super) body: RequestBody,
    /// Takes memory for bytes of the answer, which is kept until it is whole; `None` until the caller is known.
    pub(super) reserve: Option<Reserve>,
}

impl CallState {
    /// Takes memory for bytes of the answer.
    ///
    /// # Errors
    /// `overloaded`.
    fn keep(&mut self, bytes: usize) -> std::result::Result<(), Rejection> {
        let taken = self
            .reserve
            .as_mut()
            .map_or(Ok(()), |reserve| reserve(bytes));
        taken.map_err(|full| full.with_delivery(Delivery::Sent))
    }
}

/// Returns the id of the request, which each answer has.
fn request_id(head: &ResponseHeader) -> RequestId {
    let id = head.headers.get("x-request-id");
    RequestId::from_caller(id.map(HeaderValue::as_bytes))
}

/// Takes memory for so many bytes.
type Reserve = Box<dyn FnMut(usize) -> std::result::Result<(), Rejection> + Send>;

/// Where the body of the request comes from.
#[derive(Default)]
pub(super) enum RequestBody {
    /// From the caller: the frames of its message.
    #[default]
    Frames,
    /// The call of JSON-RPC, not read yet.
    Call(Bytes),
    /// The call was read.
    Over,
}

/// An answer of JSON-RPC.
#[derive(Deserialize)]
struct RpcAnswer<'a> {
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

/// The state of the answer.
enum Answer {
    /// Its head has not come.
    Awaited,
    /// One body, whose head and bytes are kept until it is whole.
    Unary(Box<ResponseHeader>, BytesMut),
    /// Events, of which each is passed on when it is whole.
    Events(Splitter),
    /// The status was sent.
    Over,
}

/// A call of gRPC, before anything of its message was read.
pub(super) struct GrpcCall {
    /// The method; `None` for an unknown one.
    pub(super) method: Option<&'static Method>,
    /// The coding of its messages; `None` for one that is not supported.
    pub(super) encoding: Option<MessageEncoding>,
    /// The time that its caller waits.
    pub(super) timeout: Option<Duration>,
    /// The state that its session shares.
    pub(super) state: SharedState,
}

/// The purpose of a request of gRPC.
pub(super) enum GrpcRequest {
    /// A method of A2A, or an unknown one.
    Call(GrpcCall),
    /// The gateway's own services.
    Own(OwnMethod),
}

/// A method of the gateway's own services.
#[derive(Clone, Copy)]
pub(super) enum OwnMethod {
    Check,
    Watch,
    Reflect,
}

/// True for a request of gRPC.
pub(super) fn is_grpc(session: &ServerSession) -> bool {
    let ServerSession::H2(stream) = session else {
        return false;
    };
    let content_type = stream.req_header().headers.get(header::CONTENT_TYPE);
    let content_type = content_type
        .map(|value| value.as_bytes())
        .unwrap_or_default();
    match content_type.strip_prefix(GRPC.as_bytes()) {
        Some([] | [b';', ..] | b"+proto" | [b'+', b'p', b'r', b'o', b't', b'o', b';', ..]) => true,
        Some(_) | None => false,
    }
}

/// Takes a request of gRPC from its session, and puts in its place the session of a call of JSON-RPC. `None`: it is
/// none.
///
/// # Errors
/// A field cannot be built, which is a bug.
pub(super) fn open(session: &mut ServerSession) -> Result<Option<GrpcRequest>> {
    if !is_grpc(session) {
        return Ok(None);
    }
    let (service, name) = split_path(session.req_header().uri.path());
    let own = match (service, name) {
        (HEALTH, "Check") => Some(OwnMethod::Check),
        (HEALTH, "Watch") => Some(OwnMethod::Watch),
        (service, "ServerReflectionInfo") if REFLECTION.contains(&service) => {
            Some(OwnMethod::Reflect)
        }
        _ => None,
    };
    if let Some(own) = own {
        return Ok(Some(GrpcRequest::Own(own)));
    }
    let method = (service == SERVICE).then(|| Method::find(name)).flatten();
    let headers = &session.req_header().headers;
    let field = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let call = GrpcCall {
        method,
        encoding: MessageEncoding::parse(field("grpc-encoding")),
        timeout: field("grpc-timeout").and_then(parse_timeout),
        state: SharedState::default(),
    };
    let head = build_call_head(session.req_header(), method)?;
    let taken = std::mem::replace(session, ServerSession::new_custom(Box::new(())));
    let ServerSession::H2(stream) = taken else {
        *session = taken;
        return Ok(None);
    };
    let opened = GrpcSession {
        stream,
        head,
        state: Arc::clone(&call.state),
        method,
        answer: Answer::Awaited,
    };
    *session = ServerSession::new_custom(Box::new(opened));
    Ok(Some(GrpcRequest::Call(call)))
}

/// Splits the path of a method.
fn split_path(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').unwrap_or((path, ""))
}

/// Parses `grpc-timeout`: up to 8 digits and a unit.
fn parse_timeout(field: &[u8]) -> Option<Duration> {
    let (unit, digits) = field.split_last()?;
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| digits.len() <= 8)?;
    let count: u64 = digits.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Returns the head that the stages see: that of a call of JSON-RPC.
///
/// # Errors
/// A field cannot be built, which is a bug.
fn build_call_head(head: &RequestHeader, method: Option<&Method>) -> Result<RequestHeader> {
    let mut head = head.clone();
    head.set_method(Verb::POST);
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    let streams = method.is_some_and(Method::streams);
    let accept = if streams {
        "text/event-stream"
    } else {
        "application/json"
    };
    head.insert_header(header::ACCEPT, accept)?;
    if !head.headers.contains_key("a2a-version") {
        head.insert_header("a2a-version", "1.0")?;
    }
    for name in [
        "te",
        "content-length",
        "grpc-encoding",
        "grpc-accept-encoding",
        "accept-encoding",
    ] {
        head.remove_header(name);
    }
    if let Some(last) = head.remove_header("x-a2a-last-event") {
        head.insert_header("last-event-id", last)?;
    }
    Ok(head)
}

/// A stream of HTTP/2 with a call of gRPC.
struct GrpcSession {
    stream: HttpSession,
    head: RequestHeader,
    state: SharedState,
    method: Option<&'static Method>,
    answer: Answer,
}

impl GrpcSession {
    /// Returns the metadata of an answer with this head.
    fn metadata(head: &ResponseHeader) -> Result<ResponseHeader> {
        let mut metadata = ResponseHeader::build(200, Some(head.headers.len() + 3))?;
        metadata.append_header(header::CONTENT_TYPE, GRPC)?;
        for (name, value) in &head.headers {
            if !BODY_FIELDS.contains(name) {
                metadata.append_header(name.clone(), value.clone())?;
            }
        }
        Ok(metadata)
    }

    /// Sends a status instead of an answer.
    fn refuse(&mut self, head: &ResponseHeader, status: &Status) -> Result<()> {
        let mut metadata = Self::metadata(head)?;
        for (name, value) in status_fields(status) {
            metadata.append_header(name, value)?;
        }
        self.answer = Answer::Over;
        self.stream.write_response_header(Box::new(metadata), true)
    }

    /// Ends a stream that has begun.
    fn end(&mut self, status: &Status) -> Result<()> {
        self.answer = Answer::Over;
        self.stream.write_trailers(status_fields(status).collect())
    }

    /// Sends a whole answer.
    async fn finish_unary(&mut self, head: &ResponseHeader, body: Bytes) -> Result<()> {
        let (http, method) = (head.status.as_u16(), self.method);
        let encoded = offload::run_on_body(&body, move |body| encode_answer(method, body, http));
        match encoded.await {
            Ok(frame) => {
                let metadata = Self::metadata(head)?;
                self.answer = Answer::Over;
                self.stream
                    .write_response_header(Box::new(metadata), false)?;
                self.stream.write_body(frame, false).await?;
                self.end(&Status::new(Code::Ok, ""))
            }
            Err(status) => self.refuse(head, &status),
        }
    }

    /// Keeps a piece of an answer until it is whole, or refuses the answer if there is no memory for it.
    async fn keep_piece(
        &mut self,
        piece: &[u8],
        kept: std::result::Result<(), Rejection>,
    ) -> Result<()> {
        let Answer::Unary(head, body) = &mut self.answer else {
            return Ok(());
        };
        let Err(full) = kept else {
            body.extend_from_slice(piece);
            return Ok(());
        };
        let body = full.rpc_body(&request_id(head), None);
        let head = ResponseHeader::clone(head);
        self.finish_unary(&head, body.into()).await
    }

    /// Sends the events that a piece of a stream completes.
    async fn write_events(&mut self, piece: Bytes) -> Result<()> {
        let Answer::Events(splitter) = &mut self.answer else {
            return Ok(());
        };
        let whole = splitter.push(piece).bytes;
        let mut frames = BytesMut::new();
        let mut failed = None;
        for data in split_blocks(&whole).filter_map(event_data) {
            match encode_answer(self.method, &data, 200) {
                Ok(frame) => frames.extend_from_slice(&frame),
                Err(status) => {
                    failed = Some(status);
                    break;
                }
            }
        }
        if !frames.is_empty() {
            self.stream.write_body(frames.freeze(), false).await?;
        }
        match failed {
            Some(status) => self.end(&status),
            None => Ok(()),
        }
    }
}

/// Returns the frame of an answer of JSON-RPC, or the status of an error. `http`: its HTTP status.
fn encode_answer(
    method: Option<&Method>,
    body: &[u8],
    http: u16,
) -> std::result::Result<Bytes, Status> {
    let answer = serde_json::from_slice::<RpcAnswer<'_>>(body);
    let unreadable = || {
        let message =
            format!("the agent answered with HTTP status {http} and no answer of JSON-RPC");
        let error = serde_json::json!({"code": -32006, "message": message});
        Status::from_json_rpc(&error, None)
    };
    let answer = answer.map_err(|_| unreadable())?;
    if let Some(error) = answer.error {
        return Err(Status::from_json_rpc(&error, own_status(&error)));
    }
    let method = method.ok_or_else(unreadable)?;
    let result = match answer.result.map(RawValue::get) {
        // An agent has nothing to say of what it deleted.
        Some("null") | None if !method.streams() && method.response().fields().len() == 0 => "{}",
        Some(result) => result,
        None => return Err(unreadable()),
    };
    let message = encode_message(method.response(), result.as_bytes(), |_| {});
    let message = message.map_err(|why| {
        let error = serde_json::json!({"code": -32006, "message": why.to_string()});
        Status::from_json_rpc(&error, None)
    })?;
    Ok(encode_frame(&message))
}

/// Returns the HTTP status of an error that a gateway made itself.
fn own_status(error: &serde_json::Value) -> Option<u16> {
    let info = &error["data"][0];
    let reason = info["reason"]
        .as_str()
        .filter(|_| info["domain"] == OWN_DOMAIN)?;
    let mut reasons = Reason::ALL.iter();
    let reason = reasons.find(|one| one.as_str().eq_ignore_ascii_case(reason));
    reason.map(|reason| reason.status())
}

/// Returns the fields of a status.
pub(super) fn status_fields(status: &Status) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let field = |name, value: Option<String>| {
        let value = HeaderValue::try_from(value?).ok()?;
        Some((HeaderName::from_static(name), value))
    };
    let message = (!status.message.is_empty()).then(|| status.message_field());
    [
        field("grpc-status", Some((status.code as u8).to_string())),
        field("grpc-message", message),
        field("grpc-status-details-bin", status.details_field()),
    ]
    .into_iter()
    .flatten()
}

fn unsupported<T>(what: &'static str) -> Result<T> {
    Error::e_explain(ErrorType::InternalError, what)
}

#[async_trait]
impl Session for GrpcSession {
    fn req_header(&self) -> &RequestHeader {
        &self.head
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.head
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        let call = match &mut self.state.lock().body {
            RequestBody::Frames => None,
            body => Some(std::mem::replace(body, RequestBody::Over)),
        };
        match call {
            None => self.stream.read_body_bytes().await,
            Some(RequestBody::Call(call)) => Ok(Some(call)),
            Some(_) => Ok(None),
        }
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        self.stream.drain_request_body().await
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        if head.status.is_informational() {
            return Ok(());
        }
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let is_stream =
            content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        match self.answer {
            Answer::Awaited if is_stream && !end => {
                let metadata = Self::metadata(&head)?;
                self.answer = Answer::Events(Splitter::new());
                self.stream.write_response_header(Box::new(metadata), false)
            }
            Answer::Awaited if end => self.finish_unary(&head, Bytes::new()).await,
            Answer::Awaited => {
                self.answer = Answer::Unary(head, BytesMut::new());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        self.write_response_header(Box::new(head.clone()), end)
            .await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        match &mut self.answer {
            Answer::Unary(..) => {
                let kept = self.state.lock().keep(data.len());
                self.keep_piece(&data, kept).await?;
            }
            Answer::Events(_) => self.write_events(data).await?,
            Answer::Awaited | Answer::Over => {}
        }
        match end {
            true => self.finish().await,
            false => Ok(()),
        }
    }

    async fn write_trailers(&mut self, _: HeaderMap) -> Result<()> {
        Ok(())
    }

    async fn response_duplex_vec(&mut self, _: Vec<HttpTask>) -> Result<bool> {
        unsupported("calls of gRPC are written by head and body")
    }

    fn set_read_timeout(&mut self, _: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.stream.set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.stream.get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.stream.set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.stream.get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.stream.request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.stream.response_written()
    }

    async fn shutdown(&mut self, _: u32, _: &str) {
        self.stream.shutdown();
    }

    fn is_body_done(&mut self) -> bool {
        self.stream.is_body_done()
    }

    async fn finish(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.answer, Answer::Over) {
            Answer::Unary(head, body) => self.finish_unary(&head, body.freeze()).await?,
            Answer::Events(_) => self.end(&Status::new(Code::Ok, ""))?,
            Answer::Awaited | Answer::Over => {}
        }
        self.stream.finish()
    }

    fn is_body_empty(&mut self) -> bool {
        self.stream.is_body_empty()
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        self.stream.read_body_or_idle(no_body_expected).await
    }

    fn body_bytes_sent(&self) -> usize {
        self.stream.body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.stream.body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.stream.digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.stream.digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.stream.client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.stream.server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.stream.pseudo_raw_h1_request_header()
    }

    fn enable_retry_buffering(&mut self) {}

    fn retry_buffer_truncated(&self) -> bool {
        true
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        None
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(
        &mut self,
    ) -> Option<Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>> {
        None
    }

    fn restore_custom_message_reader(
        &mut self,
        _: Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>,
    ) -> Result<()> {
        unsupported("calls of gRPC have no messages of their own")
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _: Box<dyn CustomMessageWrite>) -> Result<()> {
        unsupported("calls of gRPC have no messages of their own")
    }
}
