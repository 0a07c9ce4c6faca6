//! The formats of HTTP/1, in both directions: the heads and chunks of callers, which are refused if two parsers could read
//! them differently, and the answers of agents, which are read as leniently as their clients do.
//!
//! Pingora repairs what it can in a caller's head (it encodes a target, drops a length, accepts bare line feeds), so a
//! parsed head no longer shows these errors. Bytes in, a verdict out; only [`AnswerReader`] reads from a connection.

#[cfg(test)]
#[path = "http1_answer_tests.rs"]
mod answer_tests;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use httparse::{ParserConfig, Response, Status};
use kernel::rejection::{Delivery, Reason, Rejection};
use memchr::memchr;
use pingora::http::{ResponseHeader, header_value_from_raw};
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, OrErr};
use std::borrow::Cow;
use std::cell::Cell;
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::{fmt, io};
use tokio::io::{AsyncRead as _, ReadBuf};

/// Maximum bytes of a request head, its empty line included.
const REQUEST_HEAD_BYTES_MAX: usize = 32 * 1024;

/// Maximum fields of a request head.
pub(super) const REQUEST_FIELDS_MAX: usize = 100;

/// Maximum bytes of a request target. Those of the gateway are under 400; cards and cursors need more.
pub(super) const TARGET_BYTES_MAX: usize = 8 * 1024;

/// Maximum digits of Content-Length: far above every limit, and without overflow of a 64-bit number.
const LENGTH_DIGITS_MAX: usize = 18;

/// The reason for a rejected head, as a message for the caller.
pub type HeadError = &'static str;

/// The state of a scan. Each call gets the same bytes with more at their end.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Offset of the first line that was not parsed.
    line: usize,
    /// Offset up to which that line was searched for its end: each byte is searched once, however it arrives.
    seen: usize,
    /// Offset of the request line; an empty line may precede it (RFC 9112, 2.2).
    start: usize,
    /// Range of the target, once the request line was parsed.
    target: Option<(usize, usize)>,
    fields: usize,
    http_1_0: bool,
    host: Option<(usize, usize)>,
    has_length: bool,
    chunked: bool,
    /// True if the method is HEAD: its answers have no body.
    pub(super) is_head: bool,
}

/// A complete head with a single interpretation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedHead {
    /// Offset of the request line.
    pub start: usize,
    /// Offset after the final empty line.
    pub end: usize,
    /// True if a chunked body follows.
    pub chunked: bool,
}

impl HeadScanner {
    /// Parses the lines that are complete. `None` if the head is not complete.
    ///
    /// # Errors
    /// The first violated rule. Bytes after such a head cannot be parsed as a request.
    pub fn scan_lines(&mut self, bytes: &[u8]) -> Result<Option<ScannedHead>, HeadError> {
        loop {
            let from = self.line.max(self.seen);
            let Some(found) = memchr(b'\n', &bytes[from..]) else {
                self.seen = bytes.len();
                break;
            };
            let (start, feed) = (self.line, from + found);
            if feed >= REQUEST_HEAD_BYTES_MAX {
                break;
            }
            let line = &bytes[start..feed];
            let Some(line) = line.strip_suffix(b"\r") else {
                if self.target.is_none() {
                    // Records the target of the rejected request.
                    self.parse_request_line(start, line)?;
                }
                return Err("a line of the request head ends without a carriage return");
            };
            self.line = feed + 1;
            if self.target.is_none() {
                if line.is_empty() && start == 0 {
                    self.start = self.line;
                    continue;
                }
                self.parse_request_line(start, line)?;
            } else if line.is_empty() {
                self.check_consistency(bytes)?;
                return Ok(Some(ScannedHead {
                    start: self.start,
                    end: self.line,
                    chunked: self.chunked,
                }));
            } else {
                self.parse_field(start, line)?;
            }
        }
        if bytes.len() >= REQUEST_HEAD_BYTES_MAX {
            return Err("the request head is larger than 32 KiB");
        }
        // TLS or another protocol on this port might never send a line.
        match bytes.get(self.start) {
            Some(first) if self.target.is_none() && !is_token(*first) && *first != b'\r' => {
                Err("this is no HTTP request")
            }
            _ => Ok(None),
        }
    }

