//! What fields of heads say.

use http::header::AsHeaderName;
use http::{HeaderMap, HeaderName, Method, Version, header};
use pingora::http::{RequestHeader, ResponseHeader};
use std::time::Duration;

/// Returns the items of a list in all fields of a name.
fn list_items(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// True for hop-by-hop fields (RFC 9110, 7.6.1) and fields that proxies exchange among themselves.
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// True for a field that `Connection` lists: it ends at this hop (RFC 9110, 7.6.1).
pub fn named_by_connection(name: &HeaderName, headers: &HeaderMap) -> bool {
    let mut options = list_items(headers, header::CONNECTION);
    options.any(|option| option.eq_ignore_ascii_case(name.as_str()))
}

/// Returns the length that the first `Content-Length` states.
pub fn content_length_of(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// True for an event stream. The response decides, not the method: a streaming call may be answered by one error.
pub fn is_event_stream(head: &ResponseHeader) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value
            .get(..TYPE.len())
            .is_some_and(|essence| essence.eq_ignore_ascii_case(TYPE))
            && matches!(value.get(TYPE.len()), None | Some(b';' | b' ' | b'\t'))
            // A browser takes the last type of a list.
            && !value.contains(&b',')
    })
}

/// True if the client has the version with this tag (RFC 9110, 13.1.2: weak comparison).
pub fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let mut known = list_items(headers, header::IF_NONE_MATCH);
    known.any(|known| known == "*" || opaque(known) == opaque(tag))
}

/// Returns `wait=N`: the seconds that a caller would wait for the answer. The first value counts (RFC 7240, 2). A value
/// that is not a whole number is ignored, as every preference may be.
pub fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let preference =
        parse_preferences(headers).find(|(name, _)| name.eq_ignore_ascii_case("wait"))?;
    let seconds = preference.1.trim_matches('"').parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// True for `respond-async`: the caller prefers a deferred call to a rejection (RFC 7240, 4.1).
pub fn prefers_async(headers: &HeaderMap) -> bool {
    parse_preferences(headers).any(|(name, _)| name.eq_ignore_ascii_case("respond-async"))
}

fn parse_preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    list_items(headers, "prefer")
        .map(|preference| preference.split(';').next().unwrap_or_default())
        .map(|preference| preference.split_once('=').unwrap_or((preference, "")))
        .map(|(name, value)| (name.trim(), value.trim()))
}

/// True if no `Content-Type` names another charset than UTF-8.
pub fn names_utf8(head: &ResponseHeader) -> bool {
    let types = head.headers.get_all(header::CONTENT_TYPE);
    types.iter().all(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        let value = String::from_utf8_lossy(&value);
        let charsets = value.split("charset").skip(1).map(|said| {
            let said = said.trim_start().trim_start_matches('=').trim_start();
            said.trim_start_matches('"')
        });
        charsets.into_iter().all(|said| {
            let end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
            let said = said.split(end).next().unwrap_or_default();
            matches!(said, "utf-8" | "utf8" | "us-ascii")
        })
    })
}

/// True for the handshake of a WebSocket (RFC 6455, 4.2.1).
pub fn opens_socket(head: &RequestHeader) -> bool {
    let names = |field: HeaderName, token: &str| {
        list_items(&head.headers, field).any(|found| found.eq_ignore_ascii_case(token))
    };
    head.version == Version::HTTP_11
        && head.method == Method::GET
        && names(header::UPGRADE, "websocket")
        && names(header::CONNECTION, "upgrade")
        && !head.headers.contains_key(header::TRANSFER_ENCODING)
        && !head.headers.contains_key(header::EXPECT)
        && head
            .headers
            .get(header::CONTENT_LENGTH)
            .is_none_or(|length| length == "0")
}

#[cfg(test)]
mod tag_tests {
    use super::*;

    #[test]
    fn tags_are_compared_weakly() {
        let known = |values: &[&str], tag: &str| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_NONE_MATCH, value.parse().unwrap());
            }
            has_tag(&headers, tag)
        };
        for values in [
            &["\"a\""][..],
            &["W/\"a\""],
            &["\"b\", W/\"a\" ,\"c\""],
            &["\"b\"", "\"a\""],
            &["*"],
        ] {
            assert!(known(values, "\"a\""), "{values:?}");
            assert!(known(values, "W/\"a\""), "{values:?}");
        }
        for values in [&[][..], &["\"b\""], &["a"], &["\"A\""], &[""], &["\"a"]] {
            assert!(!known(values, "\"a\""), "{values:?}");
        }
    }
}

#[cfg(test)]
mod prefer_tests {
    use super::*;

    #[test]
    fn a_wait_is_whole_seconds_and_the_first_counts() {
        let read = |fields: &[&str]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append("prefer", field.parse().unwrap());
            }
            preferred_wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(read(&["wait=10"]), Some(10));
        assert_eq!(
            read(&["return=minimal, Wait = \"7\"; x=1", "wait=1"]),
            Some(7)
        );
        assert_eq!(read(&["respond-async", "wait=0"]), Some(0));
        for none in ["", "wait", "wait=soon", "wait=-1", "wait=1.5", "waiting=3"] {
            assert_eq!(read(&[none]), None, "{none}");
        }
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn the_preference_is_found_in_lists_and_in_any_case() {
        let prefers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("prefer", value.parse().unwrap());
            }
            prefers_async(&headers)
        };
        for values in [
            &["respond-async"][..],
            &["Respond-Async"],
            &["wait=10, respond-async"],
            &["wait=10", "respond-async;x=1"],
        ] {
            assert!(prefers(values), "{values:?}");
        }
        for values in [
            &[][..],
            &["wait=10"],
            &["respond-asynchronously"],
            &["return=minimal"],
        ] {
            assert!(!prefers(values), "{values:?}");
        }
    }
}

#[cfg(test)]
mod charset_tests {
    use super::*;

    #[test]
    fn only_utf_8_is_read() {
        for (content_type, is) in [
            ("application/json", true),
            ("application/json; charset=utf-8", true),
            ("text/event-stream;Charset=\"UTF-8\"; x=y", true),
            ("application/json; charset=utf-16le", false),
            ("application/json; charset=utf-7", false),
            ("text/plain; charset=\"utf-8-x\"", false),
            ("text/plain; charset=utf-8; charset = utf-16", false),
        ] {
            let mut head = ResponseHeader::build(200, None).unwrap();
            head.append_header(header::CONTENT_TYPE, content_type)
                .unwrap();
            assert_eq!(names_utf8(&head), is, "{content_type}");
            head.append_header(header::CONTENT_TYPE, "a/b; charset=utf-32")
                .unwrap();
            assert!(!names_utf8(&head), "{content_type}");
        }
    }
}
