//! The partitions of PostgreSQL, one for each month.

use std::collections::BTreeMap;

use sqlx::AssertSqlSafe;

use super::super::month::Month;
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
