//! The statements of jobs on the table of the mailbox.

use std::sync::Arc;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::LEASE;
use super::job::{Job, Kind, NewJob, State, removed_target};
use crate::backlog::Backlog;
use crate::kept_bytes::kept_of;
use crate::mailbox::{
    Mailbox, count_fitting, decode_column, item_columns, octets, query, read_json,
};
use access::identity::stored_account;
use kernel::ids::WorkspaceId;
use kernel::shares::Amounts;
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::db::Connection;
use stores::store::Unavailable;

// The bounds are counted in the same statement. Concurrent inserts of several replicas may exceed them by
// their number.
// A caller has none for the target, or has one more within half of what the others leave of $15.
const INSERT: &str = concat!(
    "INSERT INTO mailbox_items (id, kind, owner, caller, source_id, target_id, body, idempotency_key, state, priority, \
    due_at, expires_at, created_at, updated_at, kept_bytes) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, 'pending', $9, $10, $11, $10, $10, $13 \
    WHERE (SELECT COUNT(*) FROM mailbox_items \
        WHERE owner = $3 AND state IN ('pending', 'dispatched')) < $12 \
    AND (SELECT COUNT(*) FROM mailbox_items \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) < $12 \
    AND (SELECT COUNT(CASE WHEN caller = $4 THEN 1 END) \
        * (COUNT(CASE WHEN caller = $4 THEN 1 END) + COUNT(*) + 2 - $15) FROM mailbox_items \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) <= 0 \
    AND ",
    kept_of!("$3"),
    " + $13 <= $14 ON CONFLICT DO NOTHING"
);

const CALLERS: &str = "SELECT caller, COUNT(*) AS jobs FROM mailbox_items \
    WHERE target_id = $1 AND state IN ('pending', 'dispatched') GROUP BY caller";

const FIND: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE id = $1 AND kind <> 'keyed'"
);

const FIND_KEY: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE kind = $1 AND owner = $2 AND idempotency_key = $3 \
     AND state NOT IN ('failed', 'expired')"
);

// Sizes are read first, so that rows that do not fit into a page are not read.
const LIST_SIZES: &str = "SELECT CAST(OCTET_LENGTH(body) + COALESCE(OCTET_LENGTH(answer), 0) AS BIGINT) AS bytes \
    FROM mailbox_items WHERE owner = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) ORDER BY id DESC LIMIT $3";

const LIST: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE owner = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) ORDER BY id DESC LIMIT $3"
);

pub(super) const DISPATCH: &str = "UPDATE mailbox_items \
    SET state = 'dispatched', attempts = attempts + 1, leased_until = $3, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

// Raises the fence: later writes of the former holder have no effect.
pub(super) const PUT_BACK: &str = "UPDATE mailbox_items \
    SET state = 'pending', leased_until = 0, fence = fence + 1, due_at = $3, attempts = attempts + $4, updated_at = $5 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

pub(super) const PARK: &str = "UPDATE mailbox_items SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND leased_until <= $3 AND due_at < $2";

pub(super) const UNPARK: &str = "UPDATE mailbox_items SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND due_at > $2";

pub(super) const IN_INBOX: &str = "UPDATE mailbox_items \
    SET state = 'dispatched', inbox_task = $3, attempts = attempts + 1, leased_until = 0, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

pub(super) const WAITING: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE state = 'dispatched' AND inbox_task IS NOT NULL AND id > $1 ORDER BY id LIMIT $2"
);

pub(super) const WAITING_FOR: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE state = 'dispatched' AND inbox_task = $1"
);

pub(super) const CANCEL: &str = concat!(
    "UPDATE mailbox_items SET state = 'canceled', fence = fence + 1, leased_until = 0, updated_at = $2 \
     WHERE id = $1 AND state = 'pending' RETURNING ",
    item_columns!()
);

