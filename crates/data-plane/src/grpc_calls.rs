//! Calls of gRPC: the message of each is read, which may name the target, and becomes a call of JSON-RPC. Health and
//! reflection are answered here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::HttpSession;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use crate::admission::{authenticate_caller, open_exchange};
use crate::body::read_any_type;
use crate::grpc_session::{GRPC, GrpcCall, OwnMethod, RequestBody, status_fields};
use crate::plan;
use crate::policy::authorize_target;
use crate::record::{Answered, ExchangeError};
use crate::services::Request;
use grpc::{
    Code, FrameError, FrameReader, MessageEncoding, Method, SERVICE, Status, answer_reflection,
    decode_message, encode_frame, health_response, split_tenant,
};
use http1::AbortCause;
use kernel::ids::WorkspaceId;
use kernel::offload;
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;

/// The pattern of the paths of calls.
pub(super) const ROUTE: &str = "/lf.a2a.v1.A2AService/{method}";

/// Maximum bytes of a request of health or reflection.
const OWN_REQUEST_BYTES_MAX: u64 = 4 * 1024;

/// Maximum requests of one stream of health or reflection.
const OWN_REQUESTS_MAX: usize = 100;

/// Maximum time of one stream of reflection.
const OWN_STREAM_MAX: Duration = Duration::from_secs(60);

/// Interval at which a watch of the health looks for a change.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Serves a call: reads its message, which may name the target, and passes it on as a call of JSON-RPC.
pub(super) async fn serve_call(
    request: &mut Request<'_>,
    call: GrpcCall,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    let method = call.method.ok_or_else(|| {
        let message = format!("there is no such method; the service is {SERVICE}");
        Rejection::new(Reason::MethodNotAllowed, message).at(Stage::Route)
    })?;
    request.exchange.call.deadline = call
        .timeout
        .map(|timeout| request.exchange.call.started + timeout);
    let head = request.session.req_header();
    let named = head
        .headers
        .get("x-a2a-workspace")
        .map(|value| value.as_bytes().to_vec());
    let proof = authenticate_caller(&context.gateway, request.exchange, head).await?;
    let (relay, mut share) = (
        Arc::clone(&context.relay),
        context.relay.load.new_share(proof.account),
    );
    let reserve = move |bytes| relay.load.reserve(&mut share, bytes);
    call.state.lock().reserve = Some(Box::new(reserve));
    let received = read_any_type(request, proof.account).await?;
    let encoding = call.encoding.ok_or_else(|| {
        let message = "send messages uncompressed, or with gzip";
        Rejection::new(Reason::UnsupportedMediaType, message).at(Stage::Body)
    })?;
    let limit = request.exchange.call.config.limits.request_bytes.0;
    let is_named = named.is_some();
    let read = offload::run_on_body(&received.body, move |frames| {
        read_call(method, frames, (encoding, limit), is_named)
    });
    let (json, tenant) = read.await.at(Stage::Body)?;
    let workspace = named
        .map_or(Ok(tenant), String::from_utf8)
        .unwrap_or_default();
    let target = WorkspaceId::parse(&workspace).map_err(Rejection::from);
    let target = target.at(Stage::Target)?;
    request.exchange.call.target = Some(target.clone());
    let allowed = authorize_target(&context.gateway, request.exchange, proof, &target).await?;
    drop(received);
    call.state.lock().body = RequestBody::Call(json);
    plan::serve_allowed(request, allowed).await
}

/// Returns the call of JSON-RPC for the frames of a call, and the workspace that its tenant names, unless the target
/// `is_named` by a field.
fn read_call(
    method: &'static Method,
    frames: &[u8],
    (encoding, limit): (MessageEncoding, u64),
    is_named: bool,
) -> Result<(Bytes, String), Rejection> {
    let mut reader = FrameReader::new(encoding, limit);
    reader.push(frames);
    let message = reader.single_message().map_err(|why| refuse_frame(&why))?;
    let mut workspace = String::new();
    let params = decode_message(method.request(), &message, |message| {
        if is_named {
            return;
        }
        let tenant = message.get_field_by_name("tenant");
        let tenant = tenant.as_deref().and_then(|tenant| tenant.as_str());
        let tenant = tenant.unwrap_or_default().to_owned();
        let target = split_tenant(&tenant);
        workspace = target.workspace.to_owned();
        match target.tenant {
            "" => message.clear_field_by_name("tenant"),
            tenant => message.set_field_by_name("tenant", grpc::text_value(tenant)),
        }
    });
    let params = params.map_err(|why| Rejection::new(Reason::InvalidRequest, why.to_string()))?;
    let params = String::from_utf8(params).map(RawValue::from_string);
    let params = params.ok().and_then(Result::ok);
    let call =
        serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": method.name(), "params": params});
    Ok((call.to_string().into(), workspace))
}

