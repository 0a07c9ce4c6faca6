//! The tables `stops` and `stop_changes`. All SQL for them is here.
//!
//! The table `stop_tasks`: the tasks that a stop cancels at their agents, with their outcomes. All SQL for it is here.
//! The data plane lists the tasks and sends the calls (`data-plane/src/canceller.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{FromRow, Row as _};

use super::{Cancel, Mode, NewStop, STOPS_MAX, Scope, Stop, Stops, TaskOutcome};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::db::{Connection, Db};
use stores::store::Unavailable;

/// The columns of [`Stop`]. Their order does not matter.
macro_rules! columns {
    () => {
        "id, scope, name, target, org, by_org, by_subtree, mode, reason, created_by, operator, created_at, expires_at, \
         cancel, fence"
    };
}

const VERSION: &str = "SELECT noted FROM stop_changes WHERE id = 1";

const CHANGED: &str = "INSERT INTO stop_changes (id, noted) VALUES (1, 1) \
    ON CONFLICT (id) DO UPDATE SET noted = stop_changes.noted + 1";

const COUNT: &str = "SELECT COUNT(*) AS stops, \
    COUNT(CASE WHEN by_org = $1 AND COALESCE(by_subtree, '') = $2 THEN 1 END) AS own FROM stops";

const ALL: &str = concat!("SELECT ", columns!(), " FROM stops ORDER BY id LIMIT $1");

const PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM stops WHERE id > $1 AND ($2 = 0 OR org = $3) ORDER BY id LIMIT $4"
);

const FIND: &str = concat!("SELECT ", columns!(), " FROM stops WHERE id = $1");

const INSERT: &str = concat!(
    "INSERT INTO stops (id, scope, name, target, org, by_org, mode, reason, created_by, created_at, expires_at, \
     cancel, by_subtree, operator, leased_until, fence) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 0, 0) RETURNING ",
    columns!()
);

const DELETE: &str = concat!("DELETE FROM stops WHERE id = $1 RETURNING ", columns!());

const DELETE_EXPIRED: &str = concat!(
    "DELETE FROM stops WHERE expires_at <= $1 RETURNING ",
    columns!()
);

const CLAIM: &str = concat!(
    "UPDATE stops SET leased_until = $2, fence = fence + 1 WHERE id IN \
     (SELECT id FROM stops WHERE cancel IN ('wanted', 'listed') AND leased_until <= $1 ORDER BY id LIMIT 1) \
     AND leased_until <= $1 RETURNING ",
    columns!()
);

const RENEW: &str = "UPDATE stops SET leased_until = $3 WHERE id = $1 AND fence = $2";

const ADVANCE: &str = "UPDATE stops SET cancel = $3 WHERE id = $1 AND fence = $2";

/// Time for which a replica has a cancellation for itself without a renewal.
const LEASE: Duration = Duration::from_secs(15);

/// Returns the number of changes so far.
pub(super) async fn read_version(db: &Db) -> Result<i64, Unavailable> {
    let noted: Option<(i64,)> = db
        .fetch_optional("stops_version", sqlx::query(VERSION))
        .await?;
    Ok(noted.map_or(0, |(noted,)| noted))
}

/// Returns all stops, and a number of changes that they include.
pub(super) async fn read(db: &Db) -> Result<(i64, Vec<Stop>), Unavailable> {
    let version = read_version(db).await?;
    let query = sqlx::query(ALL).bind(STOPS_MAX);
    Ok((version, db.fetch_all("stops_read", query).await?))
}

/// Deletes expired stops, and returns those that no other replica has deleted.
pub(super) async fn delete_expired(db: &Db, now: Timestamp) -> Result<Vec<Stop>, Unavailable> {
    let work = async {
        let mut tx = db.begin().await?;
        sqlx::query(CHANGED).execute(&mut *tx).await?;
        let delete = sqlx::query_as(DELETE_EXPIRED).bind(now.0);
        let deleted: Vec<Stop> = delete.fetch_all(&mut *tx).await?;
        if !deleted.is_empty() {
            for stop in &deleted {
                delete_tasks(&mut tx, &stop.id).await?;
            }
            tx.commit().await?;
        }
        Ok(deleted)
    };
    db.run("stop_expire", work).await
}

impl Stops {
    /// Returns all stops, in order of time.
    ///
    /// # Errors
    /// The error of the driver, as all of these.
    pub async fn all_in(tx: &mut Connection) -> Result<Vec<Stop>, sqlx::Error> {
        let query = sqlx::query_as(ALL).bind(STOPS_MAX);
        query.fetch_all(tx).await
    }

    /// Makes a stop of an operator; `None` if there are as many as may be.
    ///
    /// # Errors
    /// As [`Stops::all_in`].
    pub async fn stop_in(
        tx: &mut Connection,
        new: &NewStop,
        now: Timestamp,
    ) -> Result<Option<Stop>, sqlx::Error> {
        insert(tx, new, now, (STOPS_MAX, STOPS_MAX)).await
    }

    /// Releases a stop, and returns it; `None` if there is none of this id.
    ///
    /// # Errors
    /// As [`Stops::all_in`].
    pub async fn release_in(tx: &mut Connection, id: &str) -> Result<Option<Stop>, sqlx::Error> {
        sqlx::query(CHANGED).execute(&mut *tx).await?;
        let rows = sqlx::query(DELETE).bind(id).fetch_all(&mut *tx).await?;
        let deleted = rows.first().map(Stop::from_row).transpose()?;
        if deleted.is_some() {
            delete_tasks(tx, id).await?;
        }
        Ok(deleted)
    }