// In an ended row `due_at` is the time of the next delivery attempt.
pub(super) const UNTOLD: &str =
    "SELECT id FROM mailbox_items WHERE untold = 1 AND due_at <= $1 ORDER BY due_at LIMIT $2";

// The row is put off before its delivery, for as long again as it has waited, and $3 at most.
pub(super) const TAKE_UNTOLD: &str = concat!(
    "UPDATE mailbox_items SET due_at = $2 + CASE WHEN $2 - updated_at > $3 THEN $3 ELSE $2 - updated_at END \
     WHERE id = $1 AND untold = 1 AND due_at <= $2 RETURNING ",
    item_columns!()
);

pub(super) const TOLD: &str = "UPDATE mailbox_items SET untold = 0 WHERE id = $1";

// A new life of an id has no jobs of the earlier one: those for it fail, and its own results go to no inbox.
// Raises the fence: their holders can write nothing any more.
const END_OF: &str = "UPDATE mailbox_items SET fence = fence + 1, leased_until = 0, updated_at = $3, \
    untold = CASE WHEN source_id = $1 THEN 0 \
      WHEN kind = 'delegation' AND state IN ('pending', 'dispatched') THEN 1 ELSE untold END, \
    due_at = CASE WHEN state IN ('pending', 'dispatched') THEN $3 ELSE due_at END, \
    answer = CASE WHEN state IN ('pending', 'dispatched') THEN $2 ELSE answer END, \
    state = CASE WHEN state IN ('pending', 'dispatched') THEN 'failed' ELSE state END \
    WHERE source_id = $1 OR (target_id = $1 AND state IN ('pending', 'dispatched'))";

const BACKLOG: &str = "SELECT COUNT(*) AS entries, MIN(created_at) AS oldest FROM mailbox_items WHERE state = 'pending'";

/// The jobs to claim.
#[derive(Clone, Copy)]
pub(super) enum Claim {
    /// Jobs to be sent now.
    Due,
    /// Jobs that expired before anything was sent.
    Overdue,
    /// Jobs that were sent by a replica that crashed.
    Lost,
}

impl Claim {
    /// Returns the condition on their rows at the time `$1`, and their order.
    const fn conditions(self) -> [&'static str; 2] {
        match self {
            // No pause is ever ten times the longest one (`BACKOFF_MAX`): such a row was written while the clock was
            // ahead, and is due.
            Self::Due => [
                "state = 'pending' AND (due_at <= $1 OR due_at > $1 + 300000) AND leased_until <= $1 AND expires_at > $1",
                " ORDER BY priority DESC, created_at, id",
            ],
            Self::Overdue => [
                "state = 'pending' AND expires_at <= $1 AND leased_until <= $1",
                "",
            ],
            Self::Lost => [
                "state = 'dispatched' AND leased_until <= $1 AND inbox_task IS NULL",
                "",
            ],
        }
    }
}

/// The jobs in the table of the mailbox.
pub(crate) struct Table(pub(super) Arc<Mailbox>);

impl Table {
    pub(super) async fn find(&self, id: &str) -> Result<Option<Job>, Unavailable> {
        let find = query!(FIND, id);
        self.0.fetch("job_find", find, read_job).await
    }

    /// Inserts a job. False if its owner or its target has `unfinished_max` jobs already, its caller has its share of
    /// the target's, its idempotency key is in use, or there is no room for its bytes.
    pub(super) async fn insert(
        &self,
        (id, now): (&str, Timestamp),
        new: &NewJob,
        unfinished_max: i64,
    ) -> Result<bool, Unavailable> {
        if !self.within_share(new, unfinished_max).await? {
            return Ok(false);
        }
        let is_told_apart = stored_account(&new.caller).own != 0;
        let share_of = if is_told_apart {
            unfinished_max
        } else {
            i64::from(u32::MAX)
        };
        let body = serde_json::to_string(&new.content).expect("its members are text and numbers");
        let kept = octets(&body);
        let bytes = &self.0.kept;
        let adding = bytes.announce_bytes(&new.owner, kept);
        let insert = query!(INSERT, id, new.kind().as_str(), &new.owner, &new.caller)
            .bind(new.source.as_ref().map(WorkspaceId::as_str))
            .bind(new.target.as_str())
            .bind(body)
            .bind(new.idempotency_key.as_deref())
            .bind(new.priority)
            .bind(now.0)
            .bind(now.after(new.patience).0)
            .bind(unfinished_max)
            .bind(kept)
            .bind(adding.limit)
            .bind(share_of);
        let inserted = self.0.change("job_insert", insert).await?;
        if inserted {
            bytes.count_added(kept);
        }
        Ok(inserted)
    }

