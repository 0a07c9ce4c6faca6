//! Bodies in chunks (RFC 9112, 7.1), watched while Pingora decodes them. Its parser takes an empty
//! size line for the last chunk, bare line feeds, and trailers, where others read something else.

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

/// Most digits of a size: 4 GiB, over every limit of a body.
const SIZE_DIGITS_MAX: u8 = 8;

/// Longest extensions of one chunk, in bytes. Nobody here knows any, so they are passed over.
const EXTENSION_BYTES_MAX: u16 = 256;

/// A body in chunks that is broken.
#[derive(Debug, thiserror::Error)]
#[error("the chunks of the request body are broken")]
pub struct Broken;

/// Whether reading failed since the chunks are broken, and not the connection.
pub(super) fn broke(error: &pingora::Error) -> bool {
    let root = error.root_cause().downcast_ref::<io::Error>();
    root.is_some_and(|e| e.get_ref().is_some_and(|e| e.is::<Broken>()))
}

/// How far the chunks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// In a size, of so many digits and this value.
    Size(u8, u64),
    /// In the extensions behind a size.
    Extension(u16, u64),
    /// At the line feed behind a size.
    SizeFeed(u64),
    /// So many bytes of data are to come.
    Data(u64),
    /// At the carriage return behind the data.
    DataReturn,
    /// At the line feed behind the data.
    DataFeed,
    /// At the carriage return of the line that ends it all.
    LastReturn,
    /// At its line feed.
    LastFeed,
    /// What follows is another request.
    Over,
}

impl Chunks {
    /// Before the first size.
    pub const BEGIN: Self = Self::Size(0, 0);

    /// Reads on.
    ///
    /// # Errors
    /// [`Broken`] at the first byte that does not belong there. Trailers do not.
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

/// A caller's connection whose chunks are watched. Reading fails where they are broken.
pub(super) struct Watched {
    stream: Stream,
    chunks: Chunks,
}

impl Watched {
    /// Goes on watching from `chunks`.
    pub(super) fn from(stream: Stream, chunks: Chunks) -> Stream {
        Box::new(Self { stream, chunks })
    }

    /// The connection itself, watched or not.
    pub(super) fn plain(stream: Stream) -> Stream {
        if stream.as_any().is::<Self>() {
            // Just asked.
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
