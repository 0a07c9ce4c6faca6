//! Cached entry of one workspace: its row, its URLs, the end of its lease, and the destination of messages.
//! Evaluated once, when it is loaded.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::card::CardSource;
use super::endpoint::Endpoint;
use super::json_rpc::JsonRpc;
use super::{
    Agent, AgentOptions, Destination, Directory, RETRY_AFTER, Settled, URL_RENEWAL, UpstreamAuth,
    UpstreamTls,
};
use crate::a2a::Generation;
use crate::a2a::card::says_push;
use crate::explain::Check;
use crate::hierarchy::Permit;
use crate::rejection::{Reason, Rejection};
use crate::workspace::{DeliveryMode, Liveness, Status, Workspace, base};

/// Lifetime of an entry that was not read completely, or for which no invalidation would arrive.
const UNSURE_TTL: Duration = Duration::from_secs(1);

/// Bytes of a card that count as one more entry in the caches, which bound entries and not bytes: a card may be
/// a hundred times as long as the rest of its entry, and is there twice after its first use.
const CARD_BYTES_OF_ONE: usize = 4096;

/// Maximum weight of an entry: a full cache admits an entry only if it is used more often than all entries that
/// it replaces together, and the counts end at 15.
const WEIGHT_MAX: u32 = 8;

/// No time yet.
const NEVER: u64 = u64::MAX;

/// URLs of the agent: from the shared state, which other programs write, else from SQL.
#[derive(Clone, Debug, Default)]
pub(super) struct Urls {
    /// For the gateway and the host.
    pub(super) host: Option<String>,
    /// For other workspaces.
    pub(super) internal: Option<String>,
    /// True if `host` is from the shared state.
    pub(super) shared: bool,
}

impl Urls {
    /// Values in the shared state take precedence over the row. Without an internal URL `host` is used.
    pub(super) fn of(
        workspace: &Workspace,
        url: Option<String>,
        internal_url: Option<String>,
    ) -> Self {
        let shared = url.is_some();
        let host = url.or_else(|| workspace.url.clone());
        Self {
            shared,
            internal: internal_url
                .or_else(|| workspace.internal_url.clone())
                .or_else(|| host.clone()),
            host,
        }
    }
}

/// Liveness of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulse {
    /// Its status decides: it is not up, its liveness is assumed, or the shared state does not answer.
    AsItsStatus,
    /// It has a lease that ends after this time.
    Beats(Duration),
    /// It must send heartbeats, and its lease has ended.
    Lapsed,
}

/// Times at which the stores were read for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAt {
    /// Read of the row.
    pub(super) row: Instant,
    /// Read of URLs and lease; `None`: the shared state did not answer.
    pub(super) shared: Option<Instant>,
    /// True if SQL did not answer, and the row is an earlier one.
    pub(super) stale: bool,
}

/// Reason why a workspace cannot be reached, and the check that failed.
#[derive(Clone, Debug)]
pub struct NotReached {
    /// Failed check.
    pub at: Check,
    /// Rejection for the caller.
    pub why: Rejection,
}

impl NotReached {
    pub(super) fn at(at: Check) -> impl FnOnce(Rejection) -> Self {
        move |why| Self { at, why }
    }
}

/// Entry of one workspace, as of `loaded_at`.
pub(super) struct Entry {
    /// `None`: it never existed.
    pub(super) workspace: Option<Workspace>,
    pub(super) urls: Urls,
    pub(super) pulse: Pulse,
    /// True if the shared state answered, too.
    pub(super) whole: bool,
    pub(super) loaded_at: Instant,
    /// Times of the reads from the stores; earlier than `loaded_at` if the entry is served stale.
    pub(super) read_at: ReadAt,
    /// Maximum age by cache coherence, when it was loaded.
    pub(super) age_max: Duration,
    /// True if its lapse was recorded.
    pub(super) lapse_noted: AtomicBool,
    /// For [`Pulse::Beats`]: milliseconds after `loaded_at`; each heartbeat moves it.
    alive_until: AtomicU64,
    /// Last renewal of the URL keys: milliseconds after `loaded_at`.
    urls_renewed_at: AtomicU64,
    reach: Result<Destination, NotReached>,
    /// Source of its card, set at the first use.
    pub(super) card: OnceLock<Arc<CardSource>>,
    /// True while changes of its URL keys are received.
    watched: Arc<AtomicBool>,
}

