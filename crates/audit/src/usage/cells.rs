//! Sums of calls by time, for charts: a cell for each workspace, org and all of them, and each minute, five minutes and
//! hour with a call (table `call_cells`). And what the last calls of each agent tell (table `call_troubles`).

use std::collections::{BTreeMap, HashMap};

use rusqlite::types::Value as FileValue;
use rusqlite::{OptionalExtension as _, params_from_iter};
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Usage;
use super::call::Call;
use kernel::closed_set::words;
use kernel::health::{CallResult, CallTrouble};
use kernel::time::Timestamp;
use stores::db::{BATCH_MAX, Connection, Db, Values};
use stores::store::Unavailable;

words! {
    /// The time of one cell.
    CellSpan {
        /// A minute.
        Minute => "minute",
        /// Five minutes.
        FiveMinutes => "five_minutes",
        /// An hour.
        Hour => "hour",
    }
}

impl CellSpan {
    /// Returns its seconds.
    pub const fn seconds(self) -> i64 {
        match self {
            Self::Minute => 60,
            Self::FiveMinutes => 300,
            Self::Hour => 3600,
        }
    }

    /// How long its cells are kept, in seconds.
    const fn kept(self) -> i64 {
        match self {
            Self::Minute => 3 * 3600,
            Self::FiveMinutes => 48 * 3600,
            Self::Hour => 30 * 24 * 3600,
        }
    }
}

/// The greatest durations that each bucket but the last counts, in milliseconds.
const BUCKETS: [i64; 11] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// The number of columns, and of those that are no buckets.
const WIDTH: usize = 19;
const COUNTS: usize = 7;

const COLUMNS: [&str; WIDTH] = [
    "answered",
    "agent_failed",
    "gateway_failed",
    "denied",
    "rejected",
    "left_early",
    "streams",
    "ms_5",
    "ms_10",
    "ms_25",
    "ms_50",
    "ms_100",
    "ms_250",
    "ms_500",
    "ms_1000",
    "ms_2500",
    "ms_5000",
    "ms_10000",
    "ms_more",
];

/// The cell of all calls.
const ALL: &str = "";

/// Begins the name of an org's cell; no workspace has a colon in its id.
const ORG: &str = "org:";

/// Sums of the calls of one cell: by result, then streams, then by duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell([i64; WIDTH]);

impl Cell {
    fn add_call(&mut self, call: &Call<'_>) {
        let result = call.result as usize;
        self.0[result] += call.count;
        self.0[COUNTS - 1] += if call.streams { call.count } else { 0 };
        // What the gateway decides itself would make agents look fast; a stream lasts as long as its task.
        let took_time = matches!(call.result, CallResult::Answered | CallResult::AgentFailed);
        if took_time && !call.streams {
            let bucket = BUCKETS.partition_point(|most| *most < call.duration_ms);
            self.0[COUNTS + bucket] += call.count;
        }
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns the number of calls of a result.
    pub const fn count_of(&self, result: CallResult) -> i64 {
        self.0[result as usize]
    }

    /// Returns the number of calls that opened a stream.
    pub const fn streams(&self) -> i64 {
        self.0[COUNTS - 1]
    }

    /// Returns the duration within which a part of the calls ended, in milliseconds, estimated within its bucket.
    /// `None`: no call has one.
    pub fn quantile_ms(&self, part: f64) -> Option<f64> {
        let counts = &self.0[COUNTS..];
        let all: i64 = counts.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (wanted, float) = (all as f64 * part, |n: i64| n as f64);
        let (mut before, mut low) = (0.0, 0.0);
        for (bucket, count) in counts.iter().enumerate() {
            let high = BUCKETS.get(bucket).map_or(low, |most| float(*most));
            if *count > 0 && before + float(*count) >= wanted {
                return Some(low + (high - low) * (wanted - before) / float(*count));
            }
            before += float(*count);
            low = high;
        }
        None
    }

    /// Reads the columns of a row.
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let mut cell = Self::default();
        for (sum, column) in cell.0.iter_mut().zip(COLUMNS) {
            *sum = row.try_get::<Option<i64>, _>(column)?.unwrap_or(0);
        }
        Ok(cell)
    }

