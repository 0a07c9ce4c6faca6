//! What happened, for those who watch: state changes of workspaces, and what passes between them
//! (contract §8.4). Told without waiting, by whoever makes it happen; bounded everywhere.

//!
//! An event goes from [`Events::tell`] into a queue, from there with its workspace's place into a log
//! that all replicas follow, and from the log, in one order, to every reader on every replica who may
//! see it. What only passes by ([`Kind::passes`]) takes a channel instead, and only while somebody
//! listens: thousands of heartbeats a second must cost nothing when nobody watches.

mod audience;
mod hub;
mod interest;
mod pace;
mod places;
mod publish;
mod queue;
mod reader;
mod record;
mod ring;

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

pub use self::places::{Bounds, Place, Places};
pub use self::reader::{Cut, Reader};
pub use self::record::Frame;

use self::hub::Hub;
use self::interest::Interest;
use self::queue::Queue;
use crate::audit::{Audit, Draft, EventType};
use crate::config::Live;
use crate::hierarchy::{Hierarchy, Lineage};
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::workspace::Timestamp;

/// State changes waiting to be published while the shared state is away. Beyond it the oldest is
/// dropped, and counted: a watcher wants to know how things are, not how they were.
const KEPT_WAITING_MAX: usize = 4096;

/// The same for what only passes by.
const PASSING_WAITING_MAX: usize = 2048;

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
    /// It works on something else, or on a task of its inbox.
    TaskUpdated,
    /// It sent a heartbeat.
    WorkspaceHeartbeat,
    /// It answered a message.
    A2aResponse,
    /// It has something to say to its user.
    AgentMessage,
    /// It handed a task to another.
    DelegationSent,
    /// What it delegated moved on.
    DelegationStatus,
    /// What it delegated has a result.
    DelegationComplete,
    /// What it delegated came to nothing.
    DelegationFailed,
}

impl Kind {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
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
            Self::AgentMessage => "AGENT_MESSAGE",
            Self::DelegationSent => "DELEGATION_SENT",
            Self::DelegationStatus => "DELEGATION_STATUS",
            Self::DelegationComplete => "DELEGATION_COMPLETE",
            Self::DelegationFailed => "DELEGATION_FAILED",
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
    /// More about it: an object. Never a credential, and content only of what is said to users.
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

    /// The status that the workspace came to, if it is about that.
    fn status(&self) -> Option<&Value> {
        let of_status = matches!(
            self.kind,
            Kind::WorkspaceOnline | Kind::WorkspaceOffline | Kind::WorkspaceDegraded
        );
        self.payload.get("status").filter(|_| of_status)
    }
}

/// The room.
pub struct Events {
    shared: Shared,
    metrics: Arc<Metrics>,
    kept: Queue<Event>,
    passing: Queue<Event>,
    hub: Hub,
    interest: Interest,
    places: Arc<Places>,
    /// What is told of a workspace's status is written down there, too.
    audit: OnceLock<Arc<Audit>>,
}

impl Events {
    /// Assembles the room; asks nothing.
    pub fn new(config: Live, shared: Shared, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            kept: Queue::new(KEPT_WAITING_MAX, metrics.queues.events_kept.clone()),
            passing: Queue::new(PASSING_WAITING_MAX, metrics.queues.events_passing.clone()),
            metrics,
            hub: Hub::default(),
            interest: Interest::default(),
            places: Places::new(config, |config| Bounds {
                what: "event streams",
                section: "events",
                connections: config.events.connections,
                connections_per_caller: config.events.connections_per_caller,
            }),
            audit: OnceLock::new(),
        })
    }

    /// Has every change of a status written down: most of them nobody asks for by a request.
    pub fn recorded_by(&self, audit: &Arc<Audit>) {
        let _ = self.audit.set(Arc::clone(audit));
    }

    /// Whether anybody, on any replica, listens to what only passes by. Ask before making such an
    /// event.
    pub fn heard(&self) -> bool {
        self.interest.heard()
    }

    /// Tells everyone who may know, on every replica. Never waits.
    ///
    /// Tell of what is committed: who may see a move or a removal is read from the store afresh.
    pub fn tell(&self, event: Event) {
        let passes = event.kind.passes();
        if passes && !self.heard() {
            return;
        }
        if let (Some(audit), Some(status)) = (self.audit.get(), event.status()) {
            let draft = Draft::new(EventType::WorkspaceStatus).about(&event.workspace);
            audit.record(draft.with(json!({"status": status})));
        }
        let queue = if passes { &self.passing } else { &self.kept };
        if queue.push(event) {
            self.metrics.events_dropped(passes, 1);
        }
    }

    /// Publishes, follows what all replicas publish, and says when somebody listens. A background
    /// task; runs until it is dropped.
    pub async fn run(&self, hierarchy: &Hierarchy) {
        tokio::join!(
            self.publish_kept(hierarchy),
            self.publish_passing(hierarchy),
            self.follow(),
            self.listen(),
            self.announce(),
        );
    }
}

#[cfg(test)]
mod tests;
