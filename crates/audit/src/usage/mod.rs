//! Usage: sums of the audit's calls by day, for each workspace and each org, on the side of the caller and on that of
//! the target (`docs/reference/usage.md`).
//!
//! Sums are added in the transaction that writes their records, and `last_seq` of `audit_chains` says up to which
//! record of a chain they go, so a record that is written twice is counted once.

mod call;
mod cells;
mod days;
mod sums;

use std::fmt;

use serde::{Serialize, Serializer};

pub(super) use self::call::Call;
pub(super) use self::cells::prune_cells;
pub use self::cells::{Cell, CellSpan};
pub use self::days::{Usage, UsageCursor, UsageLine, UsageQuery, UsageSpan};
pub(super) use self::days::{add_sums, add_sums_to_file, prune_sums};
pub(super) use self::sums::{Batch, BatchRows, Orgs};
pub use self::sums::{Side, Sums};
use access::workspace::Timestamp;

/// Length of a day in milliseconds. Days of UTC have no leap seconds here, as in all times of the gateway.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// One day of UTC, in days since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, utoipa::ToSchema)]
#[schema(value_type = String, format = Date)]
pub struct Day(pub i64);

impl Day {
    /// Returns the day of a time.
    pub fn from_timestamp(time: Timestamp) -> Self {
        Self(time.0.div_euclid(DAY_MS))
    }

    /// Parses `2026-11-28`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = text.len() == 10 && text.is_ascii();
        let time = is_plain.then(|| Timestamp::parse(&format!("{text}T00:00:00Z")))?;
        time.map(Self::from_timestamp)
    }

    /// Returns the first day of the month.
    #[must_use]
    pub fn first_of_month(self) -> Self {
        let text = self.to_string();
        text.get(..8)
            .and_then(|month| Self::parse(&format!("{month}01")))
            .unwrap_or(self)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Timestamp(self.0.saturating_mul(DAY_MS)).to_string();
        f.write_str(text.get(..10).unwrap_or(&text))
    }
}

impl Serialize for Day {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod day_tests {
    use super::*;

    #[test]
    fn a_day_is_written_as_it_is_read() {
        for text in ["1970-01-01", "2024-02-29", "2026-11-28", "9999-12-31"] {
            assert_eq!(Day::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Day::from_timestamp(Timestamp(DAY_MS - 1)), Day(0));
        assert_eq!(Day::from_timestamp(Timestamp(DAY_MS)), Day(1));
        let day = Day::parse("2026-11-28").unwrap();
        assert_eq!(day.first_of_month().to_string(), "2026-11-01");
        for bad in [
            "",
            "2026-13-01",
            "2026-02-30",
            "26-11-28",
            "2026-11-28T",
            "2026-1-1x",
            "２０２６-1",
        ] {
            assert_eq!(Day::parse(bad), None, "{bad}");
        }
    }
}
