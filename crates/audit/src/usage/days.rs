//! The table `usage_days`: sums are added with the records that they count, read in pages, and deleted by age.

use std::fmt::Write as _;

use rusqlite::params_from_iter;
use rusqlite::types::Value as FileValue;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::super::filter::{encode_cursor, parse_cursor};
use super::super::record::clean_text;
use super::Day;
use super::cells::{add_cells, add_cells_to_file};
use super::sums::{BatchRows, Side, Sums};
use access::workspace::ids_below;
use kernel::closed_set::words;
use kernel::ids::WorkspaceIncarnation;
use stores::db::{BATCH_MAX, Connection, Db, Values};
use stores::store::Unavailable;

const SUMS: [&str; 8] = Sums::COLUMNS;

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
    BatchRows { days, cells }: &BatchRows,
) -> Result<(), rusqlite::Error> {
    add_cells_to_file(to, cells)?;
    if days.is_empty() {
        return Ok(());
    }
    let values = format!("VALUES (?, ?, ?, ?{})", ", ?".repeat(SUMS.len()));
    let mut add = to.prepare(&upsert_statement(&values))?;
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
    BatchRows { days, cells }: &BatchRows,
) -> Result<(), sqlx::Error> {
    add_cells(to, cells).await?;
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

words! {
    /// The span of one sum.
    UsageSpan {
        /// A day.
        Day => "day",
        /// All days that are asked for.
        Total => "total",
    }
}

/// The usage that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// The side.
    pub side: Side,
    /// True: a sum for each org. False: one for each workspace.
    pub by_org: bool,
    /// The span of a sum.
    pub per: UsageSpan,
    /// Only of this org; `Some("")`: of none.
    pub org: Option<String>,
    /// Only of this workspace, or of this kind of caller. Not with `by_org`.
    pub workspace: Option<String>,
    /// Only of the workspaces of the subtree of this one, as the hierarchy is now. Not with `by_org`; with `org`.
    pub within: Option<WorkspaceIncarnation>,
}

/// The position after which the next page begins: org, workspace and day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCursor(String, String, i64);

impl UsageCursor {
    /// Parses a cursor.
    pub fn parse(text: &str) -> Option<Self> {
        let cursor: Self = parse_cursor(text)?;
        // Databases refuse some of these characters, and no name has them.
        let is_plain = |name: &str| !name.chars().any(char::is_control);
        (is_plain(&cursor.0) && is_plain(&cursor.1)).then_some(cursor)
    }

    /// Returns the cursor.
    pub fn encode(&self) -> String {
        encode_cursor(self)
    }
}

/// One sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageLine {
    /// The day; `None`: all that are asked for.
    pub day: Option<Day>,
    /// The org; `None`: no org.
    pub org: Option<String>,
    /// The workspace, or the kind of another caller with a colon; `None`: all of the org.
    pub workspace: Option<String>,
    /// The sums.
    pub sums: Sums,
}

impl UsageQuery {
    /// Returns the conditions on sums of a kind as SQL, with their values.
    fn to_sql(&self, kind: &str) -> (String, Values) {
        let org = self.org.as_deref().map(|org| clean_text(org.into()));
        let mut values = Values::default();
        let kind = values.bind(kind);
        let [from, to] = [values.bind(self.from.0), values.bind(self.to.0)];
        let mut text = format!("kind = {kind} AND day >= {from} AND day <= {to}");
        for (column, value) in [
            ("org", org.as_deref()),
            ("workspace", self.workspace.as_deref()),
        ] {
            if let Some(value) = value {
                let n = values.bind(value);
                // Writing to a string cannot fail.
                let _ = write!(text, " AND {column} = {n}");
            }
        }
        if let Some(root) = &self.within {
            let [id, org] = [root.id.as_str(), org.as_deref().unwrap_or_default()];
            let [id, org] = [id, org].map(|name| values.bind(name));
            let below = ids_below(&id, &values.bind(root.born_at), &org);
            let _ = write!(text, " AND workspace IN ({below})");
        }
        (text, values)
    }
}

