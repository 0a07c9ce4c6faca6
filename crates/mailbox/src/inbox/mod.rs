//! Inboxes of agents that poll (`docs/reference/http-api.md`, "Inboxes"), and the tasks that their messages begin.
//!
//! Owns the tables `activity_logs`, `inbox_heads` and `task_updates`. [`Inbox::put`] is group commit
//! ([`append`]); [`feed`] reads and acknowledges; [`reply`]
//! takes an agent's updates of its tasks, which [`document`] turns into JSON; [`prune`]
//! applies the retention and keeps heartbeats.
//!
//! Invariants: a message is committed before its sender gets a response; the numbers of an inbox have no gaps
//! and are in the order of commits, so a reader that continues after a number misses none; without the shared
//! state waiters are woken within a second of the commit.

mod activity;
mod append;
mod document;
mod feed;
mod notice;
mod prune;
mod reply;

use std::collections::HashSet;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use self::activity::{Activity, ActivityType, Item, NewActivity, Source, SourceKind};
pub use self::append::no_task;
pub use self::document::too_deep;
pub use self::feed::{Filter, Page, Start};
pub use self::notice::{Attachment, Notice};
pub use self::prune::empty_inbox;
pub use self::reply::{InboxTask, TaskPage, TaskQuery, TaskUpdate};

use self::append::Queue;
use crate::mailbox::Mailbox;
pub use crate::wake::Watch;
use access::identity::Proof;
use directory::events::{Event, Events, Kind, ReaderSlot, ReaderSlots, SlotLimits};
use kernel::config::Config;
use kernel::ids::WorkspaceId;
use kernel::metrics::{InProgress, InboxReader};
use kernel::rejection::Rejection;

/// Concurrent reads of this replica at most.
const READS_MAX: usize = 4;

/// Puts, reads and prunes the entries of inboxes.
pub struct Inbox {
    pub(super) mailbox: Arc<Mailbox>,
    events: Arc<Events>,
    queue: Queue,
    turns: Semaphore,
    readers: Arc<ReaderSlots>,
    /// Slots of senders that wait for replies, apart from those of reading agents.
    senders: Arc<ReaderSlots>,
    /// Inboxes with new acknowledgements.
    to_prune: Mutex<HashSet<WorkspaceId>>,
    /// Time at which this gateway last wrote the heartbeat of each agent.
    signs: DashMap<WorkspaceId, Instant>,
}

/// The slot of a long-lived reader, or of a sender that waits for the reply to its message. Dropping it frees the slot.
pub struct Reader {
    /// The new entries since it was opened.
    pub watch: Watch,
    _slot: SenderSlot,
}

/// The slot of a sender that waits for the reply to its message. Dropping it frees the slot.
pub struct SenderSlot {
    _slot: ReaderSlot,
    _counted: InProgress,
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
            to_prune: Mutex::default(),
            signs: DashMap::new(),
        })
    }

    /// Commits entries, and prunes what is acknowledged. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.write(), self.prune());
    }

    /// Takes a slot for the caller, to wait for new entries of an inbox on any replica.
    ///
    /// # Errors
    /// `overloaded` and `rate_limited` beyond the bounds of `[inbox]`.
    pub fn open_reader(
        &self,
        workspace: &WorkspaceId,
        proof: &Proof,
        kind: InboxReader,
    ) -> Result<Reader, Rejection> {
        let slot = self.readers.take(proof.account)?;
        Ok(Reader {
            _slot: self.count_slot(slot, kind),
            watch: self.watch_inbox(workspace),
        })
    }

    /// Takes a slot for the caller, to wait for the reply to its message. `None`: there is none free.
    pub fn take_sender_slot(&self, proof: &Proof) -> Option<SenderSlot> {
        let Ok(slot) = self.senders.take(proof.account) else {
            self.mailbox.metrics.inbox.waits_refused.inc();
            return None;
        };
        Some(self.count_slot(slot, InboxReader::Sender))
    }

    fn count_slot(&self, slot: ReaderSlot, kind: InboxReader) -> SenderSlot {
        let gauge = &self.mailbox.metrics.inbox.readers[kind];
        SenderSlot {
            _slot: slot,
            _counted: InProgress::begin(gauge),
        }
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
pub(crate) fn task_changed_event(
    workspace: &WorkspaceId,
    task: &str,
    state: impl Into<Value>,
) -> Event {
    let payload = json!({"task_id": task, "state": state.into()});
    Event::new(Kind::TaskUpdated, workspace, payload)
}
