//! The body of an answer by its framing (RFC 9112, 6.3 and 7.1). Pure, and without a buffer: bytes are judged where
//! they were read.

use http::{HeaderMap, StatusCode, header};
use pingora::http::ResponseHeader;
use std::ops::Range;

/// Maximum bytes of a chunk's size with its extensions, which are skipped.
const SIZE_LINE_MAX: u32 = 8 * 1024;

/// Maximum hexadecimal digits of a chunk's size: those of a `u64`.
const ANSWER_CHUNK_DIGITS_MAX: u8 = 16;

/// Maximum bytes of the trailers, which are skipped.
const TRAILERS_MAX: u32 = 64 * 1024;

/// The state of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// Complete.
    Done,
    /// So many bytes are to come.
    Length(u64),
    /// In chunks.
    Chunked(ChunkState),
    /// Until the server closes the connection.
    UntilClose,
    /// The framing is broken, for the reason.
    Broken(&'static str),
}

/// The place in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkState {
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
pub(crate) struct SizeLine {
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
pub(crate) enum TrailerState {
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
pub(crate) struct DecodedBytes {
    /// The place of the body's own bytes, which are moved together.
    pub(crate) payload: Range<usize>,
    /// True if there are bytes after the end of the body.
    pub(crate) extra: bool,
}

impl BodyState {
    /// Begins the body of an answer.
    ///
    /// # Errors
    /// The length is not one number.
    pub(crate) fn from_head(head: &ResponseHeader) -> Result<Self, &'static str> {
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
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> DecodedBytes {
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
    pub(crate) fn close(&mut self) {
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
