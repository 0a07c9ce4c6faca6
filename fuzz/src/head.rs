//! The judgement of an HTTP/1 head (`http1::HeadScanner`, `proxy::check_head`) and of a body in chunks
//! (`http1::ChunkParser`). The input is what a caller sends on a fresh connection.

use std::cell::RefCell;

use a2a_gateway::http1::{ChunkParser, HeadScanner, ScannedHead};
use a2a_gateway::proxy::check_head;
use bytes::BytesMut;
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::server::HttpSession;
use tokio::runtime::{Builder, Runtime};

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        Builder::new_current_thread().enable_all().build().expect("a runtime"),
    );
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let verdict = HeadScanner::default().scan_lines(input);
    let mut scan = HeadScanner::default();
    for end in 0..=input.len().min(2048) {
        match scan.scan_lines(&input[..end]) {
            Ok(None) => {}
            Ok(Some(whole)) => {
                assert_eq!(Ok(Some(whole)), verdict, "byte by byte");
                assert_eq!(whole.end, end);
                break;
            }
            Err(_) => {
                assert!(verdict.is_err(), "refused byte by byte only");
                break;
            }
        }
    }
    let Ok(Some(whole)) = verdict else { return };
    let head = &input[whole.start..whole.end];
    has_one_reading(head, whole);
    let length = agree(head, whole);
    let rest = &input[whole.end..];
    let body = if whole.chunked {
        let body = dechunked(rest);
        chunks_agree(rest, &body);
        body.ok().flatten()
    } else {
        rest.get(..length).map(<[u8]>::to_vec)
    };
    pingora_agrees(&input[whole.start..], head, body.as_deref());
}

/// By bytes alone: every line ends with CRLF, and the first empty one ends the head.
fn has_one_reading(head: &[u8], whole: ScannedHead) {
    assert!(whole.start == 0 || whole.start == 2);
    assert!(head.ends_with(b"\r\n\r\n") && head.len() <= 32 * 1024);
    let ends = head.windows(4).filter(|four| four == b"\r\n\r\n").count();
    assert_eq!(ends, 1, "a head within the head");
    for (at, byte) in head.iter().enumerate() {
        match byte {
            b'\n' => assert_eq!(head[at - 1], b'\r', "a bare line feed"),
            b'\r' => assert_eq!(head[at + 1], b'\n', "a bare carriage return"),
            b'\t' | b' '..=b'~' | 0x80.. => {}
            _ => panic!("a control byte"),
        }
    }
}

/// What a second strict reader says of a head that passed. Answers with its Content-Length.
fn agree(head: &[u8], whole: ScannedHead) -> usize {
    let mut fields = [httparse::EMPTY_HEADER; 101];
    let mut request = httparse::Request::new(&mut fields);
    let read = request.parse(head).expect("httparse reads it, too");
    assert_eq!(read, httparse::Status::Complete(head.len()));
    assert!(request.headers.len() <= 100);
    let values = |name: &str| -> Vec<&[u8]> {
        let named = request.headers.iter();
        named
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
            .collect()
    };
    assert_eq!(values("host").len(), 1);
    let codings = values("transfer-encoding");
    let lengths = values("content-length");
    assert!(codings.len() + lengths.len() <= 1, "two framings");
    assert_eq!(whole.chunked, codings.len() == 1);
    let folded = head
        .windows(3)
        .any(|three| matches!(three, b"\r\n " | b"\r\n\t"));
    assert!(!folded, "a folded line");
    let length = lengths.first().map(|length| std::str::from_utf8(length));
    length.map_or(0, |length| {
        length.ok().and_then(|l| l.parse().ok()).expect("a length")
    })
}

/// The body that Pingora hands on, and what follows it, are what our own reading says; and of a head
/// that passes the second check, the path has one spelling.
fn pingora_agrees(input: &[u8], head: &[u8], body: Option<&[u8]>) {
    let mut fields = [httparse::EMPTY_HEADER; 101];
    let mut request = httparse::Request::new(&mut fields);
    let _ = request.parse(head);
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(async {
            // Closed at once: all there is stands in front of it.
            let (ours, _) = tokio::io::duplex(1);
            let mut session = HttpSession::new(Box::new(ours));
            session.set_pipelining_enabled(true);
            session.set_pipelined_prefix(BytesMut::from(input));
            // What it refuses after us does no harm.
            let Ok(read) = session.read_request().await else {
                return;
            };
            assert_eq!(read, Some(head.len()));
            let understood = session.req_header();
            assert_eq!(Some(understood.method.as_str()), request.method);
            assert_eq!(Some(understood.raw_path()), request.path.map(str::as_bytes));
            assert_eq!(understood.headers.len(), request.headers.len());
            for field in &*request.headers {
                let mut values = understood.headers.get_all(field.name).iter();
                assert!(
                    values.any(|value| value.as_bytes() == field.value),
                    "{}",
                    field.name
                );
            }
            if check_head(understood).is_ok() {
                has_one_path(understood);
            }
            let Some(body) = body.filter(|_| !session.is_upgrade_req()) else {
                return;
            };
            let mut got = Vec::new();
            loop {
                match session.read_body_bytes().await {
                    Ok(Some(bytes)) => got.extend_from_slice(&bytes),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            assert_eq!(got, body, "the body as Pingora reads it");
        });
    });
}

