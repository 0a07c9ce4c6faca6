//! Calendar months (UTC): the partitions of the audit table on PostgreSQL.

use std::fmt;

use access::workspace::Timestamp;

/// One calendar month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Month {
    year: i64,
    /// 1 to 12.
    month: i64,
}

impl Month {
    /// Returns the month of a time in milliseconds since 1970.
    pub(super) fn from_millis(ms: i64) -> Self {
        let text = Timestamp(ms).to_string();
        let mut parts = text.split('-').map(|part| part.parse().unwrap_or(1));
        let mut next = || parts.next().unwrap_or(1);
        Self {
            year: next(),
            month: next(),
        }
    }

    pub(super) fn next(self) -> Self {
        if self.month == 12 {
            Self {
                year: self.year + 1,
                month: 1,
            }
        } else {
            Self {
                month: self.month + 1,
                ..self
            }
        }
    }

    /// Returns the first millisecond of the month and of the next one.
    pub(super) fn bounds(self) -> [i64; 2] {
        [self, self.next()].map(|month| {
            let text = format!("{:04}-{:02}-01T00:00:00Z", month.year, month.month);
            Timestamp::parse(&text).map_or(i64::MAX, |at| at.0)
        })
    }

    /// Parses `2026_11`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('_')?;
        let (year, month) = (year.parse().ok()?, month.parse().ok()?);
        (1..=12).contains(&month).then_some(Self { year, month })
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}_{:02}", self.year, self.month)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_and_end_where_the_calendar_says() {
        for (time, name) in [
            ("1970-01-01T00:00:00Z", "1970_01"),
            ("2024-02-29T23:59:59.999Z", "2024_02"),
            ("2024-03-01T00:00:00Z", "2024_03"),
            ("2026-12-31T23:59:59.999Z", "2026_12"),
            ("2100-03-01T00:00:00Z", "2100_03"),
        ] {
            let at = Timestamp::parse(time).unwrap();
            let month = Month::from_millis(at.0);
            assert_eq!(month.to_string(), name);
            assert_eq!(Month::parse(name), Some(month));
            let [from, to] = month.bounds();
            assert!(from <= at.0 && at.0 < to, "{time}");
            assert_eq!(Month::from_millis(to), month.next());
        }
    }
}
