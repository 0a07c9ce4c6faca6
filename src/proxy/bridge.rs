//! Hands a request to the control plane in process: a bounded body in, a streamed body out.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use http_body_util::BodyExt;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;
use tower::ServiceExt;

use super::Proxy;
use super::body::{NoBody, next_piece};
use super::ended::{chunk, left};
use super::reject::{Dialect, answer};
use crate::identity::ClientAddr;
use crate::ids::RequestId;
use crate::rejection::{Reason, Rejection};

/// Largest control-plane request. The largest legitimate one carries a card of 256 KiB.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Why the bridge did not get through.
enum Broken {
    Refused(Rejection),
    CallerLeft,
}

impl From<NoBody> for Broken {
    fn from(none: NoBody) -> Self {
        match none {
            NoBody::Refused(rejection) => Self::Refused(rejection),
            NoBody::CallerLeft => Self::CallerLeft,
        }
    }
}

/// Passes one request to the control plane and its answer back.
///
/// # Errors
/// When the connection must be broken off.
pub(super) async fn pass(
    proxy: &Proxy,
    session: &mut ServerSession,
    request_id: &RequestId,
) -> Result<(), ()> {
    match run(proxy, session, request_id).await {
        Ok(()) => Ok(()),
        Err(Broken::CallerLeft) => Err(()),
        Err(Broken::Refused(rejection)) => answer(
            session,
            &proxy.origins.get(),
            request_id,
            &rejection,
            Dialect::Plain,
        )
        .await
        .map_err(|_| ()),
    }
}

async fn run(
    proxy: &Proxy,
    session: &mut ServerSession,
    request_id: &RequestId,
) -> Result<(), Broken> {
    let body = read(proxy, session).await?;
    let request = request(proxy, session, request_id, body)?;
    let asked = proxy.control.clone().oneshot(request);
    let response = tokio::select! {
        biased;
        // A router answers every request: its error type has no values.
        response = asked => response.unwrap_or_else(|never| match never {}),
        () = left(session) => return Err(Broken::CallerLeft),
    };
    let (parts, mut body) = response.into_parts();
    let mut head =
        ResponseHeader::build(parts.status, Some(parts.headers.len() + 4)).map_err(broken)?;
    for (name, value) in &parts.headers {
        head.append_header(name, value).map_err(broken)?;
    }
    head.insert_header("x-request-id", request_id.as_str())
        .map_err(broken)?;
    proxy
        .origins
        .get()
        .expose(&session.req_header().headers, &mut head);
    let framed = parts.headers.contains_key(header::CONTENT_LENGTH);
    if !framed && parts.status != StatusCode::NO_CONTENT {
        chunk(session, &mut head).map_err(broken)?;
    }
    session
        .write_response_header(Box::new(head))
        .await
        .map_err(|_| Broken::CallerLeft)?;
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = left(session) => return Err(Broken::CallerLeft),
        };
        match frame {
            None => break,
            Some(Err(_)) => return Err(Broken::CallerLeft),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                session
                    .write_response_body(data, false)
                    .await
                    .map_err(|_| Broken::CallerLeft)?;
            }
        }
    }
    session
        .write_response_body(Bytes::new(), true)
        .await
        .map_err(|_| Broken::CallerLeft)
}

fn request(
    proxy: &Proxy,
    session: &ServerSession,
    request_id: &RequestId,
    body: Bytes,
) -> Result<http::Request<Body>, Broken> {
    let head = session.req_header();
    // Routes see the path and query only, whichever form the request target had.
    let target = head
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let mut request = http::Request::builder()
        .method(head.method.clone())
        .uri(target);
    if let Some(headers) = request.headers_mut() {
        headers.extend(head.headers.iter().map(|(n, v)| (n.clone(), v.clone())));
    }
    let mut request = request.body(Body::from(body)).map_err(|_| {
        Broken::Refused(Rejection::new(
            Reason::InvalidRequest,
            "the request target is not valid",
        ))
    })?;
    request.extensions_mut().insert(request_id.clone());
    request
        .extensions_mut()
        .insert(ClientAddr(proxy.client(session)));
    Ok(request)
}

async fn read(proxy: &Proxy, session: &mut ServerSession) -> Result<Bytes, Broken> {
    let deadline = Instant::now() + proxy.gateway.config().timeouts.request_body;
    if session.req_header().headers.contains_key(header::EXPECT) {
        session
            .write_continue_response()
            .await
            .map_err(|_| Broken::CallerLeft)?;
    }
    let mut held = BytesMut::new();
    loop {
        match next_piece(&proxy.gateway, session, deadline).await? {
            None => return Ok(held.freeze()),
            Some(piece) if held.len() + piece.len() > BODY_BYTES_MAX => {
                return Err(Broken::Refused(
                    Rejection::new(
                        Reason::BodyTooLarge,
                        "the request body is larger than 1 MiB",
                    )
                    .fact("limit", BODY_BYTES_MAX),
                ));
            }
            Some(piece) => held.extend_from_slice(&piece),
        }
    }
}

fn broken(error: Box<pingora::Error>) -> Broken {
    Broken::Refused(super::ended::internal(error))
}
