//! The table `delegations`: all of its SQL.

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::job::{Content, Job, Kind, NewJob, State};
use crate::db::Db;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

/// The columns of [`Job`], in no order that matters.
macro_rules! columns {
    () => {
        "id, kind, owner, caller, source_id, target_id, task, call, state, priority, attempts, \
         deadline, inbox_task, result, error, created_at, updated_at, fence"
    };
}

// The bounds are counted in the same statement: several at once on several replicas may go beyond them by as
// many as they are.
const INSERT: &str = "INSERT INTO delegations (id, kind, owner, caller, source_id, target_id, task, call, \
    idempotency_key, state, priority, due_at, deadline, created_at, updated_at) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11, $12, $11, $11 \
    WHERE (SELECT COUNT(*) FROM delegations \
        WHERE owner = $3 AND state IN ('pending', 'dispatched')) < $13 \
    AND (SELECT COUNT(*) FROM delegations \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) < $13 \
    ON CONFLICT DO NOTHING";

const FIND: &str = concat!("SELECT ", columns!(), " FROM delegations WHERE id = $1");

const FIND_KEY: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE kind = $1 AND owner = $2 AND idempotency_key = $3 \
     AND state NOT IN ('failed', 'expired')"
);

const LIST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE owner = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) \
     ORDER BY id DESC LIMIT $3"
);

// Looked at first, so that a second in which nothing is due writes nothing.
const ANY_DUE: &str = "SELECT id FROM delegations \
    WHERE state = 'pending' AND due_at <= $1 AND leased_until <= $1 LIMIT 1";

