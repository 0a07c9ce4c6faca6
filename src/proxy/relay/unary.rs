//! Relays one answer in one body. A short answer is held back, so that a failure can still be answered with an error
//! instead of a broken connection.

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::rewrite::Rewrite;
use super::upstream::Home;
use crate::drain::Cut;
use crate::proxy::load::Load;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::Clocks;
use crate::proxy::relay::failure::{broken_http, shutting_down, silent, timed_out, too_large};
use crate::proxy::respond::{chunk, gone, internal, within};
use crate::rejection::Delivery;
use crate::shares::Share;

/// Maximum bytes of a unary answer that are held back, so that most failures can still be answered with an error. A
/// caller cannot use half a JSON document anyway.
const HELD_BYTES_MAX: usize = 32 * 1024;

/// One answer in one body.
pub(in crate::proxy) struct Unary<'a> {
    /// Maximum bytes of the body.
    pub(in crate::proxy) limit: usize,
    /// True if the caller asked for no body.
    pub(in crate::proxy) head_only: bool,
    /// The clocks of the exchange.
    pub(in crate::proxy) clocks: &'a Clocks,
    /// The end of the shutdown's grace period.
    pub(in crate::proxy) cut: Cut,
    /// Set if the answer is rewritten, for which it must be complete.
    pub(in crate::proxy) whole: Option<Whole<'a>>,
    /// The head, until it is sent.
    pub(in crate::proxy) head: Option<Box<ResponseHeader>>,
}

/// The state of an answer that is passed on only when it is complete.
pub(in crate::proxy) struct Whole<'a> {
    /// The rewrite of the answer.
    pub(in crate::proxy) rewrite: Rewrite,
    /// The memory bound.
    pub(in crate::proxy) load: &'a Load,
    /// The memory share that the answer takes.
    pub(in crate::proxy) share: Share,
}

impl Unary<'_> {
    /// Relays the whole answer.
    pub(in crate::proxy) async fn pass(
        &mut self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        (mut upstream, home): (Box<HttpSession>, Home<'_>),
        length: Option<u64>,
    ) -> Result<Ended, Ended> {
        if self.head_only {
            // The connection is dropped: the bytes after such a head are undefined.
            let length = length.filter(|_| self.whole.is_none());
            self.begin(session, length).await?;
            self.write(session, exchange, Bytes::new(), true).await?;
            return Ok(Ended::Answered);
        }
        let mut held = BytesMut::new();
        let mut read = 0_usize;
        loop {
            let next = next_piece(Some(session), &mut upstream, self.clocks, &mut self.cut);
            let piece = match next.await {
                Ok(piece) => piece,
                Err(Ended::Refused(rejection)) if self.head.is_none() => {
                    return Err(Ended::BrokenOff(rejection));
                }
                Err(ended) => return Err(ended),
            };
            let Some(piece) = piece else { break };
            read += piece.len();
            if read > self.limit {
                let rejection = too_large(self.limit as u64);
                return Err(match self.head {
                    None => Ended::BrokenOff(rejection),
                    Some(_) => rejection.into(),
                });
            }
            // Before the caller gets the id: it may ask for the task at once.
            exchange.look_at(&piece).await;
            if let Some(whole) = &mut self.whole {
                let taken = whole.load.hold(&mut whole.share, piece.len());
                taken.map_err(|full| full.delivered(Delivery::Sent))?;
            }
            let hold = self.whole.is_some() || held.len() + piece.len() <= HELD_BYTES_MAX;
            if self.head.is_some() && hold {
                // The usual answer comes in one piece and is not copied again.
                held = if held.is_empty() {
                    BytesMut::from(piece)
                } else {
                    joined(held, &piece)
                };
                continue;
            }
            if self.head.is_some() {
                self.begin(session, length).await?;
                self.write(session, exchange, held.split().freeze(), false)
                    .await?;
            }
            self.write(session, exchange, piece, false).await?;
        }
        home.take_back(upstream).await;
        let mut rest = held.freeze();
        if let (Some(whole), Some(head)) = (self.whole.take(), &mut self.head) {
            let changed = Box::pin(whole.rewrite.answer(head, rest));
            let changed = timeout_at(self.clocks.total, changed).await;
            rest = changed.map_err(|_| timed_out("total"))??;
            exchange.status = head.status.as_u16();
        }
        self.begin(session, Some(rest.len() as u64)).await?;
        self.write(session, exchange, rest, true).await?;
        Ok(Ended::Answered)
    }

    /// Sends the head, unless it was sent before.
    async fn begin(
        &mut self,
        session: &mut ServerSession,
        length: Option<u64>,
    ) -> Result<(), Ended> {
        let Some(mut head) = self.head.take() else {
            return Ok(());
        };
        let bodiless = matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        match length {
            _ if bodiless => {}
            None if self.head_only => {}
            Some(length) => {
                head.insert_header(header::CONTENT_LENGTH, length)
                    .map_err(internal)?;
            }
            None => chunk(session, &mut head).map_err(internal)?,
        }
        within(self.clocks.total, session.write_response_header(head)).await
    }

    async fn write(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        piece: Bytes,
        last: bool,
    ) -> Result<(), Ended> {
        exchange.response_bytes += piece.len() as u64;
        within(self.clocks.total, session.write_response_body(piece, last)).await
    }
}

/// Returns the next piece of the body, or what ended the wait: a clock, or the caller, if there is one.
pub(in crate::proxy) async fn next_piece(
    mut session: Option<&mut ServerSession>,
    upstream: &mut HttpSession,
    clocks: &Clocks,
    cut: &mut Cut,
) -> Result<Option<Bytes>, Ended> {
    if upstream.is_body_done() {
        return Ok(None);
    }
    let idle = Instant::now() + clocks.idle;
    tokio::select! {
        biased;
        read = upstream.read_body_bytes() => read.map_err(|e| broken_http(Some(e)).into()),
        () = sleep_until(idle.min(clocks.total)) => {
            Err(if idle < clocks.total { silent(clocks.idle) } else { timed_out("total") }.into())
        }
        () = gone(&mut session) => Err(Ended::CallerLeft),
        () = cut.requested() => Err(shutting_down(Delivery::Sent).into()),
    }
}

fn joined(mut held: BytesMut, piece: &[u8]) -> BytesMut {
    held.extend_from_slice(piece);
    held
}
