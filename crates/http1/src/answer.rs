//! The reader of an answer. It holds no buffer while it waits: bytes are read into one buffer of the thread, and only
//! what is passed on, or the start of a head, is copied out of it.

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;

use bytes::Bytes;
use http::{HeaderName, StatusCode, Version, header};
use httparse::{ParserConfig, Response, Status};
use pingora::http::{ResponseHeader, header_value_from_raw};
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, OrErr};
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use crate::body::BodyState;
use crate::failure::Failure;
use crate::pool::PoolKey;
use crate::{READ_MAX, poll_read};

/// Maximum bytes of a head.
pub const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

/// The reasons why an answer is not read to its end.
#[derive(Debug)]
pub enum AnswerError {
    /// The server closed the connection, or broke HTTP, before the answer was complete.
    Broken(Option<Failure>),
    /// Its heads have more than [`ANSWER_HEAD_BYTES_MAX`].
    HeadTooLong,
}

impl From<Box<Error>> for AnswerError {
    fn from(error: Box<Error>) -> Self {
        Self::Broken(Some(Failure(error)))
    }
}

/// An answer that is being read from its connection.
pub struct AnswerReader {
    stream: Stream,
    /// The key of the connection in the pool; `None`: it is not kept.
    pub(crate) key: Option<PoolKey>,
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
    /// True if the server leaves the connection open after this answer.
    keeps_open: bool,
    /// True if the server sent bytes after the end of the body.
    extra: bool,
    /// True if the server closed the connection.
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

    /// Reads the head, unless it was read. Informational heads are skipped. Cancel-safe.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub async fn read_head(&mut self) -> Result<(), AnswerError> {
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
    /// There is none.
    pub fn take_head(&mut self) -> Result<Box<AnswerHead>, AnswerError> {
        self.answer
            .head
            .take()
            .ok_or_else(|| AnswerError::Broken(None))
    }

    /// Reads the next piece of the body, after the head. `None`: the body is complete. Cancel-safe.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub async fn read_piece(&mut self) -> Result<Option<Bytes>, AnswerError> {
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

    /// Returns the connection after a complete answer, if the server leaves it open and sent nothing more.
    pub fn into_reusable(self) -> Option<Stream> {
        self.answer.is_reusable().then_some(self.stream)
    }
}

impl AnswerState {
    /// Takes bytes of the head, and of the body behind it. No bytes: the server closed the connection.
    fn take_head(&mut self, bytes: &mut [u8]) -> Result<(), AnswerError> {
        if bytes.is_empty() {
            let context = "before the head of the answer was complete";
            let error = Error::explain(ErrorType::ConnectionClosed, context);
            return Err(error.into());
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
    fn parse_heads(&mut self, mut bytes: &mut [u8]) -> Result<(), AnswerError> {
        while !bytes.is_empty() {
            let parsed = parse_head(bytes)?;
            let Some(head) = parsed else {
                if bytes.len() > ANSWER_HEAD_BYTES_MAX {
                    return Err(AnswerError::HeadTooLong);
                }
                self.begun = bytes.to_vec();
                self.parse_at = 2 * bytes.len();
                return Ok(());
            };
            let status = head.fields.status;
            bytes = &mut bytes[head.bytes..];
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(AnswerError::Broken(None));
            }
            if status.is_informational() {
                // Bounded together: a server could send them without end and without a pause.
                self.informational += head.bytes;
                if self.informational > ANSWER_HEAD_BYTES_MAX {
                    return Err(AnswerError::HeadTooLong);
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

    /// Takes what was read of the body. No bytes: the server closed the connection.
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
    fn next_buffered(&mut self) -> Option<Result<Option<Bytes>, AnswerError>> {
        if !self.first.is_empty() {
            return Some(Ok(Some(std::mem::take(&mut self.first))));
        }
        match self.body {
            Some(BodyState::Done) => Some(Ok(None)),
            Some(BodyState::Length(_) | BodyState::Chunked(_) | BodyState::UntilClose) => None,
            Some(BodyState::Broken(why)) => {
                let error = Error::explain(ErrorType::ReadError, why);
                Some(Err(error.into()))
            }
            None => Some(Err(AnswerError::Broken(None))),
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
) -> Poll<Result<T, AnswerError>> {
    let taken = ready!(poll_read(stream, context, READ_MAX, take));
    let taken = taken.or_err(ErrorType::ReadError, "of an answer");
    Poll::Ready(taken.map_err(|error| error.into()))
}

// The head of a server's answer: parsed by `httparse`, as leniently as clients of servers are used to (a space before a
// colon, folded lines).

/// Maximum fields that are parsed. More than may pass: the check of the head has the better
/// message.
const PARSED_FIELDS_MAX: usize = 256;

/// The head of a server's answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// Status and fields. Without a length beside a transfer coding, which prevails.
    pub fields: ResponseHeader,
    /// Its bytes.
    pub bytes: usize,
    /// True if it states a length and a transfer coding.
    pub framed_twice: bool,
    /// The body that follows.
    pub(crate) body: BodyState,
}

/// Parses the head at the start of `bytes`. `None`: there is more to come.
///
/// # Errors
/// It is not HTTP/1, or has no one length.
fn parse_head(bytes: &[u8]) -> pingora::Result<Option<AnswerHead>> {
    let mut fields = [const { MaybeUninit::uninit() }; PARSED_FIELDS_MAX];
    let mut response = Response::new(&mut []);
    let mut parser = ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let parsed = parser.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let Status::Complete(end) = parsed.or_err(ErrorType::InvalidHTTPHeader, "of an answer")? else {
        return Ok(None);
    };
    let mut head = ResponseHeader::build_no_case(
        response.code.unwrap_or_default(),
        Some(response.headers.len()),
    )?;
    head.set_version(match response.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    });
    // One allocation, in which all values are.
    let raw = Bytes::copy_from_slice(&bytes[..end]);
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let name = name.or_err(ErrorType::InvalidHTTPHeader, "the name of a field")?;
        let start = (field.value.as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize);
        let value = match field.value.len() {
            // It may point anywhere.
            0 => Bytes::new(),
            length => raw.slice(start..start + length),
        };
        head.append_header(name, header_value_from_raw(value))?;
    }
    let framed_twice = head.headers.contains_key(header::TRANSFER_ENCODING)
        && head.remove_header(&header::CONTENT_LENGTH).is_some();
    let body = BodyState::from_head(&head);
    Ok(Some(AnswerHead {
        body: body.or_else(|why| Error::e_explain(ErrorType::InvalidHTTPHeader, why))?,
        fields: head,
        bytes: end,
        framed_twice,
    }))
}

impl AnswerHead {
    /// True if the server leaves the connection open after a body with an end of its own (RFC 9112, 9.3).
    fn keeps_open(&self) -> bool {
        let headers = &self.fields.headers;
        let is_1_1 = self.fields.version == Version::HTTP_11;
        // The end of chunks in an answer of HTTP/1.0 is not to be trusted (RFC 9112, 6.1).
        if !is_1_1 && headers.contains_key(header::TRANSFER_ENCODING) {
            return false;
        }
        let mut keeps = is_1_1 || headers.contains_key(header::CONNECTION);
        for value in headers.get_all(header::CONNECTION) {
            let value = value.as_bytes();
            let mut options = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
            if options.any(|option| option.eq_ignore_ascii_case(b"close")) {
                return false;
            }
            // Of HTTP/1.0 nothing but this, in each of the fields, is a promise to be relied on.
            keeps &= is_1_1 || value.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
        }
        keeps
    }
}
