//! JSON form of a workspace (`docs/reference/http-api.md`, "Workspaces").

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Timestamp, Workspace};
use kernel::closed_set::words;
use kernel::health::Health;
use kernel::ids::WorkspaceId;

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
#[derive(Debug)]
pub struct WorkspaceView<'a> {
    workspace: &'a Workspace,
    urls: UrlVisibility,
    has_parent: bool,
    instances: Vec<InstanceView>,
    warnings: Vec<String>,
    health: Option<Health>,
}

impl Serialize for WorkspaceView<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let one = self.workspace;
        let is_shown = self.urls != UrlVisibility::Hidden;
        let parent_id = one.parent_id.as_ref().filter(|_| self.has_parent);
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", one.id.as_str())?;
        map.serialize_entry("name", &one.name)?;
        map.serialize_entry("role", &one.role)?;
        map.serialize_entry("parent_id", &parent_id.map(WorkspaceId::as_str))?;
        map.serialize_entry("org", &one.org)?;
        map.serialize_entry("status", &one.status)?;
        map.serialize_entry("delivery_mode", &one.delivery_mode)?;
        map.serialize_entry("liveness", &one.liveness)?;
        map.serialize_entry("url", &one.url.as_ref().filter(|_| is_shown))?;
        map.serialize_entry(
            "internal_url",
            &one.internal_url.as_ref().filter(|_| is_shown),
        )?;
        map.serialize_entry("card_url", &one.card_url.as_ref().filter(|_| is_shown))?;
        map.serialize_entry("agent_card", &one.agent_card)?;
        map.serialize_entry("last_seen", &one.last_seen)?;
        map.serialize_entry("active_tasks", &one.active_tasks)?;
        map.serialize_entry("current_task", &one.current_task)?;
        map.serialize_entry("max_concurrent", &one.max_concurrent)?;
        map.serialize_entry("created_at", &one.created_at)?;
        map.serialize_entry("updated_at", &one.updated_at)?;
        one.settings.serialize_optional(&mut map)?;
        if self.urls == UrlVisibility::WithCertificates {
            serialize_set(
                &mut map,
                "upstream_tls",
                one.upstream_tls.as_ref().map(|tls| &tls.about),
            )?;
            serialize_set(&mut map, "wake", one.wake.as_ref().map(|wake| &wake.shown))?;
            serialize_set(&mut map, "probe", one.probe.as_ref())?;
        }
        serialize_set(&mut map, "health", self.health.as_ref())?;
        let count = Some(one.instances).filter(|count| is_shown && *count > 0);
        serialize_set(&mut map, "instance_count", count)?;
        let instances = Some(&self.instances).filter(|all| !all.is_empty());
        serialize_set(&mut map, "instances", instances)?;
        let warnings = Some(&self.warnings).filter(|all| !all.is_empty());
        serialize_set(&mut map, "warnings", warnings)?;
        map.end()
    }
}

/// Serializes a member, if it is set.
fn serialize_set<M: SerializeMap>(
    map: &mut M,
    name: &str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
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
#[derive(Clone, Debug, serde::Serialize)]
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
        self.has_parent = false;
        self
    }

    /// Adds how it is.
    #[must_use]
    pub fn with_health(mut self, health: Option<Health>) -> Self {
        self.health = health;
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
        WorkspaceView {
            workspace: self,
            urls,
            has_parent: true,
            instances: Vec::new(),
            warnings: Vec::new(),
            health: None,
        }
    }
}