const CLAIM: [&str; 2] = [
    "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
     WHERE id IN (SELECT id FROM delegations WHERE state = 'pending' AND due_at <= $2 AND leased_until <= $2 \
         AND deadline > $2 ORDER BY priority DESC, created_at, id LIMIT $3",
    concat!(
        ") AND state = 'pending' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

const DISPATCH: &str = "UPDATE delegations \
    SET state = 'dispatched', attempts = attempts + 1, leased_until = $3, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

const RENEW: &str = "UPDATE delegations SET leased_until = $3 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

const PUT_BACK: &str = "UPDATE delegations \
    SET state = 'pending', leased_until = 0, due_at = $3, attempts = attempts + $4, updated_at = $5 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

const PARK: &str = "UPDATE delegations SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND leased_until <= $3 AND due_at < $2";

const UNPARK: &str = "UPDATE delegations SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND due_at > $2";

const FINISH: &str = concat!(
    "UPDATE delegations SET state = $3, result = $4, error = $5, leased_until = 0, updated_at = $6, \
     untold = CASE WHEN kind = 'delegation' THEN 1 ELSE 0 END \
     WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched') RETURNING ",
    columns!()
);

const IN_INBOX: &str = "UPDATE delegations SET inbox_task = $3, leased_until = 0 \
    WHERE id = $1 AND fence = $2 AND state = 'dispatched'";

const WAITING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE state = 'dispatched' AND inbox_task IS NOT NULL AND id > $1 \
     ORDER BY id LIMIT $2"
);

const WAITING_FOR: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE state = 'dispatched' AND inbox_task = $1"
);

// Whoever held it before can write nothing any more.
const OVERDUE: [&str; 2] = [
    "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
     WHERE id IN (SELECT id FROM delegations WHERE state = 'pending' AND deadline <= $2 AND leased_until <= $2 \
         LIMIT $3",
    concat!(
        ") AND state = 'pending' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

const ANY_OVERDUE: &str = "SELECT id FROM delegations \
    WHERE state = 'pending' AND deadline <= $1 AND leased_until <= $1 LIMIT 1";

const LOST: [&str; 2] = [
    "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
     WHERE id IN (SELECT id FROM delegations WHERE state = 'dispatched' AND leased_until <= $2 \
         AND inbox_task IS NULL LIMIT $3",
    concat!(
        ") AND state = 'dispatched' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

const ANY_LOST: &str = "SELECT id FROM delegations \
    WHERE state = 'dispatched' AND leased_until <= $1 AND inbox_task IS NULL LIMIT 1";

const CANCEL: &str = concat!(
    "UPDATE delegations SET state = 'canceled', fence = fence + 1, leased_until = 0, updated_at = $2 \
     WHERE id = $1 AND state = 'pending' RETURNING ",
    columns!()
);

const UNTOLD: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE untold = 1 AND updated_at <= $1 ORDER BY updated_at LIMIT $2"
);

const TOLD: &str = "UPDATE delegations SET untold = 0 WHERE id = $1";

const END_LEASES: &str = "UPDATE delegations SET leased_until = 0 \
    WHERE leased_until > 0 AND leased_until < $1 AND state IN ('pending', 'dispatched')";

const PURGE: [&str; 2] = [
    "DELETE FROM delegations WHERE id IN (SELECT id FROM delegations \
     WHERE state NOT IN ('pending', 'dispatched') AND untold = 0 AND updated_at < $1 LIMIT $2",
    ")",
];

/// What is claimed, and why.
#[derive(Clone, Copy)]
pub(super) enum Claim {
    /// To be sent now.
    Due,
    /// Its deadline has passed, and nothing was sent.
    Overdue,
    /// It was sent by someone who is gone.
    Lost,
}

/// The table.
pub(super) struct Table {
    db: Db,
}

impl Table {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Whether nobody but this process can work on it.
    pub(super) fn is_alone(&self) -> bool {
        self.db.is_embedded()
    }

    /// Whether it was written: not if there are `unfinished_max` of its owner or for its target already, nor
    /// if its key is taken.
    pub(super) async fn insert(
        &self,
        id: &str,
        new: &NewJob,
        now: Timestamp,
        unfinished_max: i64,
    ) -> Result<bool, Unavailable> {
        let (task, call) = match &new.content {
            Content::Task(task) => (Some(task.as_str()), None),
            Content::Call(call) => (None, serde_json::to_string(call).ok()),
        };
        let query = sqlx::query(INSERT)
            .bind(id)
            .bind(new.kind().word())
            .bind(&new.owner)
            .bind(&new.caller)
            .bind(new.source.as_ref().map(WorkspaceId::as_str))
            .bind(new.target.as_str())
            .bind(task)
            .bind(call)
            .bind(new.idempotency_key.as_deref())
            .bind(new.priority)
            .bind(now.0)
            .bind(now.after(new.patience).0)
            .bind(unfinished_max);
        let work = async { Ok(query.execute(self.db.pool()).await?.rows_affected() > 0) };
        self.db.run("job_insert", work).await
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<Job>, Unavailable> {
        self.one("job_find", sqlx::query(FIND).bind(id)).await
    }

    /// What `key` names: not what failed or expired.
    pub(super) async fn find_key(
        &self,
        kind: Kind,
        owner: &str,
        key: &str,
    ) -> Result<Option<Job>, Unavailable> {
        let query = sqlx::query(FIND_KEY)
            .bind(kind.word())
            .bind(owner)
            .bind(key);
        self.one("job_find_key", query).await
    }

    /// Delegations of `owner` before the id `before`, newest first.
    pub(super) async fn list(
        &self,
        owner: &str,
        before: &str,
        limit: u32,
    ) -> Result<Vec<Job>, Unavailable> {
        let query = sqlx::query(LIST)
            .bind(owner)
            .bind(before)
            .bind(i64::from(limit));
        let work = async { jobs(&query.fetch_all(self.db.pool()).await?) };
        self.db.run("job_list", work).await
    }

    /// Takes at most `limit` for whoever asks, until `until` unless it is renewed; the greatest priority
    /// first, then the oldest.
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
            let mut claimed = jobs(&claim.fetch_all(self.db.pool()).await?)?;
            claimed.sort_by(|one, other| {
                let age = (one.created_at, &one.id).cmp(&(other.created_at, &other.id));
                other.priority.cmp(&one.priority).then(age)
            });
            Ok(claimed)
        };
        self.db.run("job_claim", work).await
    }

    /// Two replicas that look at the same moment take different rows, and wait for no lock of the other's.
    /// SQLite has one writer at a time.
    fn passing_by_locked(&self, [before, after]: [&str; 2]) -> String {
        let lock = if self.db.is_embedded() {
            ""
        } else {
            " FOR UPDATE SKIP LOCKED"
        };
        format!("{before}{lock}{after}")
    }

    /// The call is about to leave. False: somebody else has it, or it was given up.
    pub(super) async fn dispatch(
        &self,
        job: &Job,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(DISPATCH).bind(&job.id).bind(job.fence);
        let query = query.bind(until.0).bind(now.0);
        let work = async { Ok(query.execute(self.db.pool()).await?.rows_affected() > 0) };
        self.db.run("job_dispatch", work).await
    }

    /// False: somebody else has it.
    pub(super) async fn renew(&self, job: &Job, until: Timestamp) -> Result<bool, Unavailable> {
        let query = sqlx::query(RENEW)
            .bind(&job.id)
            .bind(job.fence)
            .bind(until.0);
        let work = async { Ok(query.execute(self.db.pool()).await?.rows_affected() > 0) };
        self.db.run("job_renew", work).await
    }

    /// Nothing was delivered: it is due again at `due_at`.
    pub(super) async fn put_back(
        &self,
        job: &Job,
        due_at: Timestamp,
        tried: bool,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(PUT_BACK).bind(&job.id).bind(job.fence);
        let query = query.bind(due_at.0).bind(i64::from(tried)).bind(now.0);
        let work = async { query.execute(self.db.pool()).await.map(drop) };
        self.db.run("job_put_back", work).await
    }

    /// Nothing for `target` is due before `until`.
    pub(super) async fn park(
        &self,
        target: &WorkspaceId,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(PARK)
            .bind(target.as_str())
            .bind(until.0)
            .bind(now.0);
        let work = async { query.execute(self.db.pool()).await.map(drop) };
        self.db.run("job_park", work).await
    }

    /// Everything for `target` is due now.
    pub(super) async fn unpark(
        &self,
        target: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(UNPARK).bind(target.as_str()).bind(now.0);
        let work = async { query.execute(self.db.pool()).await.map(drop) };
        self.db.run("job_unpark", work).await
    }

    /// The job as it is afterwards; `None`: somebody else has it.
    pub(super) async fn finish(
        &self,
        job: &Job,
        (state, result, error): (State, Option<String>, Option<String>),
        now: Timestamp,
    ) -> Result<Option<Job>, Unavailable> {
        let query = sqlx::query(FINISH)
            .bind(&job.id)
            .bind(job.fence)
            .bind(state.word())
            .bind(result)
            .bind(error)
            .bind(now.0);
        self.one("job_finish", query).await
    }

    /// It is in the target's inbox, as `task`: nobody holds it, and it is over when that is.
    pub(super) async fn in_inbox(&self, job: &Job, task: &str) -> Result<bool, Unavailable> {
        let query = sqlx::query(IN_INBOX)
            .bind(&job.id)
            .bind(job.fence)
            .bind(task);
        let work = async { Ok(query.execute(self.db.pool()).await?.rows_affected() > 0) };
        self.db.run("job_in_inbox", work).await
    }

    /// Those that wait for a task in an inbox, beyond the id `after`.
    pub(super) async fn waiting(&self, after: &str, limit: u32) -> Result<Vec<Job>, Unavailable> {
        let query = sqlx::query(WAITING).bind(after).bind(i64::from(limit));
        let work = async { jobs(&query.fetch_all(self.db.pool()).await?) };
        self.db.run("job_waiting", work).await
    }

    /// The one that waits for this task.
    pub(super) async fn waiting_for(&self, task: &str) -> Result<Option<Job>, Unavailable> {
        self.one("job_waiting_for", sqlx::query(WAITING_FOR).bind(task))
            .await
    }

    /// The job as it is afterwards; `None`: it is not pending.
    pub(super) async fn cancel(
        &self,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<Job>, Unavailable> {
        let query = sqlx::query(CANCEL).bind(id).bind(now.0);
        self.one("job_cancel", query).await
    }

    async fn one(
        &self,
        operation: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<Option<Job>, Unavailable> {
        let work = async {
            let row = query.fetch_optional(self.db.pool()).await?;
            row.as_ref().map(job).transpose()
        };
        self.db.run(operation, work).await
    }

    /// Ended before `before`, and their delegators don't know.
    pub(super) async fn untold(
        &self,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<Job>, Unavailable> {
        let query = sqlx::query(UNTOLD).bind(before.0).bind(i64::from(limit));
        let work = async { jobs(&query.fetch_all(self.db.pool()).await?) };
        self.db.run("job_untold", work).await
    }

    pub(super) async fn told(&self, id: &str) -> Result<(), Unavailable> {
        let query = sqlx::query(TOLD).bind(id);
        let work = async { query.execute(self.db.pool()).await.map(drop) };
        self.db.run("job_told", work).await
    }

    /// Whoever took a lease that ends before `until` is gone.
    pub(super) async fn end_leases(&self, until: Timestamp) -> Result<(), Unavailable> {
        let query = sqlx::query(END_LEASES).bind(until.0);
        let work = async { query.execute(self.db.pool()).await.map(drop) };
        self.db.run("job_end_leases", work).await
    }

    /// How many were forgotten: at most `limit`.
    pub(super) async fn purge(&self, before: Timestamp, limit: u32) -> Result<u64, Unavailable> {
        let text = self.passing_by_locked(PURGE);
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(before.0)
            .bind(i64::from(limit));
        let work = async { Ok(query.execute(self.db.pool()).await?.rows_affected()) };
        self.db.run("job_purge", work).await
    }
}

fn jobs(rows: &[AnyRow]) -> Result<Vec<Job>, sqlx::Error> {
    rows.iter().map(job).collect()
}

fn job(row: &AnyRow) -> Result<Job, sqlx::Error> {
    let (task, call): (Option<String>, Option<String>) =
        (row.try_get("task")?, row.try_get("call")?);
    let content = match (task, call) {
        (Some(task), _) => Content::Task(task),
        (None, call) => Content::Call(json(call.as_deref().unwrap_or_default())?),
    };
    let raw = |column: &str| -> Result<_, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        text.as_deref().map(json).transpose()
    };
    let source: Option<String> = row.try_get("source_id")?;
    Ok(Job {
        id: row.try_get("id")?,
        kind: word(Kind::parse(row.try_get("kind")?))?,
        owner: row.try_get("owner")?,
        caller: row.try_get("caller")?,
        source: source.as_deref().map(workspace).transpose()?,
        target: workspace(row.try_get("target_id")?)?,
        content,
        state: word(State::parse(row.try_get("state")?))?,
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

fn workspace(id: &str) -> Result<WorkspaceId, sqlx::Error> {
    WorkspaceId::parse(id).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn word<T>(parsed: Option<T>) -> Result<T, sqlx::Error> {
    parsed.ok_or_else(|| sqlx::Error::Decode("an unknown word".into()))
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
