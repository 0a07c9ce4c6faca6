//! Calls to agents by gRPC. The relay makes each as one of JSON-RPC 1.0 over HTTP/1, on a connection that ends here:
//! the call is sent as a stream of HTTP/2, and its answer comes back in JSON, or as events. So all that holds for
//! agents of JSON-RPC holds for these. When the relay leaves, the stream is reset.

use std::fmt::{Debug, Formatter};
use std::future::poll_fn;
use std::io::{self, ErrorKind, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pingora::connectors::L4Connect;
use pingora::protocols::ALPN;
use pingora::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::upstreams::peer::HttpPeer;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
    split,
};

use crate::grpc_pool::StreamSlot;
use crate::services::Context;
use crate::upstream::{Relay, build_agent_peer};
use directory::{Agent, LookupFor};
use grpc::{
    Code, FrameError, FrameReader, MessageEncoding, MessageError, Method, Status, decode_message,
    encode_frame, encode_message, text_value,
};
use http1::build_peer;
use kernel::offload;
use kernel::rejection::Rejection;

/// Bytes that wait between the relay and the stream of a call.
const PIPE_BYTES: usize = 16 * 1024;

/// Maximum bytes of the head of a call, which the gateway wrote itself.
const HEAD_BYTES_MAX: usize = 128 * 1024;

/// Maximum times that a call is sent: again only if its agent said that it did not take it.
const ATTEMPTS_MAX: usize = 3;

/// Fields of the head of HTTP/1 that are no metadata.
const OWN_FIELDS: [&str; 11] = [
    "host",
    "content-length",
    "content-type",
    "accept",
    "accept-encoding",
    "connection",
    "transfer-encoding",
    "te",
    "upgrade",
    "a2a-version",
    "last-event-id",
];

/// A gRPC interface of an agent's card.
#[derive(Clone, Debug)]
pub(super) struct GrpcPlace {
    /// Its URL, or host and port.
    pub(super) url: Arc<str>,
    /// The tenant that calls name where their caller names none.
    pub(super) tenant: Option<String>,
}

/// Returns a peer that is the agent at `place`, to connect to within `connect`.
///
/// # Errors
/// As [`Agent::grpc_address`].
pub(super) async fn grpc_peer(
    context: &Context,
    agent: &Agent,
    place: &GrpcPlace,
    asker: LookupFor,
    connect: Duration,
) -> Result<Box<HttpPeer>, Rejection> {
    let addresses = &context.gateway.directory.addresses;
    let (endpoint, address) = agent.grpc_address(addresses, &place.url, asker).await?;
    let first = address.first;
    let mut peer = build_agent_peer(address, &endpoint, connect);
    if let Some(tls) = agent.upstream_tls.as_ref().filter(|_| endpoint.tls) {
        let certificates = &context.relay.upstream.certificates;
        certificates.apply_to(&mut peer, agent, tls).await;
    }
    peer.options.alpn = ALPN::H2;
    let config = context.gateway.config();
    let target = GrpcAgent {
        relay: Arc::clone(&context.relay),
        peer,
        scheme: if endpoint.tls { "https" } else { "http" },
        authority: endpoint.host,
        tenant: place.tenant.clone(),
        answer_bytes_max: config.limits.response_bytes.0,
        event_bytes_max: config.limits.event_bytes.0,
        idle: config.upstream.idle,
    };
    // A name of its own, so that no connection of HTTP/1 is taken for it.
    let name = format!("grpc {}", target.authority);
    let mut door = build_peer(first, false, &name, connect);
    door.options.custom_l4 = Some(Arc::new(Door(Arc::new(target))));
    Ok(door)
}

/// An agent that is called by gRPC.
struct GrpcAgent {
    relay: Arc<Relay>,
    peer: Box<HttpPeer>,
    scheme: &'static str,
    authority: String,
    tenant: Option<String>,
    answer_bytes_max: u64,
    event_bytes_max: u64,
    idle: Duration,
}

impl GrpcAgent {
    async fn open(&self) -> pingora::Result<StreamSlot> {
        let upstream = &self.relay.upstream;
        let opened = upstream
            .grpc
            .open(&upstream.connector, &self.peer, self.idle);
        opened.await
    }
}

