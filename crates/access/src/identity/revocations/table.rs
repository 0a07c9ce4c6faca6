//! The tables `revocations` and `revocation_changes`. All SQL for them is here.

use sqlx::any::AnyRow;
use sqlx::{FromRow, Row as _};

use super::{KEPT, NewRevocation, REVOCATIONS_MAX, Revocation};
use kernel::time::Timestamp;
use stores::db::{Connection, Db};
use stores::store::Unavailable;

/// The columns of [`Revocation`]. Their order does not matter.
macro_rules! columns {
    () => {
        "id, rk, subject, org, before_at, reason, created_by, expires_at, change_no"
    };
}

const CHANGED: &str = "INSERT INTO revocation_changes (id, noted) VALUES (1, 1) \
    ON CONFLICT (id) DO UPDATE SET noted = revocation_changes.noted + 1 RETURNING noted";

const COUNT: &str = "SELECT COUNT(*) AS revocations FROM revocations WHERE expires_at > $1 AND ($2 = 0 OR org IS NOT NULL)";

const UPSERT: &str = concat!(
    "INSERT INTO revocations (id, rk, subject, org, before_at, reason, created_by, expires_at, change_no) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO UPDATE SET \
     before_at = CASE WHEN revocations.before_at > excluded.before_at THEN revocations.before_at \
     ELSE excluded.before_at END, reason = excluded.reason, created_by = excluded.created_by, \
     expires_at = excluded.expires_at, change_no = excluded.change_no RETURNING ",
    columns!()
);

const SINCE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM revocations WHERE change_no > $1 ORDER BY change_no LIMIT $2"
);

const PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM revocations WHERE id > $1 AND ($2 = 0 OR org = $3) AND expires_at > $4 ORDER BY id LIMIT $5"
);

const DELETE_EXPIRED: &str = "DELETE FROM revocations WHERE expires_at <= $1";

/// Returns the rows that changed after the change `version`, and the number of the last of them.
pub(super) async fn read_since(
    db: &Db,
    version: i64,
) -> Result<(i64, Vec<Revocation>), Unavailable> {
    // The number of a change is taken under the lock of one row, so changes are committed in order of it.
    let query = sqlx::query(SINCE).bind(version).bind(REVOCATIONS_MAX);
    let rows: Vec<Revocation> = db.fetch_all("revocations_read", query).await?;
    let last = rows.last().map_or(version, |row| row.change);
    Ok((last, rows))
}

/// Writes a revocation of what began by `now`; `None` if there are `max`.
pub(super) async fn upsert(
    tx: &mut Connection,
    new: &NewRevocation,
    now: Timestamp,
    max: i64,
) -> Result<Option<Revocation>, sqlx::Error> {
    let changed = sqlx::query(CHANGED).fetch_one(&mut *tx).await?;
    let count = sqlx::query(COUNT)
        .bind(now.0)
        .bind(i64::from(new.org.is_some()));
    let count = count.fetch_one(&mut *tx).await?;
    if count.try_get::<i64, _>("revocations")? >= max {
        return Ok(None);
    }
    let key = new.subject.key();
    let id = match &new.org {
        None => key.clone(),
        Some(org) => format!("{key}.{org}"),
    };
    let subject = serde_json::to_string(&new.subject);
    let subject = subject.map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let upsert = sqlx::query(UPSERT)
        .bind(id)
        .bind(key)
        .bind(subject)
        .bind(new.org.as_deref())
        .bind(now.0)
        .bind(new.reason.as_deref())
        .bind(&new.created_by)
        .bind(now.after(KEPT).0)
        .bind(changed.try_get::<i64, _>("noted")?);
    let row = upsert.fetch_one(tx).await?;
    Revocation::from_row(&row).map(Some)
}

/// Returns a page of those in force, by their ids.
pub(super) async fn list(
    db: &Db,
    org: Option<&str>,
    after: &str,
    limit: u32,
    now: Timestamp,
) -> Result<Vec<Revocation>, Unavailable> {
    let query = sqlx::query(PAGE).bind(after).bind(i64::from(org.is_some()));
    let query = query.bind(org.unwrap_or_default()).bind(now.0);
    db.fetch_all("revocations_list", query.bind(i64::from(limit)))
        .await
}

/// Deletes those that have expired.
pub(super) async fn delete_expired(db: &Db, now: Timestamp) -> Result<(), Unavailable> {
    let delete = sqlx::query(DELETE_EXPIRED).bind(now.0);
    db.execute("revocations_expire", delete).await.map(drop)
}

impl FromRow<'_, AnyRow> for Revocation {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            key: row.try_get("rk")?,
            subject: row.try_get("subject")?,
            org: row.try_get("org")?,
            before: Timestamp(row.try_get("before_at")?),
            reason: row.try_get("reason")?,
            created_by: row.try_get("created_by")?,
            expires_at: Timestamp(row.try_get("expires_at")?),
            change: row.try_get("change_no")?,
        })
    }
}
