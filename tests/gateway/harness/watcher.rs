//! Clients of `GET /ws` and of `GET /events`.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::client::{Answer, Connection, Request};
use super::planted;

/// Time limit of all events.
const PATIENCE: Duration = Duration::from_secs(60);

/// A handshake that is valid except for the credential.
pub(crate) fn handshake(path: &str) -> Request {
    Request::get(path)
        .field("Connection", "keep-alive, Upgrade")
        .field("Upgrade", "websocket")
        .field("Sec-WebSocket-Version", "13")
        .field("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// An open WebSocket.
pub(crate) struct Socket {
    pub(crate) stream: WebSocketStream<TcpStream>,
}

impl Socket {
    /// Opens one, which must work.
    pub(crate) async fn open(at: SocketAddr, request: &Request) -> Self {
        Self::over(TcpStream::connect(at).await.unwrap(), at, request).await
    }

    /// The same over a connection.
    pub(crate) async fn over(mut stream: TcpStream, at: SocketAddr, request: &Request) -> Self {
        stream
            .write_all(&request.wire(&at.to_string()))
            .await
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, stream.read_u8())
                .await
                .expect("a head in time");
            head.push(byte.expect("a head"));
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let accept = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=";
        assert!(head.to_lowercase().contains(accept), "{head}");
        let stream = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
        Self { stream }
    }

    /// The next frame, or the close: its code and reason.
    pub(crate) async fn next(&mut self) -> Result<Value, (u16, String)> {
        loop {
            let message = timeout(PATIENCE, self.stream.next())
                .await
                .expect("news in time");
            match message {
                Some(Ok(Message::Text(text))) => {
                    planted::assert_none_in(&text, "an event");
                    return Ok(serde_json::from_str(&text).unwrap());
                }
                Some(Ok(Message::Close(frame))) => {
                    let _ = self.stream.flush().await;
                    let frame = frame.map(|f| (u16::from(f.code), f.reason.to_string()));
                    return Err(frame.unwrap_or_default());
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err((0, String::new())),
            }
        }
    }

    /// The next frame.
    pub(crate) async fn event(&mut self) -> Value {
        self.next().await.expect("an event")
    }

    /// True if no event comes within `span`.
    pub(crate) async fn is_silent(&mut self, span: Duration) -> bool {
        timeout(span, self.next()).await.is_err()
    }
}

/// An open event stream.
pub(crate) struct Feed {
    pub(crate) connection: Connection,
    pub(crate) head: Answer,
    text: String,
}

/// One event of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sse {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Value,
}

impl Feed {
    /// Opens one, which must work.
    pub(crate) async fn open(at: SocketAddr, request: &Request) -> Self {
        let feed = Self::try_open(at, request).await.expect("a head");
        assert_eq!(feed.head.status, 200, "{:?}", feed.head);
        assert_eq!(feed.head.field("content-type"), Some("text/event-stream"));
        feed
    }

    /// Opens one, and returns it with its head; `None` if the connection broke before.
    pub(crate) async fn try_open(at: SocketAddr, request: &Request) -> Option<Self> {
        let mut connection = Connection::open(at).await;
        connection
            .try_send(&request.wire(&at.to_string()))
            .await
            .ok()?;
        let head = timeout(PATIENCE, connection.read_head())
            .await
            .expect("a head in time")?;
        Some(Self {
            connection,
            head,
            text: String::new(),
        })
    }

    /// The next event with data; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Sse> {
        loop {
            while let Some(at) = self.text.find("\n\n") {
                let block: String = self.text.drain(..at + 2).collect();
                planted::assert_none_in(&block, "an event");
                if let Some(event) = parse(&block) {
                    return Some(event);
                }
            }
            let chunk = timeout(PATIENCE, self.connection.next_chunk()).await;
            let chunk = chunk.expect("news in time")?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event.
    pub(crate) async fn event(&mut self) -> Sse {
        self.next().await.expect("an event")
    }

    /// True if no event comes within `span`.
    pub(crate) async fn is_silent(&mut self, span: Duration) -> bool {
        timeout(span, self.next()).await.is_err()
    }
}

fn parse(block: &str) -> Option<Sse> {
    let mut event = Sse::default();
    for line in block.lines() {
        match line.split_once(": ") {
            Some(("id", id)) => event.id = Some(id.to_owned()),
            Some(("event", name)) => event.event = Some(name.to_owned()),
            Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
            _ => {}
        }
    }
    (event.data != Value::Null).then_some(event)
}
