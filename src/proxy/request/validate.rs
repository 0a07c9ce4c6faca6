//! Validates the HTTP of a request before any other check reads it.
//!
//! [`crate::proxy::connection::head`] has already validated the bytes of an HTTP/1 head. These checks apply to every HTTP version, on the
//! parsed head.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;

use crate::ids::{InvalidWorkspaceId, RequestId};
use crate::proxy::connection::head::{FIELDS_MAX, TARGET_BYTES_MAX};
use crate::rejection::{Reason, Rejection};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Minimum length of a credential.
const CREDENTIAL_LEN_MIN: usize = 16;

/// Returns the request's own id, or a new one. An id that contains the caller's credential is replaced: ids are logged.
pub(in crate::proxy) fn request_id(headers: &HeaderMap) -> RequestId {
    let field = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let credential = field(header::AUTHORIZATION)
        .and_then(|field| field.rsplit(|b| *b == b' ').next())
        .filter(|credential| credential.len() >= CREDENTIAL_LEN_MIN);
    let holds_it = |id: &&[u8]| {
        credential
            .is_some_and(|credential| id.windows(credential.len()).any(|part| part == credential))
    };
    RequestId::from_caller(field(REQUEST_ID).filter(|id| !holds_it(id)))
}

/// Rejects heads that two parsers could read differently, or that are larger than any legitimate one.
///
/// # Errors
/// `invalid_request` with the violated rule; for a path, `invalid_workspace_id` or `not_found`.
pub fn check_head(head: &RequestHeader) -> Result<(), Rejection> {
    let refuse = |why: &'static str| Err(Rejection::new(Reason::InvalidRequest, why));
    if head.headers.len() > FIELDS_MAX {
        return refuse("the request head has more than 100 fields");
    }
    let target = head.raw_path();
    if target.len() > TARGET_BYTES_MAX || !target.iter().all(|b| b.is_ascii_graphic() && *b != b'#')
    {
        return refuse("the request target is too long or has characters that must be encoded");
    }
    match find_misspelling(head.uri.path()) {
        None => {}
        Some(PathPart::Name) => return Err(InvalidWorkspaceId.into()),
        Some(PathPart::Other) => {
            return Err(Rejection::new(
                Reason::NotFound,
                "no such path: it has an empty or a dotted segment, or a character that is encoded \
                 and need not be, or that no path here has",
            ));
        }
    }
    if head.headers.get_all(header::HOST).iter().count() > 1 {
        return refuse("the request has several Host fields");
    }
    if authority(head).is_none() {
        return refuse("the request has no Host");
    }
    check_content_length(&head.headers)?;
    let mut expectations = head.headers.get_all(header::EXPECT).iter();
    match (expectations.next(), expectations.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"100-continue") => Ok(()),
        _ => refuse("the only expectation met here is 100-continue"),
    }
}

/// Runs [`check_head`]. The end of a rejected request is uncertain, so the connection is not reused after it.
///
/// # Errors
/// As [`check_head`].
pub(in crate::proxy) fn require_valid(session: &mut ServerSession) -> Result<(), Rejection> {
    check_head(session.req_header()).inspect_err(|_| session.set_keepalive(None))
}

/// The part of a path with a misspelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathPart {
    /// The name of a workspace.
    Name,
    /// Any other part.
    Other,
}

/// Finds a violation of the single spelling of paths. Segments are not empty and neither `.` nor `..`. They consist of
/// the path characters of RFC 3986, 3.3 except `;`, percent-encoded only where necessary, and never contain an encoded
/// slash, backslash, percent sign or control character. One slash may end the path.
fn find_misspelling(path: &str) -> Option<PathPart> {
    let Some(path) = path.strip_prefix('/') else {
        return (path != "*").then_some(PathPart::Other);
    };
    if path.is_empty() {
        return None;
    }
    let mut segments = path.strip_suffix('/').unwrap_or(path).split('/');
    let first = segments.next().unwrap_or_default();
    if !is_segment(first) {
        return Some(PathPart::Other);
    }
    let names = match first {
        "workspaces" => 1,
        "registry" => 2,
        _ => 0,
    };
    let (at, segment) = segments.enumerate().find(|(_, s)| !is_segment(s))?;
    let named = at < names && !matches!(segment, "." | "..");
    Some(if named {
        PathPart::Name
    } else {
        PathPart::Other
    })
}

fn is_segment(segment: &str) -> bool {
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

/// Requires at most one Content-Length, in digits. Pingora also accepts `5, 5` and two equal fields. RFC 9112, 6.3
/// permits to reject them, and no legitimate client sends them.
fn check_content_length(headers: &HeaderMap) -> Result<(), Rejection> {
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

/// Returns the host and port of the request: from `:authority`, an absolute target, or `Host`.
pub(in crate::proxy) fn authority(head: &RequestHeader) -> Option<&str> {
    let from_target = head.uri.authority().map(http::uri::Authority::as_str);
    let from_field = || head.headers.get(header::HOST).and_then(|v| v.to_str().ok());
    from_target
        .or_else(from_field)
        .filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for good in [
            "/",
            "*",
            "/ws",
            "/workspaces/dev/a2a",
            "/workspaces/dev/a2a/",
            "/workspaces/dev/a2a/v1/message:send",
            "/tasks/a%20b",
            "/tasks/%C3%A4%7B",
            "/tasks/a+b,c=d@e:f!$&'()*~",
            "/.well-known/jwks.json",
        ] {
            assert_eq!(find_misspelling(good), None, "{good}");
        }
        for name in [
            "/workspaces/a%2Fb/a2a",
            "/workspaces/%2e%2e/a2a",
            "/workspaces//a2a",
            "/workspaces/a;b/tokens",
            "/registry/discover/%41",
        ] {
            assert_eq!(find_misspelling(name), Some(PathPart::Name), "{name}");
        }
        for bad in [
            "",
            "x",
            "//",
            "//workspaces/dev/a2a",
            "/tasks//",
            "/tasks/a//b",
            "/./ws",
            "/../ws",
            "/workspaces/../a2a",
            "/workspaces/./a2a",
            "/workspaces/dev/a2a//",
            "/workspaces/dev/a2a/../a2a",
            "/workspaces/dev/a2a/%2e%2e",
            "/workspaces/dev/%612a",
            "/workspaces/dev/a2a%2F",
            "/workspaces/dev/a2a;v=1",
            "/workspaces%2Fdev/a2a",
            "/tasks/%2f",
            "/tasks/%5C",
            "/tasks/%00",
            "/tasks/%7f",
            "/tasks/%3b",
            "/tasks/%252f",
            "/tasks/%",
            "/tasks/%4",
            "/tasks/%g0",
            "/tasks/a\\b",
            "/tasks/a\"b",
            "/tasks/{a}",
            "/tasks/a|b",
        ] {
            assert_eq!(find_misspelling(bad), Some(PathPart::Other), "{bad}");
        }
    }
}
