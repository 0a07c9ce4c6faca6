//! Media types: the ones that a caller accepts (`Accept`), and the ones of JSON.

use http::{HeaderMap, header};

/// Returns true if `Accept` ranks `text/event-stream` above `application/json`.
pub fn prefers_stream(headers: &HeaderMap) -> bool {
    prefers_media(headers, "text/event-stream", "application/json")
}

/// Returns true if `Accept` names `media`, and ranks it above `other` (RFC 9110, 12.5.1).
pub fn prefers_media(headers: &HeaderMap, media: &str, other: &str) -> bool {
    let mut ranks = [None, None];
    let ranges = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok());
    for (position, range) in ranges.flat_map(|v| v.split(',')).enumerate() {
        let mut parts = range.split(';');
        let named = parts.next().unwrap_or_default().trim();
        let quality = parts
            .filter_map(|p| p.trim().strip_prefix("q=")?.parse::<f32>().ok())
            .next()
            .unwrap_or(1.0);
        // Equal quality: the first one named wins, as callers intend.
        let rank = (quality, -i32::try_from(position).unwrap_or(i32::MAX));
        if named.eq_ignore_ascii_case(media) && quality > 0.0 {
            ranks[0] = ranks[0].or(Some(rank));
        } else if named.eq_ignore_ascii_case(other) {
            ranks[1] = ranks[1].or(Some(rank));
        }
    }
    // `None` ranks below each named type.
    ranks[0] > ranks[1]
}

/// Returns true for `application/json`, `application/a2a+json` and `*/*+json`; a charset must be UTF-8
/// (RFC 8259, 8.1).
pub fn is_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';');
    let essence = parts.next().unwrap_or_default().trim();
    let json = essence.eq_ignore_ascii_case("application/json")
        || essence.split_once('/').is_some_and(|(_, subtype)| {
            let suffix = subtype.as_bytes().last_chunk::<5>();
            subtype.len() > "+json".len()
                && suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(b"+json"))
                && !subtype.contains(['/', ','])
        });
    let utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        _ => true,
    });
    json && utf8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_decides_between_send_and_stream() {
        let prefers = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            prefers_stream(&headers)
        };
        assert!(prefers("text/event-stream"));
        assert!(prefers("text/event-stream, application/json"));
        assert!(prefers("application/json;q=0.5, text/event-stream"));
        assert!(!prefers("application/json, text/event-stream"));
        assert!(!prefers("*/*"));
        assert!(!prefers("application/json, text/event-stream;q=0"));
        assert!(!prefers_stream(&HeaderMap::new()));
    }

    #[test]
    fn json_types_are_recognised() {
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/a2a+json",
            "application/vnd.x+json; charset=\"utf-8\"",
            "application/json; odata=verbose",
        ] {
            assert!(is_json(good), "{good}");
        }
        for bad in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=utf-16",
            "application/jsonp",
            "+json",
            "",
        ] {
            assert!(!is_json(bad), "{bad}");
        }
    }
}