impl Entry {
    /// Returns the number of entries that it counts for in the caches.
    pub(super) fn weight(&self) -> u32 {
        let card = self
            .workspace
            .as_ref()
            .and_then(|row| row.agent_card.as_ref());
        let bytes = card.map_or(0, |card| card.get().len());
        u32::try_from(1 + bytes / CARD_BYTES_OF_ONE).map_or(WEIGHT_MAX, |one| one.min(WEIGHT_MAX))
    }
}

impl Directory {
    /// Builds an entry from the values read.
    pub(super) fn entry_of(
        &self,
        workspace: Option<Workspace>,
        urls: Urls,
        pulse: Pulse,
        whole: bool,
        read_at: ReadAt,
    ) -> Entry {
        let reach = workspace.as_ref().map_or_else(
            || Err(NotReached::at(Check::State)(not_found())),
            |workspace| self.reach(workspace, &urls, pulse),
        );
        Entry {
            alive_until: AtomicU64::new(match pulse {
                Pulse::Beats(left) => millis(left),
                Pulse::AsItsStatus | Pulse::Lapsed => u64::MAX,
            }),
            workspace,
            urls,
            pulse,
            whole,
            loaded_at: Instant::now(),
            read_at,
            age_max: self.coherence.max_age(),
            lapse_noted: AtomicBool::new(false),
            urls_renewed_at: AtomicU64::new(NEVER),
            reach,
            card: OnceLock::new(),
            watched: Arc::clone(&self.watched),
        }
    }

    /// Returns the destination of messages, or the reason why there is none.
    fn reach(
        &self,
        workspace: &Workspace,
        urls: &Urls,
        pulse: Pulse,
    ) -> Result<Destination, NotReached> {
        let at = NotReached::at;
        let by_state = self.by_state(workspace, urls);
        if let Some(inbox) = by_state.map_err(at(Check::State))? {
            return Ok(inbox);
        }
        if pulse == Pulse::Lapsed {
            let ttl = self.leases.ttl().as_secs();
            let message = format!("the workspace has sent no heartbeat for {ttl} s");
            return Err(at(Check::Liveness)(self.offline(workspace, message)));
        }
        let mut agent = self.agent_at(workspace, urls).map_err(at(Check::Url))?;
        let shown = self.shown_to(workspace, &agent.endpoint);
        let (auth, tls) = shown.map_err(at(Check::Upstream))?;
        agent.options.path_in_card = urls.host.is_none();
        agent.upstream_auth = auth;
        agent.upstream_tls = tls;
        Ok(Destination::Agent(Arc::new(agent)))
    }

    /// Result by status: a rejection, the inbox, or `None` if its agent may be called.
    fn by_state(
        &self,
        workspace: &Workspace,
        urls: &Urls,
    ) -> Result<Option<Destination>, Rejection> {
        let polls = workspace.delivery_mode == DeliveryMode::Poll;
        match workspace.status {
            Status::Removed => Err(removed()),
            Status::Provisioning | Status::Restarting | Status::Hibernated => {
                Err(restarting(workspace))
            }
            Status::Paused => Err(self.offline(workspace, "the workspace is paused")),
            Status::Failed => Err(self.offline(workspace, "the workspace failed to start")),
            // An inbox accepts messages also while its agent is offline.
            Status::Offline | Status::Online | Status::Degraded if polls => {
                // No agent would call the URL of the caller.
                let push_notifications = false;
                let options = self.manners_of(workspace);
                Ok(Some(Destination::Inbox(AgentOptions {
                    push_notifications,
                    ..options
                })))
            }
            Status::Offline if workspace.liveness == Liveness::Assumed => Err(self.offline(
                workspace,
                "the workspace is offline until an operator resumes it (POST /workspaces/{id}/resume)",
            )),
            // Deregistered: heartbeats, which the agent may still send, do not bring it back.
            Status::Offline if urls.host.is_none() => Err(self.offline(
                workspace,
                "the workspace is offline: it has no URL until its agent registers again",
            )),
            Status::Offline => {
                Err(self.offline(workspace, "the workspace is offline: it sends no heartbeat"))
            }
            Status::Online | Status::Degraded => Ok(None),
        }
    }

