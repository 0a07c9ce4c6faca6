//! The reader of an agent's answer. It holds no buffer while it waits: bytes are read into one buffer of the thread,
//! and only what is passed on, or the start of a head, is copied out of it.

mod body;
mod head;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, OrErr};

use self::body::BodyState;
pub use self::head::AnswerHead;
use super::failure::{broken_http, head_too_long};
use super::pool::PoolKey;
use crate::proxy::thread_buffer::{READ_MAX, poll_read};
use crate::rejection::Rejection;

/// Maximum bytes of a head.
pub(in crate::proxy) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An answer that is being read from its connection.
pub struct AnswerReader {
    stream: Stream,
    /// The key of the connection in the pool; `None`: it is not kept.
    key: Option<PoolKey>,
    answer: AnswerState,
}

/// An answer as far as it is read. Pure.
#[derive(Default)]
struct AnswerState {
    /// The start of an incomplete head.
    begun: Vec<u8>,
    /// The length of `begun` at which it is parsed again, even if no line has ended.
    parse_at: usize,
    /// The bytes of the informational heads.
    informational: usize,
    /// The head, until it is taken.
    head: Option<Box<AnswerHead>>,
    /// The body, once the head was read.
    body: Option<BodyState>,
    /// The part of the body that came with the head.
    first: Bytes,
    /// True if the agent leaves the connection open after this answer.
    keeps_open: bool,
    /// True if the agent sent bytes after the end of the body.
    extra: bool,
    /// True if the agent closed the connection.
    closed: bool,
}

impl AnswerReader {
    /// Begins to read an answer.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            key: None,
            answer: AnswerState::default(),
        }
    }

    /// Sets the key under which the connection may be kept.
    pub(in crate::proxy) fn with_key(self, key: PoolKey) -> Self {
        let key = Some(key);
        Self { key, ..self }
    }

    /// Returns the key under which the connection may be kept.
    pub(in crate::proxy) fn pool_key(&self) -> Option<PoolKey> {
        self.key
    }

    /// Reads the head, unless it was read. Informational heads are skipped. Cancel-safe.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub async fn read_head(&mut self) -> Result<(), Rejection> {
        let Self { stream, answer, .. } = self;
        while answer.body.is_none() {
            poll_fn(|context| poll_answer(stream, context, |bytes| answer.take_head(bytes)))
                .await??;
        }
        Ok(())
    }

    /// Returns the head, once, after it was read.
    ///
    /// # Errors
    /// `agent_protocol_error`: there is none.
    pub fn take_head(&mut self) -> Result<Box<AnswerHead>, Rejection> {
        self.answer.head.take().ok_or_else(|| broken_http(None))
    }

    /// Reads the next piece of the body, after the head. `None`: the body is complete. Cancel-safe.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub async fn read_piece(&mut self) -> Result<Option<Bytes>, Rejection> {
        let Self { stream, answer, .. } = self;
        loop {
            if let Some(settled) = answer.next_buffered() {
                return settled;
            }
            let piece =
                poll_fn(|context| poll_answer(stream, context, |bytes| answer.take_read(bytes)))
                    .await?;
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    /// True if the whole body was read.
    pub fn is_done(&self) -> bool {
        self.answer.is_done()
    }

    /// Returns the connection after a complete answer, if the agent leaves it open and sent nothing more.
    pub fn into_reusable(self) -> Option<Stream> {
        self.answer.is_reusable().then_some(self.stream)
    }
}

impl AnswerState {
    /// Takes bytes of the head, and of the body behind it. No bytes: the agent closed the connection.
    fn take_head(&mut self, bytes: &mut [u8]) -> Result<(), Rejection> {
        if bytes.is_empty() {
            let context = "before the head of the answer was complete";
            let error = Error::explain(ErrorType::ConnectionClosed, context);
            return Err(broken_http(Some(error)));
        }
        if self.begun.is_empty() {
            return self.parse_heads(bytes);
        }
        let line_ended = bytes.contains(&b'\n');
        let mut begun = std::mem::take(&mut self.begun);
        begun.extend_from_slice(bytes);
        if line_ended || begun.len() >= self.parse_at {
            return self.parse_heads(&mut begun);
        }
        self.begun = begun;
        Ok(())
    }

    /// Parses heads at the start of the bytes up to the final one.
    fn parse_heads(&mut self, mut bytes: &mut [u8]) -> Result<(), Rejection> {
        while !bytes.is_empty() {
            let parsed = head::parse_head(bytes).map_err(|error| broken_http(Some(error)))?;
            let Some(head) = parsed else {
                if bytes.len() > HEAD_BYTES_MAX {
                    return Err(head_too_long(None, HEAD_BYTES_MAX));
                }
                self.begun = bytes.to_vec();
                self.parse_at = 2 * bytes.len();
                return Ok(());
            };
            let status = head.fields.status;
            bytes = &mut bytes[head.bytes..];
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(broken_http(None));
            }
            if status.is_informational() {
                // Bounded together: an agent could send them without end and without a pause.
                self.informational += head.bytes;
                if self.informational > HEAD_BYTES_MAX {
                    return Err(head_too_long(None, HEAD_BYTES_MAX));
                }
                continue;
            }
            self.keeps_open = head.keeps_open();
            self.body = Some(head.body);
            self.head = Some(Box::new(head));
            self.first = self.take_piece(bytes);
            return Ok(());
        }
        Ok(())
    }

    /// Takes bytes of the body.
    fn take_piece(&mut self, bytes: &mut [u8]) -> Bytes {
        let Some(body) = &mut self.body else {
            return Bytes::new();
        };
        let taken = body.decode(bytes);
        self.extra |= taken.extra;
        Bytes::copy_from_slice(&bytes[taken.payload])
    }

    /// Takes what was read of the body. No bytes: the agent closed the connection.
    fn take_read(&mut self, bytes: &mut [u8]) -> Bytes {
        if bytes.is_empty() {
            self.closed = true;
            if let Some(body) = &mut self.body {
                body.close();
            }
        }
        self.take_piece(bytes)
    }

    /// Returns what is known without another read: a piece, the end, or an error.
    fn next_buffered(&mut self) -> Option<Result<Option<Bytes>, Rejection>> {
        if !self.first.is_empty() {
            return Some(Ok(Some(std::mem::take(&mut self.first))));
        }
        match self.body {
            Some(BodyState::Done) => Some(Ok(None)),
            Some(BodyState::Length(_) | BodyState::Chunked(_) | BodyState::UntilClose) => None,
            Some(BodyState::Broken(why)) => {
                let error = Error::explain(ErrorType::ReadError, why);
                Some(Err(broken_http(Some(error))))
            }
            None => Some(Err(broken_http(None))),
        }
    }

    fn is_done(&self) -> bool {
        self.first.is_empty() && self.body == Some(BodyState::Done)
    }

    fn is_reusable(&self) -> bool {
        self.keeps_open && self.is_done() && !self.extra && !self.closed
    }
}

/// Reads once, and hands the bytes to `take`.
fn poll_answer<T>(
    stream: &mut Stream,
    context: &mut Context<'_>,
    take: impl FnOnce(&mut [u8]) -> T,
) -> Poll<Result<T, Rejection>> {
    let taken = ready!(poll_read(stream, context, READ_MAX, take));
    let taken = taken.or_err(ErrorType::ReadError, "of an answer");
    Poll::Ready(taken.map_err(|error| broken_http(Some(error))))
}
