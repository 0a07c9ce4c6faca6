//! Asks agents that do not register whether they live (`docs/reference/http-api.md`, "Probes"): a GET at each that is
//! due, of which the status counts. Each replica keeps the times of all in memory; a claim in the shared state decides
//! which one asks.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::fetch::{BufferedRequest, get_head, locate_card};
use crate::record::outcome_of_rejection;
use crate::services::Context;
use crate::upstream::{WireRequest, refuse_redirect};
use directory::{AGENT_CARD_BYTES_MAX, CardLocation, OwnTimeouts, ProbePlan};
use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::metrics::ProbeOutcome;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Interval of looks for due probes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of reads of the list of workspaces with a probe.
const LIST_EVERY: Duration = Duration::from_secs(5);

/// Maximum workspaces that are probed; those with the first ids.
const PROBED_MAX: usize = 10_000;

/// Maximum probes of one replica in progress.
const RUNNING_MAX: usize = 64;

/// Maximum bytes of an answer that is no card.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Pause after a probe that could not be claimed, since the shared state is away.
const AWAY_PAUSE: Duration = Duration::from_secs(5);

/// Prober of agents; runs until the process ends.
pub struct Prober {
    pub(super) context: Arc<Context>,
}

impl Prober {
    /// Runs until a drain begins and the probes in progress are over, which it ends.
    pub async fn run(&self) {
        let gateway = &self.context.gateway;
        let mut schedule = Schedule::default();
        let mut running: JoinSet<(WorkspaceId, Instant)> = JoinSet::new();
        let mut tick = ticks(LOOK_EVERY);
        let mut listed_at: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    if listed_at.is_none_or(|at| at.elapsed() >= LIST_EVERY) {
                        listed_at = Some(Instant::now());
                        self.read_list(&mut schedule).await;
                    }
                    schedule.queue_due(Instant::now());
                }
                Some(ended) = running.join_next() => match ended {
                    Ok((id, next)) => schedule.finish(&id, next),
                    // A bug: the workspace of the probe is unknown. Claims keep those in progress from a second one.
                    Err(_) => schedule.forget_running(),
                },
                () = gateway.drain.wait_for_leave() => break,
            }
            while running.len() < RUNNING_MAX
                && let Some((id, is_early)) = schedule.next_due()
            {
                let attempt = ProbeAttempt {
                    context: Arc::clone(&self.context),
                    id,
                };
                running.spawn(async move {
                    let next = attempt.probe(is_early).await;
                    (attempt.id, next)
                });
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Reads the list of workspaces with a probe. Without SQL the last one counts.
    async fn read_list(&self, schedule: &mut Schedule) {
        let probing = &self.context.gateway.directory.probing;
        match probing.list_probed(PROBED_MAX + 1).await {
            Ok(mut all) => {
                if all.len() > PROBED_MAX {
                    all.truncate(PROBED_MAX);
                    if !std::mem::replace(&mut schedule.is_over, true) {
                        tracing::warn!(
                            max = PROBED_MAX,
                            "More workspaces have a probe than are probed; take back the probes of some"
                        );
                    }
                } else {
                    schedule.is_over = false;
                }
                schedule.set_workspaces(all, probing.forgets_claims());
            }
            Err(error) => {
                tracing::debug!(%error, "failed to list the workspaces with a probe; the last list counts");
            }
        }
    }
}

/// Times of the probes at this replica.
#[derive(Default)]
struct Schedule {
    planned: HashMap<WorkspaceId, ProbeEntry>,
    /// Due probes, in order.
    queue: VecDeque<WorkspaceId>,
    /// True once the list has been read.
    is_begun: bool,
    /// True while there are more than [`PROBED_MAX`].
    is_over: bool,
}

/// Next probe of one workspace.
struct ProbeEntry {
    /// Last change of its row.
    changed_at: Timestamp,
    next: Instant,
    /// True while it is queued, or in progress.
    is_busy: bool,
    /// True if it may come too early: an earlier process may have probed a moment ago, and its claim is lost.
    is_early: bool,
}

