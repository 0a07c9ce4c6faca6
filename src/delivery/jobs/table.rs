//! Queries on the table `delegations`. The SQL is in [`sql`](super::sql).

use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::job::{Content, Job, Kind, NewJob, State, Task};
use super::sql::{
    ANY_DUE, ANY_LOST, ANY_OVERDUE, BACKLOG, CALLERS, CANCEL, CLAIM, DISPATCH, END_LEASES, FIND,
    FIND_KEY, FINISH, IN_INBOX, INSERT, LIST, LIST_SIZES, LOST, OVERDUE, PARK, PURGE, PUT_BACK,
    RENEW, TAKE_UNTOLD, TOLD, UNPARK, UNTOLD, WAITING, WAITING_FOR,
};
use crate::db::Db;
use crate::delivery::backlog::Backlog;
use crate::delivery::kept_bytes::KeptBytes;
use crate::delivery::page::count_fitting;
use crate::identity::stored_account;
use crate::ids::WorkspaceId;
use crate::shares::Amounts;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// The rows to claim.
#[derive(Clone, Copy)]
pub(super) enum Claim {
    /// Jobs to be sent now.
    Due,
    /// Jobs that expired before anything was sent.
    Overdue,
    /// Jobs that were sent by a replica that crashed.
    Lost,
}

/// The table `delegations`.
pub(super) struct Table {
    db: Db,
}

impl Table {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// True if this process is the only one that uses the table.
    pub(super) fn is_alone(&self) -> bool {
        self.db.is_embedded()
    }

    /// Inserts a job. False if its owner or its target has `unfinished_max` jobs already, its caller has its share of
    /// the target's, its idempotency key is in use, or there is no room for its bytes.
    pub(super) async fn insert(
        &self,
        (id, now): (&str, Timestamp),
        new: &NewJob,
        unfinished_max: i64,
        bytes: &KeptBytes,
    ) -> Result<bool, Unavailable> {
        if !self.within_share(new, unfinished_max).await? {
            return Ok(false);
        }
        let (task, call) = match &new.content {
            Content::Task(task) => (Some(task), None),
            Content::Call(call) => (None, serde_json::to_string(call).ok()),
        };
        let is_told_apart = stored_account(&new.caller).own != 0;
        let share_of = if is_told_apart {
            unfinished_max
        } else {
            i64::from(u32::MAX)
        };
        let kept = text_bytes(task.map(|task| task.text.as_str())) + text_bytes(call.as_deref());
        let adding = bytes.announce_bytes(&new.owner, kept);
        let client = task.and_then(|task| task.client);
        let run = task.and_then(|task| task.run.as_ref());
        let run = run.and_then(|run| serde_json::to_string(run).ok());
        let query = sqlx::query(INSERT)
            .bind(id)
            .bind(new.kind().as_str())
            .bind(&new.owner)
            .bind(&new.caller)
            .bind(new.source.as_ref().map(WorkspaceId::as_str))
            .bind(new.target.as_str())
            .bind(task.map(|task| task.text.as_str()))
            .bind(call)
            .bind(new.idempotency_key.as_deref())
            .bind(new.priority)
            .bind(now.0)
            .bind(now.after(new.patience).0)
            .bind(unfinished_max)
            .bind(kept)
            .bind(adding.limit)
            .bind(task.map_or(1, |task| i64::from(task.hops)))
            .bind(client.map(|client| client.to_string()))
            .bind(run)
            .bind(share_of);
        let inserted = self.db.execute("job_insert", query).await? > 0;
        if inserted {
            bytes.count_added(kept);
        }
        Ok(inserted)
    }

    /// True if one more job is within the share of its caller among the unfinished ones for its target.
    pub(super) async fn within_share(&self, new: &NewJob, max: i64) -> Result<bool, Unavailable> {
        let query = sqlx::query_as(CALLERS).bind(new.target.as_str());
        let rows = self.db.run("job_callers", query.fetch_all(self.db.pool()));
        let rows: Vec<(String, i64)> = rows.await?;
        let mut callers = Amounts::default();
        for (caller, jobs) in rows {
            callers.add_rows(stored_account(&caller), jobs);
        }
        Ok(callers.has_share(stored_account(&new.caller), max))
    }

