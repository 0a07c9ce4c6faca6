//! A caller's HTTP/1 connection. What is read is validated where it is chunked, and small writes are collected until
//! they are flushed, so that a head and a short body leave in one system call. Between two answers it holds no buffer.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf as _, BytesMut};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::chunks::ChunkParser;
use crate::proxy::relay::upstream::ONE_WRITE;

/// Maximum bytes of writes that are collected, as of the requests that are sent to agents in one write.
const COLLECTED_MAX: usize = ONE_WRITE;

/// Initial capacity for writes that are collected. Most heads fit, with a short body.
const COLLECTED: usize = 1536;

/// A caller's connection, for Pingora's session. Reading fails at the first invalid byte of a chunked body.
pub(in crate::proxy) struct CallerStream {
    stream: Stream,
    chunks: ChunkParser,
    /// The bytes that are written and not yet sent.
    unsent: BytesMut,
}

impl CallerStream {
    /// Wraps an established connection.
    pub(in crate::proxy) fn wrap(stream: Stream) -> Stream {
        Box::new(Self {
            stream,
            chunks: ChunkParser::Over,
            unsent: BytesMut::new(),
        })
    }

    /// Validates what is read next, from this state of a chunked body on. `stream` is one of [`CallerStream::wrap`].
    pub(in crate::proxy) fn expect_chunks(stream: Stream, chunks: ChunkParser) -> Stream {
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
        let _ = tokio::io::AsyncWriteExt::flush(self).await;
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

impl UniqueID for CallerStream {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl Ssl for CallerStream {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.selected_alpn_proto()
    }
}

impl GetTimingDigest for CallerStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.get_timing_digest()
    }
}

impl GetProxyDigest for CallerStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }
}

impl GetSocketDigest for CallerStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }
}

impl Peek for CallerStream {}