impl Schedule {
    /// Sets the workspaces to probe. New and changed ones are due at once.
    fn set_workspaces(&mut self, all: Vec<(WorkspaceId, Timestamp)>, forgets_claims: bool) {
        let now = Instant::now();
        let is_early = forgets_claims && !self.is_begun;
        self.is_begun = true;
        let listed: HashSet<&WorkspaceId> = all.iter().map(|(id, _)| id).collect();
        self.planned
            .retain(|id, one| one.is_busy || listed.contains(id));
        for (id, changed_at) in all {
            match self.planned.entry(id) {
                Entry::Vacant(place) => {
                    place.insert(ProbeEntry {
                        changed_at,
                        next: now,
                        is_busy: false,
                        is_early,
                    });
                }
                Entry::Occupied(known) => {
                    let known = known.into_mut();
                    // Its period may be shorter now. The claim decides.
                    if !known.is_busy && known.changed_at != changed_at {
                        known.changed_at = changed_at;
                        known.next = now;
                    }
                }
            }
        }
    }

    fn queue_due(&mut self, now: Instant) {
        for (id, one) in &mut self.planned {
            if !one.is_busy && one.next <= now {
                one.is_busy = true;
                self.queue.push_back(id.clone());
            }
        }
    }

    /// Returns the next due probe, and whether it may come too early.
    fn next_due(&mut self) -> Option<(WorkspaceId, bool)> {
        let id = self.queue.pop_front()?;
        let is_early = self
            .planned
            .get_mut(&id)
            .is_some_and(|one| std::mem::take(&mut one.is_early));
        Some((id, is_early))
    }

    fn finish(&mut self, id: &WorkspaceId, next: Instant) {
        if let Some(one) = self.planned.get_mut(id) {
            one.is_busy = false;
            one.next = next;
        }
    }

    fn forget_running(&mut self) {
        self.queue.clear();
        self.planned.values_mut().for_each(|one| {
            one.is_busy = false;
            one.next = Instant::now() + AWAY_PAUSE;
        });
    }
}

/// One probe of one workspace.
struct ProbeAttempt {
    context: Arc<Context>,
    id: WorkspaceId,
}

impl ProbeAttempt {
    /// Probes the workspace if it is due, and returns the time of the next look at it. `is_early`: it waits for a
    /// period.
    async fn probe(&self, is_early: bool) -> Instant {
        let probing = &self.context.gateway.directory.probing;
        let plan = match probing.load_plan(&self.id).await {
            Ok(Some(plan)) => plan,
            // The next list does not have it.
            Ok(None) => return Instant::now() + LOOK_EVERY,
            Err(why) => {
                self.count_outcome(ProbeOutcome::NotMade);
                tracing::debug!(workspace.id = %self.id, why = %why.message, "no probe");
                return Instant::now() + AWAY_PAUSE;
            }
        };
        if is_early {
            return Instant::now() + plan.interval();
        }
        match probing.claim(&plan).await {
            Ok(None) => {}
            Ok(Some(left)) => return Instant::now() + left,
            Err(error) => {
                self.count_outcome(ProbeOutcome::NotMade);
                tracing::debug!(%error, workspace.id = %self.id, "no probe without the shared state: another replica may make it");
                return Instant::now() + AWAY_PAUSE;
            }
        }
        let began = Instant::now();
        let (outcomes, sent_at) = tokio::select! {
            asked = self.probe_places(&plan, began + plan.timeout()) => asked,
            // It counts for nothing; the claim ends by itself.
            () = self.context.gateway.drain.wait_for_leave() => return Instant::now() + plan.interval(),
        };
        probing.record_sent(&plan, sent_at).await;
        if let Err(error) = self.record_outcomes(&plan, &outcomes, began).await {
            tracing::debug!(%error, workspace.id = %self.id, "failed to record a probe; the next one counts");
        }
        sent_at + plan.interval()
    }

    fn count_outcome(&self, outcome: ProbeOutcome) {
        self.context.gateway.metrics.waking.probes[outcome].inc();
    }