    /// Returns the backlog of unsent jobs of all callers.
    pub(super) async fn read_backlog(&self) -> Result<Backlog, Unavailable> {
        let work = async {
            let row = sqlx::query(BACKLOG).fetch_one(self.db.pool()).await?;
            let oldest: Option<i64> = row.try_get("oldest")?;
            Ok(Backlog {
                entries: row.try_get("entries")?,
                oldest: oldest.map(Timestamp),
            })
        };
        self.db.run("job_backlog", work).await
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<Job>, Unavailable> {
        self.fetch_job("job_find", sqlx::query(FIND).bind(id)).await
    }

    /// Finds the job of an idempotency key, except one that failed or expired.
    pub(super) async fn find_key(
        &self,
        kind: Kind,
        owner: &str,
        key: &str,
    ) -> Result<Option<Job>, Unavailable> {
        let query = sqlx::query(FIND_KEY)
            .bind(kind.as_str())
            .bind(owner)
            .bind(key);
        self.fetch_job("job_find_key", query).await
    }

    /// Returns delegations of `owner` before the id `before`, newest first, and whether there are more. At
    /// most `limit`; fewer, and at least one, when they are large.
    pub(super) async fn list(
        &self,
        owner: &str,
        before: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, bool), Unavailable> {
        let select = |text: &'static str, limit: i64| {
            let query = sqlx::query(text).bind(owner).bind(before);
            query.bind(limit)
        };
        let work = async {
            let sizes = select(LIST_SIZES, i64::from(limit) + 1);
            let sizes = sizes.fetch_all(self.db.pool()).await?;
            let size = |row: &AnyRow| row.try_get("bytes");
            let sizes = sizes.iter().map(size).collect::<Result<Vec<_>, _>>()?;
            let count = count_fitting(&sizes, limit);
            let rows = select(LIST, i64::try_from(count).unwrap_or(i64::MAX));
            let rows = rows.fetch_all(self.db.pool()).await?;
            Ok((read_jobs(&rows), count < sizes.len()))
        };
        self.db.run("job_list", work).await
    }

