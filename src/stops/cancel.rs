//! The table `stop_tasks`: the tasks that a stop cancels at their agents, with their outcomes. All SQL for it is here. The
//! data plane lists the tasks and sends the calls (`proxy/canceller.rs`).

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row as _;

use super::{Cancel, Stop, Stops, TaskOutcome};
use crate::db::Connection;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

/// Tasks that one stop cancels at most.
pub const TASKS_MAX: usize = 10_000;

/// Time for which a replica has a cancellation for itself without a renewal.
const LEASE: Duration = Duration::from_secs(15);

const ADD: &str = "INSERT INTO stop_tasks (stop_id, target, task, outcome) VALUES ($1, $2, $3, 'pending') \
    ON CONFLICT (stop_id, target, task) DO NOTHING";

const PENDING: &str = "SELECT target, task FROM stop_tasks WHERE stop_id = $1 AND outcome = 'pending' \
    ORDER BY target, task LIMIT $2";

const SET: &str =
    "UPDATE stop_tasks SET outcome = $4 WHERE stop_id = $1 AND target = $2 AND task = $3";

const COUNTS: &str =
    "SELECT outcome, COUNT(*) AS tasks FROM stop_tasks WHERE stop_id = $1 GROUP BY outcome";

const FORGET: &str = "DELETE FROM stop_tasks WHERE stop_id = $1";

/// Tasks of one stop, by outcome.
pub type Counts = HashMap<TaskOutcome, i64>;

/// Deletes the tasks of a stop.
pub(super) async fn delete_tasks(tx: &mut Connection, stop: &str) -> Result<(), sqlx::Error> {
    let forget = sqlx::query(FORGET).bind(stop);
    forget.execute(&mut *tx).await.map(drop)
}

impl Stops {
    /// Claims a stop whose tasks are to be canceled, for this replica alone.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_cancel(&self) -> Result<Option<Stop>, Unavailable> {
        self.table.claim(LEASE).await
    }

    /// Renews the claim; false: another replica has it, or the stop was released.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn renew_cancel(&self, stop: &Stop) -> Result<bool, Unavailable> {
        self.table.renew(stop, LEASE).await
    }

    /// Records how far the cancellation is; false: another replica has it, or the stop was released.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn advance_cancel(&self, stop: &Stop, to: Cancel) -> Result<bool, Unavailable> {
        self.table.advance_cancel(stop, to).await
    }

    /// Adds tasks to those that a stop cancels.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn add_tasks(
        &self,
        stop: &Stop,
        tasks: &[(WorkspaceId, String)],
    ) -> Result<(), Unavailable> {
        let work = async {
            let mut tx = self.table.0.begin().await?;
            for (target, task) in tasks {
                let add = sqlx::query(ADD).bind(&stop.id).bind(target.as_str());
                add.bind(task).execute(&mut *tx).await?;
            }
            tx.commit().await
        };
        self.table.0.run("stop_tasks_add", work).await
    }

    /// Returns tasks of a stop that have no outcome yet.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn pending_tasks(
        &self,
        stop: &Stop,
        limit: i64,
    ) -> Result<Vec<(WorkspaceId, String)>, Unavailable> {
        let query = sqlx::query(PENDING).bind(&stop.id).bind(limit);
        let work = async {
            let rows = query.fetch_all(self.table.0.pool()).await?;
            let tasks = rows.iter().map(|row| {
                let target: String = row.try_get("target")?;
                let target = WorkspaceId::parse(&target);
                let target = target.map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
                Ok((target, row.try_get("task")?))
            });
            tasks.collect()
        };
        self.table.0.run("stop_tasks_pending", work).await
    }

    /// Writes the outcome of one task.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_outcome(
        &self,
        stop: &Stop,
        (target, task): (&WorkspaceId, &str),
        outcome: TaskOutcome,
    ) -> Result<(), Unavailable> {
        let set = sqlx::query(SET).bind(&stop.id).bind(target.as_str());
        let set = set.bind(task).bind(outcome.as_str());
        self.table.0.execute("stop_tasks_set", set).await.map(drop)
    }

    /// Counts the tasks of a stop by outcome.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn count_tasks(&self, stop: &str) -> Result<Counts, Unavailable> {
        let query = sqlx::query(COUNTS).bind(stop);
        let work = async {
            let rows = query.fetch_all(self.table.0.pool()).await?;
            let mut counts = Counts::new();
            for row in rows {
                let outcome: String = row.try_get("outcome")?;
                if let Some(outcome) = TaskOutcome::parse(&outcome) {
                    counts.insert(outcome, row.try_get("tasks")?);
                }
            }
            Ok(counts)
        };
        self.table.0.run("stop_tasks_count", work).await
    }
}