    /// True if one more job is within the share of its caller among the unfinished ones for its target.
    pub(super) async fn within_share(&self, new: &NewJob, max: i64) -> Result<bool, Unavailable> {
        let db = &self.0.db;
        let query = sqlx::query_as(CALLERS).bind(new.target.as_str());
        let rows: Vec<(String, i64)> = db.run("job_callers", query.fetch_all(db.pool())).await?;
        let mut callers = Amounts::default();
        for (caller, jobs) in rows {
            callers.add_rows(stored_account(&caller), jobs);
        }
        Ok(callers.has_share(stored_account(&new.caller), max))
    }

    /// Returns the backlog of unsent jobs of all callers.
    pub(crate) async fn read_backlog(&self) -> Result<Backlog, Unavailable> {
        let query = sqlx::query(BACKLOG);
        let found = self.0.fetch("job_backlog", query, Backlog::read);
        Ok(found.await?.unwrap_or_default())
    }

    /// Finds the job of an idempotency key, except one that failed or expired.
    pub(super) async fn find_key(
        &self,
        kind: Kind,
        owner: &str,
        key: &str,
    ) -> Result<Option<Job>, Unavailable> {
        let query = query!(FIND_KEY, kind.as_str(), owner, key);
        self.0.fetch("job_find_key", query, read_job).await
    }

    /// Returns delegations of `owner` before the id `before`, newest first, and whether there are more. At
    /// most `limit`; fewer, and at least one, when they are large.
    pub(super) async fn read_page(
        &self,
        owner: &str,
        before: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, bool), Unavailable> {
        let db = &self.0.db;
        let work = async {
            let sizes = sqlx::query_scalar(LIST_SIZES).bind(owner).bind(before);
            let sizes = sizes.bind(i64::from(limit) + 1).fetch_all(db.pool());
            let sizes: Vec<i64> = sizes.await?;
            let count = count_fitting(&sizes, limit);
            let rows = query!(
                LIST,
                owner,
                before,
                i64::try_from(count).unwrap_or(i64::MAX)
            );
            let rows = rows.fetch_all(db.pool()).await?;
            let jobs = rows.iter().filter_map(read_or_skip).collect();
            Ok((jobs, count < sizes.len()))
        };
        db.run("job_list", work).await
    }

