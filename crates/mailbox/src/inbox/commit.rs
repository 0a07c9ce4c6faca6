//! Commits one batch of entries in one transaction: numbers, bounds, rows.
//!
//! The heads are locked first, in order, and until the commit. So the numbers of an inbox have no gaps, all
//! numbers before one that can be read are committed, and two batches cannot deadlock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, Row as _};

use super::activity::{Activity, ActivityType, NewActivity, STATUS_OK};
use super::reply::{UPDATES_MAX, insert_update};
use super::usage::{count_by_sender, finished_up_to, needs_shares};
use crate::kept_bytes::kept_of;
use crate::mailbox::{octets, query};
use crate::wake::row_placeholders;
use a2a::agent_reply::{Subject, Update};
use a2a::state::TaskState;
use kernel::shares::Amounts;
use kernel::time::Timestamp;
use stores::db::{Connection, Db};

/// Rows per insert statement, the largest first: few distinct statements, so that connections can keep all of
/// them prepared.
const ROWS: [usize; 4] = [64, 16, 4, 1];

const HEAD_COLUMNS: usize = 3;

const CORRECT: &str =
    "UPDATE inbox_heads SET last_seq = $2, acked_seq = $3 WHERE workspace_id = $1";

// The last acknowledged entry stays, since its reader continues after it. Unanswered entries stay as well.
const FREE: &str = "DELETE FROM activity_logs WHERE id IN (SELECT id FROM activity_logs \
    WHERE workspace_id = $1 AND seq < $2 \
    AND status IN ('ok', 'completed', 'failed', 'canceled', 'rejected') ORDER BY seq LIMIT 32) \
    RETURNING request_bytes + response_bytes + update_bytes AS bytes";

const CONTINUE: &str = "UPDATE activity_logs \
    SET status = $3, updates = updates + 1, updated_at = $4 \
    WHERE id = $1 AND workspace_id = $2 AND task_id = id \
    AND status NOT IN ('completed', 'failed', 'canceled', 'rejected') AND updates < $5 \
    RETURNING context_id, updates";

const IS_TASK: &str =
    "SELECT seq FROM activity_logs WHERE id = $1 AND workspace_id = $2 AND task_id = id";

const IS_ENTRY: &str = "SELECT seq FROM activity_logs WHERE id = $1";

pub(super) const SET_CONTINUING: &str =
    "UPDATE activity_logs SET status = $2 WHERE task_id = $1 AND id <> task_id";

const ROW_COLUMNS: usize = 21;

/// An entry to be committed.
pub(super) struct Entry {
    pub(super) new: NewActivity,
    /// The state of the task that it continues, after the commit.
    pub(super) continues_as: TaskState,
}

/// The bounds of an inbox, and of all inboxes together.
#[derive(Clone, Copy)]
pub(super) struct InboxLimits {
    /// Unacknowledged entries.
    pub(super) messages: i64,
    /// Bytes that are kept for one workspace.
    pub(super) bytes: i64,
    /// Bytes that may be added for all of them.
    pub(super) bytes_in_all: i64,
}

/// The reason why an entry was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendError {
    /// The inbox has as many unacknowledged entries as allowed.
    Full,
    /// Its sender has half of what the others leave.
    Share,
    /// There is no room for its bytes.
    NoRoom,
    /// The task that it continues is over, or has as many updates as allowed.
    Over,
    /// There is no such task.
    NoTask,
    /// An entry with its id exists already.
    Known,
}

pub(super) type Outcome = Result<Activity, AppendError>;

/// An inbox in this batch.
#[derive(Default)]
struct Head {
    /// Entries of this batch for it.
    wanted: i64,
    /// The last number before this batch.
    last: i64,
    acked: i64,
    /// Entries that it still accepts.
    room: i64,
    /// Entries of this batch that it accepted.
    taken: i64,
    /// Entries by sender; of this batch alone while so few are there that each sender is within its share.
    senders: Amounts,
    /// Bytes of this batch for it.
    wanted_bytes: i64,
    /// Bytes that are kept for its workspace.
    kept: i64,
    /// Bytes that it still accepts.
    room_bytes: i64,
}

