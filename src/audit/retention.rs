//! What is not kept for ever: whole pieces between two checkpoints, oldest first, so that what stays of
//! a chain begins with a checkpoint, and the chain's signed statement says so. Then the rows go; on
//! PostgreSQL a month of them at once, when no chain keeps any of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio::time::{MissedTickBehavior, interval_at};

use super::Audit;
use super::chain::{STATEMENT_TYP, Statement};
use super::record::{Draft, EventType};
use super::table::ChainRow;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::trust::TokenHead;
use crate::workspace::Timestamp;

/// How often.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// The first time, and again when something is to be done at once in tests.
const PRUNE_FIRST: Duration = Duration::from_secs(5);

/// A chain about which nothing was signed for so long is no running gateway's: each signs every minute.
const DEAD_AFTER: Duration = Duration::from_secs(600);

impl Audit {
    /// Prunes until it is dropped.
    pub(super) async fn prune(&self) {
        let mut tick = interval_at(Instant::now() + PRUNE_FIRST, PRUNE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = self.prune_once().await {
                tracing::debug!(error = %Chain(&error), "The audit is not pruned this time");
            }
        }
    }

    async fn prune_once(&self) -> Result<(), Unavailable> {
        let retention = self.config.get().audit.retention;
        let now = Timestamp::now();
        let oldest = now.before(retention);
        let mut cut = Vec::new();
        for row in self.stored.table.chains().await? {
            let own = row.replica == self.replica.as_str();
            let dead = now.since(Timestamp(row.signed_at)) > DEAD_AFTER;
            // A running replica sees to its own.
            if !own && !dead {
                continue;
            }
            let stated = self.keys.verify_statement(&row.statement, STATEMENT_TYP);
            let Ok(stated): Result<Statement, _> = stated else {
                continue;
            };
            let first = if retention.is_zero() {
                stated.first
            } else {
                self.first_kept(&stated, own, oldest).await?
            };
            if own {
                // For the writer, which signs it every minute.
                self.first.store(first, Ordering::Relaxed);
            }
            // A key that goes takes its signatures with it.
            let anew = row.first_seq < first || self.is_signed_by_another(&row);
            // Nothing goes before it is signed that it may. Of two that sign at once one tries again later.
            if anew && !self.state_again(&row, &stated, first).await? {
                continue;
            }
            if stated.first < first {
                let whole = first > stated.last;
                let detail = json!({"before": first, "replica": row.replica, "whole": whole});
                self.record(Draft::new(EventType::AuditPruned).with(detail));
            }
            if first > 1 {
                cut.push((row.replica, first));
            }
        }
        if self.stored.table.has_months() {
            self.stored.table.drop_old(oldest).await?;
        } else {
            for (replica, first) in &cut {
                self.stored.table.prune(replica, *first).await?;
            }
        }
        for row in self.stored.table.chains().await? {
            let over = row.first_seq > row.last_seq && row.replica != self.replica.as_str();
            if over && self.stored.table.newest(&row.replica).await?.is_none() {
                self.stored.table.forget(&row).await?;
            }
        }
        Ok(())
    }

    /// The first record of a chain that stays: its last checkpoint that is old, and what follows.
    async fn first_kept(
        &self,
        stated: &Statement,
        own: bool,
        oldest: Timestamp,
    ) -> Result<i64, Unavailable> {
        let newest = self.stored.table.newest(&stated.replica).await?;
        if !own && newest.is_some_and(|at| at < oldest) {
            return Ok(stated.last + 1);
        }
        let last_old = self.stored.table.last_old(&stated.replica, oldest).await?;
        Ok(last_old.unwrap_or(1).max(stated.first))
    }

    fn is_signed_by_another(&self, row: &ChainRow) -> bool {
        let head = TokenHead::own(&row.statement, STATEMENT_TYP);
        head.is_ok_and(|head| head.kid() != self.keys.kid())
    }

    /// Signs what is said of a chain anew, with where it begins now. False: its writer was faster.
    async fn state_again(
        &self,
        row: &ChainRow,
        stated: &Statement,
        first: i64,
    ) -> Result<bool, Unavailable> {
        let statement = Statement {
            first,
            ..stated.clone()
        };
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