    /// Claims at most `limit` jobs until `until`, unless the lease is renewed; the greatest priority first,
    /// then the oldest.
    pub(super) async fn claim(
        &self,
        what: Claim,
        now: Timestamp,
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<Job>, Unavailable> {
        let (any, text) = match what {
            Claim::Due => (ANY_DUE, CLAIM),
            Claim::Overdue => (ANY_OVERDUE, OVERDUE),
            Claim::Lost => (ANY_LOST, LOST),
        };
        let text = self.passing_by_locked(text);
        let any = sqlx::query(any).bind(now.0);
        let claim = sqlx::query(AssertSqlSafe(text)).bind(until.0).bind(now.0);
        let claim = claim.bind(i64::from(limit));
        let work = async {
            if any.fetch_optional(self.db.pool()).await?.is_none() {
                return Ok(Vec::new());
            }
            let mut claimed = read_jobs(&claim.fetch_all(self.db.pool()).await?);
            claimed.sort_by(|one, other| {
                let age = (one.created_at, &one.id).cmp(&(other.created_at, &other.id));
                other.priority.cmp(&one.priority).then(age)
            });
            Ok(claimed)
        };
        self.db.run("job_claim", work).await
    }

    /// Skips locked rows: two replicas that claim at the same moment take different rows and do not wait for
    /// each other's locks. SQLite has one writer at a time.
    fn passing_by_locked(&self, [before, after]: [&str; 2]) -> String {
        let lock = if self.db.is_embedded() {
            ""
        } else {
            " FOR UPDATE SKIP LOCKED"
        };
        format!("{before}{lock}{after}")
    }

    /// Records that the call is about to leave. False: another holder has claimed it, or it was given up.
    pub(super) async fn mark_dispatched(
        &self,
        job: &Job,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(DISPATCH).bind(&job.id).bind(job.fence);
        let query = query.bind(until.0).bind(now.0);
        Ok(self.db.execute("job_dispatch", query).await? > 0)
    }

    /// Renews a lease. False: another holder has claimed the job.
    pub(super) async fn renew(&self, job: &Job, until: Timestamp) -> Result<bool, Unavailable> {
        let query = sqlx::query(RENEW)
            .bind(&job.id)
            .bind(job.fence)
            .bind(until.0);
        Ok(self.db.execute("job_renew", query).await? > 0)
    }

    /// Makes a job due again at `due_at`, since nothing was delivered.
    pub(super) async fn put_back(
        &self,
        job: &Job,
        due_at: Timestamp,
        tried: bool,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(PUT_BACK).bind(&job.id).bind(job.fence);
        let query = query.bind(due_at.0).bind(i64::from(tried)).bind(now.0);
        self.db.execute("job_put_back", query).await.map(drop)
    }

    /// Makes all jobs for `target` due no earlier than `until`.
    pub(super) async fn park_target(
        &self,
        target: &WorkspaceId,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(PARK)
            .bind(target.as_str())
            .bind(until.0)
            .bind(now.0);
        self.db.execute("job_park", query).await.map(drop)
    }

    /// Makes all jobs for `target` due now.
    pub(super) async fn unpark_target(
        &self,
        target: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(UNPARK).bind(target.as_str()).bind(now.0);
        self.db.execute("job_unpark", query).await.map(drop)
    }

    /// Returns the job as it is afterwards; `None`: another holder has claimed it. A result that is not
    /// delivered by `tell_at` is [undelivered](Self::list_undelivered).
    pub(super) async fn finish_job(
        &self,
        job: &Job,
        (state, result, error): (State, Option<String>, Option<String>),
        now: Timestamp,
        tell_at: Timestamp,
    ) -> Result<Option<Job>, Unavailable> {
        let kept = text_bytes(result.as_deref()) + text_bytes(error.as_deref());
        let query = sqlx::query(FINISH)
            .bind(&job.id)
            .bind(job.fence)
            .bind(state.as_str())
            .bind(result)
            .bind(error)
            .bind(now.0)
            .bind(tell_at.0)
            .bind(kept);
        self.fetch_job("job_finish", query).await
    }

    /// Records that the job is in the target's inbox, as `task`: the lease ends, and the job ends with that
    /// task.
    pub(super) async fn record_in_inbox(
        &self,
        job: &Job,
        task: &str,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(IN_INBOX)
            .bind(&job.id)
            .bind(job.fence)
            .bind(task)
            .bind(now.0);
        Ok(self.db.execute("job_in_inbox", query).await? > 0)
    }

    /// Returns the jobs that wait for a task in an inbox, beyond the id `after`, and the id to continue from:
    /// empty at the end.
    pub(super) async fn list_waiting(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, String), Unavailable> {
        let query = sqlx::query(WAITING).bind(after).bind(i64::from(limit));
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            let full = usize::try_from(limit).is_ok_and(|limit| limit <= rows.len());
            let next = match rows.last().filter(|_| full) {
                Some(last) => last.try_get("id")?,
                None => String::new(),
            };
            Ok((read_jobs(&rows), next))
        };
        self.db.run("job_waiting", work).await
    }

    /// Returns the job that waits for this task.
    pub(super) async fn waiting_for(&self, task: &str) -> Result<Option<Job>, Unavailable> {
        self.fetch_job("job_waiting_for", sqlx::query(WAITING_FOR).bind(task))
            .await
    }