impl Head {
    /// Acknowledges the finished entries at its front.
    async fn acknowledge_finished(
        &mut self,
        tx: &mut Connection,
        workspace: &str,
    ) -> Result<(), sqlx::Error> {
        let finished = finished_up_to(tx, workspace, (self.last, self.acked)).await?;
        if self.acked < finished {
            self.acked = finished;
            let correct = query!(CORRECT, workspace, self.last + self.wanted, self.acked);
            correct.execute(tx).await?;
        }
        Ok(())
    }
}

/// Commits all of `entries` except those that are refused, or none of them. `committing` is set once the
/// commit may succeed even if this fails.
pub(super) async fn commit_batch(
    db: &Db,
    entries: &[Entry],
    mut room: InboxLimits,
    committing: &AtomicBool,
) -> Result<Vec<Outcome>, sqlx::Error> {
    let mut tx = db.begin().await?;
    let mut heads = lock_heads(&mut tx, entries).await?;
    for (workspace, head) in &mut heads {
        make_room(&mut tx, workspace, head, room.messages).await?;
        make_room_for_bytes(&mut tx, workspace, head, room.bytes).await?;
    }
    let at = Timestamp::now();
    let mut outcomes = Vec::with_capacity(entries.len());
    let mut named = HashSet::new();
    for entry in entries {
        // An earlier entry of this batch is not in the table yet.
        let outcome = match &entry.new.id {
            Some(id) if named.contains(id) => Err(AppendError::Known),
            _ if room.bytes_in_all < entry.new.bytes() => Err(AppendError::NoRoom),
            _ => take_entry(&mut tx, entry, (&mut heads, room.messages), at).await?,
        };
        if outcome.is_ok() {
            room.bytes_in_all -= entry.new.bytes();
            named.extend(&entry.new.id);
        }
        outcomes.push(outcome);
    }
    for (workspace, head) in &heads {
        if head.taken < head.wanted {
            let correct = query!(CORRECT, *workspace, head.last + head.taken, head.acked);
            correct.execute(&mut *tx).await?;
        }
    }
    let taken = entries.iter().zip(&outcomes);
    let taken = taken.filter_map(|(entry, outcome)| Some((entry, outcome.as_ref().ok()?)));
    insert_entries(&mut tx, &taken.collect::<Vec<_>>()).await?;
    committing.store(true, Ordering::Relaxed);
    tx.commit().await?;
    Ok(outcomes)
}

/// Locks the heads, and takes as many numbers of each inbox as there are entries for it.
async fn lock_heads<'e>(
    tx: &mut Connection,
    entries: &'e [Entry],
) -> Result<BTreeMap<&'e str, Head>, sqlx::Error> {
    let mut wanted: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for entry in entries {
        let (count, bytes) = wanted.entry(entry.new.workspace.as_str()).or_default();
        *count += 1;
        *bytes += entry.new.bytes();
    }
    let wanted: Vec<(&str, (i64, i64))> = wanted.into_iter().collect();
    let mut found: HashMap<String, (i64, i64, i64)> = HashMap::with_capacity(wanted.len());
    for chunk in split_rows(&wanted) {
        let text = format!(
            "INSERT INTO inbox_heads (workspace_id, last_seq, acked_seq) VALUES {} \
             ON CONFLICT (workspace_id) DO UPDATE SET last_seq = inbox_heads.last_seq + excluded.last_seq \
             RETURNING workspace_id, last_seq, acked_seq, {} AS kept",
            row_placeholders(chunk.len(), HEAD_COLUMNS),
            kept_of!("'inbox:' || workspace_id")
        );
        let mut query = sqlx::query(AssertSqlSafe(text));
        for (workspace, (count, _)) in chunk {
            query = query.bind(*workspace).bind(*count).bind(0_i64);
        }
        for row in query.fetch_all(&mut *tx).await? {
            let at = (
                row.try_get("last_seq")?,
                row.try_get("acked_seq")?,
                row.try_get("kept")?,
            );
            found.insert(row.try_get("workspace_id")?, at);
        }
    }
    let head = |(workspace, (wanted, wanted_bytes))| {
        let (last, acked, kept) = found
            .get(workspace)
            .copied()
            .ok_or(sqlx::Error::RowNotFound)?;
        let head = Head {
            wanted,
            last: last - wanted,
            acked,
            wanted_bytes,
            kept,
            ..Head::default()
        };
        Ok((workspace, head))
    };
    wanted.into_iter().map(head).collect()
}

