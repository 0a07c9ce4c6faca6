//! Chunked bodies of requests (RFC 9112, 7.1), validated while Pingora decodes them: its parser takes an empty size
//! line for the last chunk and accepts bare line feeds and trailers, which other parsers read differently.

use pingora::Error;
use std::io;

/// Maximum digits of a chunk size: 4 GiB, above every body limit.
const CHUNK_DIGITS_MAX: u8 = 8;

/// Maximum bytes of the extensions of one chunk. The gateway uses none and skips them.
const EXTENSION_BYTES_MAX: u16 = 256;

/// Error: the chunked framing of the body is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the chunks of the request body are broken")]
pub struct InvalidChunks;

/// True if reading failed because of invalid chunks, not because of the connection.
pub fn is_invalid_chunks(error: &Error) -> bool {
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

#[cfg(test)]
mod tests {
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
