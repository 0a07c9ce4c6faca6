//! What a caller wants back: `Accept`.

use http::{HeaderMap, header};

/// Whether `Accept` ranks `text/event-stream` above `application/json` (RFC 9110, 12.5.1).
pub fn prefers_stream(headers: &HeaderMap) -> bool {
    let mut stream = None;
    let mut json = None;
    let ranges = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok());
    for (position, range) in ranges.flat_map(|v| v.split(',')).enumerate() {
        let mut parts = range.split(';');
        let media = parts.next().unwrap_or_default().trim();
        let quality = parts
            .filter_map(|p| p.trim().strip_prefix("q=")?.parse::<f32>().ok())
            .next()
            .unwrap_or(1.0);
        // Equal quality: the first one named wins, as callers mean it.
        let rank = (quality, -i32::try_from(position).unwrap_or(i32::MAX));
        if media.eq_ignore_ascii_case("text/event-stream") && quality > 0.0 {
            stream = stream.or(Some(rank));
        } else if media.eq_ignore_ascii_case("application/json") {
            json = json.or(Some(rank));
        }
    }
    match (stream, json) {
        (Some(stream), Some(json)) => stream > json,
        (Some(_), None) => true,
        (None, _) => false,
    }
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
}