/// Computes the number of entries that the inbox accepts. Once it may have no room for a sender, entries are counted
/// by sender, and finished ones at its front count as acknowledged: an agent that answers everything and acknowledges
/// nothing must not get stuck.
async fn make_room(
    tx: &mut Connection,
    workspace: &str,
    head: &mut Head,
    max_messages: i64,
) -> Result<(), sqlx::Error> {
    if needs_shares(head.last + head.wanted - head.acked, max_messages) {
        head.acknowledge_finished(tx, workspace).await?;
        head.senders = count_by_sender(tx, workspace, head.acked).await?;
    }
    head.room = max_messages - (head.last - head.acked);
    Ok(())
}

/// Computes the number of bytes that the inbox accepts. If there is no room, entries that are acknowledged
/// and answered are deleted, the oldest first; finished entries at its front count as acknowledged.
async fn make_room_for_bytes(
    tx: &mut Connection,
    workspace: &str,
    head: &mut Head,
    max: i64,
) -> Result<(), sqlx::Error> {
    // Nothing is deleted for entries that can never fit.
    let wanted = if max < head.wanted_bytes {
        0
    } else {
        head.wanted_bytes
    };
    if max < head.kept + wanted {
        head.acknowledge_finished(tx, workspace).await?;
    }
    while max < head.kept + wanted {
        let free = sqlx::query(FREE).bind(workspace).bind(head.acked);
        let rows = free.fetch_all(&mut *tx).await?;
        if rows.is_empty() {
            break;
        }
        let bytes = rows.iter().map(|row| row.try_get::<i64, _>("bytes"));
        head.kept -= bytes.sum::<Result<i64, _>>()?;
    }
    head.room_bytes = max - head.kept;
    Ok(())
}

/// Decides on one entry, and moves the task on that it continues.
async fn take_entry(
    tx: &mut Connection,
    entry: &Entry,
    (heads, max_messages): (&mut BTreeMap<&str, Head>, i64),
    at: Timestamp,
) -> Result<Outcome, sqlx::Error> {
    let new = &entry.new;
    let head = heads
        .get_mut(new.workspace.as_str())
        .ok_or(sqlx::Error::RowNotFound)?;
    let bytes = new.bytes();
    // A cancellation takes work from the agent. A task can be canceled once, so this is bounded.
    if entry.continues_as != TaskState::Canceled {
        if head.room <= head.taken {
            return Ok(Err(AppendError::Full));
        }
        if !head.senders.has_share(new.account, max_messages) {
            return Ok(Err(AppendError::Share));
        }
        if head.room_bytes < bytes {
            return Ok(Err(AppendError::NoRoom));
        }
    }
    if let Some(id) = &new.id {
        // Any writer of this id has locked the head of this inbox first.
        let known = sqlx::query(IS_ENTRY).bind(id);
        if known.fetch_optional(&mut *tx).await?.is_some() {
            return Ok(Err(AppendError::Known));
        }
    }
    let fresh = || uuid::Uuid::now_v7().to_string();
    let id = new.id.clone().unwrap_or_else(fresh);
    let (task_id, context_id) = match (&new.continues, new.kind) {
        (Some(task), _) => match continue_task(tx, entry, task, at).await? {
            Ok(context) => (Some(task.clone()), context),
            Err(refused) => return Ok(Err(refused)),
        },
        (None, ActivityType::A2aReceive) => {
            let context = || uuid::Uuid::new_v4().to_string();
            let context = new.context_id.clone().unwrap_or_else(context);
            (Some(id.clone()), Some(context))
        }
        (None, _) => (None, None),
    };
    head.taken += 1;
    head.senders.add_rows(new.account, 1);
    head.room_bytes -= bytes;
    Ok(Ok(Activity {
        id,
        seq: head.last + head.taken,
        task_id,
        context_id,
        created_at: at,
    }))
}

