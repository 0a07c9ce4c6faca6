//! What HTTP we accept at all, checked before anything else looks at the request.
//!
//! Pingora's parser is lenient on purpose (`docs/security.md`): what it lets through and an agent's
//! parser may read differently is refused here.

use http::{HeaderMap, HeaderValue, Method, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;

use crate::rejection::{Reason, Rejection};

/// Longest request target, in bytes. Ours are under 400; cards and cursors need some more.
const TARGET_BYTES_MAX: usize = 8 * 1024;

/// Longest request head, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// Most fields in a request head.
const FIELDS_MAX: usize = 100;

/// Refuses heads that two parsers could read differently, or that are larger than any real one.
///
/// # Errors
/// `invalid_request` with the rule that was broken.
pub(super) fn check(session: &ServerSession) -> Result<(), Rejection> {
    let head = session.req_header();
    let refuse = |why: &'static str| Err(Rejection::new(Reason::InvalidRequest, why));
    if head.headers.len() > FIELDS_MAX {
        return refuse("the request head has more than 100 fields");
    }
    let bytes: usize = head
        .headers
        .iter()
        .map(|(n, v)| n.as_str().len() + v.len() + 4)
        .sum();
    if bytes > HEAD_BYTES_MAX {
        return refuse("the request head is larger than 32 KiB");
    }
    let target = head.raw_path();
    if target.len() > TARGET_BYTES_MAX || !target.iter().all(|b| b.is_ascii_graphic() && *b != b'#')
    {
        return refuse("the request target is too long or has characters that must be encoded");
    }
    if target.first() != Some(&b'/') && !absolute_or_asterisk(target, &head.method) {
        return refuse("the request target does not begin with `/`");
    }
    if head.headers.get_all(header::HOST).iter().count() > 1 {
        return refuse("the request has several Host fields");
    }
    if authority(head).is_none() {
        return refuse("the request has no Host");
    }
    check_length(&head.headers)?;
    if head.version <= Version::HTTP_11 {
        check_framing(session, &head.headers)?;
    }
    Ok(())
}

/// RFC 9112, 3.2.2 and 3.2.4: the two other forms of a request target that we may meet.
fn absolute_or_asterisk(target: &[u8], method: &Method) -> bool {
    target.starts_with(b"http://")
        || target.starts_with(b"https://")
        || (target == b"*" && *method == Method::OPTIONS)
}

/// One length, in digits. Pingora takes `5, 5` and two equal fields as well; RFC 9112, 6.3 lets us
/// refuse them, and no honest client sends them.
fn check_length(headers: &HeaderMap) -> Result<(), Rejection> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let digits = |v: &HeaderValue| !v.is_empty() && v.as_bytes().iter().all(u8::is_ascii_digit);
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if digits(one) => Ok(()),
        _ => Err(Rejection::new(
            Reason::InvalidRequest,
            "the request has several Content-Length values, or one that is no number",
        )),
    }
}

/// Refuses what makes the end of an HTTP/1 message a matter of opinion (RFC 9112, 6.1 and 11.2).
fn check_framing(session: &ServerSession, headers: &HeaderMap) -> Result<(), Rejection> {
    let Some(http1) = session.as_http1() else {
        return Ok(());
    };
    let raw = http1.get_headers_raw_bytes();
    let refuse = |why: &'static str| Err(Rejection::new(Reason::InvalidRequest, why));
    if raw
        .iter()
        .enumerate()
        .any(|(i, b)| *b == b'\n' && (i == 0 || raw[i - 1] != b'\r'))
    {
        return refuse("a line of the request head ends without a carriage return");
    }
    if headers.contains_key(header::TRANSFER_ENCODING) {
        if states_length(&raw) {
            return refuse("the request has both Content-Length and Transfer-Encoding");
        }
        let codings = headers.get_all(header::TRANSFER_ENCODING);
        if codings.iter().count() != 1
            || !codings
                .iter()
                .all(|v| v.as_bytes().eq_ignore_ascii_case(b"chunked"))
        {
            return refuse("the only Transfer-Encoding served here is chunked");
        }
    }
    Ok(())
}

/// Whether a raw head has a Content-Length. Of a parsed head with a Transfer-Encoding nobody can
/// tell: Pingora has dropped it by then.
pub(super) fn states_length(raw: &[u8]) -> bool {
    raw.split(|b| *b == b'\n').any(|line| {
        line.get(..15)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"content-length:"))
    })
}

/// The host and port that the request is for: `:authority`, an absolute target's, or `Host`.
pub(super) fn authority(head: &RequestHeader) -> Option<&str> {
    let from_target = head.uri.authority().map(http::uri::Authority::as_str);
    let from_field = || head.headers.get(header::HOST).and_then(|v| v.to_str().ok());
    from_target
        .or_else(from_field)
        .filter(|host| !host.is_empty())
}