    /// Zeros are no values, so a cell takes little room.
    fn values(&self) -> impl Iterator<Item = Option<i64>> {
        self.0.into_iter().map(|sum| (sum != 0).then_some(sum))
    }
}

/// One call, as far as it tells of its agent.
#[derive(Clone, Debug)]
struct Tell {
    at: i64,
    result: CallResult,
    outcome: Box<str>,
    status: i64,
}

/// The cells of a batch, and what its calls tell of their agents. In the order in which rows are written.
#[derive(Clone, Default)]
pub(in super::super) struct Cells {
    cells: BTreeMap<(i64, i64, String), Cell>,
    tells: BTreeMap<String, Vec<Tell>>,
}

/// The cells of a batch before the orgs of its targets are known: by minute and target.
#[derive(Default)]
pub(super) struct Minutes<'a> {
    cells: HashMap<(i64, Option<&'a str>), Cell>,
    tells: HashMap<&'a str, Vec<Tell>>,
}

impl<'a> Minutes<'a> {
    pub(super) fn add_call(&mut self, call: &Call<'a>, target: Option<&'a str>) {
        let minute = call.ms.div_euclid(60_000) * 60;
        self.cells
            .entry((minute, target))
            .or_default()
            .add_call(call);
        if let Some(target) = target {
            let is_busy = call.outcome == "agent_busy";
            // Nearly all are answered, and say no more: an empty text takes no memory.
            let is_plain = call.result == CallResult::Answered;
            let failure = if is_plain { "" } else { call.outcome };
            if is_busy || call.result.tells_of_agent(call.outcome) {
                self.tells.entry(target).or_default().push(Tell {
                    at: call.ms,
                    result: call.result,
                    outcome: failure.into(),
                    status: call.status,
                });
            }
        }
    }

    /// Returns the cells. `org_of`: the org of a target; `None`: it is no workspace, so it has no cell of its own.
    pub(super) fn into_cells<'o>(self, org_of: impl Fn(&str) -> Option<&'o str>) -> Cells {
        let mut all = Cells::default();
        for ((minute, target), cell) in self.cells {
            let known = target.and_then(|target| org_of(target).map(|org| (target, org)));
            let mut names = vec![ALL.to_owned()];
            if let Some((target, org)) = known {
                names.push(target.to_owned());
                names.extend((!org.is_empty()).then(|| format!("{ORG}{org}")));
            }
            for name in names {
                for span in CellSpan::ALL {
                    let seconds = span.seconds();
                    let key = (seconds, minute.div_euclid(seconds) * seconds, name.clone());
                    all.cells.entry(key).or_default().add(&cell);
                }
            }
        }
        let known = self
            .tells
            .into_iter()
            .filter(|(target, _)| org_of(target).is_some());
        all.tells = known
            .map(|(target, tells)| (target.to_owned(), tells))
            .collect();
        all
    }
}

fn upsert_cells(source: &str) -> String {
    let sums = COLUMNS.map(|sum| {
        format!("{sum} = NULLIF(COALESCE(call_cells.{sum}, 0) + COALESCE(excluded.{sum}, 0), 0)")
    });
    format!(
        "INSERT INTO call_cells (span, at, name, {}) {source} ON CONFLICT (span, at, name) DO UPDATE SET {}",
        COLUMNS.join(", "),
        sums.join(", ")
    )
}

const TROUBLE: &str = "workspace, recent, failed_since, last_failed, calls, failed, outcome, status, busy_at, ended_at";

fn upsert_troubles(source: &str) -> String {
    let columns = TROUBLE.split(", ").skip(1);
    let sums: Vec<_> = columns
        .map(|name| format!("{name} = excluded.{name}"))
        .collect();
    format!(
        "INSERT INTO call_troubles ({TROUBLE}) {source} ON CONFLICT (workspace) DO UPDATE SET {}",
        sums.join(", ")
    )
}

/// Adds what calls tell to what is known of their agent. `None`: there is nothing to write.
fn fold_tells(before: Option<CallTrouble>, tells: &[Tell]) -> Option<CallTrouble> {
    let mut trouble = before.clone().unwrap_or_default();
    for tell in tells {
        trouble.add_call(tell.result, &tell.outcome, tell.status, tell.at);
    }
    // An agent that answers has no row, and one that has answered for long has none to change.
    let before = before.unwrap_or_default();
    let is_news = (before.recent | trouble.recent) != 0
        || (before.busy_at, before.failed_since) != (trouble.busy_at, trouble.failed_since);
    is_news.then_some(trouble)
}