/// Moves the task on that `entry` continues; returns its conversation.
async fn continue_task(
    tx: &mut Connection,
    entry: &Entry,
    task: &str,
    at: Timestamp,
) -> Result<Result<Option<String>, AppendError>, sqlx::Error> {
    let (workspace, state) = (entry.new.workspace.as_str(), entry.continues_as);
    let moved = sqlx::query(CONTINUE).bind(task).bind(workspace);
    let giving_up = state == TaskState::Canceled;
    let updates_max = if giving_up { i64::MAX } else { UPDATES_MAX };
    let moved = moved.bind(state.as_str()).bind(at.0).bind(updates_max);
    let Some(row) = moved.fetch_optional(&mut *tx).await? else {
        let known = sqlx::query(IS_TASK).bind(task).bind(workspace);
        let known = known.fetch_optional(&mut *tx).await?;
        let refused = known.map_or(AppendError::NoTask, |_| AppendError::Over);
        return Ok(Err(refused));
    };
    let context: Option<String> = row.try_get("context_id")?;
    let subject = Subject {
        task,
        context: context.as_deref().unwrap_or_default(),
    };
    let update = Update::from_state(state).with_subject(&subject, &at.to_string());
    insert_update(tx, task, row.try_get("updates")?, &update, at).await?;
    let others = sqlx::query(SET_CONTINUING).bind(task).bind(state.as_str());
    others.execute(&mut *tx).await?;
    Ok(Ok(context))
}

async fn insert_entries(
    tx: &mut Connection,
    taken: &[(&Entry, &Activity)],
) -> Result<(), sqlx::Error> {
    for chunk in split_rows(taken) {
        let text = format!(
            "INSERT INTO activity_logs (id, workspace_id, seq, activity_type, source_id, source_kind, target_id, \
             method, request_body, request_bytes, response_body, response_bytes, status, task_id, context_id, \
             owner, account, account_group, hops, created_at, updated_at) VALUES {}",
            row_placeholders(chunk.len(), ROW_COLUMNS)
        );
        let mut query = sqlx::query(AssertSqlSafe(text));
        for (entry, activity) in chunk {
            let new = &entry.new;
            let status = match (&activity.task_id, &new.continues) {
                (Some(_), Some(_)) => entry.continues_as.as_str(),
                (Some(_), None) => TaskState::Submitted.as_str(),
                (None, _) => STATUS_OK,
            };
            query = query
                .bind(&activity.id)
                .bind(new.workspace.as_str())
                .bind(activity.seq)
                .bind(new.kind.as_str())
                .bind(new.source.id())
                .bind(new.source.kind().as_str())
                .bind(new.target.as_ref().map(|id| id.as_str()))
                .bind(new.method.as_deref())
                .bind(new.request_body.as_deref())
                .bind(new.request_body.as_deref().map_or(0, octets))
                .bind(new.response_body.as_deref())
                .bind(new.response_body.as_deref().map_or(0, octets))
                .bind(status)
                .bind(activity.task_id.as_deref())
                .bind(activity.context_id.as_deref())
                .bind(&new.owner)
                .bind(new.account.own.cast_signed())
                .bind(new.account.group.cast_signed())
                .bind(new.hops.map(i64::from))
                .bind(activity.created_at.0)
                .bind(activity.created_at.0);
        }
        query.execute(&mut *tx).await?;
    }
    Ok(())
}

/// Splits rows into chunks of the sizes in `ROWS`.
fn split_rows<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = ROWS.into_iter().find(|size| *size <= rows.len())?;
        let (chunk, rest) = rows.split_at(size);
        rows = rest;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_in_pieces_of_few_sizes() {
        let sizes = |rows: usize| {
            split_rows(&vec![(); rows])
                .map(<[()]>::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(0), [0; 0]);
        assert_eq!(sizes(7), [4, 1, 1, 1]);
        assert_eq!(sizes(150), [64, 64, 16, 4, 1, 1]);
        assert_eq!(row_placeholders(2, 3), "($1, $2, $3), ($4, $5, $6)");
    }
}
