//! A caller's connection: the bytes of its requests, validated before Pingora parses them, and writes that are
//! collected.

use async_trait::async_trait;
use bytes::{Buf as _, BytesMut};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::chunks::ChunkParser;
use crate::head::{HeadError, HeadScanner, ScannedHead};
use crate::{ONE_WRITE, poll_read};

/// The reasons for aborting a connection (of HTTP/2, a stream).
#[derive(Clone, Copy, Debug)]
pub enum AbortCause {
    /// The caller left, or does not read.
    CallerLeft,
    /// The gateway aborted it: the server broke off, or timed out, after part of its answer was sent.
    Ours,
}

impl AbortCause {
    /// Returns the outcome of sending the gateway's own answer: it fails only because of the caller.
    pub fn from_write<E>(answered: Result<(), E>) -> Result<(), Self> {
        answered.map_err(|_| Self::CallerLeft)
    }
}

/// Initial capacity for a head. Most heads fit.
const HEAD_BYTES: usize = 2 * 1024;

/// Maximum bytes of the first read of a head: with them come most bodies.
const FIRST_BYTES: usize = 8 * 1024;

/// Waits for the first bytes of a head, without a buffer. No bytes: the caller left.
pub async fn read_first_bytes(stream: &mut Stream, buffer: &mut BytesMut) -> io::Result<()> {
    poll_fn(|context| {
        poll_read(stream, context, FIRST_BYTES, |bytes| {
            buffer.reserve(HEAD_BYTES);
            buffer.extend_from_slice(bytes);
        })
    })
    .await
}

/// Reads until the head is complete. `None` if the connection was closed, or broke, before.
pub async fn read_request_head(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    scan: &mut HeadScanner,
) -> Result<Option<(ScannedHead, ChunkParser)>, HeadError> {
    if buffer.is_empty() && (read_first_bytes(stream, buffer).await.is_err() || buffer.is_empty()) {
        return Ok(None);
    }
    loop {
        if let Some(whole) = scan.scan_lines(buffer)? {
            return Ok(Some((whole, begin_chunks(buffer, whole)?)));
        }
        // Grows only a full buffer: reserving for one more byte would double it.
        if buffer.len() == buffer.capacity() {
            buffer.reserve(HEAD_BYTES);
        }
        if !matches!(stream.read_buf(buffer).await, Ok(1..)) {
            return Ok(None);
        }
    }
}

/// Begins to validate the body behind a head, if it is chunked.
fn begin_chunks(buffer: &[u8], head: ScannedHead) -> Result<ChunkParser, HeadError> {
    if !head.chunked {
        return Ok(ChunkParser::Over);
    }
    let mut chunks = ChunkParser::BEGIN;
    let fed = chunks.feed(&buffer[head.end..]);
    fed.map_err(|_| "the framing of the request body is broken")?;
    Ok(chunks)
}

/// Lingering close: sends the answer, then reads what is still in flight. A close with unread bytes resets the
/// connection, and the caller might never see the answer.
pub async fn lingering_close(stream: &mut Stream, answer: &[u8], limit: Duration) {
    let parting = async {
        stream.write_all(answer).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(stream).await?;
        let mut unread = [0; 1024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(limit, parting).await;
}

// A caller's HTTP/1 connection. What is read is validated where it is chunked, and small writes are collected until
// they are flushed, so that a head and a short body leave in one system call. Between two answers it holds no buffer.

/// Maximum bytes of writes that are collected, as of the requests that are sent to servers in one write.
const COLLECTED_MAX: usize = ONE_WRITE;

/// Initial capacity for writes that are collected. Most heads fit, with a short body.
const COLLECTED: usize = 1536;

/// A caller's connection, for Pingora's session. Reading fails at the first invalid byte of a chunked body.
pub struct CallerStream {
    stream: Stream,
    chunks: ChunkParser,
    /// The bytes that are written and not yet sent.
    unsent: BytesMut,
}

impl CallerStream {
    /// Wraps an established connection.
    pub fn wrap(stream: Stream) -> Stream {
        Box::new(Self {
            stream,
            chunks: ChunkParser::Over,
            unsent: BytesMut::new(),
        })
    }

    /// Validates what is read next, from this state of a chunked body on. `stream` is one of [`CallerStream::wrap`].
    pub fn expect_chunks(stream: Stream, chunks: ChunkParser) -> Stream {
        let Ok(mut caller) = stream.into_any().downcast::<Self>() else {
            unreachable!("HTTP/1 connections are wrapped once, before their first request")
        };
        caller.chunks = chunks;
        caller
    }

    /// Sends what was collected.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let sent = Pin::new(&mut self.stream).poll_write(context, &self.unsent);
            match ready!(sent)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.unsent.advance(sent),
            }
        }
        self.unsent = BytesMut::new();
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for CallerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallerStream").field(&self.stream).finish()
    }
}

impl AsyncRead for CallerStream {
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

impl AsyncWrite for CallerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.unsent.len() + bytes.len() <= COLLECTED_MAX {
            if self.unsent.is_empty() {
                // For a head and a short body: growing would copy the head.
                self.unsent.reserve(bytes.len().max(COLLECTED));
            }
            self.unsent.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for CallerStream {
    async fn shutdown(&mut self) {
        // A caller that does not read gets no more.
        let _ = AsyncWriteExt::flush(self).await;
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

/// Implements traits of Pingora by those of the wrapped connection.
macro_rules! forward_to_stream {
    ($($name:ident { $($get:ident -> $kind:ty),+ })+) => {$(
        impl $name for CallerStream {
            $(fn $get(&self) -> $kind {
                self.stream.$get()
            })+
        }
    )+};
}

forward_to_stream! {
    UniqueID { id -> UniqueIDType }
    Ssl { get_ssl_digest -> Option<Arc<SslDigest>>, selected_alpn_proto -> Option<ALPN> }
    GetTimingDigest { get_timing_digest -> Vec<Option<TimingDigest>> }
    GetProxyDigest { get_proxy_digest -> Option<Arc<ProxyDigest>> }
    GetSocketDigest { get_socket_digest -> Option<Arc<SocketDigest>> }
}

impl Peek for CallerStream {}
