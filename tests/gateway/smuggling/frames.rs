//! HTTP/2 as bytes: frames and header blocks that no client library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::harness::tls::Certificate;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `:status: 200`, as it is indexed in HPACK's static table.
const OK: u8 = 0x88;

/// One frame (RFC 9113, 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A header block of literals that nothing indexes or shortens (RFC 7541, 6.2.2).
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            integer(&mut out, text.len());
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// RFC 7541, 5.1, with a prefix of seven bits.
fn integer(out: &mut Vec<u8>, value: usize) {
    let Some(mut rest) = value.checked_sub(127) else {
        out.push(u8::try_from(value).unwrap());
        return;
    };
    out.push(127);
    while rest >= 128 {
        out.push(u8::try_from(rest % 128 + 128).unwrap());
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered200,
    /// Answered with another status.
    Refused,
    Reset,
    /// GOAWAY with an error, or a close.
    ConnectionOver,
}

/// A connection after its preface and settings.
pub(crate) struct Wire {
    stream: TlsStream<TcpStream>,
    held: Vec<u8>,
}

impl Wire {
    pub(crate) async fn open(certificate: &Certificate, to: SocketAddr) -> Self {
        Self::open_with(certificate, to, &[]).await
    }

    /// With the given settings.
    pub(crate) async fn open_with(
        certificate: &Certificate,
        to: SocketAddr,
        settings: &[u8],
    ) -> Self {
        let stream = certificate.connect(to, &["h2"]).await.expect("TLS");
        let mut wire = Self {
            stream,
            held: Vec::new(),
        };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, settings));
        wire.send(&bytes).await;
        wire
    }

    /// Sends, as far as the gateway takes it.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// The next frame: kind, flags, stream, payload. `None`: the connection was closed.
    pub(crate) async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let Some((head, rest)) = self.held.split_at_checked(9) {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                if rest.len() >= length {
                    let (kind, flags) = (head[3], head[4]);
                    let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
                    let payload = rest[..length].to_vec();
                    self.held.drain(..9 + length);
                    return Some((kind, flags, stream, payload));
                }
            }
            if self.stream.read_buf(&mut self.held).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Waits until it is decided what becomes of a stream.
    pub(crate) async fn fate(&mut self, stream: u32, patience: Duration) -> Fate {
        let decided = async {
            let mut refused = false;
            loop {
                match self.next().await {
                    None => return Fate::ConnectionOver,
                    Some((GOAWAY, _, _, payload)) if payload[4..8] != [0; 4] => {
                        return Fate::ConnectionOver;
                    }
                    Some((SETTINGS, 0, ..)) => {
                        let acknowledged = frame(SETTINGS, 1, 0, &[]);
                        self.send(&acknowledged).await;
                    }
                    Some((HEADERS, flags, on, payload)) if on == stream => {
                        if payload.first() == Some(&OK) {
                            return Fate::Answered200;
                        }
                        refused = true;
                        if flags & END_STREAM != 0 {
                            return Fate::Refused;
                        }
                    }
                    Some((DATA, flags, on, _)) if on == stream && flags & END_STREAM != 0 => {
                        assert!(refused, "a body without a head");
                        return Fate::Refused;
                    }
                    Some((RST_STREAM, _, on, _)) if on == stream => {
                        return if refused { Fate::Refused } else { Fate::Reset };
                    }
                    Some(_) => {}
                }
            }
        };
        timeout(patience, decided).await.expect("no hang")
    }

    /// Whether the gateway closes the connection in time.
    pub(crate) async fn closed_within(&mut self, patience: Duration) -> bool {
        let closed = async { while self.next().await.is_some() {} };
        timeout(patience, closed).await.is_ok()
    }
}
