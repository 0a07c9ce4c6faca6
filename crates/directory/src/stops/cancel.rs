//! The table `stop_tasks`: the tasks that a stop cancels at their agents, with their outcomes. All SQL for it is here. The
//! data plane lists the tasks and sends the calls (`data-plane/src/canceller.rs`).

use std::collections::HashMap;

use super::{Stop, Stops, TaskOutcome};
use kernel::ids::WorkspaceId;
use stores::db::Connection;
use stores::store::Unavailable;

/// Tasks that one stop cancels at most.
pub const TASKS_MAX: usize = 10_000;

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
            let mut tx = self.db.begin().await?;
            for (target, task) in tasks {
                let add = sqlx::query(ADD).bind(&stop.id).bind(target.as_str());
                add.bind(task).execute(&mut *tx).await?;
            }
            tx.commit().await
        };
        self.db.run("stop_tasks_add", work).await
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
        let pending: Vec<(String, String)> = self.db.fetch_all("stop_tasks_pending", query).await?;
        let named =
            |(target, task): (String, String)| Some((WorkspaceId::parse(&target).ok()?, task));
        Ok(pending.into_iter().filter_map(named).collect())
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
        self.db.execute("stop_tasks_set", set).await.map(drop)
    }

    /// Counts the tasks of a stop by outcome.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn count_tasks(&self, stop: &str) -> Result<Counts, Unavailable> {
        let query = sqlx::query(COUNTS).bind(stop);
        let counts: Vec<(String, i64)> = self.db.fetch_all("stop_tasks_count", query).await?;
        let known = |(outcome, tasks): (String, i64)| Some((TaskOutcome::parse(&outcome)?, tasks));
        Ok(counts.into_iter().filter_map(known).collect())
    }
}