/// Connects the relay to an agent: a connection is there once its agent takes a stream.
struct Door(Arc<GrpcAgent>);

impl Debug for Door {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Door").field(&self.0.authority).finish()
    }
}

#[async_trait]
impl L4Connect for Door {
    async fn connect(&self, _: &PeerAddress) -> pingora::Result<Stream> {
        let slot = self.0.open().await?;
        let (relays, ours) = duplex(PIPE_BYTES);
        let agent = Arc::clone(&self.0);
        tokio::spawn(async move { serve(agent, slot, ours).await });
        Ok(VirtualSocketStream::new(Box::new(Pipe(relays))).into())
    }
}

/// The relay's end of a connection.
#[derive(Debug)]
struct Pipe(DuplexStream);

impl VirtualSocket for Pipe {
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Serves the one call of a connection. Its clocks are those of the relay, which leaves at the end of them.
async fn serve(agent: Arc<GrpcAgent>, slot: StreamSlot, mut pipe: DuplexStream) {
    let Ok((head, body)) = read_request(&mut pipe).await else {
        return;
    };
    let (mut reader, mut writer) = split(pipe);
    let left = async {
        let mut rest = [0; 64];
        while matches!(reader.read(&mut rest).await, Ok(1..)) {}
    };
    // Dropping the call resets its stream.
    tokio::select! {
        biased;
        () = left => {}
        answered = answer(&agent, slot, &head, body, &mut writer) => {
            if let Err(why) = answered {
                // The relay says so: the answer is not complete.
                tracing::debug!(error = %why, "the call by gRPC failed");
            }
        }
    }
}

/// Reads the request that the relay writes: its head, and the body.
async fn read_request(pipe: &mut DuplexStream) -> io::Result<(Vec<u8>, Bytes)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::with_capacity(4096);
    let end = loop {
        if let Some(at) = read.windows(END.len()).position(|part| part == END) {
            break at + END.len();
        }
        if read.len() > HEAD_BYTES_MAX || pipe.read_buf(&mut read).await? == 0 {
            return Err(ErrorKind::InvalidData.into());
        }
    };
    let mut body = read.split_off(end);
    let length = head_fields(&read).find(|(name, _)| *name == b"content-length");
    let length = length.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
    let length: usize = length.unwrap_or(0);
    while body.len() < length {
        if pipe.read_buf(&mut body).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((read, body.into()))
}

/// Returns the fields of a head, without the request line.
fn head_fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        Some((line[..at].trim_ascii(), line[at + 1..].trim_ascii()))
    })
}

/// A call of JSON-RPC.
#[derive(Deserialize)]
struct RpcCall<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// A call of gRPC, with the id that its answer has in JSON-RPC.
struct GrpcCall {
    id: Box<RawValue>,
    method: &'static Method,
    frame: Bytes,
}

/// Returns the call of gRPC for one of JSON-RPC; or the error that is its answer.
fn read_call(body: &[u8], tenant: Option<&str>) -> Result<GrpcCall, (Box<RawValue>, Value)> {
    let none = || RawValue::NULL.to_owned();
    let error = |code: i64, message: String| json!({"code": code, "message": message});
    let call: RpcCall<'_> =
        serde_json::from_slice(body).map_err(|why| (none(), error(-32700, why.to_string())))?;
    let id = call.id.map_or_else(none, ToOwned::to_owned);
    let Some(method) = Method::find(&call.method) else {
        let message = "the agent is called by gRPC, which has no such method".to_owned();
        return Err((id, error(-32601, message)));
    };
    let params = call.params.map_or("{}", RawValue::get);
    let message = encode_message(method.request(), params.as_bytes(), |message| {
        let named = message.get_field_by_name("tenant");
        let is_named =
            named.is_some_and(|named| named.as_str().is_some_and(|name| !name.is_empty()));
        if let Some(tenant) = tenant.filter(|_| !is_named) {
            message.set_field_by_name("tenant", text_value(tenant));
        }
    });
    match message {
        Ok(message) => Ok(GrpcCall {
            id,
            method,
            frame: encode_frame(&message),
        }),
        Err(why) => {
            let code = match why {
                MessageError::Number(_) => -32005,
                _ => -32602,
            };
            Err((id, error(code, why.to_string())))
        }
    }
}