fn has_one_path(head: &RequestHeader) {
    let target = head.raw_path();
    assert!(target.iter().all(|b| b.is_ascii_graphic() && *b != b'#'));
    let path = head.uri.path();
    if path == "*" {
        return;
    }
    let segments: Vec<_> = path
        .strip_prefix('/')
        .expect("a slash")
        .split('/')
        .collect();
    for (at, segment) in segments.iter().enumerate() {
        let said = decoded(segment.as_bytes());
        assert!(
            !matches!(&said[..], b"." | b".."),
            "a dotted segment: {path}"
        );
        assert!(
            !said.is_empty() || at + 1 == segments.len(),
            "an empty segment: {path}"
        );
        let separates = |b: &u8| matches!(b, b'/' | b'\\' | b'%' | b';') || b.is_ascii_control();
        assert!(
            !said.iter().any(separates),
            "what may be read twice: {path}"
        );
    }
}

fn decoded(segment: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    let mut at = 0;
    while at < segment.len() {
        let code = segment.get(at + 1..at + 3).filter(|_| segment[at] == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                said.push(byte);
                at += 3;
            }
            None => {
                said.push(segment[at]);
                at += 1;
            }
        }
    }
    said
}

fn chunks_agree(bytes: &[u8], body: &Result<Option<Vec<u8>>, ()>) {
    let mut whole = ChunkParser::BEGIN;
    let fed = whole.feed(bytes);
    let mut pieces = ChunkParser::BEGIN;
    let mut each = bytes.iter();
    let fed_pieces = each.all(|byte| pieces.feed(&[*byte]).is_ok());
    assert_eq!(fed.is_ok(), fed_pieces, "byte by byte");
    match body {
        Err(()) => assert!(fed.is_err(), "broken chunks passed"),
        Ok(body) => {
            assert!(fed.is_ok(), "good chunks were refused");
            assert_eq!(whole, pieces);
            assert_eq!(whole == ChunkParser::Over, body.is_some());
        }
    }
}

/// RFC 9112, 7.1, by the book, without trailers and within the gateway's bounds. `None`: it goes on.
fn dechunked(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, ()> {
    let mut body = Vec::new();
    loop {
        let is_digit = |b: &&u8| b.is_ascii_hexdigit();
        let digits = bytes.iter().take_while(is_digit).count();
        if digits > 8 {
            return Err(());
        }
        let (size, behind) = bytes.split_at(digits);
        if behind.is_empty() {
            return Ok(None);
        }
        if digits == 0 {
            return Err(());
        }
        let size = std::str::from_utf8(size).map_err(drop)?;
        let size = usize::from_str_radix(size, 16).map_err(drop)?;
        bytes = behind;
        if let Some(extension) = bytes.strip_prefix(b";") {
            let is_text = |b: &&u8| matches!(b, b'\t' | b' '..=b'~');
            let length = extension.iter().take_while(is_text).count();
            if length > 256 {
                return Err(());
            }
            bytes = &extension[length..];
        }
        let Some(rest) = line_end(bytes)? else {
            return Ok(None);
        };
        bytes = rest;
        if size == 0 {
            return Ok(line_end(bytes)?.map(|_| body));
        }
        let Some((data, rest)) = bytes.split_at_checked(size) else {
            return Ok(None);
        };
        body.extend_from_slice(data);
        let Some(rest) = line_end(rest)? else {
            return Ok(None);
        };
        bytes = rest;
    }
}

fn line_end(bytes: &[u8]) -> Result<Option<&[u8]>, ()> {
    match bytes {
        [b'\r', b'\n', rest @ ..] => Ok(Some(rest)),
        [] | [b'\r'] => Ok(None),
        _ => Err(()),
    }
}
