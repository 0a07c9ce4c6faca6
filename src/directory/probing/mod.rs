//! Probes of agents with assumed liveness: which are asked where, the claim by which one replica asks, the count of
//! failures in a row, and the statuses that follow (`docs/reference/http-api.md`, "Probes"). The data plane sends the
//! requests.

mod form;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

pub use self::form::Probe;
pub(super) use self::form::require_probed;
use super::address::{Addresses, Resolver};
use super::announcer::Announcer;
use super::capacity::Slots;
use super::resolution::{Agent, CardLocation, Entries, Entry};
use crate::ids::{InstanceId, WorkspaceId};
use crate::rejection::Rejection;
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{Status, StoredProbe, Workspace, Workspaces};

/// Longest time of one probe. A shorter period shortens it.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// Probe of one workspace, as it stands now.
pub struct ProbePlan {
    /// The workspace.
    pub id: WorkspaceId,
    /// The requests: one to each instance, at the first path of its place. Success of one is success of the probe.
    pub places: Vec<(CardLocation, Option<InstanceId>)>,
    /// True if the agents' cards are asked for, which may be longer than other answers.
    pub is_card: bool,
    probe: StoredProbe,
    status: Status,
    /// The state of the row that the plan is of. An outcome counts only while it has not changed.
    updated_at: Timestamp,
}

impl ProbePlan {
    /// Returns the shortest time between two probes.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.probe.every_seconds.into())
    }

    /// Returns the timeout of one probe.
    pub fn timeout(&self) -> Duration {
        self.interval().min(PATIENCE_MAX)
    }
}

/// Right to probe a workspace.
pub enum ProbeClaim {
    /// This replica probes now.
    Ours,
    /// Another replica has probed, or probes now; the next may come after this time.
    In(Duration),
}

/// Probes of workspaces.
pub struct Probes {
    entries: Arc<Entries>,
    workspaces: Workspaces,
    announcer: Arc<Announcer>,
    resolver: Arc<Resolver>,
    slots: Arc<Slots>,
    shared: Shared,
}

impl Probes {
    pub(super) fn new(
        entries: &Arc<Entries>,
        addresses: &Addresses,
        slots: &Arc<Slots>,
        shared: &Shared,
    ) -> Self {
        Self {
            entries: Arc::clone(entries),
            workspaces: addresses.workspaces.clone(),
            announcer: Arc::clone(&addresses.announcer),
            resolver: Arc::clone(&addresses.resolver),
            slots: Arc::clone(slots),
            shared: shared.clone(),
        }
    }

    /// True if claims end with this process: an earlier process of this gateway may have probed a moment ago.
    pub fn forgets_claims(&self) -> bool {
        self.shared.is_embedded()
    }

