//! Group commit: entries wait in a bounded queue, and one task of this gateway commits all queued entries in
//! one transaction. Under load hundreds of entries share a commit; a single entry is committed at once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use sqlx::AssertSqlSafe;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::activity::{Activity, ActivityType, NewActivity, STATUS_OK};
use super::reply::{UPDATES_MAX, insert_update};
use super::{Inbox, task_changed_event};
use crate::kept_bytes::kept_of;
use crate::mailbox::{Mailbox, octets, query};
use crate::wake::{Topic, row_placeholders};
use a2a::agent_reply::Subject;
use a2a::agent_reply::Update;
use a2a::state::TaskState;
use access::explain::{Fact, Source, Witness};
use kernel::ids::WorkspaceId;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Amounts};
use kernel::stage::Stage;
use kernel::time::Timestamp;
use stores::db::Connection;
use stores::store::Unavailable;

/// Queued entries at most.
const QUEUE_MAX: usize = 4096;

/// Octets of all queued entries at most. They bound memory.
const QUEUE_BYTES_MAX: u32 = 64 << 20;

/// Entries of one transaction at most.
const BATCH_MAX: usize = 256;

/// Octets of one transaction, about: PostgreSQL must receive them within `stores.timeout`.
const BATCH_BYTES_MAX: i64 = 4 << 20;

/// `Retry-After` of a full inbox: its agent must fetch and acknowledge.
const FULL_PAUSE: Duration = Duration::from_secs(15);

/// The rejection of a message for which there is no room. The limits follow.
const NO_ROOM: &str = "the inbox is full: its agent must answer its messages and acknowledge them; what is kept for it has";

/// A queued entry, with the channel for its outcome, and its room.
type PendingEntry = (NewActivity, (OutcomeSender, OwnedSemaphorePermit));

type OutcomeSender = oneshot::Sender<Result<Activity, Rejection>>;

/// The queue of entries.
pub(super) struct Queue {
    waiting: mpsc::Sender<PendingEntry>,
    to_commit: Mutex<mpsc::Receiver<PendingEntry>>,
    room: Arc<Semaphore>,
}

impl Default for Queue {
    fn default() -> Self {
        let (waiting, to_commit) = mpsc::channel(QUEUE_MAX);
        Self {
            waiting,
            to_commit: Mutex::new(to_commit),
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX as usize)),
        }
    }
}

impl Inbox {
    /// Puts an entry into an inbox. It is committed when this returns; if the future is dropped it may still
    /// be.
    ///
    /// # Errors
    /// `agent_busy` when the inbox is full, or the share of its sender; `overloaded` when this gateway cannot keep up;
    /// `task_not_found`; `invalid_params` when the task that it continues is over; `conflict` when an entry of its id
    /// exists; `store_unavailable`: then `delivered` is `unknown` if it may be committed, and `false` otherwise.
    pub async fn put(&self, entry: NewActivity) -> Result<Activity, Rejection> {
        entry.check()?;
        let bytes = u32::try_from(entry.bytes()).unwrap_or(u32::MAX);
        // An entry larger than the bound waits alone.
        let bytes = bytes.clamp(1, QUEUE_BYTES_MAX);
        let room = Arc::clone(&self.queue.room).try_acquire_many_owned(bytes);
        let Ok(room) = room else {
            return Err(self.reject_overloaded());
        };
        let (answer, answered) = oneshot::channel();
        // Before the writer can take it out again.
        self.mailbox.metrics.inbox.waiting.inc();
        if self
            .queue
            .waiting
            .try_send((entry, (answer, room)))
            .is_err()
        {
            self.mailbox.metrics.inbox.waiting.dec();
            return Err(self.reject_overloaded());
        }
        answered.await.unwrap_or_else(|_| {
            let why = Rejection::new(Reason::ShuttingDown, "this gateway is shutting down");
            Err(why.with_delivery(Delivery::Unknown))
        })
    }

    fn reject_overloaded(&self) -> Rejection {
        self.count_refused("queue");
        queue_full()
    }

    fn count_refused(&self, why: &str) {
        let refused = &self.mailbox.metrics.inbox.refused;
        refused.with_label_values(&[why]).inc();
    }