    /// Returns the job as it is afterwards; `None`: it is not pending.
    pub(super) async fn cancel(
        &self,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<Job>, Unavailable> {
        let query = sqlx::query(CANCEL).bind(id).bind(now.0);
        self.fetch_job("job_cancel", query).await
    }

    async fn fetch_job(
        &self,
        operation: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<Option<Job>, Unavailable> {
        let work = async {
            let row = self.db.fetch_changed(query).await?;
            row.as_ref().map(read_job).transpose()
        };
        self.db.run(operation, work).await
    }

    /// Returns the ids of jobs with a result to deliver to the delegator now; the longest waiting first.
    pub(super) async fn list_undelivered(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<String>, Unavailable> {
        let query = sqlx::query(UNTOLD).bind(now.0).bind(i64::from(limit));
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().map(|row| row.try_get("id")).collect()
        };
        self.db.run("job_untold", work).await
    }

    /// Claims one of those and puts it off, by `pause_max` at most. `None`: another replica has claimed it.
    pub(super) async fn take_undelivered(
        &self,
        id: &str,
        now: Timestamp,
        pause_max: Duration,
    ) -> Result<Option<Job>, Unavailable> {
        let pause_max = i64::try_from(pause_max.as_millis()).unwrap_or(i64::MAX);
        let query = sqlx::query(TAKE_UNTOLD).bind(id).bind(now.0);
        self.fetch_job("job_take_untold", query.bind(pause_max))
            .await
    }

    pub(super) async fn mark_delivered(&self, id: &str) -> Result<(), Unavailable> {
        let query = sqlx::query(TOLD).bind(id);
        self.db.execute("job_told", query).await.map(drop)
    }

    /// Ends leases that end before `until`, since their holder is gone.
    pub(super) async fn end_leases(&self, until: Timestamp) -> Result<(), Unavailable> {
        let query = sqlx::query(END_LEASES).bind(until.0);
        self.db.execute("job_end_leases", query).await.map(drop)
    }

    /// Deletes at most `limit` ended jobs, and returns their number.
    pub(super) async fn purge_ended(
        &self,
        before: Timestamp,
        limit: u32,
    ) -> Result<u64, Unavailable> {
        let text = self.passing_by_locked(PURGE);
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(before.0)
            .bind(i64::from(limit));
        self.db.execute("job_purge", query).await
    }
}

fn text_bytes(text: Option<&str>) -> i64 {
    i64::try_from(text.map_or(0, str::len)).unwrap_or(i64::MAX)
}

/// Parses rows. One that cannot be read is left out.
fn read_jobs(rows: &[AnyRow]) -> Vec<Job> {
    let read = |row: &AnyRow| {
        let read = read_job(row);
        if let Err(error) = &read {
            let id: String = row.try_get("id").unwrap_or_default();
            tracing::error!(job = id, error = %Chain(error), "unreadable job row; skipped");
        }
        read.ok()
    };
    rows.iter().filter_map(read).collect()
}

fn read_job(row: &AnyRow) -> Result<Job, sqlx::Error> {
    let (task, call): (Option<String>, Option<String>) =
        (row.try_get("task")?, row.try_get("call")?);
    let content = match (task, call) {
        (Some(text), _) => {
            let hops: i64 = row.try_get("hops")?;
            let client: Option<String> = row.try_get("client")?;
            let run: Option<String> = row.try_get("run")?;
            Content::Task(Task {
                text,
                hops: u32::try_from(hops).unwrap_or(u32::MAX),
                client: client.and_then(|client| client.parse().ok()),
                run: run.as_deref().map(parse_json).transpose()?,
            })
        }
        (None, call) => Content::Call(parse_json(call.as_deref().unwrap_or_default())?),
    };
    let raw = |column: &str| -> Result<_, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        text.as_deref().map(parse_json).transpose()
    };
    let source: Option<String> = row.try_get("source_id")?;
    Ok(Job {
        id: row.try_get("id")?,
        kind: require_word(Kind::parse(row.try_get("kind")?))?,
        owner: row.try_get("owner")?,
        caller: row.try_get("caller")?,
        source: source.as_deref().map(parse_workspace).transpose()?,
        target: parse_workspace(row.try_get("target_id")?)?,
        content,
        state: require_word(State::parse(row.try_get("state")?))?,
        priority: row.try_get("priority")?,
        attempts: row.try_get("attempts")?,
        deadline: Timestamp(row.try_get("deadline")?),
        inbox_task: row.try_get("inbox_task")?,
        result: raw("result")?,
        error: raw("error")?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
        fence: row.try_get("fence")?,
    })
}

fn parse_workspace(id: &str) -> Result<WorkspaceId, sqlx::Error> {
    WorkspaceId::parse(id).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn require_word<T>(parsed: Option<T>) -> Result<T, sqlx::Error> {
    parsed.ok_or_else(|| sqlx::Error::Decode("an unknown word".into()))
}

fn parse_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
