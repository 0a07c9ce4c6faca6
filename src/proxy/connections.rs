//! How many connections may be open: counted before a byte of a request is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Proxy;
use crate::ids::RequestId;
use crate::rejection::{Reason, Rejection};

/// The listener's application: the proxy, for as many connections as `server.max_connections`.
pub struct Connections {
    proxy: Arc<Proxy>,
    open: AtomicUsize,
}

impl Connections {
    /// Bounds the connections of `proxy`.
    pub fn new(proxy: Proxy) -> Self {
        Self {
            proxy: Arc::new(proxy),
            open: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let max = self.proxy.gateway.config().server.max_connections;
        let Some(_place) = super::Slot::take(&self.open, max) else {
            // HTTP/2 callers cannot read this, and see a closed connection: the same advice.
            let _ = timeout(Duration::from_secs(1), refuse(&mut stream)).await;
            return None;
        };
        self.proxy.process_new(stream, shutdown).await
    }

    async fn cleanup(&self) {
        self.proxy.cleanup().await;
    }
}

async fn refuse(stream: &mut Stream) -> std::io::Result<()> {
    let rejection = Rejection::new(
        Reason::Overloaded,
        "the gateway is at its limit of connections (server.max_connections)",
    )
    .retry_after(Duration::from_secs(1));
    let request_id = RequestId::random();
    let body = rejection.plain_body(&request_id);
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         cache-control: no-store\r\nx-request-id: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        request_id.as_str(),
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    // A close with unread bytes would reset the connection, and the answer might never be seen.
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

impl Connections {
    /// Connections open now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}
