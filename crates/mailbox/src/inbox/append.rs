//! Group commit: entries wait in a bounded queue, and one task of this gateway commits all queued entries in
//! one transaction. Under load hundreds of entries share a commit; a single entry is committed at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::activity::{Activity, NewActivity};
use super::commit::{AppendError, Entry, InboxLimits, Outcome, commit_batch};
use super::usage::read_usage;
use super::{Inbox, task_changed_event};
use crate::wake::Topic;
use a2a::state::TaskState;
use access::explain::{Fact, Source, Witness};
use kernel::ids::WorkspaceId;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
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

/// A queued entry, with the channel for its outcome.
struct PendingEntry {
    entry: Entry,
    answer: oneshot::Sender<Result<Activity, Rejection>>,
    _room: OwnedSemaphorePermit,
}

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
    /// `agent_busy` when the inbox is full, or the share of its sender; `overloaded` when this gateway cannot keep up; `task_not_found`;
    /// `invalid_params` when the task that it continues is over; `conflict` when an entry of its id exists;
    /// `store_unavailable`: then `delivered` is `unknown` if it may be committed, and `false` otherwise.
    pub async fn put(&self, new: NewActivity) -> Result<Activity, Rejection> {
        self.append_entry(Entry {
            new,
            continues_as: TaskState::Submitted,
        })
        .await
    }

    pub(super) async fn append_entry(&self, entry: Entry) -> Result<Activity, Rejection> {
        entry.new.check()?;
        let bytes = u32::try_from(entry.new.bytes()).unwrap_or(u32::MAX);
        // An entry larger than the bound waits alone.
        let bytes = bytes.clamp(1, QUEUE_BYTES_MAX);
        let room = Arc::clone(&self.queue.room).try_acquire_many_owned(bytes);
        let Ok(room) = room else {
            return Err(self.reject_overloaded());
        };
        let (answer, answered) = oneshot::channel();
        let pending = PendingEntry {
            entry,
            answer,
            _room: room,
        };
        // Before the writer can take it out again.
        self.mailbox.metrics.inbox.waiting.inc();
        if self.queue.waiting.try_send(pending).is_err() {
            self.mailbox.metrics.inbox.waiting.dec();
            return Err(self.reject_overloaded());
        }
        let unanswered = || {
            Rejection::new(Reason::ShuttingDown, "this gateway is shutting down")
                .with_delivery(Delivery::Unknown)
        };
        answered.await.unwrap_or_else(|_| Err(unanswered()))
    }

    fn reject_overloaded(&self) -> Rejection {
        self.mailbox
            .metrics
            .inbox
            .refused
            .with_label_values(&["queue"])
            .inc();
        queue_full()
    }

    /// Checks that an inbox would take one more message of `sender`, and reports the counts to `witness`. Puts and counts
    /// nothing.
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
        let work = read_usage(&self.mailbox.db, (workspace.as_str(), sender), max);
        let held = self.mailbox.db.run("inbox_look", work).await;
        let (messages, within_share, bytes) =
            held.map_err(|error| not_written(&error, Delivery::NotSent))?;
        let bytes_max = self.mailbox.kept.per_owner();
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
        if bytes >= bytes_max || self.mailbox.kept.total_room() <= 0 {
            return Err(self.mailbox.kept.limit_rejection(NO_ROOM));
        }
        Ok(())
    }

    /// Commits queued entries, batch by batch.
    pub(super) async fn write(&self) {
        let mut to_commit = self.queue.to_commit.lock().await;
        // This struct owns the sender, so the channel stays open.
        while let Some(first) = to_commit.recv().await {
            let mut bytes = first.entry.new.bytes();
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && bytes < BATCH_BYTES_MAX
                && let Ok(next) = to_commit.try_recv()
            {
                bytes += next.entry.new.bytes();
                batch.push(next);
            }
            let count = i64::try_from(batch.len()).unwrap_or(i64::MAX);
            self.mailbox.metrics.inbox.waiting.sub(count);
            self.write_batch(batch).await;
        }
    }

    async fn write_batch(&self, batch: Vec<PendingEntry>) {
        let (entries, answers): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|pending| (pending.entry, (pending.answer, pending._room)))
            .unzip();
        let max = self.mailbox.config.get().inbox.max_messages;
        let room = InboxLimits {
            messages: max,
            bytes: self.mailbox.kept.per_owner(),
            bytes_in_all: self.mailbox.kept.total_room(),
        };
        let committing = AtomicBool::new(false);
        let work = commit_batch(&self.mailbox.db, &entries, room, &committing);
        let outcomes = match self.mailbox.db.run("inbox_append", work).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let delivered = if committing.into_inner() {
                    Delivery::Unknown
                } else {
                    Delivery::NotSent
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
            let _ = answer.send(outcome.map_err(|why| self.to_rejection(why, max)));
        }
    }

    /// Wakes waiters of a transaction that may be committed or not.
    pub(super) fn wake_late(&self, topics: impl IntoIterator<Item = Topic>) {
        let hub = &self.mailbox.hub;
        hub.wake_again(topics, 2 * self.mailbox.db.timeout());
    }

    fn announce_entries(&self, entries: &[Entry], outcomes: &[Outcome]) {
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
            self.mailbox.kept.count_added(entry.new.bytes());
            if let Some(task) = &entry.new.continues {
                let (workspace, state) = (&entry.new.workspace, entry.continues_as);
                self.mailbox.metrics.tasks.states[state].inc();
                self.events
                    .publish(task_changed_event(workspace, task, state));
            }
        }
        self.mailbox.metrics.inbox.record_batch(written);
        self.mailbox.hub.wake(woken);
    }

    fn to_rejection(&self, why: AppendError, max: i64) -> Rejection {
        match why {
            AppendError::Full | AppendError::Share => {
                self.mailbox
                    .metrics
                    .inbox
                    .refused
                    .with_label_values(&["full"])
                    .inc();
                inbox_full(max, why == AppendError::Share)
            }
            AppendError::NoRoom => {
                self.mailbox
                    .metrics
                    .inbox
                    .refused
                    .with_label_values(&["full"])
                    .inc();
                self.mailbox
                    .kept
                    .count_refusal(RetainedKind::Inbox, NO_ROOM)
            }
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
fn topics_of(entry: &Entry) -> impl Iterator<Item = Topic> {
    let inbox = Topic::inbox(&entry.new.workspace);
    let task = entry.new.continues.as_deref().map(Topic::task);
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
