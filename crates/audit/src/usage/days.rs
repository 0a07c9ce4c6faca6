//! The table `usage_days`: sums are added with the records that they count, read in pages, and deleted by age.

use std::fmt::Write as _;

use rusqlite::params_from_iter;
use rusqlite::types::Value as FileValue;
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::day::Day;
use super::sums::{Days, Key, Sums};
use access::workspace::ids_below;
use kernel::ids::WorkspaceIncarnation;
use stores::db::{BATCH_MAX, Connection, Db, Values};
use stores::store::Unavailable;

const SUMS: [&str; 7] = Sums::COLUMNS;

const PRUNE: &str = "DELETE FROM usage_days WHERE (kind, org, workspace, day) IN \
    (SELECT kind, org, workspace, day FROM usage_days WHERE day < $1 LIMIT $2)";

/// Returns an INSERT that adds to the rows that exist. `source` has the rows.
fn upsert_statement(source: &str) -> String {
    let columns = SUMS.join(", ");
    let sums = SUMS.map(|sum| format!("{sum} = usage_days.{sum} + excluded.{sum}"));
    format!(
        "INSERT INTO usage_days (kind, org, workspace, day, {columns}) {source} \
         ON CONFLICT (kind, org, workspace, day) DO UPDATE SET {}",
        sums.join(", ")
    )
}

/// Adds sums in a transaction of the SQLite file.
pub(in super::super) fn add_sums_to_file(
    to: &rusqlite::Transaction<'_>,
    days: &Days,
) -> Result<(), rusqlite::Error> {
    if days.is_empty() {
        return Ok(());
    }
    let mut add = to.prepare(&upsert_statement(
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    ))?;
    for (key, sums) in days {
        let names = [key.kind, &key.org, &key.workspace];
        let names = names.map(|name| FileValue::Text(name.to_owned()));
        let numbers = std::iter::once(key.day.0).chain(sums.column_values());
        let numbers = numbers.map(FileValue::Integer);
        add.execute(params_from_iter(names.into_iter().chain(numbers)))?;
    }
    Ok(())
}

/// Adds sums in a transaction of PostgreSQL, with one statement for any number of them.
pub(in super::super) async fn add_sums(
    to: &mut Connection,
    days: &Days,
) -> Result<(), sqlx::Error> {
    if days.is_empty() {
        return Ok(());
    }
    let rows = days.iter().map(|(key, sums)| {
        let mut row = json!({
            "kind": key.kind, "org": key.org, "workspace": key.workspace, "day": key.day.0,
        });
        for (name, value) in SUMS.iter().zip(sums.column_values()) {
            row[name] = value.into();
        }
        row
    });
    let rows: Vec<_> = rows.collect();
    let names = SUMS.map(|sum| format!("{sum} BIGINT"));
    let source = format!(
        "SELECT kind, org, workspace, day, {} FROM jsonb_to_recordset(CAST($1 AS JSONB)) \
         AS more (kind TEXT, org TEXT, workspace TEXT, day BIGINT, {})",
        SUMS.join(", "),
        names.join(", ")
    );
    let query = sqlx::query(AssertSqlSafe(upsert_statement(&source)));
    query
        .bind(json!(rows).to_string())
        .execute(&mut *to)
        .await
        .map(|_| ())
}

/// Deletes the sums of days before `oldest`, in batches.
pub(in super::super) async fn prune_sums(db: &Db, oldest: Day) -> Result<(), Unavailable> {
    let prune = || sqlx::query(PRUNE).bind(oldest.0).bind(BATCH_MAX);
    db.execute_in_batches("usage_prune", prune).await.map(drop)
}

/// The conditions of a query.
#[derive(Clone, Debug)]
pub(super) struct SumsQuery<'a> {
    pub(super) kind: &'static str,
    pub(super) from: Day,
    /// Included.
    pub(super) to: Day,
    /// Empty: no org.
    pub(super) org: Option<&'a str>,
    pub(super) workspace: Option<&'a str>,
    /// The root of a subtree of `org`.
    pub(super) within: Option<&'a WorkspaceIncarnation>,
}

impl SumsQuery<'_> {
    /// Returns the conditions as SQL, with their values.
    fn to_sql(&self) -> (String, Values) {
        let mut values = Values::default();
        let kind = values.bind(self.kind);
        let [from, to] = [values.bind(self.from.0), values.bind(self.to.0)];
        let mut text = format!("kind = {kind} AND day >= {from} AND day <= {to}");
        for (column, value) in [("org", self.org), ("workspace", self.workspace)] {
            if let Some(value) = value {
                let n = values.bind(value);
                // Writing to a string cannot fail.
                let _ = write!(text, " AND {column} = {n}");
            }
        }
        if let Some(root) = self.within {
            let [id, org] = [root.id.as_str(), self.org.unwrap_or_default()];
            let [id, org] = [id, org].map(|name| values.bind(name));
            let below = ids_below(&id, &values.bind(root.born_at), &org);
            let _ = write!(text, " AND workspace IN ({below})");
        }
        (text, values)
    }
}

/// Returns at most `limit` sums behind `after`: of each day, or with `whole` of all days together.
pub(super) async fn read_page(
    db: &Db,
    asked: &SumsQuery<'_>,
    whole: bool,
    after: Option<&Key>,
    limit: i64,
) -> Result<Vec<(Key, Sums)>, Unavailable> {
    let (mut conditions, mut values) = asked.to_sql();
    if let Some(after) = after {
        let [org, workspace] =
            [&after.org, &after.workspace].map(|name| values.bind(name.as_str()));
        let _ = if whole {
            write!(conditions, " AND (org, workspace) > ({org}, {workspace})")
        } else {
            let day = values.bind(after.day.0);
            write!(
                conditions,
                " AND (org, workspace, day) > ({org}, {workspace}, {day})"
            )
        };
    }
    let n = values.bind(limit);
    // The order of the primary key: a page is read from it, and ends at the limit.
    let text = if whole {
        let sums = SUMS.map(|sum| format!("CAST(SUM({sum}) AS BIGINT) AS {sum}"));
        format!(
            "SELECT org, workspace, CAST(0 AS BIGINT) AS day, {} FROM usage_days WHERE {conditions} \
             GROUP BY org, workspace ORDER BY org, workspace LIMIT {n}",
            sums.join(", ")
        )
    } else {
        format!(
            "SELECT org, workspace, day, {} FROM usage_days WHERE {conditions} \
             ORDER BY org, workspace, day LIMIT {n}",
            SUMS.join(", ")
        )
    };
    let work = async {
        let rows = values.into_query(text).fetch_all(db.pool()).await?;
        let read = |row: &AnyRow| {
            let key = Key {
                kind: asked.kind,
                org: row.try_get("org")?,
                workspace: row.try_get("workspace")?,
                day: Day(row.try_get("day")?),
            };
            Ok((key, Sums::from_row(row)?))
        };
        rows.iter().map(read).collect()
    };
    db.run("usage_page", work).await
}

/// Returns the sum of all that fits.
pub(super) async fn read_total(db: &Db, asked: &SumsQuery<'_>) -> Result<Sums, Unavailable> {
    let (conditions, values) = asked.to_sql();
    let all = SUMS.map(|sum| format!("CAST(COALESCE(SUM({sum}), 0) AS BIGINT) AS {sum}"));
    let text = format!(
        "SELECT {} FROM usage_days WHERE {conditions}",
        all.join(", ")
    );
    let work = async { Sums::from_row(&values.into_query(text).fetch_one(db.pool()).await?) };
    db.run("usage_total", work).await
}
