//! Events for watchers: state changes of workspaces, and the traffic between them (`docs/reference/events.md`).
//! Publishing never waits; all buffers are bounded.
//!
//! An event goes from [`Events::publish`] into a queue, from there with its workspace's place into a log that all
//! replicas follow, and from the log, in one order, to every reader on every replica that may see it. A passing
//! event ([`Kind::is_passing`]) takes a channel instead, and only while there is a reader: thousands of heartbeats
//! a second must cost nothing when they are not watched.

mod audience;
mod hub;
mod publish;
mod reader;
mod record;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

pub use self::reader::{Reader, ReaderLagged, ReaderSlot, ReaderSlots, SlotLimits};
pub use self::record::{Frame, PayloadSubject};

use self::hub::Hub;
use self::publish::{LISTENING, PASSING, Queue};
use self::record::RestrictedMembers;
use access::hierarchy::{Hierarchy, Lineage};
use access::workspace::Timestamp;
use audit::{Audit, Draft, EventType};
use kernel::closed_set::words;
use kernel::config::Live;
use kernel::ids::WorkspaceId;
use kernel::metrics::{EventKind, Metrics, Queue as QueueName};
use stores::broadcast::{Audience, AudienceTimes};
use stores::shared::Shared;

/// The times of the readers of events.
const TERMS: AudienceTimes = AudienceTimes {
    announce_every: Duration::from_secs(5),
    announced_for: Duration::from_secs(15),
    lingers_for: Duration::ZERO,
};

/// Maximum queued state changes while the shared state is away. Beyond it the oldest is dropped and counted: a
/// watcher needs the present state, not the earlier ones.
const KEPT_WAITING_MAX: usize = 4096;

/// Maximum queued passing events.
const PASSING_WAITING_MAX: usize = 2048;

words! {
    /// Kind of an event; its string is the member `event` of a frame.
    Kind {
        /// It can be reached (again).
        WorkspaceOnline => "WORKSPACE_ONLINE",
        /// It cannot be reached; `payload.status` is its status.
        WorkspaceOffline => "WORKSPACE_OFFLINE",
        /// It can be reached, and is degraded by its own report.
        WorkspaceDegraded => "WORKSPACE_DEGRADED",
        /// Its waker is asked to start its agent, for calls that wait for it.
        WorkspaceWaking => "WORKSPACE_WAKING",
        /// An operator stopped calls from and to it.
        WorkspaceStopped => "WORKSPACE_STOPPED",
        /// A stop of it was released, or expired.
        WorkspaceReleased => "WORKSPACE_RELEASED",
        /// It is removed for good.
        WorkspaceRemoved => "WORKSPACE_REMOVED",
        /// It has another parent or another org.
        WorkspaceMoved => "WORKSPACE_MOVED",
        /// Its credential goes to another address, which another program wrote to the shared state.
        CredentialMoved => "CREDENTIAL_MOVED",
        /// It has a new card.
        AgentCardUpdated => "AGENT_CARD_UPDATED",
        /// Its current task, or a task of its inbox, changed.
        TaskUpdated => "TASK_UPDATED",
        /// It sent a heartbeat.
        WorkspaceHeartbeat => "WORKSPACE_HEARTBEAT",
        /// It answered a message.
        A2aResponse => "A2A_RESPONSE",
        /// It has a message for its user.
        AgentMessage => "AGENT_MESSAGE",
        /// It delegated a task.
        DelegationSent => "DELEGATION_SENT",
        /// A delegation of the workspace changed its status.
        DelegationStatus => "DELEGATION_STATUS",
        /// A delegation of the workspace has a result.
        DelegationComplete => "DELEGATION_COMPLETE",
        /// A delegation of the workspace failed.
        DelegationFailed => "DELEGATION_FAILED",
    }
}

impl Kind {
    /// True for a passing event: sent to the readers of the moment, and not kept for replay. There may be
    /// thousands a second; they would push state changes out of the replay buffer.
    pub const fn is_passing(self) -> bool {
        matches!(
            self,
            Self::TaskUpdated | Self::WorkspaceHeartbeat | Self::A2aResponse
        )
    }
}

