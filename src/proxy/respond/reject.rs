//! Answers with a rejection, in the dialect of the request.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use super::{put_request_id, write_answer, write_response};
use crate::a2a::accept::prefers_stream;
use crate::dialect::ReplyForm;
use crate::ids::RequestId;
use crate::proxy::record::Exchange;
use crate::proxy::request::origin::{NOSNIFF, Origins};
use crate::rejection::{REFUSED, Reason, Rejection};

/// Writes the whole rejection. An error that A2A defines is sent as an event if the caller asked for a stream: clients
/// of the streaming methods read only events from an answer with status 200. The connection stays usable: framing is
/// exact, and Pingora drains the rest of the request within its bound.
///
/// # Errors
/// The caller cannot be written to.
pub(in crate::proxy) async fn send_rejection(
    session: &mut ServerSession,
    origins: &Origins,
    request_id: &RequestId,
    rejection: &Rejection,
    form: &ReplyForm,
) -> pingora::Result<()> {
    let mut body = rejection.to_body(form, request_id);
    let status = rejection.status_in(form.dialect);
    let fields = &session.req_header().headers;
    let is_event = status == StatusCode::OK.as_u16() && prefers_stream(fields);
    if is_event {
        body = format!("data: {body}\n\n");
    }
    let mut head = rejection_head(rejection, request_id, status, body.len())?;
    if is_event {
        head.insert_header(header::CONTENT_TYPE, "text/event-stream")?;
    }
    origins.put_browser_fields(&session.req_header().headers, &mut head);
    let without_body = session.req_header().method == http::Method::HEAD;
    let body = if without_body {
        Bytes::new()
    } else {
        Bytes::from(body)
    };
    write_response(session, head, body).await
}

/// Formats a rejection as bytes, for a connection without a readable request. The connection is closed after it.
pub(in crate::proxy) fn format_rejection(
    rejection: &Rejection,
    request_id: &RequestId,
    form: &ReplyForm,
    without_body: bool,
) -> String {
    let body = rejection.to_body(form, request_id);
    let status = rejection.status_in(form.dialect);
    let phrase = StatusCode::from_u16(status).ok();
    let phrase = phrase
        .and_then(|s| s.canonical_reason())
        .unwrap_or_default();
    let mut answer = format!(
        "HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nx-request-id: {}\r\n{REFUSED}: {}\r\n\
         connection: close\r\n",
        body.len(),
        request_id.as_str(),
        rejection.reason.as_str(),
    );
    if let Some(seconds) = rejection.retry_after {
        answer.push_str(&format!("retry-after: {seconds}\r\n"));
    }
    answer.push_str("\r\n");
    if !without_body {
        answer.push_str(&body);
    }
    answer
}

fn rejection_head(
    rejection: &Rejection,
    request_id: &RequestId,
    status: u16,
    length: usize,
) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(status, Some(10))?;
    head.append_header(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )?;
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

/// Writes a rejection in the plain dialect, for a request with an unreadable head.
///
/// # Errors
/// The caller cannot be written to.
pub(in crate::proxy) async fn answer_unreadable(
    session: &mut ServerSession,
    rejection: &Rejection,
) -> pingora::Result<()> {
    let request_id = RequestId::random();
    let body = rejection.plain_body(&request_id);
    let head = rejection_head(
        rejection,
        &request_id,
        rejection.reason.status(),
        body.len(),
    )?;
    write_answer(session, head, Bytes::from(body)).await
}

/// Rejects an exchange: records the rejection, counts failures of proof, and answers.
pub(in crate::proxy) async fn reject_exchange(
    session: &mut ServerSession,
    origins: &Origins,
    exchange: &mut Exchange,
    rejection: &Rejection,
) -> pingora::Result<()> {
    exchange.record_rejection(rejection);
    exchange.answer.status = rejection.status_in(exchange.dialect);
    let form = exchange.reply_form();
    send_rejection(session, origins, &exchange.request_id, rejection, &form).await
}
