//! JSON form of a workspace (`docs/reference/http-api.md`, "Workspaces").

use serde::Serialize;
use serde_json::value::RawValue;

use super::settings::OptionalSettings;
use super::{DeliveryMode, Liveness, Status, StoredProbe, Timestamp, WakeView, Workspace};
use kernel::closed_set::words;

/// URLs of the agent that a reader may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlVisibility {
    /// For operators, who also see the certificates of `upstream_tls`, `wake` and `probe`.
    WithCertificates,
    /// For the workspace itself.
    Shown,
    /// For all other readers, which get `null`.
    Hidden,
}

/// A workspace as JSON, members in the documented order.
#[derive(Debug, Serialize)]
pub struct WorkspaceView<'a> {
    id: &'a str,
    name: &'a str,
    role: Option<&'a str>,
    parent_id: Option<&'a str>,
    org: Option<&'a str>,
    status: Status,
    delivery_mode: DeliveryMode,
    liveness: Liveness,
    url: Option<&'a str>,
    internal_url: Option<&'a str>,
    card_url: Option<&'a str>,
    agent_card: Option<&'a RawValue>,
    last_seen: Option<Timestamp>,
    active_tasks: u32,
    current_task: Option<&'a str>,
    max_concurrent: Option<u32>,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(flatten)]
    optional: OptionalSettings<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_tls: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wake: Option<&'a WakeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<&'a StoredProbe>,
    /// Number of its named instances, for readers that may see the URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance_count: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    instances: Vec<InstanceView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

words! {
    /// Status of a named instance.
    InstanceStatus {
        /// It takes calls.
        Online => "online",
        /// It takes only calls that are bound to it.
        Draining => "draining",
        /// It sends no heartbeat.
        Offline => "offline",
    }
}

/// A named instance as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceView {
    /// Its id.
    pub instance_id: String,
    /// URL that it listens at.
    pub url: String,
    /// Its status.
    pub status: InstanceStatus,
    /// Its last sign of life; `None`: it sends none.
    pub last_seen: Option<Timestamp>,
    /// Calls in progress at this replica.
    pub in_flight: usize,
    /// State of its breaker at this replica: `closed`, `open` or `trying`.
    pub breaker: &'static str,
}

impl WorkspaceView<'_> {
    /// Leaves the parent out, for readers that look after the workspace and those below it alone.
    #[must_use]
    pub fn without_parent(mut self) -> Self {
        self.parent_id = None;
        self
    }

    /// Adds the named instances and the warnings, for readers that may see the URLs.
    #[must_use]
    pub fn for_owner(mut self, instances: Vec<InstanceView>, warnings: Vec<String>) -> Self {
        self.instances = instances;
        self.warnings = warnings;
        self
    }
}

impl Workspace {
    /// Returns the JSON for a reader that may, or may not, see the URLs. `card_url` is a URL of the agent, too.
    pub fn as_view(&self, urls: UrlVisibility) -> WorkspaceView<'_> {
        let shown = urls != UrlVisibility::Hidden;
        let all = urls == UrlVisibility::WithCertificates;
        WorkspaceView {
            id: self.id.as_str(),
            name: &self.name,
            role: self.role.as_deref(),
            parent_id: self.parent_id.as_ref().map(|id| id.as_str()),
            org: self.org.as_deref(),
            status: self.status,
            delivery_mode: self.delivery_mode,
            liveness: self.liveness,
            url: self.url.as_deref().filter(|_| shown),
            internal_url: self.internal_url.as_deref().filter(|_| shown),
            card_url: self.card_url.as_deref().filter(|_| shown),
            agent_card: self.agent_card.as_deref(),
            last_seen: self.last_seen,
            active_tasks: self.active_tasks,
            current_task: self.current_task.as_deref(),
            max_concurrent: self.max_concurrent,
            created_at: self.created_at,
            updated_at: self.updated_at,
            optional: OptionalSettings(&self.settings),
            upstream_tls: self
                .upstream_tls
                .as_ref()
                .filter(|_| all)
                .map(|tls| &*tls.about),
            wake: self.wake.as_ref().filter(|_| all).map(|wake| &wake.shown),
            probe: self.probe.as_ref().filter(|_| all),
            instance_count: Some(self.instances).filter(|count| shown && *count > 0),
            instances: Vec::new(),
            warnings: Vec::new(),
        }
    }
}
