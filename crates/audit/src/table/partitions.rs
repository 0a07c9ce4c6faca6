//! The partitions of PostgreSQL, one for each month.

use std::collections::BTreeMap;
use std::fmt;

use sqlx::AssertSqlSafe;

use super::Table;
use access::workspace::Timestamp;
use stores::store::Unavailable;

/// Prefix of the names of partitions. The month follows.
const PARTITION: &str = "structure_events_";

const PARTITIONS: &str = "SELECT CAST(child.relname AS TEXT) AS name FROM pg_inherits \
    JOIN pg_class child ON child.oid = inhrelid \
    WHERE inhparent = to_regclass('structure_events') ORDER BY 1";

impl Table {
    /// Creates the partition of a month, if it does not exist.
    pub(in super::super) async fn ensure_partition(&self, month: Month) -> Result<(), Unavailable> {
        let mut known = self.months.lock().await;
        if known.contains(&month) {
            return Ok(());
        }
        let (name, [from, to]) = (format!("{PARTITION}{month}"), month.bounds());
        let text = format!(
            "CREATE TABLE IF NOT EXISTS {name} PARTITION OF structure_events FOR VALUES FROM ({from}) TO ({to})"
        );
        let work = async {
            let made = sqlx::query(AssertSqlSafe(text))
                .execute(self.db.pool())
                .await;
            match made {
                // Another replica created it at the same moment.
                Err(sqlx::Error::Database(error)) if is_duplicate(&*error) => Ok(()),
                other => other.map(|_| ()),
            }
        };
        self.db.run("audit_partition", work).await?;
        known.insert(month);
        Ok(())
    }

    /// Drops the PostgreSQL partitions of months before `oldest` in which no chain retains a record.
    /// `firsts` maps each chain to its signed beginning. A record of any other chain retains its partition.
    pub(in super::super) async fn drop_old_partitions(
        &self,
        oldest: Timestamp,
        firsts: &BTreeMap<String, i64>,
    ) -> Result<(), Unavailable> {
        let firsts = serde_json::to_string(firsts).unwrap_or_default();
        let names = sqlx::query_scalar(PARTITIONS).fetch_all(self.db.pool());
        let names: Vec<String> = self.db.run("audit_prune", names).await?;
        let old = |name: &&String| {
            let month = name.strip_prefix(PARTITION).and_then(Month::parse);
            month.is_some_and(|month| month.bounds()[1] <= oldest.0)
        };
        for name in names.iter().filter(old) {
            let kept = format!(
                "SELECT part.seq FROM {name} part \
                 LEFT JOIN jsonb_each_text(CAST($1 AS JSONB)) AS chain (replica, first_seq) ON chain.replica = part.replica \
                 WHERE chain.first_seq IS NULL OR part.seq >= CAST(chain.first_seq AS BIGINT) LIMIT 1"
            );
            let kept = sqlx::query(AssertSqlSafe(kept)).bind(firsts.as_str());
            let kept = kept.fetch_optional(self.db.pool());
            if self.db.run("audit_partition", kept).await?.is_none() {
                let gone = sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {name}")));
                self.db.execute("audit_prune", gone).await?;
                self.months.lock().await.clear();
            }
        }
        Ok(())
    }
}

/// True if the error means that the partition exists: `duplicate_table`, or its name is in the catalogue.
fn is_duplicate(error: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    error
        .code()
        .is_some_and(|code| code == "42P07" || code == "23505")
}

/// One calendar month: twelve times its year, and the months before it in the year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Month(i64);

impl Month {
    /// Returns the month of a time in milliseconds since 1970.
    pub(in super::super) fn from_millis(ms: i64) -> Self {
        let text = Timestamp(ms).to_string();
        let mut parts = text.split('-').map(|part| part.parse().unwrap_or(1));
        let mut next = || parts.next().unwrap_or(1);
        Self(12 * next() + next() - 1)
    }

    pub(in super::super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the first millisecond of the month and of the next one.
    pub(in super::super) fn bounds(self) -> [i64; 2] {
        [self, self.next()].map(|month| {
            let text = format!("{month}_01T00:00:00Z").replace('_', "-");
            Timestamp::parse(&text).map_or(i64::MAX, |at| at.0)
        })
    }

    /// Parses `2026_11`.
    pub(in super::super) fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('_')?;
        let (year, month): (i64, i64) = (year.parse().ok()?, month.parse().ok()?);
        (1..=12)
            .contains(&month)
            .then_some(Self(12 * year + month - 1))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12) + 1);
        write!(f, "{year:04}_{month:02}")
    }
}

#[cfg(test)]
mod month_tests {
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
