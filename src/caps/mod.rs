//! Caps: bounds on what calls use in total, counted by run, context, caller, pair, target or org
//! (`docs/guide/budget-a-run.md`).
//!
//! All replicas count together without asking a store for a message. Of a count of calls each takes shares from a counter
//! in the shared state, ahead of their use; a share is a hundredth of the limit at most ([`counter`]), lies unused for two
//! seconds at most, and is given back at once when another replica finds none left ([`lease`]). So no more units are used
//! than the limit has, and what a replica loses when it is killed is its share. Bytes and time are known only afterwards:
//! they are reported twice a second, and a call is refused when the total has reached the limit.

mod charge;
mod counter;
mod facts;
mod lease;
mod usage;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use dashmap::DashMap;

pub use self::charge::Charge;
use self::charge::Unit;
use self::counter::{Counter, CounterKey};
pub use self::facts::{Facts, Names};
pub use self::usage::{CapState, CapUsage, UsageQuery};
use crate::config::{Cap, CapPer, Config, Live};
use crate::ids::ReplicaId;
use crate::metrics::Metrics;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shared::Shared;

/// Most subjects that one replica counts at once. Further ones take each unit from the shared state.
const SUBJECTS_MAX: usize = 65_536;

/// The counts of this replica.
pub struct Caps {
    config: Live,
    shared: Shared,
    replica: ReplicaId,
    metrics: Arc<Metrics>,
    /// By the key in the shared state.
    counters: DashMap<String, Arc<Counter>>,
}

impl Caps {
    /// Creates it; does not touch the store.
    pub fn new(
        config: &Live,
        shared: &Shared,
        replica: &ReplicaId,
        metrics: &Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            shared: shared.clone(),
            replica: replica.clone(),
            metrics: Arc::clone(metrics),
            counters: DashMap::new(),
        })
    }

    /// True if `config` has caps. Without one a call pays this question.
    pub fn are_configured(config: &Config) -> bool {
        !config.cap.is_empty()
    }

    /// Counts a call that is about to be sent, with every cap that covers it.
    ///
    /// # Errors
    /// `cap_reached`; `store_unavailable` if a share is used up and the shared state does not answer. What was taken
    /// before is given back.
    pub async fn count_call(
        self: &Arc<Self>,
        config: &Config,
        facts: &Facts,
    ) -> Result<Charge, Rejection> {
        let mut charge = Charge::default();
        for cap in config.cap.iter().filter(|cap| facts.is_counted_by(cap)) {
            let Some(counter) = self.counter_for(cap, facts) else {
                continue;
            };
            if cap.count.is_by_call() {
                self.take_unit(cap, &counter).await?;
            } else {
                self.require_room(cap, &counter).await?;
            }
            charge.push(Unit {
                life: counter.life_number(),
                count: cap.count,
                counter,
            });
        }
        Ok(charge)
    }

    /// Returns the charge of a call that was counted when it was accepted and is made now: its bytes and its time.
    pub fn measure_call(&self, config: &Config, facts: &Facts) -> Charge {
        let mut charge = Charge::default();
        let measured = |cap: &&Cap| !cap.count.is_by_call() && facts.is_counted_by(cap);
        for cap in config.cap.iter().filter(measured) {
            if let Some(counter) = self.counter_for(cap, facts) {
                charge.push(Unit {
                    life: counter.life_number(),
                    count: cap.count,
                    counter,
                });
            }
        }
        charge
    }

    /// Returns the count of a call's subject.
    fn counter_for(&self, cap: &Cap, facts: &Facts) -> Option<Arc<Counter>> {
        let subject = facts.subject_for(cap)?;
        Some(self.counter_at(cap, subject.counter_key(cap)))
    }

    fn counter_at(&self, cap: &Cap, place: CounterKey) -> Arc<Counter> {
        if let Some(counter) = self.counters.get(&place.key) {
            return Arc::clone(&counter);
        }
        // Callers choose the names of runs and contexts: those leave room for the rest.
        let max = match cap.per {
            CapPer::Run | CapPer::Context => SUBJECTS_MAX / 2,
            CapPer::Caller | CapPer::Pair | CapPer::Target | CapPer::Org => SUBJECTS_MAX,
        };
        if self.counters.len() >= max {
            self.metrics.caps.dropped.inc();
            return Arc::new(Counter::of_one_call(place));
        }
        let key = place.key.clone();
        let kept = self
            .counters
            .entry(key)
            .or_insert_with(|| Arc::new(Counter::new(place)));
        let counter = Arc::clone(&kept);
        drop(kept);
        self.metrics
            .caps
            .subjects
            .set(saturating_i64(self.counters.len()));
        counter
    }

    /// Builds the rejection of a call over `cap`.
    fn refuse_call(&self, cap: &Cap, counter: &Counter) -> Rejection {
        self.metrics.caps.count_refused(&cap.name);
        let (name, per, count, limit) =
            (&cap.name, cap.per.as_str(), cap.count.as_str(), cap.limit);
        let said = format!("the cap `{name}` is reached: {limit} {count} for each {per}");
        let resets = cap.window.and_then(|_| counter.resets_at());
        let said = match &resets {
            Some((at, _)) => format!("{said}; it begins again at {at}: do not send before"),
            None => format!(
                "{said}; it lasts as long as the {per}: end this one, or ask an operator for a higher limit"
            ),
        };
        let rejection = Rejection::new(Reason::CapReached, said)
            .with_fact("cap", name)
            .with_fact("per", per)
            .with_fact("count", count)
            .with_fact("limit", limit)
            .with_delivery(Delivery::NotSent);
        match resets {
            Some((at, left)) => {
                let left = left + std::time::Duration::from_millis(999);
                rejection.with_fact("resets_at", at).with_retry_after(left)
            }
            None => rejection,
        }
    }
}

fn saturating_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
