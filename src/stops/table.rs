//! The tables `stops` and `stop_changes`. All SQL for them is here.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::scope::Scope;
use super::{Cancel, Mode, NewStop, Stop};
use crate::db::{Connection, Db};
use crate::ids::WorkspaceIncarnation;
use crate::store::{Run, Unavailable};
use crate::time::Timestamp;

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

/// Bounds on stops in force.
#[derive(Clone, Copy)]
pub(super) struct StopLimits {
    /// All of them.
    pub(super) all: i64,
    /// Those that the tokens of the maker's org, or of its subtree, made.
    pub(super) own: i64,
}

/// The tables.
pub(super) struct Table(pub(super) Db);

impl Table {
    /// Returns the number of changes so far.
    pub(super) async fn read_version(&self) -> Result<i64, Unavailable> {
        let query = sqlx::query_scalar(VERSION);
        let work = async { query.fetch_optional(self.0.pool()).await };
        let noted: Option<i64> = self.0.run("stops_version", work).await?;
        Ok(noted.unwrap_or(0))
    }

    /// Returns at most `max` stops, and a number of changes that all of them include.
    pub(super) async fn read(&self, max: usize) -> Result<(i64, Vec<Stop>), Unavailable> {
        let version = self.read_version().await?;
        let query = sqlx::query(ALL).bind(i64::try_from(max).unwrap_or(i64::MAX));
        let work = async {
            let rows = query.fetch_all(self.0.pool()).await?;
            rows.iter().map(read_row).collect()
        };
        Ok((version, self.0.run("stops_read", work).await?))
    }