    fn agent_at(&self, workspace: &Workspace, urls: &Urls) -> Result<Agent, Rejection> {
        let called_at = called_at(&urls.host, &workspace.card_url, workspace.liveness);
        let url = called_at.ok_or_else(|| {
            self.offline(
                workspace,
                "the workspace has registered no URL to be reached at",
            )
        })?;
        let endpoint = Endpoint::parse(url, &self.resolver.policy())?;
        Ok(self.agent(workspace, endpoint))
    }

    /// Returns the credential and the certificates for an agent at `endpoint`.
    fn shown_to(
        &self,
        workspace: &Workspace,
        endpoint: &Endpoint,
    ) -> Result<(Option<UpstreamAuth>, Option<UpstreamTls>), Rejection> {
        // If another program set the URL of the agent, the operator's platform moved it.
        let own = workspace.url.as_deref().map(base);
        let is_own = own == Some(base(&endpoint.url()));
        let auth = if is_own && workspace.is_credential_withheld() {
            None
        } else {
            self.upstream_auth(workspace)?
        };
        let tls = self.upstream_tls(workspace)?;
        if tls.is_some() && !endpoint.tls {
            return Err(Rejection::new(
                Reason::AddressForbidden,
                "the workspace has certificates for its agent (upstream_tls), and its URL does not begin with https://",
            ));
        }
        Ok((auth, tls))
    }

    fn offline(&self, workspace: &Workspace, message: impl Into<Cow<'static, str>>) -> Rejection {
        let refusal = Rejection::new(Reason::WorkspaceOffline, message).retry_after(RETRY_AFTER);
        match self.last_seen(workspace) {
            Some(last_seen) => refusal.fact("last_seen", last_seen),
            None => refusal,
        }
    }

    /// Returns a mismatch between the registered URL and the registered card, and logs it.
    pub(super) fn warn_of_mismatch(&self, workspace: &Workspace) -> Option<&'static str> {
        let endpoint = Endpoint::parse(workspace.url.as_deref()?, &self.resolver.policy()).ok()?;
        let warning = JsonRpc::of(card_text(workspace), &endpoint).mismatch()?;
        tracing::warn!(workspace.id = %workspace.id, "An agent registered: {warning}");
        Some(warning)
    }

    /// Returns the registered options of a workspace, whether or not it can be reached.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`.
    pub async fn options(&self, permit: &Permit) -> Result<AgentOptions, Rejection> {
        let entry = self.entry(permit.target()).await?;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        Ok(self.manners_of(workspace))
    }

    fn manners_of(&self, workspace: &Workspace) -> AgentOptions {
        let config = self.config.get();
        let card = workspace.agent_card.as_ref();
        let has_card = card.is_some();
        let card: Option<serde_json::Value> =
            card.and_then(|card| serde_json::from_str(card.get()).ok());
        let says_no_push = card.as_ref().and_then(says_push) == Some(false);
        AgentOptions {
            generation: card.map_or_else(Generation::default, |card| Generation::from_card(&card)),
            has_card,
            path_in_card: false,
            push_notifications: workspace
                .push_notifications
                .unwrap_or(config.a2a.push_notifications)
                && !says_no_push,
            complete: workspace.complete.unwrap_or(config.a2a.complete),
        }
    }

    fn agent(&self, workspace: &Workspace, endpoint: Endpoint) -> Agent {
        let config = self.config.get();
        let seconds = workspace.idle_timeout_seconds.filter(|s| *s > 0);
        let own_max = workspace.max_concurrent.filter(|max| *max > 0);
        Agent {
            id: workspace.id.clone(),
            json_rpc: JsonRpc::of(card_text(workspace), &endpoint),
            endpoint,
            options: self.manners_of(workspace),
            idle_timeout: seconds.map(|s| Duration::from_secs(s.into())),
            upstream_auth: None,
            upstream_tls: None,
            settled: Settled::new(&workspace.id),
            concurrency_max: own_max.map_or(config.limits.target_concurrency, |max| {
                usize::try_from(max).unwrap_or(usize::MAX)
            }),
            calls: self.slots.of(&workspace.id),
        }
    }
}