    /// Claims at most `limit` jobs for the time of a lease; the greatest priority first, then the oldest. Raises the
    /// fence: their former holders can write nothing any more.
    pub(super) async fn claim(
        &self,
        what: Claim,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<Job>, Unavailable> {
        let [of, order] = what.conditions();
        let lock = self.0.skip_locked();
        let any = format!("SELECT id FROM mailbox_items WHERE {of} LIMIT 1");
        let claim = format!(
            "UPDATE mailbox_items SET leased_until = $2, fence = fence + 1 \
             WHERE id IN (SELECT id FROM mailbox_items WHERE {of}{order} LIMIT $3{lock}) AND {of} RETURNING {}",
            item_columns!()
        );
        let claim = query!(
            AssertSqlSafe(claim),
            now.0,
            now.after(LEASE).0,
            i64::from(limit)
        );
        let pool = self.0.db.pool();
        let work = async {
            // Checked first, so that a second without such rows writes nothing.
            let any = query!(AssertSqlSafe(any), now.0);
            if any.fetch_optional(pool).await?.is_none() {
                return Ok(Vec::new());
            }
            let rows = claim.fetch_all(pool).await?;
            let mut claimed: Vec<Job> = rows.iter().filter_map(read_or_skip).collect();
            claimed.sort_by(|one, other| {
                let age = (one.created_at, &one.id).cmp(&(other.created_at, &other.id));
                other.priority.cmp(&one.priority).then(age)
            });
            Ok(claimed)
        };
        self.0.db.run("job_claim", work).await
    }

    /// Returns the jobs that wait for a task in an inbox, beyond the id `after`, and the id to continue from:
    /// empty at the end.
    pub(super) async fn list_waiting(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<(Vec<Job>, String), Unavailable> {
        let query = query!(WAITING, after, i64::from(limit));
        let read = |row: &AnyRow| Ok((row.try_get("id")?, read_or_skip(row)));
        let rows: Vec<(String, _)> = self.0.fetch_all("job_waiting", query, read).await?;
        let full = usize::try_from(limit).is_ok_and(|limit| limit <= rows.len());
        let last = rows.last().filter(|_| full);
        let next = last.map(|(id, _)| id.clone()).unwrap_or_default();
        Ok((rows.into_iter().filter_map(|(_, job)| job).collect(), next))
    }

    /// Deletes jobs beyond their retention.
    pub(super) async fn purge(&self) -> Result<(), Unavailable> {
        let before = Timestamp::now().before(self.0.config.get().delegation.retention);
        let lock = self.0.skip_locked();
        let text = format!(
            "DELETE FROM mailbox_items WHERE id IN (SELECT id FROM mailbox_items \
             WHERE state IN ('completed', 'failed', 'expired', 'canceled') AND untold = 0 AND updated_at < $1 \
             LIMIT $2{lock})"
        );
        let delete = || query!(AssertSqlSafe(text.clone()), before.0);
        self.0.delete_all("job_purge", delete).await.map(drop)
    }
}

/// Fails the unfinished jobs of a removed workspace and those for it before its id begins a new life, in a transaction
/// of the caller. Its own results go to no inbox.
///
/// # Errors
/// The error of the driver.
pub async fn end_jobs_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let end = query!(END_OF, id.as_str(), removed_target().to_string(), now.0);
    end.execute(tx).await.map(drop)
}

/// Reads a row. One that cannot be read is left out.
fn read_or_skip(row: &AnyRow) -> Option<Job> {
    let read = read_job(row);
    if let Err(error) = &read {
        let id: String = row.try_get("id").unwrap_or_default();
        tracing::error!(job = id, error = %Chain(error), "unreadable job row; skipped");
    }
    read.ok()
}

pub(super) fn read_job(row: &AnyRow) -> Result<Job, sqlx::Error> {
    let word = || sqlx::Error::Decode("an unknown word".into());
    let workspace = |id: &str| decode_column(WorkspaceId::parse(id));
    let source: Option<&str> = row.try_get("source_id")?;
    Ok(Job {
        id: row.try_get("id")?,
        kind: Kind::parse(row.try_get("kind")?).ok_or_else(word)?,
        owner: row.try_get("owner")?,
        caller: row.try_get("caller")?,
        source: source.map(workspace).transpose()?,
        target: workspace(row.try_get("target_id")?)?,
        content: read_json(row, "body")?.ok_or_else(word)?,
        state: State::parse(row.try_get("state")?).ok_or_else(word)?,
        priority: row.try_get("priority")?,
        attempts: row.try_get("attempts")?,
        deadline: Timestamp(row.try_get("expires_at")?),
        inbox_task: row.try_get("inbox_task")?,
        answer: read_json(row, "answer")?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
        fence: row.try_get("fence")?,
    })
}