    /// Parses the request line (RFC 9112, 3): `method SP request-target SP HTTP-version`, with single spaces.
    fn parse_request_line(&mut self, start: usize, line: &[u8]) -> Result<(), HeadError> {
        const BAD: HeadError = "the request line is not valid HTTP/1.1";
        let (method, rest) = split_at_byte(line, b' ').ok_or(BAD)?;
        let (target, version) = split_at_byte(rest, b' ').ok_or(BAD)?;
        if method.is_empty() || !method.iter().all(|b| is_token(*b)) {
            return Err(BAD);
        }
        // The legible part of the target, also of a rejected request: records name it.
        let legible = |b: &&u8| b.is_ascii_graphic() && **b != b'#';
        let legible = target.iter().take_while(legible).count();
        let target_start = start + method.len() + 1;
        self.target = Some((target_start, target_start + legible.min(TARGET_BYTES_MAX)));
        self.http_1_0 = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err("only HTTP/1.1 and HTTP/1.0 are spoken here"),
        };
        if target.len() > TARGET_BYTES_MAX || legible < target.len() {
            return Err("the request target is too long or has characters that must be encoded");
        }
        let absolute = target_authority(target).is_some();
        if target.first() != Some(&b'/') && !absolute && (target, method) != (b"*", b"OPTIONS") {
            return Err("the request target does not begin with `/`");
        }
        self.is_head = method == b"HEAD";
        Ok(())
    }

    /// Parses a field line (RFC 9112, 5): `field-name ":" OWS field-value OWS`, without folding.
    fn parse_field(&mut self, start: usize, line: &[u8]) -> Result<(), HeadError> {
        self.fields += 1;
        if self.fields > REQUEST_FIELDS_MAX {
            return Err("the request head has more than 100 fields");
        }
        let (name, value) =
            split_at_byte(line, b':').ok_or("a line of the request head has no colon")?;
        if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
            return Err("the name of a field has a character that names do not have");
        }
        if !value
            .iter()
            .all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f))
        {
            return Err("the value of a field has a control character");
        }
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            if self.host.is_some() {
                return Err("the request has several Host fields");
            }
            if !is_host(value) {
                return Err("the Host of the request is no host");
            }
            let field = &line[name.len() + 1..];
            let space = field.len() - field.trim_ascii_start().len();
            let at = start + name.len() + 1 + space;
            self.host = Some((at, at + value.len()));
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if self.has_length {
                return Err("the request has several Content-Length values");
            }
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            if !digits || value.len() > LENGTH_DIGITS_MAX {
                return Err("the Content-Length of the request is no number");
            }
            self.has_length = true;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("the only Transfer-Encoding served here is chunked");
            }
            self.chunked = true;
        }
        Ok(())
    }

    /// Checks rules across lines (RFC 9112, 3.2 and 6.1).
    fn check_consistency(&self, bytes: &[u8]) -> Result<(), HeadError> {
        if self.chunked && self.has_length {
            return Err("the request has both Content-Length and Transfer-Encoding");
        }
        if self.chunked && self.http_1_0 {
            return Err("HTTP/1.0 has no Transfer-Encoding");
        }
        let Some((from, to)) = self.host else {
            return Err("the request has no Host");
        };
        let named = self
            .target
            .and_then(|(a, b)| target_authority(&bytes[a..b]));
        if named.is_some_and(|named| named != &bytes[from..to]) {
            return Err("the request target names another host than Host");
        }
        Ok(())
    }

    /// Returns the path of the request line, if it was parsed. It selects the dialect of a rejection.
    pub(super) fn request_path<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        let (from, to) = self.target?;
        let target = std::str::from_utf8(bytes.get(from..to)?).ok()?;
        Some(target.split('?').next().unwrap_or(target))
    }

    /// Returns the first value of a field in the valid lines so far.
    pub(super) fn field_value<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let read = bytes.get(..self.line)?;
        read.split(|b| *b == b'\n').skip(1).find_map(|line| {
            let (found, value) = split_at_byte(line, b':')?;
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.trim_ascii())
        })
    }
}

