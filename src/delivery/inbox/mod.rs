//! Messages for workspaces that fetch them (contract §6.1), and the tasks that those messages begin.
//!
//! Owns the tables `activity_logs`, `inbox_heads` and `task_updates`. [`Inbox::put`] is group commit
//! ([`append`], the transaction in [`commit`]); [`feed`] reads and acknowledges; [`reply`] has what agents say
//! of their tasks, which [`document`] makes JSON of; [`life`] knows which agents are there; [`wake`] ends waits, on all replicas; [`prune`] forgets.
//!
//! Invariants: what was acknowledged to a sender is committed; the numbers of an inbox are without gaps and
//! in the order of commits, so who reads beyond a number misses none; the shared state may be away: then who
//! waits is woken within a second of the commit.

mod activity;
mod append;
mod backlog;
mod commit;
mod document;
mod feed;
mod life;
mod notice;
mod prune;
mod reader;
mod reply;
mod wake;

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;

pub use self::activity::{Activity, ActivityType, Item, NewActivity, Source, SourceKind};
pub use self::document::too_deep;
pub use self::feed::{Filter, Page, Start};
pub use self::notice::{Attachment, Notice};
pub use self::reader::{Reader, SenderPlace};
pub use self::reply::{InboxTask, TaskPage, TaskUpdate, Wanted};
pub use self::wake::Watch;

use self::append::Queue;
use self::life::Signs;
use self::prune::ToPrune;
use self::wake::Hub;
use crate::a2a::state::TaskState;
use crate::config::Live;
use crate::db::Db;
use crate::delivery::kept::KeptBytes;
use crate::events::{Bounds, Event, Events, Kind, Places};
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::Shared;

/// Reads at once at most, of this replica.
const READS_MAX: usize = 4;

/// The room.
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
    places: Arc<Places>,
    /// Of those who wait for what comes of their messages: they take none from agents that read.
    senders: Arc<Places>,
    to_prune: ToPrune,
    signs: Signs,
}

impl Inbox {
    /// Assembles the room; asks nothing.
    pub fn new(
        config: Live,
        (db, shared): (Db, Shared),
        kept: Arc<KeptBytes>,
        events: Arc<Events>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let places = Places::new(config.clone(), |config| Bounds {
            what: "feeds and waits",
            section: "inbox",
            connections: config.inbox.connections,
            connections_per_caller: config.inbox.connections_per_caller,
        });
        let senders = Places::new(config.clone(), |config| Bounds {
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
            places,
            senders,
            to_prune: ToPrune::default(),
            signs: Signs::default(),
        })
    }

    /// What bounds the bytes of entries.
    pub(super) fn kept(&self) -> &KeptBytes {
        &self.kept
    }

    /// Commits what is put there, tells and hears of it, and prunes. A background task; runs until it is
    /// dropped.
    pub async fn run(&self) {
        tokio::join!(self.write(), self.tell(), self.listen(), self.prune());
    }
}

/// Told when a task moved on.
fn task_changed(workspace: &WorkspaceId, task: &str, state: TaskState) -> Event {
    let payload = json!({"task_id": task, "state": state.word()});
    Event::new(Kind::TaskUpdated, workspace, payload)
}

/// What a table says, if it can be read.
fn decoded<T, E: std::error::Error + Send + Sync + 'static>(
    read: Result<T, E>,
) -> Result<T, sqlx::Error> {
    read.map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