    /// Checks that an inbox would take one more message of `sender`, and reports the counts to `witness`. Puts and
    /// counts nothing.
    ///
    /// # Errors
    /// As [`Inbox::put`].
    pub async fn check_room(
        &self,
        (workspace, sender): (&WorkspaceId, Account),
        witness: &mut impl Witness,
    ) -> Result<(), Rejection> {
        let (waiting, room) = (&self.queue.waiting, &self.queue.room);
        let queued = waiting.max_capacity() - waiting.capacity();
        if waiting.capacity() == 0 || room.available_permits() == 0 {
            return Err(queue_full());
        }
        let max = self.mailbox.config.get().inbox.max_messages;
        // As a batch of one entry would find them.
        let work = async {
            let mut connection = self.mailbox.db.begin_reading().await?;
            let head = sqlx::query_as(HEAD).bind(workspace.as_str());
            let head: Option<(i64, i64, i64)> = head.fetch_optional(&mut connection).await?;
            let (last, mut acked, bytes) = head.unwrap_or_default();
            let mut by_sender = Amounts::default();
            if needs_shares(last + 1 - acked, max) {
                let (connection, workspace) = (&mut connection, workspace.as_str());
                let finished = finished_up_to(connection, workspace, (last, acked)).await?;
                acked = finished.max(acked);
                by_sender = count_by_sender(connection, workspace, acked).await?;
            }
            Ok((last - acked, by_sender.has_share(sender, max), bytes))
        };
        let held = self.mailbox.db.run("inbox_look", work).await;
        let (messages, within_share, bytes) =
            held.map_err(|error| not_written(&error, Delivery::NotSent))?;
        let bytes_max = self.mailbox.per_owner();
        witness.record(|| {
            let value = json!({
                "held": messages, "limit": max, "kept_bytes": bytes, "kept_bytes_limit": bytes_max,
                "waiting_to_be_written": queued,
            });
            Fact::new(Stage::Inbox, Source::Sql, value)
        });
        if messages >= max || !within_share {
            return Err(inbox_full(max, messages < max));
        }
        if bytes >= bytes_max || self.mailbox.total_room() <= 0 {
            return Err(self.mailbox.limit_rejection(NO_ROOM));
        }
        Ok(())
    }

    /// Commits queued entries, batch by batch.
    pub(super) async fn write(&self) {
        let mut to_commit = self.queue.to_commit.lock().await;
        // This struct owns the sender, so the channel stays open.
        while let Some(first) = to_commit.recv().await {
            let mut bytes = first.0.bytes();
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && bytes < BATCH_BYTES_MAX
                && let Ok(next) = to_commit.try_recv()
            {
                bytes += next.0.bytes();
                batch.push(next);
            }
            let count = i64::try_from(batch.len()).unwrap_or(i64::MAX);
            self.mailbox.metrics.inbox.waiting.sub(count);
            self.write_batch(batch).await;
        }
    }