/// Adds cells in a transaction of the SQLite file.
pub(super) fn add_cells_to_file(
    to: &rusqlite::Transaction<'_>,
    all: &Cells,
) -> Result<(), rusqlite::Error> {
    if all.cells.is_empty() {
        return Ok(());
    }
    let places = ["?"; WIDTH + 3].join(", ");
    let mut add = to.prepare(&upsert_cells(&format!("VALUES ({places})")))?;
    for ((span, at, name), cell) in &all.cells {
        let key = [
            FileValue::Integer(*span),
            FileValue::Integer(*at),
            FileValue::Text(name.clone()),
        ];
        let sums = cell.values().map(FileValue::from);
        add.execute(params_from_iter(key.into_iter().chain(sums)))?;
    }
    let mut find = to.prepare(&format!(
        "SELECT {TROUBLE} FROM call_troubles WHERE workspace = ?"
    ))?;
    let mut put = to.prepare(&upsert_troubles("VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"))?;
    for (name, tells) in &all.tells {
        let before = find.query_row([name], |row| {
            Ok(CallTrouble {
                recent: row.get(1)?,
                failed_since: row.get(2)?,
                last_failed: row.get(3)?,
                calls: row.get(4)?,
                failed: row.get(5)?,
                outcome: row.get(6)?,
                status: row.get(7)?,
                busy_at: row.get(8)?,
                ended_at: row.get(9)?,
            })
        });
        if let Some(one) = fold_tells(before.optional()?, tells) {
            put.execute(rusqlite::params![
                name,
                one.recent,
                one.failed_since,
                one.last_failed,
                one.calls,
                one.failed,
                one.outcome,
                one.status,
                one.busy_at,
                one.ended_at,
            ])?;
        }
    }
    Ok(())
}

/// Adds cells in a transaction of PostgreSQL, with one statement for any number of them.
pub(super) async fn add_cells(to: &mut Connection, all: &Cells) -> Result<(), sqlx::Error> {
    if !all.cells.is_empty() {
        let rows = all.cells.iter().map(|((span, at, name), cell)| {
            let mut row = json!({"span": span, "at": at, "name": name});
            for (column, value) in COLUMNS.iter().zip(cell.values()) {
                if let Some(value) = value {
                    row[*column] = value.into();
                }
            }
            row
        });
        let rows: Vec<_> = rows.collect();
        let typed = COLUMNS.map(|column| format!("{column} INTEGER"));
        let source = format!(
            "SELECT span, at, name, {} FROM jsonb_to_recordset(CAST($1 AS JSONB)) \
             AS more (span INTEGER, at BIGINT, name TEXT, {})",
            COLUMNS.join(", "),
            typed.join(", ")
        );
        let query = sqlx::query(AssertSqlSafe(upsert_cells(&source)));
        query
            .bind(json!(rows).to_string())
            .execute(&mut *to)
            .await?;
    }
    if all.tells.is_empty() {
        return Ok(());
    }
    // In the order of names, as other replicas lock them.
    let text = format!(
        "SELECT {TROUBLE} FROM call_troubles WHERE workspace IN \
         (SELECT jsonb_array_elements_text(CAST($1 AS JSONB))) ORDER BY workspace FOR UPDATE"
    );
    let names: Vec<_> = all.tells.keys().collect();
    let query = sqlx::query(AssertSqlSafe(text)).bind(json!(names).to_string());
    let rows = query.fetch_all(&mut *to).await?;
    let rows = rows
        .iter()
        .map(read_trouble)
        .collect::<Result<HashMap<_, _>, _>>()?;
    let news = all.tells.iter().filter_map(|(name, tells)| {
        let one = fold_tells(rows.get(name).cloned(), tells)?;
        Some(json!({
            "workspace": name, "recent": one.recent, "failed_since": one.failed_since,
            "last_failed": one.last_failed, "calls": one.calls, "failed": one.failed, "outcome": one.outcome,
            "status": one.status, "busy_at": one.busy_at, "ended_at": one.ended_at,
        }))
    });
    let news: Vec<_> = news.collect();
    if news.is_empty() {
        return Ok(());
    }
    let source = format!(
        "SELECT {TROUBLE} FROM jsonb_to_recordset(CAST($1 AS JSONB)) AS more (workspace TEXT, recent BIGINT, \
         failed_since BIGINT, last_failed BIGINT, calls BIGINT, failed BIGINT, outcome TEXT, status BIGINT, \
         busy_at BIGINT, ended_at BIGINT)"
    );
    let query = sqlx::query(AssertSqlSafe(upsert_troubles(&source)));
    query
        .bind(json!(news).to_string())
        .execute(&mut *to)
        .await
        .map(drop)
}

