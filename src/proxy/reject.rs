//! Answers with a rejection, in the dialect of the request.

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::protocols::http::ServerSession;

use crate::a2a::accept::prefers_stream;
use crate::dialect::ReplyForm;
use crate::ids::RequestId;
use crate::proxy::admission::Origins;
use crate::proxy::listener::{rejection_head, write_response};
use crate::proxy::record::Exchange;
use crate::rejection::Rejection;

/// Writes the whole rejection. An error that A2A defines is sent as an event if the caller asked for a stream: clients
/// of the streaming methods read only events from an answer with status 200. The connection stays usable: framing is
/// exact, and Pingora drains the rest of the request within its bound.
///
/// # Errors
/// The caller cannot be written to.
pub(super) async fn send_rejection(
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

/// Rejects an exchange: records the rejection, counts failures of proof, and answers.
pub(super) async fn reject_exchange(
    session: &mut ServerSession,
    origins: &Origins,
    exchange: &mut Exchange,
    rejection: &Rejection,
) -> pingora::Result<()> {
    exchange.record_rejection(rejection);
    exchange
        .record
        .set_status(rejection.status_in(exchange.call.dialect()));
    let form = exchange.call.reply_form();
    send_rejection(
        session,
        origins,
        exchange.call.request_id(),
        rejection,
        &form,
    )
    .await
}
