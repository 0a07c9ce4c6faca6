//! Cached entry of one workspace: its row, its URLs, the end of its lease, and the destination of messages.
//! Evaluated once, when it is loaded.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::card::CardSource;
use super::destination::{Agent, Destination, Instance, ResolutionFailure};
use super::instances::{CachedInstance, InstanceFacts};
use crate::directory::liveness::{AgentUrls, Pulse, must_beat};
use crate::time::{Timestamp, to_millis};
use crate::workspace::Workspace;

/// Interval of renewals of URL keys by heartbeats: half their lifetime, so that one may be missed.
const URL_RENEWAL: Duration = Duration::from_secs(150);

/// Lifetime of an entry that was not read completely, or for which no invalidation would arrive.
const UNSURE_TTL: Duration = Duration::from_secs(1);

/// Bytes of a card that count as one more entry in the caches, which bound entries and not bytes: a card may be
/// a hundred times as long as the rest of its entry, and is there twice after its first use.
const CARD_BYTES_OF_ONE: usize = 4096;

/// Instances that count for one more entry.
const INSTANCES_OF_ONE: usize = 8;

/// Maximum weight of an entry: a full cache admits an entry only if it is used more often than all entries that
/// it replaces together, and the counts end at 15.
const WEIGHT_MAX: u32 = 8;

/// No time yet.
const NEVER: u64 = u64::MAX;

/// Times at which the stores were read for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTimes {
    /// Read of the row.
    pub(super) row: Instant,
    /// Read of URLs and lease; `None`: the shared state did not answer.
    pub(super) shared: Option<Instant>,
    /// True if SQL did not answer, and the row is an earlier one.
    pub(super) stale: bool,
}

/// Values of one workspace, as read from the stores.
pub(super) struct Facts {
    /// `None`: it never existed.
    pub(super) workspace: Option<Workspace>,
    pub(super) urls: AgentUrls,
    pub(super) pulse: Pulse,
    /// Named instances, in order of id.
    pub(super) instances: Vec<InstanceFacts>,
    /// True if the shared state answered, too.
    pub(super) whole: bool,
    pub(super) read_at: ReadTimes,
}

/// Entry of one workspace, as of `loaded_at`.
pub(crate) struct Entry {
    /// `None`: it never existed.
    pub(crate) workspace: Option<Workspace>,
    pub(crate) urls: AgentUrls,
    pub(super) pulse: Pulse,
    /// Named instances, in order of id.
    pub(crate) instances: Box<[CachedInstance]>,
    /// True if the shared state answered, too.
    pub(super) whole: bool,
    pub(super) loaded_at: Instant,
    /// Times of the reads from the stores; earlier than `loaded_at` if the entry is served stale.
    pub(super) read_at: ReadTimes,
    /// Maximum age by cache coherence, when it was loaded.
    pub(super) age_max: Duration,
    /// True if its lapse was recorded.
    pub(super) lapse_noted: AtomicBool,
    /// For [`Pulse::Beats`]: milliseconds after `loaded_at`; each heartbeat moves it.
    alive_until: AtomicU64,
    /// Last renewal of the URL keys: milliseconds after `loaded_at`.
    urls_renewed_at: AtomicU64,
    reach: Result<Destination, ResolutionFailure>,
    /// Agent of an offline workspace, set by its first probe.
    pub(super) agent_in_any_status: OnceLock<Result<Arc<Agent>, ResolutionFailure>>,
    /// Source of its card, set at the first use.
    pub(super) card: OnceLock<Arc<CardSource>>,
    /// True while changes of its URL keys are received.
    watched: Arc<AtomicBool>,
}

impl Entry {
    /// `age_max`: maximum age by cache coherence. `watched`: true while changes of its URL keys are received.
    pub(super) fn new(
        facts: Facts,
        reach: Result<Destination, ResolutionFailure>,
        age_max: Duration,
        watched: Arc<AtomicBool>,
    ) -> Self {
        Self {
            alive_until: AtomicU64::new(match facts.pulse {
                Pulse::Beats(left) => to_millis(left),
                Pulse::AsItsStatus | Pulse::Lapsed => u64::MAX,
            }),
            workspace: facts.workspace,
            urls: facts.urls,
            pulse: facts.pulse,
            instances: facts.instances.into_iter().map(Into::into).collect(),
            whole: facts.whole,
            loaded_at: Instant::now(),
            read_at: facts.read_at,
            age_max,
            lapse_noted: AtomicBool::new(false),
            urls_renewed_at: AtomicU64::new(NEVER),
            reach,
            agent_in_any_status: OnceLock::new(),
            card: OnceLock::new(),
            watched,
        }
    }

