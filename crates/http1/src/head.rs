//! The heads of requests, which are refused if two parsers could read them differently.
//!
//! Pingora repairs what it can in a head (it encodes a target, drops a length, accepts bare line feeds), so a parsed
//! head no longer shows these errors. Bytes in, a verdict out.

use memchr::memchr;

/// Maximum bytes of a request head, its empty line included.
const REQUEST_HEAD_BYTES_MAX: usize = 32 * 1024;

/// Maximum fields of a request head.
pub const REQUEST_FIELDS_MAX: usize = 100;

/// Maximum bytes of a request target. Those of the gateway are under 400; cards and cursors need more.
pub const TARGET_BYTES_MAX: usize = 8 * 1024;

/// Maximum digits of Content-Length: far above every limit, and without overflow of a 64-bit number.
const LENGTH_DIGITS_MAX: usize = 18;

/// The reason for a rejected head, as a message for the client.
pub type HeadError = &'static str;

/// The state of a scan. Each call gets the same bytes with more at their end.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Offset of the first line that was not parsed.
    line: usize,
    /// Offset up to which that line was searched for its end: each byte is searched once, however it arrives.
    seen: usize,
    /// Offset of the request line; an empty line may precede it (RFC 9112, 2.2).
    start: usize,
    /// Range of the target, once the request line was parsed.
    target: Option<(usize, usize)>,
    fields: usize,
    http_1_0: bool,
    host: Option<(usize, usize)>,
    has_length: bool,
    chunked: bool,
    /// True if the method is HEAD: its answers have no body.
    pub is_head: bool,
}

/// A complete head with a single interpretation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedHead {
    /// Offset of the request line.
    pub start: usize,
    /// Offset after the final empty line.
    pub end: usize,
    /// True if a chunked body follows.
    pub chunked: bool,
}

impl HeadScanner {
    /// Parses the lines that are complete. `None` if the head is not complete.
    ///
    /// # Errors
    /// The first violated rule. Bytes after such a head cannot be parsed as a request.
    pub fn scan_lines(&mut self, bytes: &[u8]) -> Result<Option<ScannedHead>, HeadError> {
        loop {
            let from = self.line.max(self.seen);
            let Some(found) = memchr(b'\n', &bytes[from..]) else {
                self.seen = bytes.len();
                break;
            };
            let (start, feed) = (self.line, from + found);
            if feed >= REQUEST_HEAD_BYTES_MAX {
                break;
            }
            let line = &bytes[start..feed];
            let Some(line) = line.strip_suffix(b"\r") else {
                if self.target.is_none() {
                    // Records the target of the rejected request.
                    self.parse_request_line(start, line)?;
                }
                return Err("a line of the request head ends without a carriage return");
            };
            self.line = feed + 1;
            if self.target.is_none() {
                if line.is_empty() && start == 0 {
                    self.start = self.line;
                    continue;
                }
                self.parse_request_line(start, line)?;
            } else if line.is_empty() {
                self.check_consistency(bytes)?;
                return Ok(Some(ScannedHead {
                    start: self.start,
                    end: self.line,
                    chunked: self.chunked,
                }));
            } else {
                self.parse_field(start, line)?;
            }
        }
        if bytes.len() >= REQUEST_HEAD_BYTES_MAX {
            return Err("the request head is larger than 32 KiB");
        }
        // TLS or another protocol on this port might never send a line.
        match bytes.get(self.start) {
            Some(first) if self.target.is_none() && !is_token(*first) && *first != b'\r' => {
                Err("this is no HTTP request")
            }
            _ => Ok(None),
        }
    }

