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

use super::caller::Caller;
use super::chunks::Chunks;
use super::head::{Scan, Whole};
use super::listener::{DRAIN, Listener};
use super::peer;
use crate::ids::RequestId;
use crate::metrics::Cut;
use crate::proxy::outcome::boxed;
use crate::proxy::reading::poll_read;
use crate::proxy::request::route::{Route, route};
use crate::proxy::respond::reject::wire;
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
    let mut stream = Caller::wrap(stream);
    let mut held = BytesMut::new();
    let mut first = Some(deadline);
    loop {
        let deadline = match first.take() {
            Some(deadline) => deadline,
            None => match await_next_head(listener, &mut stream, &mut held).await {
                Some(deadline) => deadline,
                None => return,
            },
        };
        let mut scan = Scan::default();
        let read = timeout_at(deadline, read(&mut stream, &mut held, &mut scan)).await;
        let whole = match read {
            Ok(Ok(Some(whole))) => whole,
            Ok(Ok(None) | Err(Unread::Left)) => return,
            Ok(Err(Unread::Refused(why))) => {
                listener.relay.metrics.connection_cut(Cut::BadHead);
                // Boxed, here and below: a connection that waits for its next head should hold little.
                return Box::pin(refuse(
                    listener,
                    &mut stream,
                    BadHead {
                        held: &held,
                        scan: &scan,
                        why,
                    },
                ))
                .await;
            }
            Err(_) => {
                listener.relay.metrics.connection_cut(Cut::SlowHead);
                return;
            }
        };
        if whole.chunked {
            let mut chunks = Chunks::BEGIN;
            if chunks.feed(&held[whole.end..]).is_err() {
                listener.relay.metrics.connection_cut(Cut::BadHead);
                let why = "the framing of the request body is broken";
                return Box::pin(refuse(
                    listener,
                    &mut stream,
                    BadHead {
                        held: &held,
                        scan: &scan,
                        why,
                    },
                ))
                .await;
            }
            if chunks != Chunks::Over {
                stream = Caller::expect(stream, chunks);
            }
        }
        // Drops the empty line that may precede the request line.
        let _ = held.split_to(whole.start);
        let mut session = Box::new(ServerSession::new_http1(stream));
        session.set_keepalive(KEEP);
        session.set_pipelining_enabled(true);
        session.set_pipelined_prefix(std::mem::take(&mut held));
        // In a box of its own, so that it costs nothing between two requests.
        let request: BoxFuture<'_, _> = boxed(|| listener.request(session));
        let Ok(Some(reusable)) = request.await else {
            return;
        };
        let (rest, behind) = reusable.into_parts();
        stream = rest;
        held = behind.unwrap_or_default();
    }
}

/// Waits for the first byte of the next head, and returns the time at which the head must be complete. `None` if none
/// came in time, the caller left, or this process shuts down. A hand-over to a new process closes no connection that
/// waits: a request may be on its way, and HTTP/1 has no word for a caller that is between two. It is closed with its
/// next answer, or after `server.keepalive`.
async fn await_next_head(
    listener: &Listener,
    stream: &mut Stream,
    held: &mut BytesMut,
) -> Option<Instant> {
    let keepalive = listener.relay.config.get().server.keepalive;
    if held.is_empty() {
        tokio::select! {
            biased;
            read = timeout(keepalive, first_bytes(stream, held)) => match read {
                Ok(Ok(())) if !held.is_empty() => {}
                _ => return None,
            },
            () = listener.relay.drain.begins() => return None,
        }
    }
    Some(Instant::now() + listener.relay.config.get().timeouts.request_head)
}

/// Waits for the first bytes of a head, without a buffer. No bytes: the caller left.
async fn first_bytes(stream: &mut Stream, held: &mut BytesMut) -> io::Result<()> {
    poll_fn(|context| {
        poll_read(stream, context, FIRST_BYTES, |bytes| {
            held.reserve(HEAD_BYTES);
            held.extend_from_slice(bytes);
        })
    })
    .await
}

/// Reasons for having no head.
enum Unread {
    Left,
    Refused(&'static str),
}

impl From<io::Error> for Unread {
    fn from(_: io::Error) -> Self {
        Self::Left
    }
}

/// Reads until the head is complete. `None` if the connection was closed before.
async fn read(
    stream: &mut Stream,
    held: &mut BytesMut,
    scan: &mut Scan,
) -> Result<Option<Whole>, Unread> {
    if held.is_empty() {
        first_bytes(stream, held).await?;
        if held.is_empty() {
            return Ok(None);
        }
    }
    loop {
        if let Some(whole) = scan.look(held).map_err(Unread::Refused)? {
            return Ok(Some(whole));
        }
        // Grows only a full buffer: reserving for one more byte would double it.
        if held.len() == held.capacity() {
            held.reserve(HEAD_BYTES);
        }
        if stream.read_buf(held).await? == 0 {
            return Ok(None);
        }
    }
}

/// A head that is refused, as far as it was read.
struct BadHead<'a> {
    held: &'a [u8],
    scan: &'a Scan,
    why: &'static str,
}

/// Rejects an invalid head in the dialect of its route and closes: the start of the next request is unknown.
async fn refuse(
    listener: &Listener,
    stream: &mut Stream,
    BadHead { held, scan, why }: BadHead<'_>,
) {
    let rejection = Rejection::new(Reason::InvalidRequest, why);
    let request_id = RequestId::from_caller(scan.value(held, "x-request-id"));
    let route = scan.path(held).map_or(Route::Control, route);
    if listener.relay.drain.closed() {
        return;
    }
    listener.unreadable(&route, &request_id, peer(stream), &rejection);
    let form = route.dialect().into();
    let answer = wire(&rejection, &request_id, &form, scan.is_head);
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
