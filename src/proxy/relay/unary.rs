//! Relays an answer that is one body. A short one is held back, so that a failure can still be answered with an error.

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use super::failure::too_large;
use super::rewrite::Rewrite;
use super::{AgentResponse, CancelWatch, Clocks, next_piece};
use crate::directory::{CallOutcome, Slot};
use crate::proxy::batch::join_batch;
use crate::proxy::load::Load;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::record::Exchange;
use crate::proxy::respond::{internal_error, send_head, set_chunked, write_within};
use crate::rejection::Delivery;
use crate::shares::Share;

/// Maximum bytes of a unary answer that are held back, so that most failures can still be answered with an error. A
/// caller cannot use half a JSON document anyway.
const HELD_BYTES_MAX: usize = 32 * 1024;

/// One answer in one body.
pub(super) struct UnaryRelay<'a> {
    /// Maximum bytes of the body.
    pub(super) limit: usize,
    /// True if the caller asked for no body.
    pub(super) head_only: bool,
    /// The clocks of the exchange.
    pub(super) clocks: &'a Clocks,
    /// The end of the shutdown's grace period.
    pub(super) cut: CancelWatch,
    /// Set if the answer is rewritten, for which it must be complete.
    pub(super) whole: Option<BufferedRewrite<'a>>,
    /// The head, until it is sent.
    pub(super) head: Option<Box<ResponseHeader>>,
    /// The concurrency slot of the call.
    pub(super) slot: &'a mut Option<Slot>,
}

/// The state of an answer that is passed on only when it is complete.
pub(super) struct BufferedRewrite<'a> {
    /// The rewrite of the answer.
    pub(super) rewrite: Rewrite,
    /// The memory bound.
    pub(super) load: &'a Load,
    /// The memory share that the answer takes.
    pub(super) share: Share,
}

impl UnaryRelay<'_> {
    /// Relays the whole answer.
    pub(super) async fn relay_answer(
        &mut self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        mut answering: AgentResponse<'_>,
        length: Option<u64>,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        if self.head_only {
            return self.relay_head(session, exchange, length).await;
        }
        let (mut held, mut read) = (BytesMut::new(), 0_usize);
        loop {
            let next = next_piece(
                Some(session),
                &mut answering.upstream,
                self.clocks,
                &mut self.cut,
            );
            let piece = match next.await {
                Ok(piece) => piece,
                Err(ExchangeOutcome::Refused(rejection)) if self.head.is_none() => {
                    return Err(ExchangeOutcome::BrokenOff(rejection));
                }
                Err(ended) => return Err(ended),
            };
            let Some(piece) = piece else { break };
            read += piece.len();
            if read > self.limit {
                let rejection = too_large(self.limit as u64);
                return Err(match self.head {
                    None => ExchangeOutcome::BrokenOff(rejection),
                    Some(_) => rejection.into(),
                });
            }
            // Before the caller gets the id: it may ask for the task at once.
            exchange.search_task(&piece).await;
            if let Some(whole) = &mut self.whole {
                let taken = whole.load.reserve(&mut whole.share, piece.len());
                taken.map_err(|full| full.with_delivery(Delivery::Sent))?;
            }
            let hold = self.whole.is_some() || held.len() + piece.len() <= HELD_BYTES_MAX;
            if self.head.is_some() && hold {
                // The usual answer comes in one piece and is not copied again.
                held = if held.is_empty() {
                    BytesMut::from(piece)
                } else {
                    append_piece(held, &piece)
                };
                continue;
            }
            if self.head.is_some() {
                self.begin_response(session, length).await?;
                self.write_piece(session, exchange, held.split().freeze(), false)
                    .await?;
            }
            self.write_piece(session, exchange, piece, false).await?;
        }
        answering.home.check_in(answering.upstream);
        self.finish_slot(exchange.answer.status);
        let mut rest = held.freeze();
        // Until the caller has it: an answer may be longer in its generation.
        let mut share = None;
        if let (Some(whole), Some(head)) = (self.whole.take(), &mut self.head) {
            let received = rest.len();
            let answer = (&mut **head, rest);
            let changed = whole.rewrite;
            let changed = changed.rewrite_body_within(answer, self.clocks.total, &mut self.cut);
            rest = changed.await?;
            let held = share.insert(whole.share);
            let more = rest.len().saturating_sub(received);
            let taken = whole.load.reserve(held, more);
            taken.map_err(|full| full.with_delivery(Delivery::Sent))?;
            exchange.answer.status = head.status.as_u16();
        }
        join_batch().await;
        self.begin_response(session, Some(rest.len() as u64))
            .await?;
        exchange.record_completed(rest.len());
        self.write_piece(session, exchange, rest, true).await?;
        Ok(ExchangeOutcome::Answered)
    }

    /// Records that the agent answered with this status, whatever its caller and the translation make of it, and frees
    /// its slot: the caller's next call finds it free.
    fn finish_slot(&mut self, status: u16) {
        if let Some(mut slot) = self.slot.take() {
            slot.finish(CallOutcome::from_status(status));
        }
    }

    /// Relays an answer without its body. The connection is dropped: the bytes after such a head are undefined.
    async fn relay_head(
        &mut self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        length: Option<u64>,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        self.finish_slot(exchange.answer.status);
        let length = length.filter(|_| self.whole.is_none());
        self.begin_response(session, length).await?;
        self.write_piece(session, exchange, Bytes::new(), true)
            .await?;
        Ok(ExchangeOutcome::Answered)
    }

    /// Sends the head, unless it was sent before.
    async fn begin_response(
        &mut self,
        session: &mut ServerSession,
        length: Option<u64>,
    ) -> Result<(), ExchangeOutcome> {
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
                // One allocation: from a number it would take two.
                head.insert_header(header::CONTENT_LENGTH, length.to_string())
                    .map_err(internal_error)?;
            }
            None => set_chunked(session, &mut head).map_err(internal_error)?,
        }
        send_head(session, self.clocks.total, head).await
    }

    async fn write_piece(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        piece: Bytes,
        last: bool,
    ) -> Result<(), ExchangeOutcome> {
        exchange.answer.bytes += piece.len() as u64;
        write_within(self.clocks.total, session.write_response_body(piece, last)).await
    }
}

fn append_piece(mut held: BytesMut, piece: &[u8]) -> BytesMut {
    held.extend_from_slice(piece);
    held
}