fn split_at_byte(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(at, bytes)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Returns the host and port of an absolute target (RFC 9112, 3.2.2).
fn target_authority(target: &[u8]) -> Option<&[u8]> {
    let rest = target
        .strip_prefix(b"http://")
        .or_else(|| target.strip_prefix(b"https://"))?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?'));
    let host = &rest[..end.unwrap_or(rest.len())];
    is_host(host).then_some(host)
}

/// True for a name or an address with an optional port. Whether it belongs to the gateway is checked later.
fn is_host(bytes: &[u8]) -> bool {
    let part = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]".contains(b);
    !bytes.is_empty() && bytes.len() <= 300 && bytes.iter().all(part)
}

/// True for a token character (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

// Validates chunked bodies (RFC 9112, 7.1) while Pingora decodes them. Pingora's parser takes an empty size line
// for the last chunk and accepts bare line feeds and trailers, which other parsers read differently.

/// Maximum digits of a chunk size: 4 GiB, above every body limit.
const CHUNK_DIGITS_MAX: u8 = 8;

/// Maximum bytes of the extensions of one chunk. The gateway uses none and skips them.
const EXTENSION_BYTES_MAX: u16 = 256;

/// Error: the chunked framing of the body is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the chunks of the request body are broken")]
pub struct InvalidChunks;

/// True if reading failed because of invalid chunks, not because of the connection.
pub(super) fn is_invalid_chunks(error: &Error) -> bool {
    let root = error.root_cause().downcast_ref::<io::Error>();
    root.is_some_and(|e| e.get_ref().is_some_and(|e| e.is::<InvalidChunks>()))
}

/// The state of the chunk parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkParser {
    /// In a chunk size: its digits and value so far.
    Size(u8, u64),
    /// In the extensions after a size: their bytes so far, and the size.
    Extension(u16, u64),
    /// At the line feed after a size.
    SizeFeed(u64),
    /// In the data of a chunk: the bytes to come.
    Data(u64),
    /// At the carriage return after the data.
    DataReturn,
    /// At the line feed after the data.
    DataFeed,
    /// At the carriage return of the final empty line.
    LastReturn,
    /// At the line feed of the final empty line.
    LastFeed,
    /// After the body: the next bytes are another request.
    Over,
}

impl ChunkParser {
    /// The state before the first chunk size.
    pub const BEGIN: Self = Self::Size(0, 0);

    /// Advances over `bytes`.
    ///
    /// # Errors
    /// [`InvalidChunks`] at the first byte that is not allowed. Trailers are not allowed.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), InvalidChunks> {
        while let Some((byte, rest)) = bytes.split_first() {
            match *self {
                Self::Over => break,
                Self::Data(left) => {
                    let here = usize::try_from(left).map_or(bytes.len(), |l| l.min(bytes.len()));
                    bytes = &bytes[here..];
                    *self = match left - here as u64 {
                        0 => Self::DataReturn,
                        left => Self::Data(left),
                    };
                }
                state => {
                    *self = state.next_state(*byte).ok_or(InvalidChunks)?;
                    bytes = rest;
                }
            }
        }
        Ok(())
    }

    fn next_state(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Size(1.., size), b'\r') | (Self::Extension(_, size), b'\r') => {
                Some(Self::SizeFeed(size))
            }
            (Self::Size(1.., size), b';') => Some(Self::Extension(0, size)),
            (Self::Size(digits, size), _) if digits < CHUNK_DIGITS_MAX => {
                let digit = char::from(byte).to_digit(16)?;
                Some(Self::Size(digits + 1, size * 16 + u64::from(digit)))
            }
            (Self::Extension(length, size), b'\t' | b' '..=b'~')
                if length < EXTENSION_BYTES_MAX =>
            {
                Some(Self::Extension(length + 1, size))
            }
            (Self::SizeFeed(0), b'\n') => Some(Self::LastReturn),
            (Self::SizeFeed(size), b'\n') => Some(Self::Data(size)),
            (Self::DataReturn, b'\r') => Some(Self::DataFeed),
            (Self::DataFeed, b'\n') => Some(Self::BEGIN),
            (Self::LastReturn, b'\r') => Some(Self::LastFeed),
            (Self::LastFeed, b'\n') => Some(Self::Over),
            _ => None,
        }
    }
}