    async fn write_batch(&self, batch: Vec<PendingEntry>) {
        let (entries, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let committing = AtomicBool::new(false);
        let work = commit_batch(&self.mailbox, &entries, &committing);
        let outcomes = match self.mailbox.db.run("inbox_append", work).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let delivered = match committing.into_inner() {
                    true => Delivery::Unknown,
                    false => Delivery::NotSent,
                };
                for (answer, _) in answers {
                    let _ = answer.send(Err(not_written(&error, delivered)));
                }
                if delivered == Delivery::Unknown {
                    self.wake_late(entries.iter().flat_map(topics_of));
                }
                return;
            }
        };
        self.announce_entries(&entries, &outcomes);
        for ((answer, _), outcome) in answers.into_iter().zip(outcomes) {
            // The sender may have stopped waiting.
            let _ = answer.send(outcome.map_err(|why| self.to_rejection(why)));
        }
    }

    /// Wakes waiters of a transaction that may be committed or not.
    pub(super) fn wake_late(&self, topics: impl IntoIterator<Item = Topic>) {
        let hub = &self.mailbox.hub;
        hub.wake_again(topics, 2 * self.mailbox.db.timeout());
    }

    fn announce_entries(&self, entries: &[NewActivity], outcomes: &[Outcome]) {
        let mut woken = BTreeSet::new();
        let mut written = 0;
        for (entry, outcome) in entries.iter().zip(outcomes) {
            // An entry that exists already may have been committed after the store timed out, without a
            // wake-up.
            if !matches!(outcome, Ok(_) | Err(AppendError::Known)) {
                continue;
            }
            woken.extend(topics_of(entry));
            if outcome.is_err() {
                continue;
            }
            written += 1;
            self.mailbox.count_added(entry.bytes());
            if let Some(task) = &entry.continues {
                let (workspace, state) = (&entry.workspace, entry.continues_as);
                self.mailbox.metrics.tasks.states[state].inc();
                self.events
                    .publish(task_changed_event(workspace, task, state.as_str()));
            }
        }
        self.mailbox.metrics.inbox.record_batch(written);
        self.mailbox.hub.wake(woken);
    }

    fn to_rejection(&self, why: AppendError) -> Rejection {
        use AppendError::{Full, NoRoom, Share};
        if matches!(why, Full | Share | NoRoom) {
            self.count_refused("full");
        }
        match why {
            Full | Share => {
                let max = self.mailbox.config.get().inbox.max_messages;
                inbox_full(max, why == Share)
            }
            NoRoom => self.mailbox.count_refusal(RetainedKind::Inbox, NO_ROOM),
            AppendError::Over => {
                let message = "the task is over, or has as many updates as it may have; begin another one, \
                    without `taskId`";
                Rejection::new(Reason::InvalidParams, message)
            }
            AppendError::NoTask => no_task(),
            AppendError::Known => Rejection::new(
                Reason::Conflict,
                "an entry of this id is in the inbox already",
            ),
        }
    }
}

/// Returns the topics that an entry changes.
fn topics_of(entry: &NewActivity) -> impl Iterator<Item = Topic> {
    let inbox = Topic::inbox(&entry.workspace);
    let task = entry.continues.as_deref().map(Topic::task);
    std::iter::once(inbox).chain(task)
}

fn queue_full() -> Rejection {
    let message =
        "more messages wait to be written down than this gateway keeps; try again shortly";
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}

/// Returns the rejection of a message for want of room: of any, or in the share of its sender (`is_share`).
fn inbox_full(max: i64, is_share: bool) -> Rejection {
    let message = if is_share {
        "messages of this caller are half of what others leave of the inbox (inbox.max_messages): its agent must fetch \
         them and acknowledge them"
    } else {
        "the inbox is full: its agent must fetch its messages and acknowledge them"
    };
    Rejection::new(Reason::AgentBusy, message)
        .with_retry_after(FULL_PAUSE)
        .with_fact("limit", max)
        .with_share(is_share)
}

/// Returns the rejection for a task that does not exist, or that the caller may not see.
pub fn no_task() -> Rejection {
    let message =
        "there is no such task for this caller: a task belongs to the caller that started it";
    Rejection::new(Reason::TaskNotFound, message)
}

fn not_written(error: &Unavailable, delivered: Delivery) -> Rejection {
    let mut rejection = Rejection::from(error.clone()).with_delivery(delivered);
    rejection.message = match delivered {
        Delivery::NotSent => {
            "the message could not be written down, and is not delivered; try again shortly"
        }
        Delivery::Unknown | Delivery::Sent => {
            "it is not known whether the message was written down; it may be delivered"
        }
    }
    .into();
    rejection
}

// Commits one batch of entries in one transaction: numbers, bounds, rows.
//
// The heads are locked first, in order, and until the commit. So the numbers of an inbox have no gaps, all
// numbers before one that can be read are committed, and two batches cannot deadlock.

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

const ROW_COLUMNS: usize = 22;

/// The reason why an entry was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppendError {
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