    /// Returns the number of entries that it counts for in the caches.
    pub(super) fn weight(&self) -> u32 {
        let card = self
            .workspace
            .as_ref()
            .and_then(|row| row.agent_card.as_ref());
        let bytes = card.map_or(0, |card| card.get().len());
        let size = 1 + bytes / CARD_BYTES_OF_ONE + self.instances.len() / INSTANCES_OF_ONE;
        u32::try_from(size).map_or(WEIGHT_MAX, |one| one.min(WEIGHT_MAX))
    }

    /// True while it is valid, apart from coherence.
    pub(super) fn is_current(&self) -> bool {
        let sure = self.whole
            && self.workspace.is_some()
            && self.pulse != Pulse::Lapsed
            && self.watched.load(Ordering::Acquire);
        let age = self.loaded_at.elapsed();
        (sure || age < UNSURE_TTL)
            && self.is_alive()
            && self.instances.iter().all(|one| one.is_as_loaded(age))
    }

    /// True while its lease, as read or as renewed by a heartbeat, lasts.
    pub(super) fn is_alive(&self) -> bool {
        to_millis(self.loaded_at.elapsed()) < self.alive_until.load(Ordering::Acquire)
    }

    /// True if its status is online, but its lease has ended.
    pub(crate) fn has_lapsed(&self) -> bool {
        let beats = self.workspace.as_ref().is_some_and(must_beat);
        beats && (self.pulse == Pulse::Lapsed || !self.is_alive())
    }

    /// Returns the time at which its lease was read.
    pub(super) fn lease_read_at(&self) -> Timestamp {
        let read_at = self.read_at.shared.unwrap_or(self.loaded_at);
        Timestamp::now().before(read_at.elapsed())
    }

    /// Liveness without a store: no lapse can be proven, so it stays as it was.
    pub(super) fn last_pulse(&self) -> Pulse {
        match self.pulse {
            Pulse::Lapsed => Pulse::Lapsed,
            Pulse::Beats(_) | Pulse::AsItsStatus => Pulse::AsItsStatus,
        }
    }

    /// For [`Pulse::Beats`]: returns the rest of the lease.
    pub(super) fn alive_for(&self) -> Duration {
        let until = self.alive_until.load(Ordering::Acquire);
        Duration::from_millis(until.saturating_sub(to_millis(self.loaded_at.elapsed())))
    }

    /// Extends the lease after a heartbeat at this replica that was granted after `began`: alive for `ttl` from
    /// then, without a read from the store.
    pub(crate) fn extend(&self, began: Instant, ttl: Duration) {
        if matches!(self.pulse, Pulse::Beats(_)) {
            let since_load = began.saturating_duration_since(self.loaded_at);
            let until = to_millis(since_load.saturating_add(ttl));
            self.alive_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// True if the URL keys need renewal. One of several concurrent callers gets true.
    pub(crate) fn claim_url_renewal(&self) -> bool {
        let now = to_millis(self.loaded_at.elapsed());
        let at = self.urls_renewed_at.load(Ordering::Acquire);
        let is_due = at == NEVER || now.saturating_sub(at) >= to_millis(URL_RENEWAL);
        is_due
            && self
                .urls_renewed_at
                .compare_exchange(at, now, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    /// Lets the next heartbeat try again.
    pub(crate) fn url_renewal_failed(&self) {
        self.urls_renewed_at.store(NEVER, Ordering::Release);
    }

    /// Copies the decision about the agent's addresses from an entry of the same row.
    pub(super) fn take_over_decisions(&self, other: &Self) {
        let (Ok(Destination::Agent(agent)), Ok(Destination::Agent(known))) =
            (&self.reach, &other.reach)
        else {
            return;
        };
        let take_over = |agent: &Agent, known: &Agent| {
            if agent.endpoint.has_host_of(&known.endpoint) {
                agent.address_decision.take_over(&known.address_decision);
            }
        };
        if agent.instances.is_empty() {
            return take_over(agent, known);
        }
        for one in &agent.instances {
            let is_same = |of: &&Instance| of.agent.instance == one.agent.instance;
            if let Some(known) = known.instances.iter().find(is_same) {
                take_over(&one.agent, &known.agent);
            }
        }
    }

    /// True if its agent, or one of its instances, is called without a credential.
    pub(super) fn calls_without_credential(&self) -> bool {
        let Ok(Destination::Agent(agent)) = &self.reach else {
            return false;
        };
        let instances = agent.instances.iter().map(|one| &one.agent);
        let mut all = instances.chain([agent]);
        all.any(|one| one.upstream_auth.is_none())
    }

    /// Returns the destination of messages.
    pub(super) fn destination(&self) -> Result<Destination, ResolutionFailure> {
        self.reach.clone()
    }
}