/// An event of one workspace.
#[derive(Clone, Debug)]
pub struct Event {
    /// Kind of the event.
    pub kind: Kind,
    /// Workspace that it is about.
    pub workspace: WorkspaceId,
    /// Time of the event.
    pub at: Timestamp,
    /// Details: an object. Never a credential, and content only of messages to users.
    pub payload: Value,
    /// Earlier place of the workspace, if it moved or was removed: readers that could see it there get the
    /// event.
    pub was: Option<Arc<Lineage>>,
    /// Part of the payload that tells of more than the workspace.
    restricted: Option<RestrictedMembers>,
}

impl Event {
    /// Creates an event of this moment.
    pub fn new(kind: Kind, workspace: &WorkspaceId, payload: Value) -> Self {
        Self {
            kind,
            workspace: workspace.clone(),
            at: Timestamp::now(),
            payload,
            was: None,
            restricted: None,
        }
    }

    /// Keeps these members of the payload from integrations and users that do not look after all of `of`.
    #[must_use]
    pub fn restrict_members(mut self, of: PayloadSubject, members: &[&str]) -> Self {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        self.restricted = Some(RestrictedMembers { of, members });
        self
    }
}

/// Publishes events and serves readers.
pub struct Events {
    shared: Shared,
    metrics: Arc<Metrics>,
    kept: Queue<Event>,
    passing: Queue<Event>,
    hub: Hub,
    audience: Audience,
    places: Arc<ReaderSlots>,
    /// Audit of status changes.
    audit: OnceLock<Arc<Audit>>,
}

impl Events {
    /// Creates it; does not touch the stores.
    pub fn new(config: Live, shared: Shared, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            kept: Queue::new(
                KEPT_WAITING_MAX,
                metrics.queues.entries[QueueName::EventsKept].clone(),
            ),
            passing: Queue::new(
                PASSING_WAITING_MAX,
                metrics.queues.entries[QueueName::EventsPassing].clone(),
            ),
            metrics,
            hub: Hub::default(),
            audience: Audience::new(TERMS),
            places: ReaderSlots::new(config, |config| SlotLimits {
                what: "event streams",
                section: "events",
                connections: config.events.connections,
                connections_per_caller: config.events.connections_per_caller,
            }),
            audit: OnceLock::new(),
        })
    }

    /// Records each change of a status in `audit`: most of them have no request.
    pub fn set_audit(&self, audit: &Arc<Audit>) {
        let _ = self.audit.set(Arc::clone(audit));
    }

    /// Records a change that no request asked for.
    pub fn record_change(&self, draft: Draft) {
        if let Some(audit) = self.audit.get() {
            audit.record(draft);
        }
    }

    /// True if a replica has readers. Checked before a passing event is built.
    pub fn has_readers(&self) -> bool {
        self.audience.is_anywhere()
    }

    /// Publishes to all readers that may see it, on every replica. Never waits.
    ///
    /// Call it after the commit: access to a moved or removed workspace is read from the store afresh.
    pub fn publish(&self, event: Event) {
        let passes = event.kind.is_passing();
        if passes && !self.has_readers() {
            return;
        }
        let is_of_status = matches!(
            event.kind,
            Kind::WorkspaceOnline | Kind::WorkspaceOffline | Kind::WorkspaceDegraded
        );
        if let Some(status) = event.payload.get("status").filter(|_| is_of_status) {
            let draft = Draft::new(EventType::WorkspaceStatus).with_target(&event.workspace);
            self.record_change(draft.with_detail(json!({"status": status})));
        }
        let queue = if passes { &self.passing } else { &self.kept };
        if queue.push(event) {
            self.metrics
                .count_dropped_events(EventKind::from_passing(passes), 1);
        }
    }

    /// Publishes events, follows those of all replicas, and announces readers. A background task; runs until it
    /// is dropped.
    pub async fn run(&self, hierarchy: &Hierarchy) {
        tokio::join!(
            self.publish_kept(hierarchy),
            self.publish_passing(hierarchy),
            self.follow_log(),
            self.receive_passing(),
            self.audience
                .announce_readers(&self.shared, PASSING, LISTENING),
        );
    }
}

#[cfg(test)]
mod tests;