impl Entry {
    /// True while it is valid, apart from coherence.
    pub(super) fn is_current(&self) -> bool {
        let sure = self.whole
            && self.workspace.is_some()
            && self.pulse != Pulse::Lapsed
            && self.watched.load(Ordering::Acquire);
        (sure || self.loaded_at.elapsed() < UNSURE_TTL) && self.is_alive()
    }

    /// True while its lease, as read or as renewed by a heartbeat, lasts.
    pub(super) fn is_alive(&self) -> bool {
        millis(self.loaded_at.elapsed()) < self.alive_until.load(Ordering::Acquire)
    }

    /// For [`Pulse::Beats`]: returns the rest of the lease.
    pub(super) fn alive_for(&self) -> Duration {
        let until = self.alive_until.load(Ordering::Acquire);
        Duration::from_millis(until.saturating_sub(millis(self.loaded_at.elapsed())))
    }

    /// Extends the lease after a heartbeat at this replica that was granted after `began`: alive for `ttl` from
    /// then, without a read from the store.
    pub(super) fn extend(&self, began: Instant, ttl: Duration) {
        if matches!(self.pulse, Pulse::Beats(_)) {
            let since_load = began.saturating_duration_since(self.loaded_at);
            let until = millis(since_load.saturating_add(ttl));
            self.alive_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// True if the URL keys need renewal. One of several concurrent callers gets true.
    pub(super) fn claim_url_renewal(&self) -> bool {
        let now = millis(self.loaded_at.elapsed());
        let at = self.urls_renewed_at.load(Ordering::Acquire);
        let is_due = at == NEVER || now.saturating_sub(at) >= millis(URL_RENEWAL);
        is_due
            && self
                .urls_renewed_at
                .compare_exchange(at, now, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// Lets the next heartbeat try again.
    pub(super) fn url_renewal_failed(&self) {
        self.urls_renewed_at.store(NEVER, Ordering::Release);
    }

    /// Copies the decision about the agent's addresses from an entry of the same row.
    pub(super) fn take_over_settled(&self, other: &Self) {
        if let (Ok(Destination::Agent(agent)), Ok(Destination::Agent(known))) =
            (&self.reach, &other.reach)
            && agent.endpoint.has_host_of(&known.endpoint)
        {
            agent.settled.take_over(&known.settled);
        }
    }

    /// Returns the destination of messages.
    pub(super) fn destination(&self) -> Result<Destination, NotReached> {
        self.reach.clone()
    }
}

fn card_text(workspace: &Workspace) -> Option<&str> {
    workspace.agent_card.as_deref().map(RawValue::get)
}

/// Returns the URL for calls to the agent. An agent with assumed liveness may have a card URL only.
pub(super) fn called_at<'u>(
    url: &'u Option<String>,
    card_url: &'u Option<String>,
    liveness: Liveness,
) -> Option<&'u str> {
    let card_url = card_url.as_deref();
    let by_card = card_url.filter(|_| liveness == Liveness::Assumed);
    url.as_deref().or(by_card)
}

/// True if its status depends on heartbeats.
pub(super) fn must_beat(workspace: &Workspace) -> bool {
    workspace.status.is_up() && workspace.liveness == Liveness::Heartbeat
}

pub(super) fn not_found() -> Rejection {
    Rejection::new(
        Reason::WorkspaceNotFound,
        "there is no workspace of this id: create it with POST /workspaces",
    )
}

pub(super) fn removed() -> Rejection {
    Rejection::new(
        Reason::WorkspaceRemoved,
        "the workspace was removed; its id is not given away again",
    )
}

fn restarting(workspace: &Workspace) -> Rejection {
    let placed = workspace.url.is_some() || workspace.card_url.is_some();
    let has_registered = workspace.agent_card.is_some();
    let message = match workspace.status {
        Status::Hibernated => "the workspace is hibernated: wake it, then try again",
        Status::Provisioning if has_registered => {
            "the workspace is being provisioned; try again once its agent has registered again"
        }
        Status::Provisioning if placed => {
            "the workspace has not registered yet; try again shortly. If its agent knows nothing of this gateway, an \
             operator sets liveness to assumed (PATCH /workspaces/{id})"
        }
        Status::Provisioning => "the workspace has not registered yet; try again shortly",
        _ => "the workspace is restarting; try again shortly",
    };
    Rejection::new(Reason::WorkspaceRestarting, message).retry_after(RETRY_AFTER)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
