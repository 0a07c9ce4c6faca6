//! Retention of audit records. A chain is cut at a checkpoint, oldest records first, so that the rest
//! begins with a checkpoint, and the signed statement of the chain names the new beginning. The rows are
//! deleted after that. PostgreSQL drops the partition of a whole month once no chain retains a record in
//! it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::chain::{END_TYP, Statement};
use super::record::{Draft, EventType};
use super::table::{ChainRow, Table};
use super::usage::{self, Day};
use super::{Audit, IDLE_MIN};
use access::workspace::Timestamp;
use kernel::config::Live;
use kernel::deadline::ticks_after;
use kernel::telemetry::Chain;
use stores::store::Unavailable;
use trust::TokenHead;

/// Maximum interval between two prunings.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Interval between checks for a new signing key. Also the delay before the first pruning.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A chain without a signature for this long belongs to no running gateway: each signs every minute.
const DEAD_AFTER: Duration = Duration::from_secs(600);

impl Audit {
    /// Prunes chains, and signs statements of a retired key anew, until it is dropped.
    pub(super) async fn run_retention(&self) {
        let mut tick = ticks_after(LOOK_EVERY, LOOK_EVERY);
        let (mut kid, mut pruned) = (self.keys.kid(), None::<Instant>);
        loop {
            tick.tick().await;
            let now = self.keys.kid();
            let retention = self.retention().unwrap_or(PRUNE_EVERY);
            let every = PRUNE_EVERY.min(retention).max(LOOK_EVERY);
            let due = pruned.is_none_or(|at| at.elapsed() >= every);
            if !due && now == kid {
                continue;
            }
            match self.prune_once().await {
                Ok(true) => (kid, pruned) = (now, Some(Instant::now())),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to prune the audit; retrying");
                }
            }
        }
    }

    /// Prunes once. Returns false if it has to be retried, because another writer signed a chain at the
    /// same time.
    async fn prune_once(&self) -> Result<bool, Unavailable> {
        let retention = self.retention();
        let now = Timestamp::now();
        let oldest = retention.map(|kept| now.before(kept));
        let (mut cut, mut firsts, mut done) = (Vec::new(), BTreeMap::new(), true);
        for row in self.stored.table.read_chains().await? {
            let own = row.replica == self.replica.as_str();
            let Ok(stated) = row.verify_statement(&self.keys) else {
                continue;
            };
            firsts.insert(row.replica.clone(), stated.first);
            // A running replica prunes its own chain.
            let silent = stated.parse_time().map(|at| now.since(at) > DEAD_AFTER);
            if !own && !stated.over && silent != Some(true) {
                continue;
            }
            let first = oldest.map_or(stated.first, |oldest| first_retained(&stated, own, oldest));
            if own {
                // The writer reads this, and signs it within a minute, perhaps before this task does. The
                // pruning is recorded here, so that it is recorded once.
                let before = self.first.swap(first, Ordering::Relaxed);
                if before.max(stated.first) < first {
                    self.record_pruning(&row, &stated, first);
                }
            }
            // A signature by a retired key becomes unverifiable when that key is removed.
            let anew = stated.first < first || self.is_signed_by_another(&row);
            // The new beginning is signed before any row is deleted.
            if anew && !self.sign_again(&row, &stated, first).await? {
                done = false;
                continue;
            }
            if !own && stated.first < first {
                self.record_pruning(&row, &stated, first);
            }
            firsts.insert(row.replica.clone(), first);
            if first > 1 {
                cut.push((row.replica, first));
            }
        }
        if self.stored.table.is_partitioned() {
            if let Some(oldest) = oldest {
                self.stored
                    .table
                    .drop_old_partitions(oldest, &firsts)
                    .await?;
            }
        } else {
            for (replica, first) in &cut {
                self.stored.table.prune_records(replica, *first).await?;
            }
        }
        // The statement of a chain that was removed entirely stays as long as a checkpoint may name that
        // chain.
        let remembered = retention.map(|kept| 3 * kept.max(IDLE_MIN));
        for row in self.stored.table.read_chains().await? {
            let Ok(stated) = row.verify_statement(&self.keys) else {
                continue;
            };
            let forgotten = remembered
                .zip(stated.parse_time())
                .is_some_and(|(span, at)| now.since(at) > span);
            let gone = stated.first > stated.last && row.replica != self.replica.as_str();
            if gone && forgotten && !self.stored.table.has_records(&row.replica).await? {
                self.stored.table.delete_chain(&row).await?;
            }
        }
        Ok(done)
    }

    /// Logs and records that the chain begins with `first` from now on.
    fn record_pruning(&self, row: &ChainRow, stated: &Statement, first: i64) {
        let whole = first > stated.last;
        let (before, replica) = (first, row.replica.as_str());
        tracing::info!(
            replica,
            before,
            whole,
            "Audit records older than audit.retention are removed"
        );
        let detail = json!({"before": before, "replica": replica, "whole": whole});
        self.record(Draft::new(EventType::AuditPruned).with_detail(detail));
    }

    fn is_signed_by_another(&self, row: &ChainRow) -> bool {
        let head = TokenHead::parse_own(&row.statement, END_TYP);
        head.is_ok_and(|head| head.kid != Some(self.keys.kid()))
    }

    /// Signs the statement of a chain anew, with `first` as its beginning. Returns false if the writer of
    /// the chain changed it first.
    async fn sign_again(
        &self,
        row: &ChainRow,
        stated: &Statement,
        first: i64,
    ) -> Result<bool, Unavailable> {
        let mut statement = stated.cut_before(first);
        if first > stated.last {
            // The time of the removal.
            statement.time = Timestamp::now().to_string();
        }
        match statement.sign(&self.keys) {
            Ok(signed) => {
                let new = ChainRow {
                    first_seq: first,
                    statement: signed,
                    ..row.clone()
                };
                self.stored.table.replace_chain(row, &new).await
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "failed to sign the audit");
                Ok(false)
            }
        }
    }
}

/// Returns the first retained record of a chain: the last mark before `oldest`. Nothing is retained of
/// another chain that ended before `oldest`.
fn first_retained(stated: &Statement, own: bool, oldest: Timestamp) -> i64 {
    if !own && stated.parse_time().is_some_and(|at| at < oldest) {
        return stated.last + 1;
    }
    stated
        .mark_before(oldest)
        .map_or(stated.first, |seq| seq.max(stated.first))
}

/// Interval of looks for sums that are too old, and of retries.
const USAGE_LOOK_EVERY: Duration = Duration::from_secs(20);

/// Interval of deletions.
const USAGE_PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Runs until it is dropped.
pub(super) async fn run_usage_retention(table: &Table, config: &Live) {
    table.wait_for_schema().await;
    loop {
        let kept = config.get().audit.usage_retention;
        let oldest = Timestamp::now().before(kept);
        let mut pause = USAGE_LOOK_EVERY;
        if let Err(error) = usage::prune_cells(&table.db).await {
            tracing::debug!(error = %Chain(&error), "failed to delete old sums of calls; retrying");
        }
        if !kept.is_zero() {
            match usage::prune_sums(&table.db, Day::from_timestamp(oldest)).await {
                Ok(()) => pause = USAGE_PRUNE_EVERY,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to delete old sums of usage; retrying");
                }
            }
        }
        sleep(pause).await;
    }
}