fn read_trouble(row: &AnyRow) -> Result<(String, CallTrouble), sqlx::Error> {
    let trouble = CallTrouble {
        recent: row.try_get("recent")?,
        failed_since: row.try_get("failed_since")?,
        last_failed: row.try_get("last_failed")?,
        calls: row.try_get("calls")?,
        failed: row.try_get("failed")?,
        outcome: row.try_get("outcome")?,
        status: row.try_get("status")?,
        busy_at: row.try_get("busy_at")?,
        ended_at: row.try_get("ended_at")?,
    };
    Ok((row.try_get("workspace")?, trouble))
}

/// How long an agent that failed calls is remembered after the last of them, in milliseconds.
const TROUBLE_KEPT_MS: i64 = 7 * 24 * 3600 * 1000;

/// Deletes what is no longer kept, in batches.
pub(in super::super) async fn prune_cells(db: &Db) -> Result<(), Unavailable> {
    let now = Timestamp::now().0;
    for span in CellSpan::ALL {
        let text = "DELETE FROM call_cells WHERE (span, at, name) IN \
            (SELECT span, at, name FROM call_cells WHERE span = $1 AND at < $2 LIMIT $3)";
        let oldest = now / 1000 - span.kept();
        let prune = || {
            sqlx::query(text)
                .bind(span.seconds())
                .bind(oldest)
                .bind(BATCH_MAX)
        };
        db.execute_in_batches("cells_prune", prune).await?;
    }
    let old = sqlx::query("DELETE FROM call_troubles WHERE last_failed < $1 AND busy_at < $1");
    db.execute("troubles_prune", old.bind(now - TROUBLE_KEPT_MS))
        .await
        .map(drop)
}

/// The most agents whose troubles are read, the last ones first.
const TROUBLES_MAX: i64 = 2000;

/// The most workspaces of a list, those with the most failures first.
const LISTED_MAX: i64 = 200;

