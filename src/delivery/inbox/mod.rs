//! Inboxes of agents that poll (`docs/reference/http-api.md`, "Inboxes"), and the tasks that their messages begin.
//!
//! Owns the tables `activity_logs`, `inbox_heads` and `task_updates`. [`Inbox::put`] is group commit
//! ([`append`], the transaction in [`commit`], the fill level in [`usage`]); [`feed`] reads and acknowledges; [`reply`]
//! takes an agent's updates of its tasks, which [`document`] turns into JSON; [`heartbeat`] keeps heartbeats; [`wake`]
//! wakes waiters on all replicas; [`prune`] applies the retention.
//!
//! Invariants: a message is committed before its sender gets a response; the numbers of an inbox have no gaps
//! and are in the order of commits, so a reader that continues after a number misses none; without the shared
//! state waiters are woken within a second of the commit.

mod activity;
mod append;
mod backlog;
mod commit;
mod document;
mod feed;
mod heartbeat;
mod notice;
mod prune;
mod reader;
mod reply;
mod usage;
mod wake;

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;

pub use self::activity::{Activity, ActivityType, Item, NewActivity, Source, SourceKind};
pub use self::document::too_deep;
pub use self::feed::{Filter, Page, Start};
pub use self::heartbeat::empty_inbox;
pub use self::notice::{Attachment, Notice};
pub use self::reader::{Reader, SenderSlot};
pub use self::reply::{InboxTask, TaskPage, TaskQuery, TaskUpdate};
pub use self::wake::Watch;

use self::append::Queue;
use self::heartbeat::HeartbeatTimes;
use self::prune::PruneQueue;
use self::wake::Hub;
use crate::a2a::state::TaskState;
use crate::config::Live;
use crate::db::Db;
use crate::delivery::kept_bytes::KeptBytes;
use crate::events::{Event, Events, Kind, ReaderSlots, SlotLimits};
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// Concurrent reads of this replica at most.
const READS_MAX: usize = 4;

/// Puts, reads and prunes the entries of inboxes.
pub struct Inbox {
    config: Live,
    db: Db,
    shared: Shared,
    events: Arc<Events>,
    metrics: Arc<Metrics>,
    kept: Arc<KeptBytes>,
    queue: Queue,
    hub: Arc<Hub>,
    turns: Semaphore,
    readers: Arc<ReaderSlots>,
    /// Slots of senders that wait for replies, apart from those of reading agents.
    senders: Arc<ReaderSlots>,
    to_prune: PruneQueue,
    signs: HeartbeatTimes,
}

impl Inbox {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        (db, shared): (Db, Shared),
        kept: Arc<KeptBytes>,
        events: Arc<Events>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let readers = ReaderSlots::new(config.clone(), |config| SlotLimits {
            what: "feeds and waits",
            section: "inbox",
            connections: config.inbox.connections,
            connections_per_caller: config.inbox.connections_per_caller,
        });
        let senders = ReaderSlots::new(config.clone(), |config| SlotLimits {
            what: "messages that wait for their replies",
            section: "inbox",
            connections: config.inbox.connections,
            connections_per_caller: config.inbox.connections_per_caller,
        });
        Arc::new(Self {
            config,
            db,
            shared,
            events,
            metrics,
            kept,
            queue: Queue::default(),
            hub: Hub::new(),
            turns: Semaphore::new(READS_MAX),
            readers,
            senders,
            to_prune: PruneQueue::default(),
            signs: HeartbeatTimes::default(),
        })
    }

    /// Returns the bound on the bytes of entries.
    pub(super) fn kept_bytes(&self) -> &KeptBytes {
        &self.kept
    }

    /// Commits entries, sends and receives wake-ups, and prunes. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.write(),
            self.publish_wake_ups(),
            self.receive_wake_ups(),
            self.prune()
        );
    }
}

/// Returns the event for a task that changed.
fn task_changed_event(workspace: &WorkspaceId, task: &str, state: TaskState) -> Event {
    let payload = json!({"task_id": task, "state": state.as_str()});
    Event::new(Kind::TaskUpdated, workspace, payload)
}

/// Turns a decoding failure of a column into an `sqlx::Error`.
fn decode_column<T, E: std::error::Error + Send + Sync + 'static>(
    read: Result<T, E>,
) -> Result<T, sqlx::Error> {
    read.map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
