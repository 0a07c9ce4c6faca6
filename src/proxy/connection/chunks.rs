//! Validates chunked bodies (RFC 9112, 7.1) while Pingora decodes them. Pingora's parser takes an empty size line
//! for the last chunk and accepts bare line feeds and trailers, which other parsers read differently.
//! `Watched` wraps the connection; `Chunks` is the state machine.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum digits of a chunk size: 4 GiB, above every body limit.
const SIZE_DIGITS_MAX: u8 = 8;

/// Maximum bytes of the extensions of one chunk. The gateway uses none and skips them.
const EXTENSION_BYTES_MAX: u16 = 256;

/// Error: the chunked framing of the body is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the chunks of the request body are broken")]
pub struct Broken;

/// True if reading failed because of invalid chunks, not because of the connection.
pub(in crate::proxy) fn broke(error: &pingora::Error) -> bool {
    let root = error.root_cause().downcast_ref::<io::Error>();
    root.is_some_and(|e| e.get_ref().is_some_and(|e| e.is::<Broken>()))
}

/// The state of the chunk parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
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

impl Chunks {
    /// The state before the first chunk size.
    pub const BEGIN: Self = Self::Size(0, 0);

    /// Advances over `bytes`.
    ///
    /// # Errors
    /// [`Broken`] at the first byte that is not allowed. Trailers are not allowed.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
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
                    *self = state.next(*byte).ok_or(Broken)?;
                    bytes = rest;
                }
            }
        }
        Ok(())
    }

    fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Size(1.., size), b'\r') | (Self::Extension(_, size), b'\r') => {
                Some(Self::SizeFeed(size))
            }
            (Self::Size(1.., size), b';') => Some(Self::Extension(0, size)),
            (Self::Size(digits, size), _) if digits < SIZE_DIGITS_MAX => {
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

/// A caller's connection with validated chunks. Reading fails at the first invalid byte.
pub(in crate::proxy) struct Watched {
    stream: Stream,
    chunks: Chunks,
}

impl Watched {
    /// Continues the validation from `chunks`.
    pub(in crate::proxy) fn from(stream: Stream, chunks: Chunks) -> Stream {
        Box::new(Self { stream, chunks })
    }

    /// Returns the inner connection, whether it is wrapped or not.
    pub(in crate::proxy) fn plain(stream: Stream) -> Stream {
        if stream.as_any().is::<Self>() {
            // Checked above.
            let Ok(watched) = stream.into_any().downcast::<Self>() else {
                unreachable!("it is one")
            };
            return watched.stream;
        }
        stream
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.stream).finish()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let fed = self.chunks.feed(&buf.filled()[before..]);
        Poll::Ready(fed.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken)))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for Watched {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

impl UniqueID for Watched {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl Ssl for Watched {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.selected_alpn_proto()
    }
}

impl GetTimingDigest for Watched {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.get_timing_digest()
    }
}

impl GetProxyDigest for Watched {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }
}

impl GetSocketDigest for Watched {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }
}

impl Peek for Watched {}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(body: &str) -> Option<Chunks> {
        let mut chunks = Chunks::BEGIN;
        chunks.feed(body.as_bytes()).ok().map(|()| chunks)
    }

    #[test]
    fn whole_bodies_are_over_however_they_are_cut() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "0000003\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0;last\r\n\r\nGET /",
        ] {
            assert_eq!(fed(body), Some(Chunks::Over), "{body:?}");
            for cut in 0..body.len() {
                let mut chunks = Chunks::BEGIN;
                chunks.feed(&body.as_bytes()[..cut]).unwrap();
                chunks.feed(&body.as_bytes()[cut..]).unwrap();
                assert_eq!(chunks, Chunks::Over, "{body:?} cut at {cut}");
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
