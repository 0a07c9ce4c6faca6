//! One HTTP/1 connection. Each head is awaited and read with a clock of its own, validated by `head`, and
//! then passed to Pingora. Between two requests a connection costs no buffer for reading.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::caller::CallerStream;
use super::chunks::ChunkParser;
use super::head::{HeadScanner, ScannedHead};
use super::listener::{DRAIN, Listener};
use super::peer_address;
use crate::ids::RequestId;
use crate::metrics::ConnectionCut;
use crate::proxy::outcome::box_in_place;
use crate::proxy::request::route::{Route, match_route};
use crate::proxy::respond::reject::format_rejection;
use crate::proxy::thread_buffer::poll_read;
use crate::rejection::{Reason, Rejection};

/// Initial capacity for a head. Most heads fit.
const HEAD_BYTES: usize = 2 * 1024;

/// Maximum bytes of the first read of a head: with them come most bodies.
const FIRST_BYTES: usize = 8 * 1024;

/// Keep-alive for Pingora. It never waits for a head here, so the number only enables keep-alive.
const KEEP: Option<u64> = Some(60);

/// Serves the requests of one connection in sequence. The first head must be complete at `deadline`. A later one is
/// waited for up to `server.keepalive`, and has its own clock from its first byte on.
pub(in crate::proxy) async fn serve(listener: &Arc<Listener>, stream: Stream, deadline: Instant) {
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
        let read = timeout_at(deadline, read_head(&mut stream, &mut buffer, &mut scan)).await;
        let whole = match read {
            Ok(Ok(Some(whole))) => whole,
            Ok(Ok(None) | Err(HeadReadError::Left)) => return,
            Ok(Err(HeadReadError::Refused(why))) => {
                count_cut(listener, ConnectionCut::BadHead);
                // Boxed, here and below: a connection that waits for its next head should hold little.
                return Box::pin(refuse_head(
                    listener,
                    &mut stream,
                    BadHead {
                        buffer: &buffer,
                        scan: &scan,
                        why,
                    },
                ))
                .await;
            }
            Err(_) => {
                count_cut(listener, ConnectionCut::SlowHead);
                return;
            }
        };
        if whole.chunked {
            let mut chunks = ChunkParser::BEGIN;
            if chunks.feed(&buffer[whole.end..]).is_err() {
                count_cut(listener, ConnectionCut::BadHead);
                let why = "the framing of the request body is broken";
                return Box::pin(refuse_head(
                    listener,
                    &mut stream,
                    BadHead {
                        buffer: &buffer,
                        scan: &scan,
                        why,
                    },
                ))
                .await;
            }
            if chunks != ChunkParser::Over {
                stream = CallerStream::expect_chunks(stream, chunks);
            }
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

fn count_cut(listener: &Listener, why: ConnectionCut) {
    listener.relay.metrics.count_connection_cut(why);
}

/// Waits for the first byte of the next head, and returns the time at which the head must be complete. `None` if none
/// came in time, the caller left, or this process shuts down. A hand-over to a new process closes no connection that
/// waits: a request may be on its way, and HTTP/1 has no word for a caller that is between two. It is closed with its
/// next answer, or after `server.keepalive`.
async fn await_next_head(
    listener: &Listener,
    stream: &mut Stream,
    buffer: &mut BytesMut,
) -> Option<Instant> {
    let keepalive = listener.relay.config.get().server.keepalive;
    if buffer.is_empty() {
        tokio::select! {
            biased;
            read = timeout(keepalive, first_bytes(stream, buffer)) => match read {
                Ok(Ok(())) if !buffer.is_empty() => {}
                _ => return None,
            },
            () = listener.relay.drain.wait_for_begin() => return None,
        }
    }
    Some(Instant::now() + listener.relay.config.get().timeouts.request_head)
}

/// Waits for the first bytes of a head, without a buffer. No bytes: the caller left.
async fn first_bytes(stream: &mut Stream, buffer: &mut BytesMut) -> io::Result<()> {
    poll_fn(|context| {
        poll_read(stream, context, FIRST_BYTES, |bytes| {
            buffer.reserve(HEAD_BYTES);
            buffer.extend_from_slice(bytes);
        })
    })
    .await
}

/// Reasons for having no head.
enum HeadReadError {
    Left,
    Refused(&'static str),
}

impl From<io::Error> for HeadReadError {
    fn from(_: io::Error) -> Self {
        Self::Left
    }
}

/// Reads until the head is complete. `None` if the connection was closed before.
async fn read_head(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    scan: &mut HeadScanner,
) -> Result<Option<ScannedHead>, HeadReadError> {
    if buffer.is_empty() {
        first_bytes(stream, buffer).await?;
        if buffer.is_empty() {
            return Ok(None);
        }
    }
    loop {
        if let Some(whole) = scan.scan_lines(buffer).map_err(HeadReadError::Refused)? {
            return Ok(Some(whole));
        }
        // Grows only a full buffer: reserving for one more byte would double it.
        if buffer.len() == buffer.capacity() {
            buffer.reserve(HEAD_BYTES);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// A head that is refused, as far as it was read.
struct BadHead<'a> {
    buffer: &'a [u8],
    scan: &'a HeadScanner,
    why: &'static str,
}

/// Rejects an invalid head in the dialect of its route and closes: the start of the next request is unknown.
async fn refuse_head(
    listener: &Listener,
    stream: &mut Stream,
    BadHead { buffer, scan, why }: BadHead<'_>,
) {
    let rejection = Rejection::new(Reason::InvalidRequest, why);
    let request_id = RequestId::from_caller(scan.field_value(buffer, "x-request-id"));
    let route = scan
        .request_path(buffer)
        .map_or(Route::Control, match_route);
    if listener.relay.drain.is_closed() {
        return;
    }
    listener.record_unreadable(&route, &request_id, peer_address(stream), &rejection);
    let form = route.dialect().into();
    let answer = format_rejection(&rejection, &request_id, &form, scan.is_head);
    lingering_close(stream, &answer, DRAIN).await;
}

/// Lingering close: sends the answer, then reads what is still in flight. A close with unread bytes resets the
/// connection, and the caller might never see the answer.
pub(in crate::proxy) async fn lingering_close(stream: &mut Stream, answer: &str, limit: Duration) {
    let parting = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(stream).await?;
        let mut unread = [0; 1024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(limit, parting).await;
}