// The header fields that end at this hop.

/// True for hop-by-hop fields (RFC 9110, 7.6.1) and fields that proxies exchange among themselves.
pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// True for a field that `Connection` lists: it ends at this hop (RFC 9110, 7.6.1).
pub(super) fn named_by_connection(name: &HeaderName, headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}

// Reads into one buffer of each thread, so that a connection that waits holds none.

/// Maximum bytes of one read, and size of each thread's buffer.
pub(super) const READ_MAX: usize = 64 * 1024;

thread_local! {
    /// The buffer of this thread. Taken while it is used.
    static BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Reads at most `max` bytes, once, and hands them to `take`. No bytes: the other side closed the connection.
pub(super) fn poll_read<T>(
    stream: &mut Stream,
    context: &mut Context<'_>,
    max: usize,
    take: impl FnOnce(&mut [u8]) -> T,
) -> Poll<io::Result<T>> {
    let mut buffer = BUFFER
        .take()
        .unwrap_or_else(|| vec![0; READ_MAX].into_boxed_slice());
    let mut read = ReadBuf::new(&mut buffer[..max.min(READ_MAX)]);
    let polled = Pin::new(stream).poll_read(context, &mut read);
    let taken = polled.map_ok(|()| take(read.filled_mut()));
    BUFFER.set(Some(buffer));
    taken
}

// The reader of an agent's answer. It holds no buffer while it waits: bytes are read into one buffer of the thread,
// and only what is passed on, or the start of a head, is copied out of it.

/// Maximum bytes of a head.
pub(super) const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

/// An answer that is being read from its connection.
pub struct AnswerReader {
    stream: Stream,
    /// The key of the connection in the pool; `None`: it is not kept.
    pub(super) key: Option<PoolKey>,
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
            let parsed = parse_head(bytes).map_err(|error| broken_http(Some(error)))?;
            let Some(head) = parsed else {
                if bytes.len() > ANSWER_HEAD_BYTES_MAX {
                    return Err(head_too_long(None, ANSWER_HEAD_BYTES_MAX));
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
                if self.informational > ANSWER_HEAD_BYTES_MAX {
                    return Err(head_too_long(None, ANSWER_HEAD_BYTES_MAX));
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

// The head of an agent's answer: parsed by `httparse`, as leniently as clients of agents are used to (a space before a
// colon, folded lines). `upstream` judges what may pass of it.

/// Maximum fields that are parsed. More than may pass: the check of the head has the better
/// message.
const PARSED_FIELDS_MAX: usize = 256;

/// The head of an agent's answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// Status and fields. Without a length beside a transfer coding, which prevails.
    pub fields: ResponseHeader,
    /// Its bytes.
    pub bytes: usize,
    /// True if it states a length and a transfer coding.
    pub framed_twice: bool,
    /// The body that follows.
    pub(super) body: BodyState,
}

/// Parses the head at the start of `bytes`. `None`: there is more to come.
///
/// # Errors
/// It is not HTTP/1, or has no one length.
pub(super) fn parse_head(bytes: &[u8]) -> pingora::Result<Option<AnswerHead>> {
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
    /// True if the agent leaves the connection open after a body with an end of its own (RFC 9112, 9.3).
    pub(super) fn keeps_open(&self) -> bool {
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

// The body of an agent's answer by its framing (RFC 9112, 6.3 and 7.1). Pure, and without a buffer: bytes are judged
// where they were read.

/// Maximum bytes of a chunk's size with its extensions, which are skipped.
const SIZE_LINE_MAX: u32 = 8 * 1024;

/// Maximum hexadecimal digits of a chunk's size: those of a `u64`.
const ANSWER_CHUNK_DIGITS_MAX: u8 = 16;

/// Maximum bytes of the trailers, which are skipped.
const TRAILERS_MAX: u32 = 64 * 1024;

/// The state of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyState {
    /// Complete.
    Done,
    /// So many bytes are to come.
    Length(u64),
    /// In chunks.
    Chunked(ChunkState),
    /// Until the agent closes the connection.
    UntilClose,
    /// The framing is broken, for the reason.
    Broken(&'static str),
}

/// The place in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// In the line of a size.
    Size(SizeLine),
    /// In the data: so many bytes are to come.
    Data(u64),
    /// At the carriage return after the data.
    DataReturn,
    /// At the line feed after the data.
    DataFeed,
    /// After the last chunk, with the bytes of trailers so far.
    Trailer(TrailerState, u32),
}

/// The line of a chunk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeLine {
    size: u64,
    digits: u8,
    read: u32,
    at: SizeState,
}

/// The place in the line of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeState {
    Digits,
    Spaces,
    Extension,
    Feed,
}

/// The place in the trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrailerState {
    /// At the start of a line, which is the last one if it is empty.
    Start,
    /// In a line.
    Line,
    /// At the line feed of a line.
    Feed,
    /// At the line feed of the last, empty line.
    LastFeed,
}

/// The outcome of decoding bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecodedBytes {
    /// The place of the body's own bytes, which are moved together.
    pub(super) payload: Range<usize>,
    /// True if there are bytes after the end of the body.
    pub(super) extra: bool,
}

impl BodyState {
    /// Begins the body of an answer.
    ///
    /// # Errors
    /// The length is not one number.
    pub(super) fn from_head(head: &ResponseHeader) -> Result<Self, &'static str> {
        let length = stated_length(&head.headers)?;
        if matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        ) {
            return Ok(Self::Done);
        }
        Ok(if is_chunked(&head.headers) {
            Self::Chunked(ChunkState::BEGIN)
        } else {
            match length {
                Some(0) => Self::Done,
                Some(length) => Self::Length(length),
                None => Self::UntilClose,
            }
        })
    }

    /// Decodes the next bytes, of which there is at least one. Judges only as far as the body goes.
    pub(super) fn decode(&mut self, bytes: &mut [u8]) -> DecodedBytes {
        let mut payload = 0..0;
        let mut at = 0;
        while at < bytes.len() {
            let left = bytes.len() - at;
            let data = match self {
                Self::Done => {
                    let extra = true;
                    return DecodedBytes { payload, extra };
                }
                Self::Broken(_) => break,
                Self::UntilClose => left,
                Self::Length(to_come) | Self::Chunked(ChunkState::Data(to_come)) => {
                    let data = usize::try_from(*to_come).map_or(left, |to_come| to_come.min(left));
                    *to_come -= data as u64;
                    data
                }
                Self::Chunked(chunk) => {
                    *self = chunk.advance(bytes[at]);
                    at += 1;
                    continue;
                }
            };
            if payload.is_empty() {
                payload = at..at + data;
            } else {
                bytes.copy_within(at..at + data, payload.end);
                payload.end += data;
            }
            at += data;
            match self {
                Self::Length(0) => *self = Self::Done,
                Self::Chunked(ChunkState::Data(0)) => *self = Self::Chunked(ChunkState::DataReturn),
                _ => {}
            }
        }
        let extra = false;
        DecodedBytes { payload, extra }
    }

    /// Takes the end of the connection.
    pub(super) fn close(&mut self) {
        *self = match self {
            Self::Done | Self::UntilClose => Self::Done,
            Self::Length(_) | Self::Chunked(_) => Self::Broken("the body is not complete"),
            Self::Broken(why) => Self::Broken(why),
        };
    }
}

