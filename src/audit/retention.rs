//! What is not kept for ever: whole pieces between two checkpoints, oldest first, so that what stays of
//! a chain begins with a checkpoint, and the chain's signed statement says so. Then the rows go; on
//! PostgreSQL a month of them at once, when no chain keeps any of them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio::time::{MissedTickBehavior, interval_at};

use super::chain::{END_TYP, Statement};
use super::record::{Draft, EventType};
use super::table::ChainRow;
use super::{Audit, IDLE_MIN};
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::trust::TokenHead;
use crate::workspace::Timestamp;

/// How often, where what is kept is kept for longer.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// How often it is looked whether there are other keys. The first time something is pruned, too.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A chain of which nothing was signed for so long is no running gateway's: each signs every minute.
const DEAD_AFTER: Duration = Duration::from_secs(600);

impl Audit {
    /// Prunes, and signs anew what a key signed that goes, until it is dropped.
    pub(super) async fn prune(&self) {
        let mut tick = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                    tracing::debug!(error = %Chain(&error), "The audit is not pruned this time");
                }
            }
        }
    }

    /// Whether it is done: of two that sign a chain at once one has to try again.
    async fn prune_once(&self) -> Result<bool, Unavailable> {
        let retention = self.retention();
        let now = Timestamp::now();
        let oldest = retention.map(|kept| now.before(kept));
        let (mut cut, mut firsts, mut done) = (Vec::new(), BTreeMap::new(), true);
        for row in self.stored.table.chains().await? {
            let own = row.replica == self.replica.as_str();
            let Ok(stated) = row.stated(&self.keys) else {
                continue;
            };
            firsts.insert(row.replica.clone(), stated.first);
            // A running replica sees to its own.
            let silent = stated.at().map(|at| now.since(at) > DEAD_AFTER);
            if !own && !stated.over && silent != Some(true) {
                continue;
            }
            let first = oldest.map_or(stated.first, |oldest| first_kept(&stated, own, oldest));
            if own {
                // For the writer, which signs it every minute, and perhaps before it is signed here: told of now, and once.
                let before = self.first.swap(first, Ordering::Relaxed);
                if before.max(stated.first) < first {
                    self.tell_pruned(&row, &stated, first);
                }
            }
            // A key that goes takes its signatures with it.
            let anew = stated.first < first || self.is_signed_by_another(&row);
            // Nothing goes before it is signed that it may.
            if anew && !self.state_again(&row, &stated, first).await? {
                done = false;
                continue;
            }
            if !own && stated.first < first {
                self.tell_pruned(&row, &stated, first);
            }
            firsts.insert(row.replica.clone(), first);
            if first > 1 {
                cut.push((row.replica, first));
            }
        }
        if self.stored.table.has_months() {
            if let Some(oldest) = oldest {
                self.stored.table.drop_old(oldest, &firsts).await?;
            }
        } else {
            for (replica, first) in &cut {
                self.stored.table.prune(replica, *first).await?;
            }
        }
        // What is signed of a chain that went as a whole stays for as long as a checkpoint may tell of it.
        let remembered = retention.map(|kept| 3 * kept.max(IDLE_MIN));
        for row in self.stored.table.chains().await? {
            let Ok(stated) = row.stated(&self.keys) else {
                continue;
            };
            let forgotten = remembered
                .zip(stated.at())
                .is_some_and(|(span, at)| now.since(at) > span);
            let gone = stated.first > stated.last && row.replica != self.replica.as_str();
            if gone && forgotten && !self.stored.table.has_records(&row.replica).await? {
                self.stored.table.forget(&row).await?;
            }
        }
        Ok(done)
    }

    /// That a chain begins with `first` from now on.
    fn tell_pruned(&self, row: &ChainRow, stated: &Statement, first: i64) {
        let whole = first > stated.last;
        let (before, replica) = (first, row.replica.as_str());
        tracing::info!(
            replica,
            before,
            whole,
            "Audit records older than audit.retention are removed"
        );
        let detail = json!({"before": before, "replica": replica, "whole": whole});
        self.record(Draft::new(EventType::AuditPruned).with(detail));
    }

    fn is_signed_by_another(&self, row: &ChainRow) -> bool {
        let head = TokenHead::own(&row.statement, END_TYP);
        head.is_ok_and(|head| head.kid() != self.keys.kid())
    }

    /// Signs what is said of a chain anew, with where it begins now. False: its writer was faster.
    async fn state_again(
        &self,
        row: &ChainRow,
        stated: &Statement,
        first: i64,
    ) -> Result<bool, Unavailable> {
        let mut statement = stated.cut(first);
        if first > stated.last {
            // Since when it is gone.
            statement.time = Timestamp::now().to_string();
        }
        match statement.sign(&self.keys) {
            Ok(signed) => {
                let new = ChainRow {
                    first_seq: first,
                    statement: signed,
                    ..row.clone()
                };
                self.stored.table.state_anew(row, &new).await
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "The audit cannot be signed");
                Ok(false)
            }
        }
    }
}

/// The first record of a chain that stays: the last place to cut at that is old, and what follows. Of one that is
/// over, and was so already then, nothing stays.
fn first_kept(stated: &Statement, own: bool, oldest: Timestamp) -> i64 {
    if !own && stated.at().is_some_and(|at| at < oldest) {
        return stated.last + 1;
    }
    stated
        .mark_before(oldest)
        .map_or(stated.first, |seq| seq.max(stated.first))
}