    /// Parses the request line (RFC 9112, 3): `method SP request-target SP HTTP-version`, with single spaces.
    fn parse_request_line(&mut self, start: usize, line: &[u8]) -> Result<(), HeadError> {
        const BAD: HeadError = "the request line is not valid HTTP/1.1";
        let (method, rest) = split_at_byte(line, b' ').ok_or(BAD)?;
        let (target, version) = split_at_byte(rest, b' ').ok_or(BAD)?;
        if method.is_empty() || !method.iter().all(|b| is_token(*b)) {
            return Err(BAD);
        }
        // The legible part of the target, also of a rejected request: records name it.
        let legible = |b: &&u8| b.is_ascii_graphic() && **b != b'#';
        let legible = target.iter().take_while(legible).count();
        let target_start = start + method.len() + 1;
        self.target = Some((target_start, target_start + legible.min(TARGET_BYTES_MAX)));
        self.http_1_0 = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err("only HTTP/1.1 and HTTP/1.0 are spoken here"),
        };
        if target.len() > TARGET_BYTES_MAX || legible < target.len() {
            return Err("the request target is too long or has characters that must be encoded");
        }
        let absolute = target_authority(target).is_some();
        if target.first() != Some(&b'/') && !absolute && (target, method) != (b"*", b"OPTIONS") {
            return Err("the request target does not begin with `/`");
        }
        self.is_head = method == b"HEAD";
        Ok(())
    }

    /// Parses a field line (RFC 9112, 5): `field-name ":" OWS field-value OWS`, without folding.
    fn parse_field(&mut self, start: usize, line: &[u8]) -> Result<(), HeadError> {
        self.fields += 1;
        if self.fields > REQUEST_FIELDS_MAX {
            return Err("the request head has more than 100 fields");
        }
        let (name, value) =
            split_at_byte(line, b':').ok_or("a line of the request head has no colon")?;
        if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
            return Err("the name of a field has a character that names do not have");
        }
        if !value
            .iter()
            .all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f))
        {
            return Err("the value of a field has a control character");
        }
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            if self.host.is_some() {
                return Err("the request has several Host fields");
            }
            if !is_host(value) {
                return Err("the Host of the request is no host");
            }
            let field = &line[name.len() + 1..];
            let space = field.len() - field.trim_ascii_start().len();
            let at = start + name.len() + 1 + space;
            self.host = Some((at, at + value.len()));
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if self.has_length {
                return Err("the request has several Content-Length values");
            }
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            if !digits || value.len() > LENGTH_DIGITS_MAX {
                return Err("the Content-Length of the request is no number");
            }
            self.has_length = true;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err("the only Transfer-Encoding served here is chunked");
            }
            self.chunked = true;
        }
        Ok(())
    }

    /// Checks rules across lines (RFC 9112, 3.2 and 6.1).
    fn check_consistency(&self, bytes: &[u8]) -> Result<(), HeadError> {
        if self.chunked && self.has_length {
            return Err("the request has both Content-Length and Transfer-Encoding");
        }
        if self.chunked && self.http_1_0 {
            return Err("HTTP/1.0 has no Transfer-Encoding");
        }
        let Some((from, to)) = self.host else {
            return Err("the request has no Host");
        };
        let named = self
            .target
            .and_then(|(a, b)| target_authority(&bytes[a..b]));
        if named.is_some_and(|named| named != &bytes[from..to]) {
            return Err("the request target names another host than Host");
        }
        Ok(())
    }

    /// Returns the path of the request line, if it was parsed. It selects the dialect of a rejection.
    pub fn request_path<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        let (from, to) = self.target?;
        let target = std::str::from_utf8(bytes.get(from..to)?).ok()?;
        Some(target.split('?').next().unwrap_or(target))
    }

    /// Returns the first value of a field in the valid lines so far.
    pub fn field_value<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let read = bytes.get(..self.line)?;
        read.split(|b| *b == b'\n').skip(1).find_map(|line| {
            let (found, value) = split_at_byte(line, b':')?;
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.trim_ascii())
        })
    }
}

fn split_at_byte(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(at, bytes)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Returns the host and port of an absolute target (RFC 9112, 3.2.2).
fn target_authority(target: &[u8]) -> Option<&[u8]> {
    let rest = target
        .strip_prefix(b"http://")
        .or_else(|| target.strip_prefix(b"https://"))?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?'));
    let host = &rest[..end.unwrap_or(rest.len())];
    is_host(host).then_some(host)
}

/// True for a name or an address with an optional port. Whether it belongs to the gateway is checked later.
fn is_host(bytes: &[u8]) -> bool {
    let part = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]".contains(b);
    !bytes.is_empty() && bytes.len() <= 300 && bytes.iter().all(part)
}