/// Returns the head of the request of HTTP/2.
fn build_request(
    agent: &GrpcAgent,
    method: &Method,
    head: &[u8],
) -> Result<http::Request<()>, http::Error> {
    let uri = format!("{}://{}{}", agent.scheme, agent.authority, method.path());
    let mut request = http::Request::post(uri)
        .version(http::Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header("grpc-accept-encoding", "identity,gzip")
        .header("a2a-version", "1.0");
    for (name, value) in head_fields(head) {
        let name = HeaderName::from_bytes(name)?;
        if !OWN_FIELDS.contains(&name.as_str()) {
            request = request.header(name, HeaderValue::from_bytes(value)?);
        }
    }
    request.body(())
}

/// True if the agent said that it did not take a call.
fn is_untaken(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// The reasons why no answer to a call can be awaited.
enum SendError {
    /// Its agent did not take it.
    Untaken,
    /// It may have been taken.
    Broken(h2::Error),
}

/// Sends a call, and returns the head of its answer. It is sent again only if its agent surely did not take it.
async fn send(
    agent: &GrpcAgent,
    slot: &mut StreamSlot,
    request: http::Request<()>,
    frame: &Bytes,
) -> Result<http::Response<RecvStream>, SendError> {
    for attempt in 1..=ATTEMPTS_MAX {
        if attempt > 1 {
            agent.relay.metrics.resends.inc();
            *slot = agent.open().await.map_err(|_| SendError::Untaken)?;
        }
        let (mut sender, request, mut begun) = (slot.sender.clone(), request.clone(), false);
        let sent = async {
            poll_fn(|cx| sender.poll_ready(cx)).await?;
            let (answer, mut body) = sender.send_request(request, false)?;
            begun = true;
            body.send_data(frame.clone(), true)?;
            answer.await
        };
        let failed = match sent.await {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        if failed.is_go_away() || failed.is_io() {
            slot.retire_connection();
        }
        if begun && !is_untaken(&failed) {
            return Err(SendError::Broken(failed));
        }
    }
    Err(SendError::Untaken)
}

type Writer = tokio::io::WriteHalf<DuplexStream>;

/// Makes the call, and writes its answer.
async fn answer(
    agent: &GrpcAgent,
    mut slot: StreamSlot,
    head: &[u8],
    body: Bytes,
    writer: &mut Writer,
) -> io::Result<()> {
    let tenant = agent.tenant.clone();
    let read = offload::run_on_body(&body, move |body| read_call(body, tenant.as_deref())).await;
    drop(body);
    let GrpcCall { id, method, frame } = match read {
        Ok(call) => call,
        Err((id, error)) => {
            let none = HeaderMap::new();
            return write_answer(
                writer,
                (StatusCode::OK, &none),
                &reply(&id, "error", &error)?,
            )
            .await;
        }
    };
    let request = build_request(agent, method, head).map_err(io::Error::other)?;
    let answer = match send(agent, &mut slot, request, &frame).await {
        Ok(answer) => answer,
        Err(SendError::Broken(why)) => return Err(io::Error::other(why)),
        Err(SendError::Untaken) => {
            let error =
                json!({"code": -32603, "message": "the agent refuses each stream of HTTP/2"});
            let (status, none) = (StatusCode::SERVICE_UNAVAILABLE, HeaderMap::new());
            return write_answer(writer, (status, &none), &reply(&id, "error", &error)?).await;
        }
    };
    let (fields, stream) = answer.into_parts();
    drop(frame);
    slot.note_heard();
    if fields.status != StatusCode::OK {
        return write_status(writer, fields.status).await;
    }
    let is_grpc = fields.headers.get(header::CONTENT_TYPE);
    if !is_grpc.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return write_status(writer, StatusCode::BAD_GATEWAY).await;
    }
    let encoding = fields
        .headers
        .get("grpc-encoding")
        .map(HeaderValue::as_bytes);
    let limit = match method.streams() {
        true => agent.event_bytes_max,
        false => agent.answer_bytes_max,
    };
    let answer = Answer {
        stream,
        // Of another coding the first compressed message is refused.
        frames: FrameReader::new(MessageEncoding::parse(encoding).unwrap_or_default(), limit),
        limit,
        method,
        id,
        fields: fields.headers,
        slot,
    };
    match method.streams() && !answer.fields.contains_key(STATUS) {
        true => answer.relay_events(writer).await,
        false => answer.relay_unary(writer).await,
    }
}

/// The field of a status.
const STATUS: &str = "grpc-status";

/// The answer of an agent that is being read.
struct Answer {
    stream: RecvStream,
    frames: FrameReader,
    limit: u64,
    method: &'static Method,
    id: Box<RawValue>,
    /// Its initial metadata.
    fields: HeaderMap,
    slot: StreamSlot,
}

impl Answer {
    /// Returns the next message. `None`: there is none any more.
    async fn next_message(&mut self) -> io::Result<Option<Result<Bytes, FrameError>>> {
        loop {
            match self.frames.next_message().transpose() {
                Some(message) => return Ok(Some(message)),
                None => match self.stream.data().await {
                    Some(data) => {
                        let data = data.map_err(io::Error::other)?;
                        self.slot.note_heard();
                        self.frames.push(&data);
                        let flow = self.stream.flow_control();
                        flow.release_capacity(data.len())
                            .map_err(io::Error::other)?;
                    }
                    None if self.frames.held() > 0 => return Ok(Some(Err(FrameError::Framing))),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Returns the status with which the answer ended.
    async fn read_status(&mut self) -> io::Result<Status> {
        let trailers = match self.fields.contains_key(STATUS) {
            true => None,
            false => self.stream.trailers().await.map_err(io::Error::other)?,
        };
        let fields = trailers.as_ref().unwrap_or(&self.fields);
        let field = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
        let code = field(STATUS).ok_or(ErrorKind::UnexpectedEof)?;
        let (message, details) = (field("grpc-message"), field("grpc-status-details-bin"));
        Ok(Status::from_fields(code, message, details))
    }

    /// Returns a message in JSON.
    async fn decode(&self, message: &Bytes) -> Result<Box<RawValue>, Value> {
        let method = self.method;
        let work = move |message: &[u8]| decode_message(method.response(), message, |_| {});
        let json = offload::run_on_body(message, work).await;
        let json = json.map_err(|why| invalid(&why.to_string()))?;
        let json = String::from_utf8(json).map(RawValue::from_string);
        json.ok()
            .and_then(Result::ok)
            .ok_or_else(|| invalid("the message cannot be read"))
    }

    async fn relay_unary(mut self, writer: &mut Writer) -> io::Result<()> {
        let mut whole = None;
        let mut error = None;
        while let Some(message) = self.next_message().await? {
            match message {
                Ok(message) if whole.is_none() => whole = Some(message),
                Err(FrameError::TooLong(limit)) => return write_too_long(writer, limit).await,
                Ok(_) => error = Some(invalid("the agent sent more than one message")),
                Err(why) => error = Some(invalid(&why.to_string())),
            }
            if error.is_some() {
                let body = reply(&self.id, "error", &error)?;
                return write_answer(writer, (StatusCode::OK, &self.fields), &body).await;
            }
        }
        let status = self.read_status().await?;
        let mut http = StatusCode::OK;
        let body = match (status.code, whole) {
            (Code::Ok, Some(message)) => match self.decode(&message).await {
                Ok(result) => reply(&self.id, "result", &result)?,
                Err(error) => reply(&self.id, "error", &error)?,
            },
            (Code::Ok, None) => reply(&self.id, "error", &invalid("the agent sent no message"))?,
            _ => {
                if status.code == Code::Unavailable {
                    http = StatusCode::SERVICE_UNAVAILABLE;
                }
                self.note_retry(&status);
                reply(&self.id, "error", &status.to_json_rpc())?
            }
        };
        write_answer(writer, (http, &self.fields), &body).await
    }

    fn note_retry(&mut self, status: &Status) {
        if let Some(after) = status.retry_after {
            self.fields
                .insert(header::RETRY_AFTER, after.as_secs().into());
        }
    }

    async fn relay_events(mut self, writer: &mut Writer) -> io::Result<()> {
        let mut head = begin_head(StatusCode::OK, "text/event-stream", &self.fields);
        head.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        writer.write_all(&head).await?;
        drop(head);
        while let Some(message) = self.next_message().await? {
            let decoded = match message {
                Ok(message) => self.decode(&message).await,
                Err(FrameError::TooLong(_)) => Err(invalid(&format!(
                    "a message of the stream is longer than {} bytes",
                    self.limit
                ))),
                Err(why) => Err(invalid(&why.to_string())),
            };
            match decoded {
                Ok(result) => write_event(writer, &reply(&self.id, "result", &result)?).await?,
                Err(error) => {
                    write_event(writer, &reply(&self.id, "error", &error)?).await?;
                    return writer.write_all(LAST_CHUNK).await;
                }
            }
        }
        let status = self.read_status().await?;
        if status.code != Code::Ok {
            write_event(writer, &reply(&self.id, "error", &status.to_json_rpc())?).await?;
        }
        writer.write_all(LAST_CHUNK).await
    }
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Returns the error of an answer that is none.
fn invalid(message: &str) -> Value {
    json!({"code": -32006, "message": message})
}

/// Returns an answer of JSON-RPC.
fn reply(id: &RawValue, name: &str, member: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let member = to_raw_value(member).map_err(io::Error::other)?;
    Ok(format!(r#"{{"jsonrpc":"2.0","id":{id},"{name}":{member}}}"#).into_bytes())
}

/// Begins the head of an answer, with the initial metadata of the agent.
fn begin_head(status: StatusCode, content_type: &str, fields: &HeaderMap) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    // Writing to memory cannot fail.
    let _ = write!(
        head,
        "HTTP/1.1 {} \r\ncontent-type: {content_type}\r\n",
        status.as_u16()
    );
    head.extend_from_slice(b"connection: close\r\n");
    for (name, value) in fields {
        let is_own = name.as_str().starts_with("grpc-") || OWN_FIELDS.contains(&name.as_str());
        if !is_own || name == "a2a-version" {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
    }
    head
}

async fn write_answer(
    writer: &mut Writer,
    (status, fields): (StatusCode, &HeaderMap),
    body: &[u8],
) -> io::Result<()> {
    let mut head = begin_head(status, "application/json", fields);
    let _ = write!(head, "content-length: {}\r\n\r\n", body.len());
    writer.write_all(&head).await?;
    writer.write_all(body).await
}

/// Writes the status of a server that does not speak gRPC.
async fn write_status(writer: &mut Writer, status: StatusCode) -> io::Result<()> {
    let status = match status.is_client_error() || status.is_server_error() {
        true => status,
        false => StatusCode::BAD_GATEWAY,
    };
    let mut head = begin_head(status, "text/plain", &HeaderMap::new());
    head.extend_from_slice(b"content-length: 0\r\n\r\n");
    writer.write_all(&head).await
}

/// Writes the head of an answer that is longer than the limit, by which the relay refuses it.
async fn write_too_long(writer: &mut Writer, limit: u64) -> io::Result<()> {
    let mut head = begin_head(StatusCode::OK, "application/json", &HeaderMap::new());
    let _ = write!(head, "content-length: {}\r\n\r\n", limit.saturating_add(1));
    writer.write_all(&head).await
}

async fn write_event(writer: &mut Writer, json: &[u8]) -> io::Result<()> {
    let mut chunk = Vec::with_capacity(json.len() + 32);
    let _ = write!(chunk, "{:x}\r\ndata: ", json.len() + 8);
    chunk.extend_from_slice(json);
    chunk.extend_from_slice(b"\n\n\r\n");
    writer.write_all(&chunk).await
}
