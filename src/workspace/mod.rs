//! Who exists: the workspaces, as the registry knows them (contract §8.1).
//!
//! Owns the table `workspaces` ([`table`], its SQL in [`sql`]) and the JSON that a workspace reads as ([`view`]). What a
//! workspace may reach is decided in [`crate::hierarchy`]; where it listens and whether it lives, in
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
    /// What it is for, in its owner's words.
    pub role: Option<String>,
    /// The workspace above it. Kept when that one is removed.
    pub parent_id: Option<WorkspaceId>,
    /// Whom it belongs to; no org counts as one org.
    pub org: Option<String>,
    /// Where it is in its life.
    pub status: Status,
    /// By whose word it is paused; `None` where it is not, or was before that was kept.
    pub paused_by: Option<PausedBy>,
    /// How messages reach it.
    pub delivery_mode: DeliveryMode,
    /// What keeps it online.
    pub liveness: Liveness,
    /// Where its agent listens, as it registered.
    pub url: Option<String>,
    /// The same on the agents' own network.
    pub internal_url: Option<String>,
    /// Where its card is fetched.
    pub card_url: Option<String>,
    /// Its card, byte for byte as it was registered.
    pub agent_card: Option<Box<RawValue>>,
    /// The credential with which the gateway calls the agent. Shown nowhere.
    pub upstream_auth: Option<Sealed>,
    /// For which scheme, host and port that was set; `None`: for the first that the agent registers.
    pub upstream_auth_base: Option<String>,
    /// TLS towards the agent.
    pub upstream_tls: Option<SealedTls>,
    /// How much of an incomplete call is filled in; `None`: as `a2a.complete` says.
    pub complete: Option<Complete>,
    /// Whether callers may ask for push notifications; `None`: as `a2a.push_notifications` says.
    pub push_notifications: Option<bool>,
    /// Who may read its card; `None`: as `card.access` says.
    pub card_access: Option<CardAccess>,
    /// Calls in progress at most; `None`: as `limits.target_concurrency` says.
    pub max_concurrent: Option<u32>,
    /// Longest silence in an answer, in seconds; `None`: as `timeouts.idle` says.
    pub idle_timeout_seconds: Option<u32>,
    /// What it said it is working on.
    pub current_task: Option<String>,
    /// How many tasks it said it has.
    pub active_tasks: u32,
    /// The last heartbeat or registration.
    pub last_seen: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When something but its liveness last changed.
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
    /// Whether its agent registered itself elsewhere since its credential was set, so that the credential is kept back.
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
    /// By whose word a workspace is paused.
    PausedBy {
        /// An operator's, and only an operator ends it.
        Operator => "operator",
        /// That of an org token of its org.
        Org => "org",
    }
}

words! {
    /// Where a workspace is in its life.
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
    /// Whether the agent counts as there.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Online | Self::Degraded)
    }
}

words! {
    /// How messages reach a workspace.
    DeliveryMode {
        /// The gateway calls its agent.
        Push => "push",
        /// Its agent fetches them from the inbox.
        Poll => "poll",
    }
}

words! {
    /// What keeps a workspace online.
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
    /// What it is for.
    pub role: Option<String>,
    /// The workspace above it.
    pub parent_id: Option<WorkspaceId>,
    /// Whom it belongs to.
    pub org: Option<String>,
    /// Its first status.
    pub status: Status,
    /// How messages reach it.
    pub delivery_mode: DeliveryMode,
    /// What keeps it online.
    pub liveness: Liveness,
    /// Where its agent listens.
    pub url: Option<String>,
    /// The same on the agents' own network.
    pub internal_url: Option<String>,
    /// Where its card is fetched.
    pub card_url: Option<String>,
    /// Its card.
    pub agent_card: Option<Box<RawValue>>,
    /// The credential with which the gateway calls the agent.
    pub upstream_auth: Option<Sealed>,
    /// TLS towards the agent.
    pub upstream_tls: Option<SealedTls>,
    /// How much of an incomplete call is filled in.
    pub complete: Option<Complete>,
    /// Whether callers may ask for push notifications.
    pub push_notifications: Option<bool>,
    /// Who may read its card.
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
