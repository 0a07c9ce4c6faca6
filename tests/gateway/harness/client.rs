//! An HTTP/1.1 client with access to raw bytes: sends them, and records the response piece by piece with
//! times.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::planted;

/// Time limit of all responses.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, as far as it came.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Each piece of the body with the time of its arrival.
    pub(crate) pieces: Vec<(Instant, Vec<u8>)>,
    /// True if, by its framing, the body is complete.
    pub(crate) whole: bool,
}

impl Answer {
    /// Itself, with this status.
    #[track_caller]
    pub(crate) fn has(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// The first value of a field, or `None`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text()))
    }

    /// Asserts that a rejection by the gateway contains no secret.
    pub(crate) fn assert_no_secret(&self) {
        let text = self.text();
        if self.status >= 400 && (text.contains("request_id") || text.contains("a2a-gateway")) {
            planted::assert_none_in(&format!("{:?}\n{text}", self.fields), "a refusal");
        }
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The gateway's reason, in either dialect, in lower case.
    pub(crate) fn reason(&self) -> String {
        let json = self.json();
        json["reason"]
            .as_str()
            .or_else(|| json["error"]["data"][0]["reason"].as_str())
            // Over HTTP+JSON an error of A2A's has the protocol's own reason.
            .or_else(|| {
                self.field("x-a2a-refused")
                    .filter(|_| json["error"]["details"].is_array())
            })
            .unwrap_or_else(|| panic!("no reason in {json}"))
            .to_lowercase()
    }

    /// Returns one fact of a rejection over JSON-RPC or HTTP+JSON.
    pub(crate) fn fact(&self, name: &str) -> Option<String> {
        let error = &self.json()["error"];
        let list = if error["details"].is_array() {
            "details"
        } else {
            "data"
        };
        error[list][0]["metadata"][name].as_str().map(str::to_owned)
    }

    /// The events of a stream: each block that ends with an empty line.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text()
            .split_inclusive("\n\n")
            .map(str::to_owned)
            .collect()
    }
}

