//! Probes of agents with assumed liveness: which are asked where, the claim by which one replica asks, the count of
//! failures in a row, and the statuses that follow (`docs/reference/http-api.md`, "Probes"). The data plane sends the
//! requests.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::core::Core;
use super::rejections::invalid;
use super::resolution::{Agent, CardLocation, Entries, Entry};
use access::workspace::{DeliveryMode, Liveness, Status, StoredProbe, Workspace};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::store::Unavailable;

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

/// Probes of workspaces.
pub struct Probes {
    pub(super) entries: Arc<Entries>,
    pub(super) core: Arc<Core>,
}

impl Probes {
    /// True if claims end with this process: an earlier process of this gateway may have probed a moment ago.
    pub fn forgets_claims(&self) -> bool {
        self.core.shared.is_embedded()
    }

    /// Returns the workspaces with a probe, at most `limit`, each with the time of its last change.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub async fn list_probed(
        &self,
        limit: usize,
    ) -> Result<Vec<(WorkspaceId, Timestamp)>, Unavailable> {
        self.core.workspaces.probed.list(limit).await
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
        let own = agent.instances.is_empty().then_some(&agent);
        let agents = agent.instances.iter().map(|one| &one.agent).chain(own);
        let places = agents.map(|agent| self.probe_location(workspace, probe, Arc::clone(agent)));
        Ok(Some(ProbePlan {
            id: id.clone(),
            places: places.collect::<Result<_, _>>()?,
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
            Some(path) => CardLocation::at_agent(agent, vec![path.clone()]),
            None => {
                // The card URL is one server's. Each instance has its own card at its own origin.
                let card_url = workspace.card_url.as_deref();
                let card_url = card_url.filter(|_| instance.is_none());
                CardLocation::new(card_url, agent, &self.core.resolver.policy())?
            }
        };
        Ok((place, instance))
    }

    /// Claims the right to probe now; otherwise returns the time after which the next probe may come, since another
    /// replica has probed, or probes now. The claim outlasts the probe and its period, so that [`Probes::record_sent`]
    /// can let it end a period after the request was sent.
    ///
    /// # Errors
    /// If the shared state does not answer: then there is no probe.
    pub async fn claim(&self, plan: &ProbePlan) -> Result<Option<Duration>, Unavailable> {
        let key = claim_key(plan);
        let ttl = plan.interval() + plan.timeout();
        if self.core.shared.set_if_absent(&key, "1", ttl).await? {
            return Ok(None);
        }
        let left = self.core.shared.get_with_ttl(&key).await?;
        let left = left.and_then(|(_, left)| left).unwrap_or_default();
        Ok(Some(left.min(plan.interval())))
    }

    /// Lets the claim end a period after `at`, when the last request of the probe was sent. Best effort: the claim ends
    /// by itself, later.
    pub async fn record_sent(&self, plan: &ProbePlan, at: Instant) {
        let left = plan.interval().saturating_sub(at.elapsed());
        let left = left.max(Duration::from_millis(1));
        let key = claim_key(plan);
        if let Err(error) = self.core.shared.set(&key, "1", Some(left)).await {
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
        self.core.shared.delete(&[&failed_key(&plan.id)]).await?;
        if plan.status == Status::Offline && self.change_status(plan, Status::Online, None).await? {
            tracing::info!(workspace.id = %plan.id, "Workspace online: its agent answers the probe");
            for instance in answered {
                self.core.slots.let_try(&plan.id, instance.as_ref(), began);
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
        let failures = self
            .core
            .shared
            .increment(&failed_key(&plan.id), ttl)
            .await?;
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
        let set = self
            .core
            .workspaces
            .probed
            .set_status(id, plan.status, to, now);
        let set = set.await;
        self.core.announcer.resolve_doubt(id, now, &set).await;
        if !set? {
            return Ok(false);
        }
        let payload = why.map_or_else(
            || json!({"probe": "succeeded"}),
            |why| json!({"probe": "failed", "cause": why}),
        );
        self.core.announcer.announce_status_with(id, to, payload);
        self.core.announcer.announce_if_overtaken(id, to).await;
        self.core.announcer.invalidate(id).await;
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

/// A claim is for one period: a change of the period applies immediately.
fn claim_key(plan: &ProbePlan) -> String {
    format!("gw:probe:{}:{}", plan.id, plan.probe.every_seconds)
}

fn failed_key(id: &WorkspaceId) -> String {
    format!("gw:probe-failed:{id}")
}

/// Form of the member, in each rejection.
const FORM: &str = r#"`probe` is {"path" or "card", "every_seconds", "failures"}: `path` a text, or else `card` true, the others whole numbers; null takes it back"#;

/// Longest path, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// Bounds of `every_seconds`, and its default.
const EVERY_SECONDS: (u32, u32, u32) = (5, 3600, 30);

/// Bounds of `failures`, and its default.
const FAILURES: (u32, u32, u32) = (1, 20, 3);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    path: Option<String>,
    card: Option<bool>,
    every_seconds: Option<u32>,
    failures: Option<u32>,
}

/// Parses the member `probe` of a body.
///
/// # Errors
/// `invalid_params`, with the cause.
pub(crate) fn parse_probe(json: &Value) -> Result<StoredProbe, Rejection> {
    let form = Form::deserialize(json).map_err(|_| invalid(FORM))?;
    let card = form.card.unwrap_or(false);
    if form.path.is_some() == card {
        return Err(invalid(
            "`probe` has either `path`, which is asked, or `card`: true, to ask for the agent's card",
        ));
    }
    // The path is written into a request line as it is.
    let is_clean = |path: &str| path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    let fits = |path: &str| path.starts_with('/') && path.len() <= PATH_BYTES_MAX;
    if let Some(path) = &form.path
        && !(fits(path) && is_clean(path))
    {
        return Err(invalid(format!(
            "`probe.path` begins with / and has at most {PATH_BYTES_MAX} bytes, without spaces, control characters or a \
             fragment (#); other characters than ASCII are percent-encoded"
        )));
    }
    Ok(StoredProbe {
        path: form.path,
        card,
        every_seconds: check_range("every_seconds", form.every_seconds, EVERY_SECONDS)?,
        failures: check_range("failures", form.failures, FAILURES)?,
    })
}

fn check_range(
    name: &'static str,
    said: Option<u32>,
    (min, max, default): (u32, u32, u32),
) -> Result<u32, Rejection> {
    let value = said.unwrap_or(default);
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(invalid(format!(
        "`probe.{name}` is {value}: it is a whole number from {min} to {max}"
    )))
}

/// Checks that a workspace with a probe can be probed.
///
/// # Errors
/// `invalid_params`.
pub(crate) fn require_probed(liveness: Liveness, delivery: DeliveryMode) -> Result<(), Rejection> {
    if liveness == Liveness::Assumed && delivery == DeliveryMode::Push {
        return Ok(());
    }
    Err(invalid(
        "`probe` needs liveness assumed and delivery_mode push: an agent that registers proves its liveness by \
         heartbeats. Set both, or take the probe back with \"probe\": null",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::rejection::Reason;

    #[test]
    fn a_probe_has_defaults_and_is_read_again_as_it_is_stored() {
        let probe = parse_probe(&json!({"path": "/healthz?deep=1"})).unwrap();
        let stored = serde_json::to_value(&probe).unwrap();
        let full = json!({"path": "/healthz?deep=1", "every_seconds": 30, "failures": 3});
        assert_eq!((probe.card, &stored), (false, &full));
        let card = json!({"card": true, "every_seconds": 5, "failures": 20});
        let probe = parse_probe(&card).unwrap();
        let stored = serde_json::to_value(&probe).unwrap();
        assert_eq!((probe.card, &stored), (true, &card));
        let again: StoredProbe = serde_json::from_value(stored).unwrap();
        assert_eq!(again, probe);
    }

    #[test]
    fn a_wrong_probe_is_refused_with_the_bound_that_it_breaks() {
        let path = |path: &str| json!({"path": path});
        for (json, told) in [
            (json!("/healthz"), "null takes it back"),
            (json!({"path": "/", "other": 1}), "null takes it back"),
            (json!({"path": 7}), "null takes it back"),
            (
                json!({"path": "/", "every_seconds": -1}),
                "null takes it back",
            ),
            (json!({}), "either `path`"),
            (json!({"card": false}), "either `path`"),
            (json!({"path": "/", "card": true}), "either `path`"),
            (json!({"path": "/", "every_seconds": 4}), "from 5 to 3600"),
            (
                json!({"path": "/", "every_seconds": 3601}),
                "from 5 to 3600",
            ),
            (json!({"card": true, "failures": 0}), "from 1 to 20"),
            (json!({"card": true, "failures": 21}), "from 1 to 20"),
            (path(""), "begins with /"),
            (path("healthz"), "begins with /"),
            (path("http://h/"), "begins with /"),
            (path("/a#b"), "fragment"),
            (path("/a b"), "spaces"),
            (path("/a\r\nHost: evil"), "control"),
            (path("/é"), "ASCII"),
            (path(&format!("/{}", "a".repeat(1024))), "1024 bytes"),
        ] {
            let refusal = parse_probe(&json).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{json}");
            assert!(
                refusal.message.contains(told),
                "{json}: {}",
                refusal.message
            );
        }
        assert!(parse_probe(&path(&format!("/{}", "a".repeat(1023)))).is_ok());
    }
}
