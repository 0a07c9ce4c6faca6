//! Deletes sums of usage that are too old.

use std::time::Duration;

use tokio::time::sleep;

use super::table::Table;
use super::usage::{self, Day};
use access::workspace::Timestamp;
use kernel::config::Live;
use kernel::telemetry::Chain;

/// Interval of looks for sums that are too old, and of retries.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// Interval of deletions.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Runs until it is dropped.
pub(super) async fn run(table: &Table, config: &Live) {
    table.wait_for_schema().await;
    loop {
        let kept = config.get().audit.usage_retention;
        let oldest = Timestamp::now().before(kept);
        let mut pause = LOOK_EVERY;
        if !kept.is_zero() {
            match usage::prune_sums(&table.db, Day::from_timestamp(oldest)).await {
                Ok(()) => pause = PRUNE_EVERY,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to delete old sums of usage; retrying");
                }
            }
        }
        sleep(pause).await;
    }
}