fn refuse_frame(why: &FrameError) -> Rejection {
    let reason = match why {
        FrameError::TooLong(_) => Reason::BodyTooLarge,
        FrameError::Compression => Reason::UnsupportedMediaType,
        FrameError::Framing => Reason::InvalidRequest,
    };
    Rejection::new(reason, why.to_string())
}

/// Serves a request of the gateway's own services.
pub(super) async fn serve_own(
    session: &mut ServerSession,
    method: OwnMethod,
    is_ready: impl Fn() -> bool,
) -> Result<(), AbortCause> {
    let ServerSession::H2(stream) = session else {
        return Err(AbortCause::Ours);
    };
    let served = async {
        let mut head = ResponseHeader::build(200, Some(1))?;
        head.append_header(header::CONTENT_TYPE, GRPC)?;
        stream.write_response_header(Box::new(head), false)?;
        let until = Instant::now() + OWN_STREAM_MAX;
        let status = timeout_at(until, answer_own(stream, method, is_ready)).await;
        let late = || {
            Ok(Status::new(
                Code::DeadlineExceeded,
                "the stream was open for too long",
            ))
        };
        let status = status.unwrap_or_else(|_| late())?;
        stream.write_trailers(status_fields(&status).collect())?;
        stream.finish()
    };
    served
        .await
        .map_err(|_: Box<pingora::Error>| AbortCause::CallerLeft)
}

async fn answer_own(
    stream: &mut HttpSession,
    method: OwnMethod,
    is_ready: impl Fn() -> bool,
) -> pingora::Result<Status> {
    let mut reader = FrameReader::new(MessageEncoding::Identity, OWN_REQUEST_BYTES_MAX);
    let mut requests = 0;
    loop {
        let message = match reader.next_message() {
            Ok(Some(message)) => message,
            Ok(None) => match stream.read_body_bytes().await? {
                Some(bytes) => {
                    reader.push(&bytes);
                    continue;
                }
                None => return Ok(Status::new(Code::Ok, "")),
            },
            Err(why) => return Ok(Status::new(Code::InvalidArgument, why.to_string())),
        };
        requests += 1;
        if requests > OWN_REQUESTS_MAX {
            return Ok(Status::new(
                Code::ResourceExhausted,
                "the stream has too many requests",
            ));
        }
        let answer = match method {
            OwnMethod::Reflect => answer_reflection(&message),
            OwnMethod::Check => Some(health_response(is_ready())),
            OwnMethod::Watch => return watch_health(stream, is_ready).await,
        };
        let Some(answer) = answer else {
            return Ok(Status::new(
                Code::InvalidArgument,
                "the request cannot be read",
            ));
        };
        stream.write_body(encode_frame(&answer), false).await?;
        if matches!(method, OwnMethod::Check) {
            return Ok(Status::new(Code::Ok, ""));
        }
    }
}

/// Sends the health, and each change of it.
async fn watch_health(
    stream: &mut HttpSession,
    is_ready: impl Fn() -> bool,
) -> pingora::Result<Status> {
    let mut last = None;
    loop {
        let now = is_ready();
        if last.replace(now) != Some(now) {
            stream
                .write_body(encode_frame(&health_response(now)), false)
                .await?;
        }
        let idle = stream.read_body_or_idle(true);
        if tokio::time::timeout(WATCH_EVERY, idle).await.is_ok() {
            return Ok(Status::new(Code::Cancelled, "the caller left"));
        }
    }
}