impl ChunkState {
    const BEGIN: Self = Self::Size(SizeLine {
        size: 0,
        digits: 0,
        read: 0,
        at: SizeState::Digits,
    });

    /// Takes a byte outside of the data.
    fn advance(self, byte: u8) -> BodyState {
        let next = match (self, byte) {
            (Self::Size(line), _) => return line.advance(byte),
            (Self::DataReturn, b'\r') => Self::DataFeed,
            (Self::DataFeed, b'\n') => Self::BEGIN,
            (Self::Trailer(at, read), _) => return advance_trailer(at, read, byte),
            _ => return BodyState::Broken("a chunk does not end where its size says"),
        };
        BodyState::Chunked(next)
    }
}

impl SizeLine {
    fn advance(mut self, byte: u8) -> BodyState {
        self.read += 1;
        if self.read > SIZE_LINE_MAX {
            return BodyState::Broken("the size of a chunk has too many extensions");
        }
        match (self.at, byte) {
            (SizeState::Digits, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if self.digits < ANSWER_CHUNK_DIGITS_MAX =>
            {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                self.size = self.size << 4 | u64::from(digit);
                self.digits += 1;
            }
            // An empty size would be one reading of a lost line, and the end of the body another.
            (SizeState::Digits, b' ' | b'\t' | b';' | b'\r') if self.digits == 0 => {
                return BodyState::Broken("a chunk has no size");
            }
            (SizeState::Digits | SizeState::Spaces, b' ' | b'\t') => self.at = SizeState::Spaces,
            (SizeState::Digits | SizeState::Spaces, b';') => self.at = SizeState::Extension,
            (SizeState::Digits | SizeState::Spaces | SizeState::Extension, b'\r') => {
                self.at = SizeState::Feed
            }
            (SizeState::Extension, byte) if byte != b'\n' => {}
            (SizeState::Feed, b'\n') => {
                return BodyState::Chunked(match self.size {
                    0 => ChunkState::Trailer(TrailerState::Start, 0),
                    size => ChunkState::Data(size),
                });
            }
            _ => return BodyState::Broken("the size of a chunk is not a number"),
        }
        BodyState::Chunked(ChunkState::Size(self))
    }
}

fn advance_trailer(at: TrailerState, read: u32, byte: u8) -> BodyState {
    let next = match (at, byte) {
        (TrailerState::LastFeed, b'\n') => return BodyState::Done,
        _ if read >= TRAILERS_MAX => return BodyState::Broken("the trailers are too long"),
        (TrailerState::Start, b'\r') => TrailerState::LastFeed,
        (TrailerState::Line, b'\r') => TrailerState::Feed,
        (TrailerState::Feed, b'\n') => TrailerState::Start,
        (TrailerState::Start | TrailerState::Line, byte) if byte != b'\n' => TrailerState::Line,
        _ => return BodyState::Broken("a line of the trailers does not end"),
    };
    BodyState::Chunked(ChunkState::Trailer(next, read + 1))
}

/// Returns the length that all values of all fields agree on.
fn stated_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for said in value.as_bytes().split(|b| *b == b',') {
            let said = parse_digits(said.trim_ascii()).ok_or("the length is not a number")?;
            if length.is_some_and(|length| length != said) {
                return Err("two lengths");
            }
            length = Some(said);
        }
    }
    Ok(length)
}