    /// Returns the workspaces with a probe, at most `limit`, each with the time of its last change.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub async fn list_probed(
        &self,
        limit: usize,
    ) -> Result<Vec<(WorkspaceId, Timestamp)>, Unavailable> {
        self.workspaces.probed.list(limit).await
    }

    /// Returns the probe of `id` as it is now. `None`: it is not probed, because it has no probe, is paused, or has
    /// another status that a probe does not change.
    ///
    /// # Errors
    /// `store_unavailable`; `address_forbidden`, and what else keeps its agent from being called.
    pub async fn load_plan(&self, id: &WorkspaceId) -> Result<Option<ProbePlan>, Rejection> {
        let entry = self.entries.get(id).await?;
        let Some((workspace, probe)) = probed_workspace(&entry) else {
            return Ok(None);
        };
        let agent = self.entries.agent_of(workspace, &entry)?;
        let mut places = Vec::new();
        if agent.instances.is_empty() {
            places.push(self.probe_location(workspace, probe, agent)?);
        } else {
            for one in &agent.instances {
                places.push(self.probe_location(workspace, probe, Arc::clone(&one.agent))?);
            }
        }
        Ok(Some(ProbePlan {
            id: id.clone(),
            places,
            is_card: probe.card,
            probe: probe.clone(),
            status: workspace.status,
            updated_at: workspace.updated_at,
        }))
    }

    fn probe_location(
        &self,
        workspace: &Workspace,
        probe: &StoredProbe,
        agent: Arc<Agent>,
    ) -> Result<(CardLocation, Option<InstanceId>), Rejection> {
        let instance = agent.instance.clone();
        let place = match &probe.path {
            Some(path) => CardLocation::at_path(agent, path),
            None => {
                // The card URL is one server's. Each instance has its own card at its own origin.
                let card_url = workspace.card_url.as_deref();
                let card_url = card_url.filter(|_| instance.is_none());
                CardLocation::new(card_url, agent, &self.resolver.policy())?
            }
        };
        Ok((place, instance))
    }

    /// Claims the right to probe now. The claim outlasts the probe and its period, so that [`Probes::record_sent`] can
    /// let it end a period after the request was sent.
    ///
    /// # Errors
    /// If the shared state does not answer: then there is no probe.
    pub async fn claim(&self, plan: &ProbePlan) -> Result<ProbeClaim, Unavailable> {
        let key = claim_key(plan);
        let ttl = plan.interval() + plan.timeout();
        if self.shared.set_if_absent(&key, "1", ttl).await? {
            return Ok(ProbeClaim::Ours);
        }
        let left = self.shared.get_with_ttl(&key).await?;
        let left = left.and_then(|(_, left)| left).unwrap_or_default();
        Ok(ProbeClaim::In(left.min(plan.interval())))
    }

    /// Lets the claim end a period after `at`, when the last request of the probe was sent. Best effort: the claim ends
    /// by itself, later.
    pub async fn record_sent(&self, plan: &ProbePlan, at: Instant) {
        let left = plan.interval().saturating_sub(at.elapsed());
        let left = left.max(Duration::from_millis(1));
        let key = claim_key(plan);
        if let Err(error) = self.shared.set(&key, "1", Some(left)).await {
            tracing::debug!(%error, workspace.id = %plan.id, "failed to shorten the claim of a probe");
        }
    }

    /// Counts a success: an offline workspace is online again, and its breakers let a call try. `answered`: the
    /// instances that did. `began`: when they were asked.
    ///
    /// # Errors
    /// When a store cannot be asked; the next success tries again.
    pub async fn record_success(
        &self,
        plan: &ProbePlan,
        answered: &[Option<InstanceId>],
        began: Instant,
    ) -> Result<(), Unavailable> {
        self.shared.delete(&[&failed_key(&plan.id)]).await?;
        if plan.status == Status::Offline && self.change_status(plan, Status::Online, None).await? {
            tracing::info!(workspace.id = %plan.id, "Workspace online: its agent answers the probe");
            for instance in answered {
                self.slots.let_try(&plan.id, instance.as_ref(), began);
            }
        }
        Ok(())
    }

    /// Counts a failure. After as many in a row as the probe says the workspace is offline.
    ///
    /// # Errors
    /// When a store cannot be asked; the next failure tries again.
    pub async fn record_failure(&self, plan: &ProbePlan, why: &str) -> Result<(), Unavailable> {
        let periods = plan.probe.failures + 2;
        let ttl = (plan.interval() + plan.timeout()) * periods;
        let failures = self.shared.increment(&failed_key(&plan.id), ttl).await?;
        if failures >= i64::from(plan.probe.failures)
            && plan.status.is_up()
            && self.change_status(plan, Status::Offline, Some(why)).await?
        {
            tracing::info!(workspace.id = %plan.id, failures, why, "Workspace offline: its probe fails");
        }
        Ok(())
    }

    /// Changes the status; false if the workspace has changed since the plan was made. `why`: the cause of a failure.
    async fn change_status(
        &self,
        plan: &ProbePlan,
        to: Status,
        why: Option<&str>,
    ) -> Result<bool, Unavailable> {
        let id = &plan.id;
        let Ok(entry) = self.entries.get(id).await else {
            return Ok(false);
        };
        if probed_workspace(&entry).is_none_or(|(now, _)| now.updated_at != plan.updated_at) {
            return Ok(false);
        }
        let now = Timestamp::now();
        let set = self.workspaces.probed.set_status(id, plan.status, to, now);
        let set = set.await;
        self.announcer.resolve_doubt(id, now, &set).await;
        if !set? {
            return Ok(false);
        }
        let payload = why.map_or_else(
            || json!({"probe": "succeeded"}),
            |why| json!({"probe": "failed", "cause": why}),
        );
        self.announcer.announce_status_with(id, to, payload);
        self.announcer.announce_if_overtaken(id, to).await;
        self.announcer.invalidate(id).await;
        Ok(true)
    }
}

/// Returns the workspace of an entry and its probe, if it is probed in its present status.
fn probed_workspace(entry: &Entry) -> Option<(&Workspace, &StoredProbe)> {
    let workspace = entry.workspace.as_ref()?;
    let probe = workspace.active_probe()?;
    let is_probed = workspace.status.is_up() || workspace.status == Status::Offline;
    is_probed.then_some((workspace, probe))
}

/// A claim is for one period: after a change of the period the new one counts at once.
fn claim_key(plan: &ProbePlan) -> String {
    format!("gw:probe:{}:{}", plan.id, plan.probe.every_seconds)
}

fn failed_key(id: &WorkspaceId) -> String {
    format!("gw:probe-failed:{id}")
}