/// A request under construction.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            fields: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    /// A JSON POST.
    pub(crate) fn post(path: impl Into<String>, body: impl AsRef<[u8]>) -> Self {
        let mut request = Self::new("POST", path).field("Content-Type", "application/json");
        request.body = body.as_ref().to_vec();
        request
    }

    /// A JSON PATCH.
    pub(crate) fn patch(path: impl Into<String>, body: impl AsRef<[u8]>) -> Self {
        Self {
            method: "PATCH".into(),
            ..Self::post(path, body)
        }
    }

    pub(crate) fn field(mut self, name: &str, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.field("Authorization", format!("Bearer {token}"))
    }

    /// The bytes for the wire, with Host and an exact Content-Length unless given.
    pub(crate) fn wire(&self, host: &str) -> Vec<u8> {
        planted::plant_request(&self.fields, &self.body);
        let names = self.fields.iter().map(|(name, _)| name);
        let has = |name: &str| names.clone().any(|n| n.eq_ignore_ascii_case(name));
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !has("host") {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let framed = has("content-length") || has("transfer-encoding");
        if !framed && (self.method != "GET" || !self.body.is_empty()) {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut wire = head.into_bytes();
        wire.extend_from_slice(&self.body);
        wire
    }
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    host: String,
    held: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("the gateway listens");
        stream.set_nodelay(true).expect("nodelay");
        Self::to(stream, to)
    }

    /// Wraps a connection that is already open.
    pub(crate) fn over(stream: TcpStream) -> Self {
        let to = stream.peer_addr().expect("connected");
        Self::to(stream, to)
    }

    fn to(stream: TcpStream, address: SocketAddr) -> Self {
        Self {
            stream,
            host: address.to_string(),
            held: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.expect("the gateway reads");
    }

    /// Sends a request, and reads nothing.
    pub(crate) async fn ask(&mut self, request: &Request) {
        self.send(&request.wire(&self.host)).await;
    }

    /// Sends bytes, as far as the gateway reads them.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn call(&mut self, request: &Request) -> Answer {
        // A rejection may come before the body was read: then the rest of the write may fail.
        let _ = self.try_send(&request.wire(&self.host)).await;
        self.answer().await
    }

    /// Reads one answer to its end, past informational ones.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer")
    }

    /// Reads one answer, or `None` when the connection is closed without one.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        let answer = timeout(PATIENCE, self.read_answer()).await;
        answer.expect("an answer or a close in time")
    }

    async fn read_answer(&mut self) -> Option<Answer> {
        loop {
            let answer = self.read_head().await?;
            if answer.status >= 200 {
                let answer = self.read_body(answer).await;
                answer.assert_no_secret();
                return Some(answer);
            }
        }
    }

    /// Reads a head only.
    pub(crate) async fn read_head(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(at) = find(&self.held, b"\r\n\r\n") {
                break at + 4;
            }
            if self.fill().await == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&self.held[..end]).into_owned();
        self.held.drain(..end);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let fields = lines
            .filter_map(|l| l.split_once(':'))
            .map(|(n, v)| (n.to_owned(), v.trim().to_owned()))
            .collect();
        Some(Answer {
            status,
            fields,
            body: Vec::new(),
            pieces: Vec::new(),
            whole: false,
        })
    }

    /// Reads the body that belongs to `answer`'s head.
    pub(crate) async fn read_body(&mut self, mut answer: Answer) -> Answer {
        let chunked = answer.field("transfer-encoding").is_some();
        let length = answer
            .field("content-length")
            .map(|v| v.parse::<usize>().expect("a length"));
        if answer.status == 204 || answer.status == 304 {
            answer.whole = true;
        } else if chunked {
            self.read_chunks(&mut answer).await;
        } else if let Some(length) = length {
            while self.held.len() < length && self.fill().await > 0 {}
            let got = length.min(self.held.len());
            self.keep(&mut answer, got);
            answer.whole = got == length;
        } else {
            while self.fill().await > 0 {}
            let got = self.held.len();
            self.keep(&mut answer, got);
            answer.whole = true;
        }
        answer
    }

    async fn read_chunks(&mut self, answer: &mut Answer) {
        while let Some(length) = self.chunk_head().await {
            while self.held.len() < length + 2 && self.fill().await > 0 {}
            if self.held.len() < length + 2 {
                return;
            }
            self.keep(answer, length);
            self.held.drain(..2);
            if length == 0 {
                answer.whole = true;
                return;
            }
        }
    }

    /// Reads the next chunk of a stream, or `None` at its end or cut.
    pub(crate) async fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let length = timeout(PATIENCE, self.chunk_head())
            .await
            .expect("a chunk in time")?;
        while self.held.len() < length + 2 {
            if self.fill().await == 0 {
                return None;
            }
        }
        let data = self.held.drain(..length).collect();
        self.held.drain(..2);
        if length == 0 { None } else { Some(data) }
    }

    async fn chunk_head(&mut self) -> Option<usize> {
        loop {
            if let Some(at) = find(&self.held, b"\r\n") {
                let length = std::str::from_utf8(&self.held[..at]).ok()?;
                let length = usize::from_str_radix(length.trim(), 16).ok()?;
                self.held.drain(..at + 2);
                return Some(length);
            }
            if self.fill().await == 0 {
                return None;
            }
        }
    }

    fn keep(&mut self, answer: &mut Answer, length: usize) {
        let piece: Vec<u8> = self.held.drain(..length).collect();
        if !piece.is_empty() {
            answer.body.extend_from_slice(&piece);
            answer.pieces.push((Instant::now(), piece));
        }
    }

    async fn fill(&mut self) -> usize {
        self.stream.read_buf(&mut self.held).await.unwrap_or(0)
    }

    /// Returns true if the gateway closes the connection within `span`.
    pub(crate) async fn closed_within(&mut self, span: Duration) -> bool {
        timeout(span, async { while self.fill().await > 0 {} })
            .await
            .is_ok()
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|w| w == pattern)
}
