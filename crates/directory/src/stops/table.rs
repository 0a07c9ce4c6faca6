//! The tables `stops` and `stop_changes`. All SQL for them is here.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{FromRow, Row as _};

use super::{Cancel, Mode, NewStop, STOPS_MAX, Scope, Stop, Stops};
use kernel::ids::WorkspaceIncarnation;
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::db::{Connection, Db};
use stores::store::{Run, Unavailable};

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

/// Bounds on stops in force.
#[derive(Clone, Copy)]
pub(super) struct StopLimits {
    /// All of them.
    pub(super) all: i64,
    /// Those that the tokens of the maker's org, or of its subtree, made.
    pub(super) own: i64,
}

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

/// Inserts a stop in a transaction of its own.
pub(super) async fn insert_once(
    db: &Db,
    new: &NewStop,
    room: StopLimits,
    run: Run,
) -> Result<Option<Stop>, Unavailable> {
    let work = async {
        let mut tx = db.begin().await?;
        let inserted = insert(&mut tx, new, Timestamp::now(), room).await?;
        if inserted.is_some() {
            tx.end(run).await?;
        }
        Ok(inserted)
    };
    db.run("stop_insert", work).await
}

/// Deletes a stop in a transaction of its own, and returns it.
pub(super) async fn delete_once(db: &Db, id: &str, run: Run) -> Result<Option<Stop>, Unavailable> {
    let work = async {
        let mut tx = db.begin().await?;
        let deleted = Stops::release_in(&mut tx, id).await?;
        if deleted.is_some() {
            tx.end(run).await?;
        }
        Ok(deleted)
    };
    db.run("stop_delete", work).await
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
                super::cancel::delete_tasks(&mut tx, &stop.id).await?;
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
        let (all, own) = (STOPS_MAX, STOPS_MAX);
        insert(tx, new, now, StopLimits { all, own }).await
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
            super::cancel::delete_tasks(tx, id).await?;
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

    /// Claims a stop whose tasks are to be canceled, for this replica alone.
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