    /// Returns stops after the id `after`; of one org only, if `org` names one.
    pub(super) async fn list_page(
        &self,
        org: Option<&str>,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Stop>, Unavailable> {
        let query = sqlx::query(PAGE)
            .bind(after)
            .bind(i64::from(org.is_some()))
            .bind(org.unwrap_or_default())
            .bind(i64::from(limit));
        let work = async {
            let rows = query.fetch_all(self.0.pool()).await?;
            rows.iter().map(read_row).collect()
        };
        self.0.run("stops_list", work).await
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<Stop>, Unavailable> {
        let query = sqlx::query(FIND).bind(id);
        let work = async {
            let row = query.fetch_optional(self.0.pool()).await?;
            row.as_ref().map(read_row).transpose()
        };
        self.0.run("stop_find", work).await
    }

    /// Inserts a stop; `None` if there are as many as [`StopLimits`] allows.
    pub(super) async fn insert(
        &self,
        new: &NewStop,
        now: Timestamp,
        room: StopLimits,
        run: Run,
    ) -> Result<Option<Stop>, Unavailable> {
        let work = async {
            let mut tx = self.0.begin().await?;
            let inserted = insert(&mut tx, new, now, room).await?;
            if inserted.is_some() {
                tx.end(run).await?;
            }
            Ok(inserted)
        };
        self.0.run("stop_insert", work).await
    }

    /// Deletes a stop, and returns it.
    pub(super) async fn delete(&self, id: &str, run: Run) -> Result<Option<Stop>, Unavailable> {
        let work = async {
            let mut tx = self.0.begin().await?;
            let deleted = delete(&mut tx, id).await?;
            if deleted.is_some() {
                tx.end(run).await?;
            }
            Ok(deleted)
        };
        self.0.run("stop_delete", work).await
    }

    /// Deletes expired stops, and returns those that no other replica has deleted.
    pub(super) async fn delete_expired(&self, now: Timestamp) -> Result<Vec<Stop>, Unavailable> {
        let work = async {
            let mut tx = self.0.begin().await?;
            sqlx::query(CHANGED).execute(&mut *tx).await?;
            let delete = sqlx::query(DELETE_EXPIRED).bind(now.0);
            let rows = delete.fetch_all(&mut *tx).await?;
            let deleted = rows.iter().map(read_row).collect::<Result<Vec<_>, _>>()?;
            if !deleted.is_empty() {
                for stop in &deleted {
                    super::cancel::delete_tasks(&mut tx, &stop.id).await?;
                }
                tx.commit().await?;
            }
            Ok(deleted)
        };
        self.0.run("stop_expire", work).await
    }

    /// Claims a stop whose tasks are to be canceled; no other replica does it for `lease`.
    pub(super) async fn claim(&self, lease: Duration) -> Result<Option<Stop>, Unavailable> {
        let now = Timestamp::now();
        let claim = sqlx::query(CLAIM).bind(now.0).bind(now.after(lease).0);
        let work = async {
            let row = self.0.fetch_changed(claim).await?;
            row.as_ref().map(read_row).transpose()
        };
        self.0.run("stop_claim", work).await
    }

    /// Renews a claim; false: another replica has it, or the stop was released.
    pub(super) async fn renew(&self, stop: &Stop, lease: Duration) -> Result<bool, Unavailable> {
        let until = Timestamp::now().after(lease);
        let renew = sqlx::query(RENEW).bind(&stop.id).bind(stop.fence);
        let renewed = self.0.execute("stop_renew", renew.bind(until.0)).await?;
        Ok(renewed > 0)
    }

    /// Records how far the cancellation is; false: another replica has it.
    pub(super) async fn advance_cancel(
        &self,
        stop: &Stop,
        to: Cancel,
    ) -> Result<bool, Unavailable> {
        let advance = sqlx::query(ADVANCE).bind(&stop.id).bind(stop.fence);
        let advance = advance.bind(to.as_str());
        let work = async {
            let mut tx = self.0.begin().await?;
            sqlx::query(CHANGED).execute(&mut *tx).await?;
            let advanced = advance.execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
            Ok(advanced > 0)
        };
        self.0.run("stop_advance", work).await
    }
}

/// Returns all stops, at most `max`.
pub(super) async fn read_all(tx: &mut Connection, max: usize) -> Result<Vec<Stop>, sqlx::Error> {
    let query = sqlx::query(ALL).bind(i64::try_from(max).unwrap_or(i64::MAX));
    let rows = query.fetch_all(tx).await?;
    rows.iter().map(read_row).collect()
}

/// Inserts a stop; `None` if there are as many as [`StopLimits`] allows.
pub(super) async fn insert(
    tx: &mut Connection,
    new: &NewStop,
    now: Timestamp,
    room: StopLimits,
) -> Result<Option<Stop>, sqlx::Error> {
    // First: its row serializes the changes, so that the count still holds at the commit.
    sqlx::query(CHANGED).execute(&mut *tx).await?;
    let by_subtree = new.by_subtree.as_ref().map(WorkspaceIncarnation::to_string);
    let count = sqlx::query(COUNT).bind(new.by_org.as_deref().unwrap_or_default());
    let count = count.bind(by_subtree.clone().unwrap_or_default());
    let count = count.fetch_one(&mut *tx).await?;
    if count.try_get::<i64, _>("stops")? >= room.all || count.try_get::<i64, _>("own")? >= room.own
    {
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
    rows.first().map(read_row).transpose()
}

/// Deletes a stop, and returns it.
pub(super) async fn delete(tx: &mut Connection, id: &str) -> Result<Option<Stop>, sqlx::Error> {
    sqlx::query(CHANGED).execute(&mut *tx).await?;
    let rows = sqlx::query(DELETE).bind(id).fetch_all(&mut *tx).await?;
    let deleted = rows.first().map(read_row).transpose()?;
    if deleted.is_some() {
        super::cancel::delete_tasks(tx, id).await?;
    }
    Ok(deleted)
}

fn read_row(row: &AnyRow) -> Result<Stop, sqlx::Error> {
    let text = |column| row.try_get::<String, _>(column);
    let unknown = |column: &str| sqlx::Error::Decode(format!("an unknown {column}").into());
    let (scope, name, target) = (text("scope")?, text("name")?, text("target")?);
    let scope = Scope::from_columns([&scope, &name, &target]);
    let by_subtree: Option<String> = row.try_get("by_subtree")?;
    let by_subtree = by_subtree
        .map(|root| WorkspaceIncarnation::parse(&root).ok_or_else(|| unknown("by_subtree")));
    let operator: Option<String> = row.try_get("operator")?;
    Ok(Stop {
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
