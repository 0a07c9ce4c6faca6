//! Workspaces: the registry of agents.
//!
//! Owns the table `workspaces` ([`table`], its SQL in [`sql`]) and the JSON form of a workspace ([`view`]).
//! Access to other workspaces is decided in [`crate::hierarchy`]; location and liveness are kept in
//! [`crate::directory`].

mod backfill;
mod change;
mod origins;
mod outline;
mod reach;
mod row;
mod sql;
mod table;
mod timestamp;
mod view;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use self::backfill::{Backfilled, SharedServer};
pub use self::change::{Changed, Move, Removed, Settings, Surroundings};
pub use self::origins::{Claim, Held, Origin, OriginTaken, Origins, base};
pub use self::outline::Outline;
pub use self::reach::{Among, Candidate, Near, Search, Wish};
pub use self::table::{Created, LINE_MAX, Register, Seen, Step, Workspaces};
pub use self::timestamp::Timestamp;
pub use self::view::{Urls, View};
use crate::config::{CardAccess, Complete};
use crate::ids::WorkspaceId;
use crate::trust::Sealed;

/// The addressable seat of an agent, with all that is kept of it.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its name in every URL.
    pub id: WorkspaceId,
    /// For people.
    pub name: String,
    /// Purpose of the agent, as free text of its owner.
    pub role: Option<String>,
    /// The workspace above it. Kept when that one is removed.
    pub parent_id: Option<WorkspaceId>,
    /// Org that the workspace belongs to. `None` counts as an org of its own.
    pub org: Option<String>,
    /// Lifecycle status.
    pub status: Status,
    /// Principal that paused it; `None` if it is not paused, or was paused before this was stored.
    pub paused_by: Option<PausedBy>,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// Source of its liveness.
    pub liveness: Liveness,
    /// URL that its agent listens at, as registered.
    pub url: Option<String>,
    /// The same on the agents' own network.
    pub internal_url: Option<String>,
    /// URL that its card is fetched from.
    pub card_url: Option<String>,
    /// Its card, byte for byte as it was registered.
    pub agent_card: Option<Box<RawValue>>,
    /// The credential with which the gateway calls the agent. Shown nowhere.
    pub upstream_auth: Option<Sealed>,
    /// For which scheme, host and port that was set; `None`: for the first that the agent registers.
    pub upstream_auth_base: Option<String>,
    /// TLS towards the agent.
    pub upstream_tls: Option<SealedTls>,
    /// Completion mode for incomplete calls; `None`: that of `a2a.complete`.
    pub complete: Option<Complete>,
    /// True if callers may ask for push notifications; `None`: as `a2a.push_notifications`.
    pub push_notifications: Option<bool>,
    /// Access to its card; `None`: that of `card.access`.
    pub card_access: Option<CardAccess>,
    /// Maximum calls in progress; `None`: `limits.target_concurrency`.
    pub max_concurrent: Option<u32>,
    /// Longest silence in an answer, in seconds; `None`: `timeouts.idle`.
    pub idle_timeout_seconds: Option<u32>,
    /// Current task, as the agent reported it.
    pub current_task: Option<String>,
    /// Active tasks that it reported.
    pub active_tasks: u32,
    /// The last heartbeat or registration.
    pub last_seen: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change, except of its liveness.
    pub updated_at: Timestamp,
}

/// TLS towards an agent, as it is kept: certificates and key are sealed; what may be shown of the
/// certificates stands beside them, so that reading a workspace opens nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedTls {
    /// All of it. Shown nowhere.
    pub sealed: Sealed,
    /// Names, fingerprints and ends of the certificates, for operators.
    pub about: Box<RawValue>,
}

impl PartialEq for SealedTls {
    fn eq(&self, other: &Self) -> bool {
        self.sealed == other.sealed
    }
}

impl Eq for SealedTls {}

impl Workspace {
    /// True if its agent registered itself at another place after its credential was set, so that the
    /// credential is withheld.
    pub fn is_credential_withheld(&self) -> bool {
        let set_for = self.upstream_auth_base.as_deref();
        let now = self.url.as_deref().map(base);
        self.upstream_auth.is_some() && set_for.is_some() && now.is_some() && set_for != now
    }
}

/// A closed set of words, stored and shown alike.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            /// The word in JSON, in the table and in logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Reads the word.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

pub(crate) use words;

words! {
    /// Principal that paused a workspace.
    PausedBy {
        /// An operator's, and only an operator ends it.
        Operator => "operator",
        /// An org token of its org.
        Org => "org",
    }
}

words! {
    /// Lifecycle status of a workspace.
    Status {
        /// Created; its agent has not registered yet.
        Provisioning => "provisioning",
        /// Registered and alive.
        Online => "online",
        /// Alive, and in trouble by its own word. Reachable.
        Degraded => "degraded",
        /// Its heartbeat lapsed, or it deregistered.
        Offline => "offline",
        /// Taken out by an operator.
        Paused => "paused",
        /// Its provisioning failed.
        Failed => "failed",
        /// Put to sleep.
        Hibernated => "hibernated",
        /// On its way up again.
        Restarting => "restarting",
        /// Gone for good. The row stays, so that its id is never given away.
        Removed => "removed",
    }
}

impl Status {
    /// True if the agent counts as up.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Online | Self::Degraded)
    }
}

words! {
    /// Delivery mode of messages to a workspace.
    DeliveryMode {
        /// The gateway calls its agent.
        Push => "push",
        /// Its agent fetches them from the inbox.
        Poll => "poll",
    }
}

words! {
    /// Source of the liveness of a workspace.
    Liveness {
        /// Heartbeats: it lapses without them.
        Heartbeat => "heartbeat",
        /// Nothing: its agent knows of no registry.
        Assumed => "assumed",
    }
}

/// A workspace that is to be created.
#[derive(Clone, Debug)]
pub struct NewWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// For people.
    pub name: String,
    /// Purpose of the agent, as free text.
    pub role: Option<String>,
    /// The workspace above it.
    pub parent_id: Option<WorkspaceId>,
    /// Org that the workspace belongs to.
    pub org: Option<String>,
    /// Its first status.
    pub status: Status,
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// Source of its liveness.
    pub liveness: Liveness,
    /// URL that its agent listens at.
    pub url: Option<String>,
    /// The same on the agents' own network.
    pub internal_url: Option<String>,
    /// URL that its card is fetched from.
    pub card_url: Option<String>,
    /// Its card.
    pub agent_card: Option<Box<RawValue>>,
    /// The credential with which the gateway calls the agent.
    pub upstream_auth: Option<Sealed>,
    /// TLS towards the agent.
    pub upstream_tls: Option<SealedTls>,
    /// Completion mode for incomplete calls.
    pub complete: Option<Complete>,
    /// True if callers may ask for push notifications.
    pub push_notifications: Option<bool>,
    /// Access to its card.
    pub card_access: Option<CardAccess>,
    /// Calls in progress at most.
    pub max_concurrent: Option<u32>,
    /// The servers of its URLs.
    pub origins: Origins,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in [
            "provisioning",
            "online",
            "degraded",
            "offline",
            "paused",
            "failed",
            "hibernated",
            "restarting",
            "removed",
        ] {
            let status = Status::parse(word).unwrap();
            assert_eq!(status.as_str(), word);
            assert_eq!(serde_json::to_value(status).unwrap(), word);
        }
        assert_eq!(Status::parse("Online"), None);
    }
}
