//! Workspaces: the registry of agents.
//!
//! Owns the table `workspaces` ([`table`], its SQL in [`sql`]) and the JSON form of a workspace ([`view`]).
//! Access to other workspaces is decided in [`crate::hierarchy`]; location and liveness are kept in
//! the crate `directory`.

pub mod bulk;
mod candidates;
mod change;
mod instances;
mod orgs;
mod origins;
mod outline;
mod probe;
mod registration;
mod settings;
mod sql;
mod table;
mod view;
mod wake;

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::FromRow;
use sqlx::any::AnyRow;

pub use self::bulk::Tombstone;
pub use self::candidates::{
    Candidate, CandidateQuery, CandidateScope, NearScope, Realm, Search, ids_below, load_subtree,
};
pub use self::change::{Move, RemoveOutcome, Settings, Surroundings, WorkspaceChange};
pub use self::instances::{
    INSTANCES_MAX, InstanceRegistration, Instances, RegistrationError, StoredInstance,
    default_instance,
};
pub use self::orgs::orgs_of;
pub use self::origins::{
    Claim, HeldOrigin, Origin, OriginTaken, Origins, credential_base, is_base_of_operator, url_base,
};
pub use self::outline::Outline;
pub use self::probe::{ProbedWorkspaces, StoredProbe};
pub use self::registration::{RegistrationUpdate, StoredRegistration};
pub use self::settings::{
    NewWorkspaceBody, PolicyEntry, Recorded, SaidSetting, SetBy, SettingsPatch, WorkspaceSettings,
};
pub use self::table::{CreateOutcome, HeartbeatUpdate, LINE_MAX, Step, Workspaces};
pub use self::view::{InstanceStatus, InstanceView, UrlVisibility, WorkspaceView};
pub use self::wake::{StoredWake, WakeMethod, WakeView};
use crate::identity::NewEnrolment;
use crate::rows::{read, stored_values, stored_words};
use kernel::closed_set::words;
use kernel::ids::WorkspaceId;
pub use kernel::time::Timestamp;
use trust::SealedSecret;

/// A workspace: the address of an agent, with its stored state. Its settings are read as members of its own.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Id, which is its name in URLs.
    pub id: WorkspaceId,
    /// Its settings.
    pub settings: WorkspaceSettings,
    /// Its card, byte for byte as registered.
    pub agent_card: Option<Box<RawValue>>,
    /// Longest silence in an answer, in seconds; `None`: `timeouts.idle`.
    pub idle_timeout_seconds: Option<u32>,
    /// Number of its named instances; 0: the URL is that of its one agent.
    pub instances: u32,
    /// Current task, as the agent reported it.
    pub current_task: Option<String>,
    /// Active tasks that it reported.
    pub active_tasks: u32,
    /// Time of the last heartbeat or registration.
    pub last_seen: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change, except of its liveness.
    pub updated_at: Timestamp,
}

impl FromRow<'_, AnyRow> for Workspace {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: read(row, "id")?,
            settings: WorkspaceSettings::read(row)?,
            agent_card: read(row, "agent_card")?,
            idle_timeout_seconds: read(row, "idle_timeout_seconds")?,
            instances: read(row, "instances")?,
            current_task: read(row, "current_task")?,
            active_tasks: read(row, "active_tasks")?,
            last_seen: read(row, "last_seen")?,
            created_at: read(row, "created_at")?,
            updated_at: read(row, "updated_at")?,
        })
    }
}

impl Deref for Workspace {
    type Target = WorkspaceSettings;

    fn deref(&self) -> &WorkspaceSettings {
        &self.settings
    }
}

/// TLS towards an agent, as stored: certificates and key are sealed; the shown facts about the certificates are
/// kept beside them, so that a read of a workspace opens no seal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedTls {
    /// Certificates and key. Never shown.
    pub sealed: SealedSecret,
    /// Names, fingerprints and expiry of the certificates, for operators.
    pub about: Box<RawValue>,
}