/// The stored sums.
#[derive(Clone)]
pub struct Usage {
    pub(super) db: Db,
}

impl Usage {
    /// Returns the sums of a database, without I/O.
    pub fn new(db: Db) -> Self {
        Self { db }
    }

    /// Returns at most `limit` sums behind `after`, by org, workspace and day, and the place of the next page.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_page(
        &self,
        wanted: &UsageQuery,
        after: Option<&UsageCursor>,
        limit: usize,
    ) -> Result<(Vec<UsageLine>, Option<UsageCursor>), Unavailable> {
        let (mut conditions, mut values) = wanted.to_sql(wanted.side.sum_kind(wanted.by_org));
        let is_whole = wanted.per == UsageSpan::Total;
        let day = if is_whole { "" } else { ", day" };
        if let Some(UsageCursor(org, workspace, last)) = after {
            let [org, workspace] = [org, workspace].map(|name| values.bind(name.as_str()));
            let last = match is_whole {
                true => String::new(),
                false => format!(", {}", values.bind(*last)),
            };
            let _ = write!(
                conditions,
                " AND (org, workspace{day}) > ({org}, {workspace}{last})"
            );
        }
        // One more shows whether there is a next page.
        let more = i64::try_from(limit).map_or(i64::MAX, |limit| limit.saturating_add(1));
        let n = values.bind(more);
        // The order of the primary key: a page is read from it, and ends at the limit.
        let (sums, group) = match is_whole {
            true => (
                SUMS.map(|sum| format!("CAST(SUM({sum}) AS BIGINT) AS {sum}")),
                "GROUP BY org, workspace ",
            ),
            false => (SUMS.map(str::to_owned), ""),
        };
        let text = format!(
            "SELECT org, workspace{day}, {} FROM usage_days WHERE {conditions} \
             {group}ORDER BY org, workspace{day} LIMIT {n}",
            sums.join(", ")
        );
        let work = async {
            let rows = values.into_query(text).fetch_all(self.db.pool()).await?;
            let line = |row: &AnyRow| {
                let day = (!is_whole)
                    .then(|| row.try_get("day").map(Day))
                    .transpose()?;
                let [org, workspace] = ["org", "workspace"].map(|name| row.try_get(name));
                let named = |name: String| Some(name).filter(|name| !name.is_empty());
                Ok(UsageLine {
                    day,
                    org: named(org?),
                    workspace: named(workspace?),
                    sums: Sums::from_row(row)?,
                })
            };
            rows.iter().map(line).collect()
        };
        let mut found: Vec<UsageLine> = self.db.run("usage_page", work).await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|line| {
            let named = |name: &Option<String>| name.clone().unwrap_or_default();
            UsageCursor(
                named(&line.org),
                named(&line.workspace),
                line.day.map_or(0, |day| day.0),
            )
        });
        Ok((found, next))
    }

    /// Returns the sum of all pages.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_total(&self, wanted: &UsageQuery) -> Result<Sums, Unavailable> {
        // The orgs have the same sum in fewer rows.
        let of_some = wanted.workspace.is_some() || wanted.within.is_some();
        let (conditions, values) = wanted.to_sql(wanted.side.sum_kind(wanted.by_org || !of_some));
        let all = SUMS.map(|sum| format!("CAST(COALESCE(SUM({sum}), 0) AS BIGINT) AS {sum}"));
        let text = format!(
            "SELECT {} FROM usage_days WHERE {conditions}",
            all.join(", ")
        );
        let query = values.into_query(text);
        let work = async { Sums::from_row(&query.fetch_one(self.db.pool()).await?) };
        self.db.run("usage_total", work).await
    }
}

#[cfg(test)]
mod query_tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was_given() {
        let after = UsageCursor("Acme, Ltd.".to_owned(), String::new(), 3);
        assert_eq!(UsageCursor::parse(&after.encode()), Some(after));
        let sly = encode_cursor(&("a\u{0}", "", 1));
        for bad in ["", "!", "AAAA", &sly] {
            assert_eq!(UsageCursor::parse(bad), None, "{bad}");
        }
    }
}