/// True for a token character (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True for a segment of a path in its only spelling: not empty and neither `.` nor `..`, of the characters of RFC
/// 3986, 3.3 except `;`, percent-encoded only where necessary, and without an encoded slash, backslash, percent sign or
/// control character.
pub fn is_canonical_segment(segment: &str) -> bool {
    if matches!(segment, "" | "." | "..") {
        return false;
    }
    let bytes = segment.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'%' => {
                let Some(byte) = decode_hex(bytes.get(at + 1..at + 3)) else {
                    return false;
                };
                let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
                if plain || byte.is_ascii_control() || b"/\\%;".contains(&byte) {
                    return false;
                }
                3
            }
            b if b.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(b) => 1,
            _ => return false,
        };
    }
    true
}

fn decode_hex(digits: Option<&[u8]>) -> Option<u8> {
    let [high, low] = digits? else { return None };
    let digit = |b: &u8| char::from(*b).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_head(head: &str) -> Result<Option<ScannedHead>, HeadError> {
        HeadScanner::default().scan_lines(head.as_bytes())
    }

    const GOOD: &str = "POST /a?b=%2e HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nabc";

    #[test]
    fn a_head_is_read_alike_however_it_is_cut() {
        let end = GOOD.find("abc").unwrap();
        let whole = scan_head(GOOD).unwrap().unwrap();
        assert_eq!((whole.start, whole.end, whole.chunked), (0, end, false));
        for cut in 0..end {
            let mut scan = HeadScanner::default();
            assert_eq!(scan.scan_lines(&GOOD.as_bytes()[..cut]), Ok(None), "{cut}");
            let rest = scan.scan_lines(GOOD.as_bytes()).unwrap();
            assert_eq!(rest, Some(whole), "{cut}");
            assert_eq!(scan.request_path(GOOD.as_bytes()), Some("/a"));
            assert_eq!(
                scan.field_value(GOOD.as_bytes(), "content-LENGTH"),
                Some(&b"3"[..])
            );
        }
        let late = format!("\r\n{GOOD}");
        assert_eq!(scan_head(&late).unwrap().unwrap().start, 2);
        assert!(scan_head(&format!("\r\n\r\n{GOOD}")).is_err());
    }

    #[test]
    fn what_was_searched_is_not_searched_again() {
        let mut scan = HeadScanner::default();
        let mut head = GOOD.as_bytes()[..20].to_vec();
        assert_eq!(scan.scan_lines(&head), Ok(None));
        // A line end inserted into bytes that were already searched is not found.
        head[10] = b'\n';
        head.extend_from_slice(b"x");
        assert_eq!(scan.scan_lines(&head), Ok(None));
        assert_eq!((scan.line, scan.seen), (0, 21));
    }

    #[test]
    fn hosts_must_agree() {
        let with = |target: &str, host: &str| {
            scan_head(&format!("GET {target} HTTP/1.1\r\n{host}\r\n\r\n")).is_ok()
        };
        assert!(with("http://h:1/x", "Host: h:1"));
        assert!(with("/", "host:\t[::1]:8 "));
        assert!(with("http://h", "Host: h"));
        for (target, host) in [
            ("/", "X: y"),
            ("/", "Host:"),
            ("/", "Host: a, b"),
            ("/", "Host: a/b"),
            ("/", "Host: u@h"),
            ("/", "Host: a b"),
            ("/", "Host: h\r\nHost: h"),
            ("http://u@h/", "Host: h"),
            ("http://h/", "Host: g"),
            ("http:///x", "Host: h"),
            ("ftp://h/", "Host: h"),
            ("*", "Host: h"),
        ] {
            assert!(!with(target, host), "{target} {host}");
        }
    }

    #[test]
    fn a_byte_out_of_place_is_refused_at_its_line() {
        for line in [
            "X : y",
            " X: y",
            "\tX: y",
            "X",
            ": y",
            "X\u{e4}: y",
            "X: a\0b",
            "X: a\rb",
            "X: \x7f",
            "X(: y",
            "X: \x1b",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n");
            assert!(scan_head(&head).is_err(), "{line:?}");
        }
        for start in ["\x16\x03\x01", "\0", " GET", "{\"a\":1}"] {
            assert!(scan_head(start).is_err(), "{start:?}");
        }
    }

    #[test]
    fn a_head_without_end_is_refused_at_its_bound() {
        let long = format!(
            "GET / HTTP/1.1\r\nX: {}",
            "x".repeat(REQUEST_HEAD_BYTES_MAX)
        );
        assert!(scan_head(&long).is_err());
        assert_eq!(scan_head(&long[..REQUEST_HEAD_BYTES_MAX - 1]), Ok(None));
    }
}
