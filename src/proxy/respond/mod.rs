//! Writes the gateway's own answers with one body: rejections, cards, replayed results and replies of an inbox.

pub(in crate::proxy) mod reject;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

use crate::proxy::record::Exchange;
use crate::proxy::relay::outcome::{Ended, within, write_with_timeout};

/// Writes head and body within the session's write timeout.
///
/// # Errors
/// The client left, or does not read.
pub(super) async fn write_response(
    session: &mut ServerSession,
    head: ResponseHeader,
    body: Bytes,
) -> pingora::Result<()> {
    write_with_timeout(session.get_write_timeout(), write(session, head, body)).await
}

async fn write(
    session: &mut ServerSession,
    head: ResponseHeader,
    body: Bytes,
) -> pingora::Result<()> {
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(body, true).await
}

/// Writes the answer to an exchange within `timeouts.write`, and records its status and size.
///
/// # Errors
/// [`Ended::CallerLeft`].
pub(super) async fn respond(
    session: &mut ServerSession,
    exchange: &mut Exchange,
    head: ResponseHeader,
    body: Bytes,
) -> Result<Ended, Ended> {
    exchange.status = head.status.as_u16();
    exchange.response_bytes += body.len() as u64;
    let deadline = Instant::now() + exchange.config.timeouts.write;
    within(deadline, write(session, head, body)).await?;
    Ok(Ended::Answered)
}
