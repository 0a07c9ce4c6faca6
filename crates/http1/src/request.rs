//! Requests in wire format.

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use std::str::from_utf8;
use std::{fmt, io};
use url::{Position, Url};

use crate::ONE_WRITE;

/// A request head in wire format that is being written: one allocation, no intermediate map.
pub struct HeadWriter(Vec<u8>);

impl HeadWriter {
    /// Begins the head of a request with a body of `body_len` bytes, which may be put behind it.
    pub fn new(method: &str, target: &str, host: &str, body_len: usize) -> Self {
        let mut head = Self(Vec::with_capacity(1024 + body_len.min(ONE_WRITE)));
        head.put(&[method, " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"]);
        head
    }

    fn put(&mut self, parts: &[&str]) {
        for part in parts {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Writes fields with known names and values.
    pub fn write_lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.put(&[line, "\r\n"]));
    }

    /// Writes a field.
    pub fn write_field(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.put(&[name, ": "]);
        self.0.extend_from_slice(value.as_ref());
        self.put(&["\r\n"]);
    }

    /// Writes a field whose value is shown, without a text of its own.
    pub fn write_display(&mut self, name: &str, value: impl fmt::Display) {
        // Writing to memory cannot fail.
        let _ = io::Write::write_fmt(&mut self.0, format_args!("{name}: {value}\r\n"));
    }

    /// Ends the head.
    pub fn finish(mut self) -> Vec<u8> {
        self.put(&["\r\n"]);
        self.0
    }
}

/// A request, ready for the wire.
#[derive(Default)]
pub struct WireRequest {
    /// Head, with a short body behind it.
    pub(crate) wire: Vec<u8>,
    /// Body, unless it is short.
    pub(crate) body: Bytes,
}

impl WireRequest {
    /// Joins head and body if a copy is cheaper than a second write.
    pub fn new(mut head: Vec<u8>, body: Bytes) -> Self {
        if body.len() <= ONE_WRITE {
            head.extend_from_slice(&body);
            return Self {
                wire: head,
                body: Bytes::new(),
            };
        }
        Self { wire: head, body }
    }

    /// Drops what it holds, unless that is short enough to be kept until a redirect of it can be followed.
    pub fn keep_for_redirect(&mut self, follows: bool) {
        if !follows || self.wire.len() + self.body.len() > FOLLOWED_BYTES_MAX {
            *self = Self::default();
        }
    }

    /// Returns path and query.
    pub fn target(&self) -> Option<&str> {
        let line = self.wire.split(|b| *b == b'\r').next()?;
        from_utf8(line).ok()?.split(' ').nth(1)
    }

    /// Returns the request for the place that `answer` names, if that is a redirect to follow: one that keeps the
    /// method (307, 308), to the scheme, host and port of this request.
    pub fn redirected(&self, answer: &ResponseHeader, tls: bool) -> Option<Self> {
        if !matches!(answer.status.as_u16(), 307 | 308) {
            return None;
        }
        let location = answer.headers.get(header::LOCATION)?.to_str().ok()?;
        let mut lines = self.wire.split_inclusive(|b| *b == b'\n');
        let (line, host) = (lines.next()?, lines.next()?);
        let after = &self.wire[line.len()..];
        let (line, host) = (from_utf8(line).ok()?, from_utf8(host).ok()?);
        let mut words = line.trim_end().split(' ');
        let (verb, target, version) = (words.next()?, words.next()?, words.next()?);
        let host = host.strip_prefix("host: ")?.trim_end();
        let scheme = if tls { "https" } else { "http" };
        let here = Url::parse(&format!("{scheme}://{host}{target}")).ok()?;
        let there = here.join(location).ok()?;
        if there.origin() != here.origin() {
            return None;
        }
        let target = &there[Position::BeforePath..Position::AfterQuery];
        let mut wire = format!("{verb} {target} {version}\r\n").into_bytes();
        wire.extend_from_slice(after);
        let body = self.body.clone();
        Some(Self { wire, body })
    }
}

/// Maximum bytes of a request that is kept until the head of its answer is there.
const FOLLOWED_BYTES_MAX: usize = 64 * 1024;