/// Parses digits only: the standard library takes a sign, too.
fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// True if the last coding is `chunked`. Other codings are refused with the head.
fn is_chunked(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::TRANSFER_ENCODING);
    let last = codings.iter().next_back().map(|value| value.as_bytes());
    let last = last.and_then(|value| value.rsplit(|b| *b == b',').next());
    last.is_some_and(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// Pingora's error as a standard one, for the chain of causes. Without its context, which may contain the
/// agent's bytes, unless the connection was not made yet.
pub(super) struct Failure(pub(super) Box<Error>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = &*self.0;
        loop {
            f.write_str(error.etype().as_str())?;
            if let Some(context) = error
                .context
                .as_ref()
                .filter(|_| before_http(error.etype()))
            {
                write!(f, " ({})", context.as_str())?;
            }
            let Some(cause) = &error.cause else {
                return Ok(());
            };
            f.write_str(": ")?;
            match cause.downcast_ref::<Box<Error>>() {
                Some(inner) => error = inner,
                None => return write!(f, "{cause}"),
            }
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// True if such an error occurs before a byte of HTTP.
fn before_http(kind: &ErrorType) -> bool {
    matches!(
        kind,
        ErrorType::ConnectTimedout
            | ErrorType::ConnectRefused
            | ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
            | ErrorType::TLSHandshakeFailure
            | ErrorType::TLSHandshakeTimedout
            | ErrorType::InvalidCert
            | ErrorType::HandshakeError
            | ErrorType::SocketError
    )
}

/// Builds `agent_protocol_error`: the request was sent, and the answer is none that may pass.
pub(super) fn reject_answer(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}

/// Builds `agent_protocol_error`: the request was sent, and the response is not HTTP.
pub(super) fn broken_http(error: Option<Box<Error>>) -> Rejection {
    let rejection = reject_answer(
        "the agent closed the connection or broke HTTP before its answer was complete",
    );
    match error {
        Some(error) => rejection.with_cause(Failure(error)),
        None => rejection,
    }
}

/// Builds the rejection of a head of so many bytes; `None`: of more than `max`.
pub(super) fn head_too_long(bytes: Option<usize>, max: usize) -> Rejection {
    let bytes = bytes.map_or_else(|| format!("more than {max}"), |bytes| bytes.to_string());
    reject_answer(format!(
        "the head of the agent's answer has {bytes} bytes, and may have {max}"
    ))
}

/// Largest body that is copied behind the head, so that both leave in one write.
pub(super) const ONE_WRITE: usize = 16 * 1024;

/// A request head in wire format that is being written: one allocation, no intermediate map.
pub(super) struct HeadWriter(Vec<u8>);

impl HeadWriter {
    /// Begins the head of a request with a body of `body_len` bytes, which may be put behind it.
    pub(super) fn new(method: &str, target: &str, host: &str, body_len: usize) -> Self {
        let mut head = Self(Vec::with_capacity(1024 + body_len.min(ONE_WRITE)));
        head.put(&[method, " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"]);
        head
    }

    fn put(&mut self, parts: &[&str]) {
        for part in parts {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Writes fields whose names and values are known.
    pub(super) fn write_lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.put(&[line, "\r\n"]));
    }

    /// Writes a field.
    pub(super) fn write_field(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.put(&[name, ": "]);
        self.0.extend_from_slice(value.as_ref());
        self.put(&["\r\n"]);
    }

    /// Writes a field whose value is shown, without a text of its own.
    pub(super) fn write_display(&mut self, name: &str, value: impl fmt::Display) {
        // Writing to memory cannot fail.
        let _ = io::Write::write_fmt(&mut self.0, format_args!("{name}: {value}\r\n"));
    }

    /// Ends the head.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.put(&["\r\n"]);
        self.0
    }
}

/// The value of `X-Content-Type-Options`.
pub(super) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// The key of connections that may stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    /// The address that was dialled: a connection never stands for one to another address.
    pub(super) address: Option<SocketAddr>,
    /// Of all that distinguishes connections: TLS, names, certificates.
    pub(super) hash: u64,
}

/// The reasons for aborting a connection (of HTTP/2, a stream).
#[derive(Clone, Copy, Debug)]
pub enum AbortCause {
    /// The caller left, or does not read.
    CallerLeft,
    /// The gateway aborted it: the agent broke off, or timed out, after part of its answer was sent.
    Ours,
}

impl AbortCause {
    /// Returns the outcome of sending the gateway's own answer: it fails only because of the caller.
    pub(super) fn from_write<E>(answered: Result<(), E>) -> Result<(), Self> {
        answered.map_err(|_| Self::CallerLeft)
    }
}

#[cfg(test)]
mod head_tests {
    use super::*;

    fn scan_head(head: &str) -> Result<Option<ScannedHead>, HeadError> {
        HeadScanner::default().scan_lines(head.as_bytes())
    }

    const GOOD: &str = "POST /a?b=%2e HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nabc";

    #[test]
    fn a_head_is_read_alike_however_it_is_cut() {
        let end = GOOD.find("abc").unwrap();
        let whole = scan_head(GOOD).unwrap().unwrap();
        assert_eq!((whole.start, whole.end, whole.chunked), (0, end, false));
        for cut in 0..end {
            let mut scan = HeadScanner::default();
            assert_eq!(scan.scan_lines(&GOOD.as_bytes()[..cut]), Ok(None), "{cut}");
            let rest = scan.scan_lines(GOOD.as_bytes()).unwrap();
            assert_eq!(rest, Some(whole), "{cut}");
            assert_eq!(scan.request_path(GOOD.as_bytes()), Some("/a"));
            assert_eq!(
                scan.field_value(GOOD.as_bytes(), "content-LENGTH"),
                Some(&b"3"[..])
            );
        }
        let late = format!("\r\n{GOOD}");
        assert_eq!(scan_head(&late).unwrap().unwrap().start, 2);
        assert!(scan_head(&format!("\r\n\r\n{GOOD}")).is_err());
    }

    #[test]
    fn what_was_searched_is_not_searched_again() {
        let mut scan = HeadScanner::default();
        let mut head = GOOD.as_bytes()[..20].to_vec();
        assert_eq!(scan.scan_lines(&head), Ok(None));
        // A line end inserted into bytes that were already searched is not found.
        head[10] = b'\n';
        head.extend_from_slice(b"x");
        assert_eq!(scan.scan_lines(&head), Ok(None));
        assert_eq!((scan.line, scan.seen), (0, 21));
    }

    #[test]
    fn hosts_must_agree() {
        let with = |target: &str, host: &str| {
            scan_head(&format!("GET {target} HTTP/1.1\r\n{host}\r\n\r\n")).is_ok()
        };
        assert!(with("http://h:1/x", "Host: h:1"));
        assert!(with("/", "host:\t[::1]:8 "));
        assert!(with("http://h", "Host: h"));
        for (target, host) in [
            ("/", "X: y"),
            ("/", "Host:"),
            ("/", "Host: a, b"),
            ("/", "Host: a/b"),
            ("/", "Host: u@h"),
            ("/", "Host: a b"),
            ("/", "Host: h\r\nHost: h"),
            ("http://u@h/", "Host: h"),
            ("http://h/", "Host: g"),
            ("http:///x", "Host: h"),
            ("ftp://h/", "Host: h"),
            ("*", "Host: h"),
        ] {
            assert!(!with(target, host), "{target} {host}");
        }
    }

    #[test]
    fn a_byte_out_of_place_is_refused_at_its_line() {
        for line in [
            "X : y",
            " X: y",
            "\tX: y",
            "X",
            ": y",
            "X\u{e4}: y",
            "X: a\0b",
            "X: a\rb",
            "X: \x7f",
            "X(: y",
            "X: \x1b",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n");
            assert!(scan_head(&head).is_err(), "{line:?}");
        }
        for start in ["\x16\x03\x01", "\0", " GET", "{\"a\":1}"] {
            assert!(scan_head(start).is_err(), "{start:?}");
        }
    }

    #[test]
    fn a_head_without_end_is_refused_at_its_bound() {
        let long = format!(
            "GET / HTTP/1.1\r\nX: {}",
            "x".repeat(REQUEST_HEAD_BYTES_MAX)
        );
        assert!(scan_head(&long).is_err());
        assert_eq!(scan_head(&long[..REQUEST_HEAD_BYTES_MAX - 1]), Ok(None));
    }
}

#[cfg(test)]
mod chunks_tests {
    use super::*;

    fn fed(body: &str) -> Option<ChunkParser> {
        let mut chunks = ChunkParser::BEGIN;
        chunks.feed(body.as_bytes()).ok().map(|()| chunks)
    }

    #[test]
    fn whole_bodies_are_over_however_they_are_cut() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "0000003\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0;last\r\n\r\nGET /",
        ] {
            assert_eq!(fed(body), Some(ChunkParser::Over), "{body:?}");
            for cut in 0..body.len() {
                let mut chunks = ChunkParser::BEGIN;
                chunks.feed(&body.as_bytes()[..cut]).unwrap();
                chunks.feed(&body.as_bytes()[cut..]).unwrap();
                assert_eq!(chunks, ChunkParser::Over, "{body:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn whatever_others_could_read_otherwise_is_broken() {
        for body in [
            "\r\n",
            "\n",
            ";x\r\n",
            "0x3\r\nabc\r\n",
            "+3\r\nabc\r\n",
            "-3\r\n",
            " 3\r\nabc\r\n",
            "3 \r\nabc\r\n",
            "3\nabc\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabcd\r\n",
            "3\r\nab\r\n0\r\n\r\n",
            "3;a\nb\r\nabc",
            "3;\0\r\nabc",
            "3\rX\nabc",
            "100000000\r\n",
            "fffffffffffffffff\r\n",
            "0\r\nContent-Length: 5\r\n\r\n",
            "0\r\n\n",
            "0\n\n",
            "g\r\n",
        ] {
            assert_eq!(fed(body), None, "{body:?}");
        }
        assert!(fed(&format!("1;{}\r\n", "x".repeat(300))).is_none());
    }
}
