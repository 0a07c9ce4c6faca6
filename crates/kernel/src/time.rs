//! Spans, and wall-clock times: stored as milliseconds, shown as RFC 3339.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// The last instant that RFC 3339 can write: 9999-12-31T23:59:59.999Z.
const LAST_MS: u64 = 253_402_300_799_999;

/// Returns a span in milliseconds. One that is too long is more than all others, and does not overflow in a sum.
pub fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4)
}

/// An instant on the wall clock, in milliseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(as = Time, value_type = String, format = DateTime)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the present time.
    pub fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Parses RFC 3339, with any offset; fractions of a millisecond are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_uppercase();
        let (local, offset_minutes) = match text.strip_suffix('Z') {
            Some(local) => (local, 0),
            None => {
                let (local, zone) = text.split_at_checked(text.len().checked_sub(6)?)?;
                (local, offset_minutes(zone)?)
            }
        };
        let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        let ms = i64::try_from(since.as_millis()).ok()?;
        Some(Self(ms - offset_minutes * 60_000))
    }

    /// Returns this instant minus `span`.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// Returns this instant plus `span`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// Duration from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// `+01:30` in minutes.
fn offset_minutes(zone: &str) -> Option<i64> {
    let (sign, time) = match zone.split_at_checked(1)? {
        ("+", time) => (1, time),
        ("-", time) => (-1, time),
        _ => return None,
    };
    let (hours, minutes) = time.split_once(':')?;
    let two = |text: &str, max: i64| {
        let digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let number: Option<i64> = text.parse().ok();
        number.filter(|n| digits && *n <= max)
    };
    Some(sign * (two(hours, 23)? * 60 + two(minutes, 59)?))
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A time outside RFC 3339 is shown as the nearest one inside.
        let since = u64::try_from(self.0).unwrap_or(0).min(LAST_MS);
        let time = UNIX_EPOCH + Duration::from_millis(since);
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc_with_milliseconds() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z"),
            (1_798_761_599_999, "2026-12-31T23:59:59.999Z"),
            (-5, "1970-01-01T00:00:00.000Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
            assert_eq!(serde_json::to_value(Timestamp(ms)).unwrap(), text);
        }
    }

    #[test]
    fn rfc_3339_is_read_with_any_offset() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t00:00:00.0079z", 7),
            ("2000-02-29T01:30:00.007+01:30", 951_782_400_007),
            ("1969-12-31T23:59:59.999-00:01", 0),
        ] {
            // The last one must not be before 1970 in its own day.
            let expected = (!text.starts_with("1969")).then_some(Timestamp(ms));
            assert_eq!(Timestamp::parse(text), expected, "{text}");
        }
        for text in [
            "",
            "Z",
            "2000-02-30T00:00:00Z",
            "2000-02-29",
            "2000-02-29T00:00:00",
            "2000-02-29T00:00:00+1:30",
            "2000-02-29T00:00:00+24:00",
            "2000-02-29T00:00:00+01.30",
            "951782400",
            "soon",
            "ü+01:00",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn spans_saturate() {
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(9).since(Timestamp(5)), Duration::from_millis(4));
        assert_eq!(Timestamp(i64::MAX).after(Duration::MAX).0, i64::MAX);
        assert_eq!(Timestamp(10).before(Duration::from_millis(3)).0, 7);
    }
}