impl PartialEq for SealedTls {
    fn eq(&self, other: &Self) -> bool {
        self.sealed == other.sealed
    }
}

impl Eq for SealedTls {}

impl Workspace {
    /// True if its credential is for the scheme, host and port of `url`.
    pub fn has_credential_for(&self, url: &str) -> bool {
        let set_for = self.upstream_auth_base.as_deref();
        self.upstream_auth.is_some() && set_for.map(url_base) == Some(url_base(url))
    }

    /// Returns its probe, if its agent is asked: a registration may have changed its liveness or its delivery.
    pub fn active_probe(&self) -> Option<&StoredProbe> {
        let is_asked =
            self.liveness == Liveness::Assumed && self.delivery_mode == DeliveryMode::Push;
        self.probe.as_ref().filter(|_| is_asked)
    }

    /// True if each address of the name in its URL is an instance. Instances that are named take precedence.
    pub fn resolves_each(&self) -> bool {
        self.resolve == Some(Resolve::Each)
            && self.liveness == Liveness::Assumed
            && self.delivery_mode == DeliveryMode::Push
            && self.instances == 0
    }
}

words! {
    /// Lifecycle status of a workspace.
    #[derive(Default)]
    Status {
        /// Created; its agent has not registered yet.
        #[default]
        Provisioning => "provisioning",
        /// Registered and alive.
        Online => "online",
        /// Alive, and degraded by its own report. Reachable.
        Degraded => "degraded",
        /// Its heartbeat lapsed, or it deregistered.
        Offline => "offline",
        /// Paused by an operator or an org token.
        Paused => "paused",
        /// Its provisioning failed.
        Failed => "failed",
        /// Suspended; it comes back by registering.
        Hibernated => "hibernated",
        /// Starting again.
        Restarting => "restarting",
        /// Removed for good. The row stays, so that its id is never reused.
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
    #[derive(Default)]
    DeliveryMode {
        /// The gateway calls its agent.
        #[default]
        Push => "push",
        /// Its agent polls the inbox.
        Poll => "poll",
    }
}

words! {
    /// Source of the liveness of a workspace.
    #[derive(Default)]
    Liveness {
        /// Heartbeats: it goes offline without them.
        #[default]
        Heartbeat => "heartbeat",
        /// Assumed: its agent does not register.
        Assumed => "assumed",
    }
}

words! {
    /// Proof in the caller token that the target gets with a call (`docs/reference/credentials.md`, "Caller tokens").
    #[derive(Default)]
    CallerProof {
        /// The caller, for half a minute: one token for its calls meanwhile.
        #[default]
        Pair => "pair",
        /// The caller of exactly this request: a token of its own, bound to method and body.
        Request => "request",
    }
}

words! {
    /// Addresses of the name in an agent's URL that get calls.
    #[derive(Default)]
    Resolve {
        /// The first one, of IPv4 if there is one.
        #[default]
        First => "first",
        /// Each as an instance of its own.
        Each => "each",
    }
}

stored_words!(Status, DeliveryMode, Liveness, CallerProof, Resolve);

stored_values! {
    SealedTls as String: |tls| serde_json::to_string(tls)?, |stored| serde_json::from_str(&stored)?;
    StoredWake as String: |wake| serde_json::to_string(wake)?, |stored| serde_json::from_str(&stored)?;
    StoredProbe as String: |probe| serde_json::to_string(probe)?, |stored| serde_json::from_str(&stored)?;
}

/// A workspace to create.
#[derive(Clone, Debug)]
pub struct NewWorkspace {
    /// Id of the workspace.
    pub id: WorkspaceId,
    /// Its settings.
    pub settings: WorkspaceSettings,
    /// Its instances at the URLs of an operator; the first is at `url`.
    pub instances: Vec<StoredInstance>,
    /// Origins of its URLs.
    pub origins: Origins,
    /// Enrolment token that is stored with it.
    pub enrolment: Option<NewEnrolment>,
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