impl Usage {
    /// Returns what is known of agents that failed or refused calls, by workspace.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_troubles(&self) -> Result<HashMap<String, CallTrouble>, Unavailable> {
        let text =
            format!("SELECT {TROUBLE} FROM call_troubles ORDER BY last_failed DESC LIMIT $1");
        let query = sqlx::query(AssertSqlSafe(text)).bind(TROUBLES_MAX);
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().map(read_trouble).collect()
        };
        self.db.run("troubles", work).await
    }

    /// Returns the calls of the last five minutes, and those that the agent failed, of workspaces where the latter are
    /// a fifth of at least 20.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_failing(&self) -> Result<HashMap<String, (i64, i64)>, Unavailable> {
        let all = "SUM(COALESCE(answered, 0) + COALESCE(agent_failed, 0))";
        let failed = "SUM(COALESCE(agent_failed, 0))";
        let text = format!(
            "SELECT name, CAST({all} AS BIGINT) AS calls, CAST({failed} AS BIGINT) AS failed FROM call_cells \
             WHERE span = 60 AND at >= $1 AND name <> '' AND name NOT LIKE 'org:%' GROUP BY name \
             HAVING {all} >= 20 AND {failed} * 5 >= {all}"
        );
        let from = Timestamp::now().0 / 1000 - 300;
        let query = sqlx::query(AssertSqlSafe(text)).bind(from);
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            let read = |row: &AnyRow| {
                Ok((
                    row.try_get("name")?,
                    (row.try_get("calls")?, row.try_get("failed")?),
                ))
            };
            rows.iter().map(read).collect()
        };
        self.db.run("cells_failing", work).await
    }

    /// Returns the cells of a span from `from` (seconds since 1970) on, of a workspace, of an org, or of all calls.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_cells(
        &self,
        (span, from, steps): (CellSpan, i64, u32),
        workspace: Option<&str>,
        org: Option<&str>,
    ) -> Result<Vec<(i64, Cell)>, Unavailable> {
        let name = match (workspace, org) {
            (Some(id), _) => id.to_owned(),
            (None, Some(org)) => format!("{ORG}{org}"),
            (None, None) => ALL.to_owned(),
        };
        // Look-ups by the whole key: the cells of one name are far apart.
        let mut values = Values::default();
        let (name, seconds) = (values.bind(name), values.bind(span.seconds()));
        let times = (0..i64::from(steps)).map(|step| values.bind(from + step * span.seconds()));
        let times: Vec<_> = times.collect();
        let text = format!(
            "SELECT at, {} FROM call_cells WHERE span = {seconds} AND name = {name} AND at IN ({}) ORDER BY at",
            columns_as_numbers(),
            times.join(", ")
        );
        let work = async {
            let rows = values.into_query(text).fetch_all(self.db.pool()).await?;
            let read = |row: &AnyRow| Ok((row.try_get("at")?, Cell::from_row(row)?));
            rows.iter().map(read).collect()
        };
        self.db.run("cells", work).await
    }

    /// Returns the sums of workspaces from `from` (seconds since 1970) on, those with the most failures first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_workspace_cells(
        &self,
        span: CellSpan,
        from: i64,
    ) -> Result<Vec<(String, Cell)>, Unavailable> {
        let sums = COLUMNS.map(|column| format!("CAST(SUM({column}) AS BIGINT) AS {column}"));
        let text = format!(
            "SELECT name, {} FROM call_cells WHERE span = $1 AND at >= $2 AND name <> '' AND name NOT LIKE 'org:%' \
             GROUP BY name ORDER BY COALESCE(SUM(agent_failed), 0) DESC, COALESCE(SUM(answered), 0) DESC, name LIMIT $3",
            sums.join(", ")
        );
        let query = sqlx::query(AssertSqlSafe(text));
        let query = query.bind(span.seconds()).bind(from).bind(LISTED_MAX);
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            let read = |row: &AnyRow| Ok((row.try_get("name")?, Cell::from_row(row)?));
            rows.iter().map(read).collect()
        };
        self.db.run("cells_by_workspace", work).await
    }
}

fn columns_as_numbers() -> String {
    let columns = COLUMNS.map(|column| format!("CAST({column} AS BIGINT) AS {column}"));
    columns.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(outcome: &str, status: i64, at: i64) -> Tell {
        let result = CallResult::of_record(outcome, status);
        Tell {
            at,
            result,
            outcome: outcome.into(),
            status,
        }
    }

    #[test]
    fn only_agents_that_failed_have_a_row() {
        let good = tell("answered", 200, 1);
        assert_eq!(fold_tells(None, &[good.clone(), good.clone()]), None);
        let failed = fold_tells(None, &[good.clone(), tell("answered", 503, 2)]).unwrap();
        assert_eq!((failed.failed, failed.failed_since), (1, 2));
        let again = vec![good; 5];
        let well = fold_tells(Some(failed), &again).unwrap();
        assert_eq!(well.recent, 0);
        assert_eq!(fold_tells(Some(well.clone()), &again), None);
        // One that failed and was well again within one batch is remembered.
        let mut short = again.clone();
        short.insert(0, tell("agent_timeout", 504, 9));
        assert_eq!(fold_tells(Some(well), &short).unwrap().failed_since, 9);
    }

    #[test]
    fn quantiles_are_estimated_within_their_bucket() {
        let mut cell = Cell::default();
        assert_eq!(cell.quantile_ms(0.5), None);
        cell.0[COUNTS + 4] = 100;
        assert_eq!(cell.quantile_ms(0.5), Some(75.0));
        cell.0[WIDTH - 1] = 900;
        assert_eq!(cell.quantile_ms(0.95), Some(10_000.0));
    }
}