    async fn record_outcomes(
        &self,
        plan: &ProbePlan,
        outcomes: &[Result<(), Rejection>],
        began: Instant,
    ) -> Result<(), Unavailable> {
        let probing = &self.context.gateway.directory.probing;
        for ((place, _), outcome) in plan.places.iter().zip(outcomes) {
            let why = outcome.as_ref().err();
            let of_agent =
                why.and_then(|why| outcome_of_rejection(why, OwnTimeouts::default())?.failure);
            if let (Some(agent), Some(failure)) = (&place.agent, of_agent) {
                agent.slots.probe_failed(failure);
            }
        }
        let answered = plan.places.iter().zip(outcomes);
        let answered = answered.filter(|(_, outcome)| outcome.is_ok());
        let answered: Vec<_> = answered.map(|((_, id), _)| id.clone()).collect();
        if !answered.is_empty() {
            self.count_outcome(ProbeOutcome::Succeeded);
            return probing.record_success(plan, &answered, began).await;
        }
        let mut failures = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let Some(why) = failures.find(|why| concerns_agent(why.reason)) else {
            self.count_outcome(ProbeOutcome::NotMade);
            let why = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
            let why = why.map(|why| why.message.as_ref());
            tracing::debug!(workspace.id = %self.id, why, "no probe");
            return Ok(());
        };
        self.count_outcome(ProbeOutcome::Failed);
        tracing::debug!(workspace.id = %self.id, why = %why.message, "a probe failed");
        probing.record_failure(plan, &why.message).await
    }

    /// Asks at all places at once. Returns the outcome at each, in order, and the time at which the last request was
    /// sent; before that, at which it would have been.
    async fn probe_places(
        &self,
        plan: &ProbePlan,
        deadline: Instant,
    ) -> (Vec<Result<(), Rejection>>, Instant) {
        let bytes_max = if plan.is_card {
            AGENT_CARD_BYTES_MAX
        } else {
            ANSWER_BYTES_MAX
        };
        let asked = plan.places.iter().map(async |(place, _)| {
            let mut sent_at = Instant::now();
            let outcome = self.probe_place(place, bytes_max, deadline, &mut sent_at);
            (outcome.await, sent_at)
        });
        let (outcomes, sent_at): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().unzip();
        let last = sent_at.into_iter().max();
        (outcomes, last.unwrap_or_else(Instant::now))
    }

    async fn probe_place(
        &self,
        place: &CardLocation,
        bytes_max: usize,
        deadline: Instant,
        sent_at: &mut Instant,
    ) -> Result<(), Rejection> {
        let (gateway, relay) = (&self.context.gateway, &self.context.relay);
        let config = relay.config.snapshot();
        let (upstream, connect) = (&relay.upstream, config.timeouts.connect);
        let peer = locate_card(
            (gateway, upstream),
            place,
            Account::default(),
            (connect, deadline),
            probe_timeout,
        )
        .await?;
        let question = BufferedRequest {
            peer: &peer,
            call: WireRequest::new(request_head(place), Bytes::new()),
            deadline,
            bytes_max,
            // It is not kept.
            idle: Duration::ZERO,
            late: probe_timeout,
        };
        // A pooled connection may be dead, and whether a second request is one too many could not be told.
        let connection = timeout_at(deadline, upstream.connect_anew(&peer)).await;
        let connection = connection.map_err(|_| probe_timeout())??;
        *sent_at = Instant::now();
        let answered = question.send_over(connection, upstream, &relay.metrics);
        let (head, _) = answered.await?;
        refuse_redirect(&head)?;
        if head.status.is_success() {
            return Ok(());
        }
        let message = format!("the agent answers the probe with {}", head.status.as_u16());
        Err(Rejection::new(Reason::AgentProtocolError, message))
    }
}

/// False if the outcome concerns the gateway, its stores or its settings.
const fn concerns_agent(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::AddressForbidden
            | Reason::Overloaded
            | Reason::ShuttingDown
            | Reason::StoreUnavailable
    )
}

/// Returns the request at the first path of a place.
fn request_head(place: &CardLocation) -> Vec<u8> {
    let path = place.paths.first().map_or("/", String::as_str);
    let lines = [
        "accept: */*",
        "user-agent: a2a-gateway",
        "connection: close",
    ];
    get_head(place, path, &lines)
}

fn probe_timeout() -> Rejection {
    let message = "the agent did not answer the probe in time";
    Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "probe")
}
