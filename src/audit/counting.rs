//! Keeps the sums of usage: adds the records that releases without sums wrote, and deletes what is too old.
//!
//! The records of a chain are added in their order, in small steps, each with the place that it got to: several replicas
//! may do it at once, and a step that was not committed is done again.

use std::time::Duration;

use rusqlite::{Transaction, params};
use sqlx::Row as _;
use tokio::time::{Instant, sleep};

use super::record::Record;
use super::table::Table;
use super::usage::{self, Batch, Call, Day, Days};
use crate::config::Live;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::{Timestamp, orgs_of};

/// Records of a step.
const STEP: usize = 2000;

/// Delay between two steps, so that calls and their records have the database for most of the time.
const STEP_PAUSE: Duration = Duration::from_millis(100);

/// Interval of looks for records that are not in the sums. A replica of an earlier release may be writing some.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// Interval of deletions.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Maximum number of chains of one look.
const CHAINS_MAX: i64 = 500;

const BEHIND: &str = "SELECT replica, first_seq, last_seq, counted_seq FROM audit_chains \
    WHERE counted_seq < last_seq AND first_seq <= last_seq ORDER BY replica LIMIT $1";

/// Fails to match if another replica was quicker.
const COUNTED: &str =
    "UPDATE audit_chains SET counted_seq = $1 WHERE replica = $2 AND counted_seq = $3";

/// A chain with records that are not in the sums.
struct Behind {
    replica: String,
    first: i64,
    last: i64,
    counted: i64,
}

/// Runs until it is dropped.
pub(super) async fn run(table: &Table, config: &Live) {
    table.await_schema().await;
    let mut pruned: Option<Instant> = None;
    loop {
        let kept = config.get().audit.usage_retention;
        let oldest = Timestamp::now().before(kept);
        let oldest = (!kept.is_zero()).then(|| Day::of(oldest));
        if let Some(oldest) = oldest.filter(|_| pruned.is_none_or(|at| at.elapsed() >= PRUNE_EVERY))
        {
            match usage::prune(&table.db, oldest).await {
                Ok(()) => pruned = Some(Instant::now()),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to delete old sums of usage; retrying");
                }
            }
        }
        if let Err(error) = catch_up(table, oldest).await {
            tracing::debug!(error = %Chain(&error), "failed to add records to the sums of usage; retrying");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Adds all records that are not in the sums. Those of days before `oldest` are passed over.
async fn catch_up(table: &Table, oldest: Option<Day>) -> Result<(), Unavailable> {
    for mut behind in find_behind(table).await? {
        let replica = behind.replica.clone();
        let mut added = 0;
        while behind.counted < behind.last {
            let records = read_step(table, &behind).await?;
            let end = records.last().map_or(behind.last, |record| record.seq);
            let days = sum_up(table, &records, oldest).await?;
            if !add(table, &behind, end, days).await? {
                break;
            }
            added += records.len();
            behind.counted = end;
            sleep(STEP_PAUSE).await;
        }
        if added > 0 {
            tracing::info!(replica, added, "added audit records to the sums of usage");
        }
    }
    Ok(())
}

async fn find_behind(table: &Table) -> Result<Vec<Behind>, Unavailable> {
    let work = async {
        let rows = sqlx::query(BEHIND).bind(CHAINS_MAX);
        let rows = rows.fetch_all(table.db.pool()).await?;
        let read = |row: &sqlx::any::AnyRow| {
            Ok(Behind {
                replica: row.try_get("replica")?,
                first: row.try_get("first_seq")?,
                last: row.try_get("last_seq")?,
                counted: row.try_get("counted_seq")?,
            })
        };
        rows.iter().map(read).collect()
    };
    table.db.run("usage_catch_up", work).await
}

/// Reads the next records of a chain.
async fn read_step(table: &Table, behind: &Behind) -> Result<Vec<Record>, Unavailable> {
    let after = behind.counted.max(behind.first - 1);
    table.behind(&behind.replica, after, STEP).await
}

async fn sum_up(
    table: &Table,
    records: &[Record],
    oldest: Option<Day>,
) -> Result<Days, Unavailable> {
    let calls = records.iter().filter_map(Call::of_record);
    let kept = |call: &Call<'_>| oldest.is_none_or(|oldest| call.is_since(oldest));
    let batch = Batch::of(calls.filter(kept));
    let orgs = orgs_of(&table.db, &batch.workspaces()).await?;
    Ok(batch.days(&orgs))
}

/// Adds sums of the records of a chain up to `end`. Returns false if another replica added some first.
async fn add(table: &Table, behind: &Behind, end: i64, days: Days) -> Result<bool, Unavailable> {
    let (replica, counted) = (behind.replica.clone(), behind.counted);
    if table.db.is_embedded() {
        let work = move |to: &Transaction<'_>| {
            let is_ours = to.execute(COUNTED, params![end, replica, counted])? > 0;
            if is_ours {
                usage::add_to_file(to, &days)?;
            }
            Ok(is_ours)
        };
        return table.db.write_to_file("usage_catch_up", work).await;
    }
    let work = async {
        let mut tx = table.db.begin().await?;
        let query = sqlx::query(COUNTED).bind(end).bind(&replica).bind(counted);
        let is_ours = query.execute(&mut *tx).await?.rows_affected() > 0;
        if is_ours {
            usage::add(&mut tx, &days).await?;
        }
        tx.commit().await?;
        Ok(is_ours)
    };
    table.db.run("usage_catch_up", work).await
}