    /// Returns the stop of this id.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn get(&self, id: &str) -> Result<Option<Stop>, Rejection> {
        let query = sqlx::query(FIND).bind(id);
        Ok(self.db.fetch_optional("stop_find", query).await?)
    }

    /// Returns stops after the id `after`, oldest first; of one org only, if `org` names one.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn list(
        &self,
        org: Option<&str>,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Stop>, Rejection> {
        let query = sqlx::query(PAGE)
            .bind(after)
            .bind(i64::from(org.is_some()))
            .bind(org.unwrap_or_default())
            .bind(i64::from(limit));
        Ok(self.db.fetch_all("stops_list", query).await?)
    }

    /// Claims a stop with tasks to cancel, for this replica alone.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_cancel(&self) -> Result<Option<Stop>, Unavailable> {
        let now = Timestamp::now();
        let claim = sqlx::query(CLAIM).bind(now.0).bind(now.after(LEASE).0);
        let work = async {
            let row = claim.fetch_optional(self.db.pool()).await?;
            row.as_ref().map(Stop::from_row).transpose()
        };
        self.db.run("stop_claim", work).await
    }

    /// Renews the claim; false: another replica has it, or the stop was released.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn renew_cancel(&self, stop: &Stop) -> Result<bool, Unavailable> {
        let until = Timestamp::now().after(LEASE);
        let renew = sqlx::query(RENEW).bind(&stop.id).bind(stop.fence);
        let renewed = self.db.execute("stop_renew", renew.bind(until.0)).await?;
        Ok(renewed > 0)
    }

    /// Records how far the cancellation is; false: another replica has it, or the stop was released.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn advance_cancel(&self, stop: &Stop, to: Cancel) -> Result<bool, Unavailable> {
        let advance = sqlx::query(ADVANCE).bind(&stop.id).bind(stop.fence);
        let advance = advance.bind(to.as_str());
        let work = async {
            let mut tx = self.db.begin().await?;
            sqlx::query(CHANGED).execute(&mut *tx).await?;
            let advanced = advance.execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
            Ok(advanced > 0)
        };
        self.db.run("stop_advance", work).await
    }
}

/// Inserts a stop; `None` if `all` are in force, or `own` of those that the tokens of the maker's org, or of its
/// subtree, made.
pub(super) async fn insert(
    tx: &mut Connection,
    new: &NewStop,
    now: Timestamp,
    (all, own): (i64, i64),
) -> Result<Option<Stop>, sqlx::Error> {
    // First: its row serializes the changes, so that the count still holds at the commit.
    sqlx::query(CHANGED).execute(&mut *tx).await?;
    let by_subtree = new.by_subtree.as_ref().map(WorkspaceIncarnation::to_string);
    let count = sqlx::query(COUNT).bind(new.by_org.as_deref().unwrap_or_default());
    let count = count.bind(by_subtree.clone().unwrap_or_default());
    let count = count.fetch_one(&mut *tx).await?;
    if count.try_get::<i64, _>("stops")? >= all || count.try_get::<i64, _>("own")? >= own {
        return Ok(None);
    }
    let [scope, name, target] = new.scope.to_columns();
    let cancel = if new.cancel_tasks {
        Cancel::Wanted
    } else {
        Cancel::None
    };
    let operator = new.operator.as_deref().map(serde_json::to_string);
    let operator = operator
        .transpose()
        .map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let insert = sqlx::query(INSERT)
        .bind(format!("stop-{}", uuid::Uuid::now_v7()))
        .bind(scope)
        .bind(name)
        .bind(target)
        .bind(new.org.as_deref())
        .bind(new.by_org.as_deref())
        .bind(new.mode.as_str())
        .bind(&new.reason)
        .bind(&new.created_by)
        .bind(now.0)
        .bind(new.expires_at.map(|at| at.0))
        .bind(cancel.as_str())
        .bind(by_subtree)
        .bind(operator);
    let rows = insert.fetch_all(tx).await?;
    rows.first().map(Stop::from_row).transpose()
}

impl FromRow<'_, AnyRow> for Stop {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let text = |column| row.try_get::<String, _>(column);
        let unknown = |column: &str| sqlx::Error::Decode(format!("an unknown {column}").into());
        let (scope, name, target) = (text("scope")?, text("name")?, text("target")?);
        let scope = Scope::from_columns([&scope, &name, &target]);
        let by_subtree: Option<String> = row.try_get("by_subtree")?;
        let by_subtree = by_subtree
            .map(|root| WorkspaceIncarnation::parse(&root).ok_or_else(|| unknown("by_subtree")));
        let operator: Option<String> = row.try_get("operator")?;
        Ok(Self {
            id: text("id")?,
            scope: scope.ok_or_else(|| unknown("scope"))?,
            org: row.try_get("org")?,
            by_org: row.try_get("by_org")?,
            by_subtree: by_subtree.transpose()?,
            mode: Mode::parse(&text("mode")?).ok_or_else(|| unknown("mode"))?,
            reason: text("reason")?,
            created_by: text("created_by")?,
            // A later release may say it otherwise: the stop holds all the same.
            operator: operator.and_then(|said| serde_json::from_str(&said).ok().map(Arc::new)),
            created_at: Timestamp(row.try_get("created_at")?),
            expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(Timestamp),
            cancel: Cancel::parse(&text("cancel")?).ok_or_else(|| unknown("cancel"))?,
            fence: row.try_get("fence")?,
        })
    }
}

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
