//! Inboxes of agents that poll (`docs/reference/http-api.md`, "Inboxes"), and the tasks that their messages begin.
//!
//! Owns the tables `activity_logs`, `inbox_heads` and `task_updates`. [`Inbox::put`] is group commit
//! ([`append`], the transaction in [`commit`], the fill level in [`usage`]); [`feed`] reads and acknowledges; [`reply`]
//! takes an agent's updates of its tasks, which [`document`] turns into JSON; [`heartbeat`] keeps heartbeats; [`prune`]
//! applies the retention.
//!
//! Invariants: a message is committed before its sender gets a response; the numbers of an inbox have no gaps
//! and are in the order of commits, so a reader that continues after a number misses none; without the shared
//! state waiters are woken within a second of the commit.

mod activity;
mod append;
mod commit;
mod document;
mod feed;
mod heartbeat;
mod notice;
mod prune;
mod reader;
mod reply;
mod usage;

use std::sync::Arc;

use dashmap::DashMap;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use self::activity::{Activity, ActivityType, Item, NewActivity, Source, SourceKind};
pub use self::append::no_task;
pub use self::document::too_deep;
pub use self::feed::{Filter, Page, Start};
pub use self::heartbeat::empty_inbox;
pub use self::notice::{Attachment, Notice};
pub use self::reader::{Reader, SenderSlot};
pub use self::reply::{InboxTask, TaskPage, TaskQuery, TaskUpdate};

use self::append::Queue;
use self::prune::PruneQueue;
use crate::mailbox::Mailbox;
pub use crate::wake::Watch;
use a2a::state::TaskState;
use directory::events::{Event, Events, Kind, ReaderSlots, SlotLimits};
use kernel::config::Config;
use kernel::ids::WorkspaceId;

/// Concurrent reads of this replica at most.
const READS_MAX: usize = 4;

/// Puts, reads and prunes the entries of inboxes.
pub struct Inbox {
    mailbox: Arc<Mailbox>,
    events: Arc<Events>,
    queue: Queue,
    turns: Semaphore,
    readers: Arc<ReaderSlots>,
    /// Slots of senders that wait for replies, apart from those of reading agents.
    senders: Arc<ReaderSlots>,
    to_prune: PruneQueue,
    /// Time at which this gateway last wrote the heartbeat of each agent.
    signs: DashMap<WorkspaceId, Instant>,
}

impl Inbox {
    /// Creates it; does not touch the stores.
    pub fn new(mailbox: Arc<Mailbox>, events: Arc<Events>) -> Arc<Self> {
        let slots =
            |bounds: fn(&Config) -> SlotLimits| ReaderSlots::new(mailbox.config.clone(), bounds);
        Arc::new(Self {
            readers: slots(|config| slot_limits(config, "feeds and waits")),
            senders: slots(|config| slot_limits(config, "messages that wait for their replies")),
            mailbox,
            events,
            queue: Queue::default(),
            turns: Semaphore::new(READS_MAX),
            to_prune: PruneQueue::default(),
            signs: DashMap::new(),
        })
    }

    /// Commits entries, and prunes what is acknowledged. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.write(), self.prune());
    }
}

fn slot_limits(config: &Config, what: &'static str) -> SlotLimits {
    SlotLimits {
        what,
        section: "inbox",
        connections: config.inbox.connections,
        connections_per_caller: config.inbox.connections_per_caller,
    }
}

/// Returns the event for a task that changed.
fn task_changed_event(workspace: &WorkspaceId, task: &str, state: TaskState) -> Event {
    let payload = json!({"task_id": task, "state": state.as_str()});
    Event::new(Kind::TaskUpdated, workspace, payload)
}