type Outcome = Result<Activity, AppendError>;

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
async fn commit_batch(
    mailbox: &Mailbox,
    entries: &[NewActivity],
    committing: &AtomicBool,
) -> Result<Vec<Outcome>, sqlx::Error> {
    let max_messages = mailbox.config.get().inbox.max_messages;
    let (max_bytes, mut total_room) = (mailbox.per_owner(), mailbox.total_room());
    let mut tx = mailbox.db.begin().await?;
    let mut heads = lock_heads(&mut tx, entries).await?;
    for (workspace, head) in &mut heads {
        make_room(&mut tx, workspace, head, max_messages).await?;
        make_room_for_bytes(&mut tx, workspace, head, max_bytes).await?;
    }
    let at = Timestamp::now();
    let mut outcomes = Vec::with_capacity(entries.len());
    let mut named = HashSet::new();
    for entry in entries {
        // An earlier entry of this batch is not in the table yet.
        let outcome = match &entry.id {
            Some(id) if named.contains(id) => Err(AppendError::Known),
            _ if total_room < entry.bytes() => Err(AppendError::NoRoom),
            _ => take_entry(&mut tx, entry, (&mut heads, max_messages), at).await?,
        };
        if outcome.is_ok() {
            total_room -= entry.bytes();
            named.extend(&entry.id);
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
    entries: &'e [NewActivity],
) -> Result<BTreeMap<&'e str, Head>, sqlx::Error> {
    let mut wanted: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for entry in entries {
        let (count, bytes) = wanted.entry(entry.workspace.as_str()).or_default();
        *count += 1;
        *bytes += entry.bytes();
    }
    let wanted: Vec<(&str, (i64, i64))> = wanted.into_iter().collect();
    let mut found = HashMap::with_capacity(wanted.len());
    for chunk in split_rows(&wanted) {
        let text = format!(
            "INSERT INTO inbox_heads (workspace_id, last_seq, acked_seq) VALUES {} \
             ON CONFLICT (workspace_id) DO UPDATE SET last_seq = inbox_heads.last_seq + excluded.last_seq \
             RETURNING workspace_id, last_seq, acked_seq, {} AS kept",
            row_placeholders(chunk.len(), HEAD_COLUMNS),
            kept_of!("'inbox:' || workspace_id")
        );
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for (workspace, (count, _)) in chunk {
            query = query.bind(*workspace).bind(*count).bind(0_i64);
        }
        let rows: Vec<(String, i64, i64, i64)> = query.fetch_all(&mut *tx).await?;
        let rows = rows.into_iter();
        found.extend(rows.map(|(workspace, last, acked, kept)| (workspace, (last, acked, kept))));
    }
    let head = |(workspace, (wanted, wanted_bytes))| {
        let at = found.get(workspace).ok_or(sqlx::Error::RowNotFound)?;
        let (last, acked, kept) = *at;
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
    let wanted = Some(head.wanted_bytes).filter(|bytes| *bytes <= max);
    let wanted = wanted.unwrap_or(0);
    if max < head.kept + wanted {
        head.acknowledge_finished(tx, workspace).await?;
    }
    while max < head.kept + wanted {
        let free = sqlx::query_scalar(FREE).bind(workspace).bind(head.acked);
        let freed: Vec<i64> = free.fetch_all(&mut *tx).await?;
        if freed.is_empty() {
            break;
        }
        head.kept -= freed.iter().sum::<i64>();
    }
    head.room_bytes = max - head.kept;
    Ok(())
}

/// Decides on one entry, and moves the task on that it continues.
async fn take_entry(
    tx: &mut Connection,
    new: &NewActivity,
    (heads, max_messages): (&mut BTreeMap<&str, Head>, i64),
    at: Timestamp,
) -> Result<Outcome, sqlx::Error> {
    let head = heads
        .get_mut(new.workspace.as_str())
        .ok_or(sqlx::Error::RowNotFound)?;
    let bytes = new.bytes();
    // A cancellation takes work from the agent. A task can be canceled once, so this is bounded.
    if new.continues_as != TaskState::Canceled {
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
        let known = query!(IS_ENTRY, id);
        if known.fetch_optional(&mut *tx).await?.is_some() {
            return Ok(Err(AppendError::Known));
        }
    }
    let fresh = || uuid::Uuid::now_v7().to_string();
    let id = new.id.clone().unwrap_or_else(fresh);
    let (task_id, context_id) = match (&new.continues, new.kind) {
        (Some(task), _) => match continue_task(tx, new, task, at).await? {
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
    entry: &NewActivity,
    task: &str,
    at: Timestamp,
) -> Result<Result<Option<String>, AppendError>, sqlx::Error> {
    let (workspace, state) = (entry.workspace.as_str(), entry.continues_as);
    let giving_up = state == TaskState::Canceled;
    let updates_max = if giving_up { i64::MAX } else { UPDATES_MAX };
    let moved = sqlx::query_as(CONTINUE).bind(task).bind(workspace);
    let moved = moved.bind(state.as_str()).bind(at.0).bind(updates_max);
    let moved: Option<(Option<String>, i64)> = moved.fetch_optional(&mut *tx).await?;
    let Some((context, updates)) = moved else {
        let known = query!(IS_TASK, task, workspace);
        let known = known.fetch_optional(&mut *tx).await?;
        return Ok(Err(known.map_or(AppendError::NoTask, |_| AppendError::Over)));
    };
    let subject = Subject {
        task,
        context: context.as_deref().unwrap_or_default(),
    };
    let update = Update::from_state(state).with_subject(&subject, &at.to_string());
    insert_update(tx, task, updates, &update, at).await?;
    let others = query!(SET_CONTINUING, task, state.as_str());
    others.execute(&mut *tx).await?;
    Ok(Ok(context))
}

async fn insert_entries(
    tx: &mut Connection,
    taken: &[(&NewActivity, &Activity)],
) -> Result<(), sqlx::Error> {
    for chunk in split_rows(taken) {
        let text = format!(
            "INSERT INTO activity_logs (id, workspace_id, seq, activity_type, source_id, source_kind, target_id, \
             method, request_body, request_bytes, response_body, response_bytes, status, task_id, context_id, \
             owner, account, account_group, hops, chain, created_at, updated_at) VALUES {}",
            row_placeholders(chunk.len(), ROW_COLUMNS)
        );
        let mut query = sqlx::query(AssertSqlSafe(text));
        for (new, activity) in chunk {
            let status = match (&activity.task_id, &new.continues) {
                (Some(_), Some(_)) => new.continues_as.as_str(),
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
                .bind(new.chain.as_deref())
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

// The contents of an inbox: the entries that are not acknowledged, in all and by sender. No sender has more than half
// of what the others leave.

const HEAD: &str = concat!(
    "SELECT last_seq, acked_seq, ",
    kept_of!("'inbox:' || workspace_id"),
    " AS kept FROM inbox_heads WHERE workspace_id = $1"
);

const FIRST_OPEN: &str = "SELECT seq FROM activity_logs WHERE workspace_id = $1 AND seq > $2 \
    AND activity_type = 'a2a_receive' \
    AND status NOT IN ('completed', 'failed', 'canceled', 'rejected') ORDER BY seq LIMIT 1";

// Of entries that are not acknowledged.
const SENDERS: &str = "SELECT account, account_group, COUNT(*) AS entries FROM activity_logs \
    WHERE workspace_id = $1 AND seq > $2 GROUP BY account, account_group";

/// Returns the number up to which all unacknowledged entries are finished.
async fn finished_up_to(
    connection: &mut Connection,
    workspace: &str,
    (last, acked): (i64, i64),
) -> Result<i64, sqlx::Error> {
    let open = sqlx::query_scalar(FIRST_OPEN).bind(workspace).bind(acked);
    let open: Option<i64> = open.fetch_optional(connection).await?;
    Ok(open.map_or(last, |seq| seq - 1))
}

/// True if a sender may have its share of so many entries. A user of an org has at least a quarter of an inbox.
fn needs_shares(messages: i64, max_messages: i64) -> bool {
    messages > max_messages / 4
}

/// Counts the entries that are not acknowledged, by sender.
async fn count_by_sender(
    tx: &mut Connection,
    workspace: &str,
    acked: i64,
) -> Result<Amounts, sqlx::Error> {
    let mut senders = Amounts::default();
    let query = sqlx::query_as(SENDERS).bind(workspace).bind(acked);
    let rows: Vec<(i64, i64, i64)> = query.fetch_all(tx).await?;
    for (own, group, entries) in rows {
        let (own, group) = (own.cast_unsigned(), group.cast_unsigned());
        senders.add_rows(Account { own, group }, entries);
    }
    Ok(senders)
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
