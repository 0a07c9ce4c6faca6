//! `Prefer` (RFC 7240): the preferences that the gateway applies.

use std::time::Duration;

use http::HeaderMap;

/// Returns `wait=N`: the seconds that a caller would wait for the answer. The first value counts (RFC 7240, 2). A value
/// that is not a whole number is ignored, as every preference may be.
pub(in crate::proxy) fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let preference =
        parse_preferences(headers).find(|(name, _)| name.eq_ignore_ascii_case("wait"))?;
    let seconds = preference.1.trim_matches('"').parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// True for `respond-async`: the caller prefers a deferred call to a rejection (RFC 7240, 4.1).
pub(in crate::proxy) fn prefers_async(headers: &HeaderMap) -> bool {
    parse_preferences(headers).any(|(name, _)| name.eq_ignore_ascii_case("respond-async"))
}

fn parse_preferences(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let fields = headers.get_all("prefer").iter();
    fields
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|preference| preference.split(';').next().unwrap_or_default())
        .map(|preference| preference.split_once('=').unwrap_or((preference, "")))
        .map(|(name, value)| (name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
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
