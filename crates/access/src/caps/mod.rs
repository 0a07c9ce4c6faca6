//! Caps: bounds on what calls use in total, counted by run, context, caller, pair, target, org or root
//! (`docs/guide/budget-a-run.md`).
//!
//! All replicas count together without asking a store for a message. Of a count of calls each takes shares from a
//! counter in the shared state, ahead of their use; a share is a hundredth of the limit at most ([`counter`]), lies
//! unused for two seconds at most, and is given back at once when another replica finds none left. So no more units are
//! used than the limit has, and what a replica loses when it is killed is its share. Bytes and time are known only
//! afterwards: they are reported twice a second, and a call is refused when the total has reached the limit.
//!
//! Shares: taken when they are needed or ahead of that, given back when they lie unused, and recalled from other
//! replicas when nothing is left. Reports of what was measured.

mod counter;
mod facts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::sleep;

pub use self::counter::Charge;
use self::counter::{Counter, TakeOutcome};
use self::facts::index_key;
pub use self::facts::{CapState, CapUsage, Facts, Names, UsageQuery};
use kernel::config::{Cap, CapPer, Config, GuardMode, Live};
use kernel::deadline::ticks;
use kernel::ids::ReplicaId;
use kernel::metrics::{Metrics, set_count};
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::telemetry::Chain;
use stores::shared::{CounterChange, CounterState, Notice, Shared};
use stores::store::Unavailable;

/// Maximum of subjects that a replica counts in memory. Further ones take each unit from the shared state.
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
        let counted = || config.cap.iter().filter(|cap| facts.is_counted_by(cap));
        for cap in counted().filter(|cap| cap.mode == GuardMode::Enforce) {
            let Some(counter) = self.counter_for(cap, facts) else {
                continue;
            };
            if cap.count.is_by_call() {
                self.take_unit(cap, &counter).await?;
            } else {
                self.require_room(cap, &counter).await?;
            }
            charge.add(cap, counter);
        }
        // Behind the others: what those refuse counts nothing.
        for cap in counted().filter(|cap| cap.mode == GuardMode::Observe) {
            let Some(counter) = self.counter_for(cap, facts) else {
                continue;
            };
            let fits = counter.observe_call(cap);
            if !fits {
                charge.add_observed(cap);
            }
            if fits || !cap.count.is_by_call() {
                charge.add(cap, counter);
            }
        }
        Ok(charge)
    }

    /// Returns the charge of a call that was counted when it was accepted and is made now: its bytes and its time.
    pub fn measure_call(&self, config: &Config, facts: &Facts) -> Charge {
        let mut charge = Charge::default();
        let measured = |cap: &&Cap| !cap.count.is_by_call() && facts.is_counted_by(cap);
        for cap in config.cap.iter().filter(measured) {
            if let Some(counter) = self.counter_for(cap, facts) {
                charge.add(cap, counter);
            }
        }
        charge
    }

    /// Returns the count of a call's subject.
    fn counter_for(&self, cap: &Cap, facts: &Facts) -> Option<Arc<Counter>> {
        let mut place = facts.subject_for(cap)?.counter_key(cap);
        if cap.mode == GuardMode::Observe {
            // No other replica, and no store, knows of it.
            place.key.insert_str(0, "observed:");
            place.index.clear();
        }
        if let Some(counter) = self.counters.get(&place.key) {
            return Some(Arc::clone(&counter));
        }
        // Callers choose the names of runs and contexts: those leave room for the rest.
        let max = match cap.per {
            CapPer::Run | CapPer::Context => SUBJECTS_MAX / 2,
            CapPer::Caller | CapPer::Pair | CapPer::Target | CapPer::Org | CapPer::Root => {
                SUBJECTS_MAX
            }
        };
        if self.counters.len() >= max {
            self.metrics.caps.dropped.inc();
            return Some(Arc::new(Counter::new(place, false)));
        }
        let key = place.key.clone();
        let kept = self.counters.entry(key);
        let counter = Arc::clone(&kept.or_insert_with(|| Arc::new(Counter::new(place, true))));
        self.count_subjects();
        Some(counter)
    }

    fn count_subjects(&self) {
        set_count(&self.metrics.caps.subjects, self.counters.len());
    }

    /// Builds the rejection of a call over `cap`.
    fn refuse_call(&self, cap: &Cap, counter: &Counter) -> Rejection {
        let refused = &self.metrics.caps.refused;
        refused.with_label_values(&[&cap.name]).inc();
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
                let left = left + Duration::from_millis(999);
                rejection.with_fact("resets_at", at).with_retry_after(left)
            }
            None => rejection,
        }
    }
}

/// The channel on which shares are recalled: the replica that asks, and the key of the count, or `*`.
const RECALL: &str = "gw:cap-recall";

/// Pauses before further looks for units after a recall.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(15),
    Duration::from_millis(40),
    Duration::from_millis(80),
];

/// Interval of reports, and of looks for shares that lie unused.
const TICK: Duration = Duration::from_millis(500);

/// Changes in one round trip.
const BATCH: usize = 256;

/// In place of a key: all shares.
const ALL: &str = "*";

impl Caps {
    /// Takes a unit, from the share or, if that is used up, from the shared state.
    ///
    /// # Errors
    /// `cap_reached`, `store_unavailable`.
    async fn take_unit(
        self: &Arc<Self>,
        cap: &Cap,
        counter: &Arc<Counter>,
    ) -> Result<(), Rejection> {
        match counter.take_unit(cap) {
            TakeOutcome::Unit(false) => return Ok(()),
            TakeOutcome::Unit(true) => {
                self.refill_ahead(cap, counter);
                return Ok(());
            }
            TakeOutcome::Reached => return Err(self.refuse_call(cap, counter)),
            TakeOutcome::Empty => {}
        }
        // Of all calls that wait one asks; each wait is bounded by `stores.timeout`.
        let _one = counter.refilling.lock().await;
        let mut pauses = PAUSES.iter();
        loop {
            match counter.take_unit(cap) {
                TakeOutcome::Unit(_) => return Ok(()),
                TakeOutcome::Reached => return Err(self.refuse_call(cap, counter)),
                TakeOutcome::Empty => {}
            }
            if ask_store(counter, self.take_share(cap, counter)).await? {
                continue;
            }
            let may_wait = !self.shared.is_embedded() && !counter.was_reached();
            let Some(pause) = pauses.next().filter(|_| may_wait) else {
                counter.mark_reached();
                return Err(self.refuse_call(cap, counter));
            };
            if *pause == PAUSES[0] {
                self.recall_share(&counter.place.key).await?;
            }
            sleep(*pause).await;
        }
    }

    /// Takes the next share. False if nothing is left.
    async fn take_share(&self, cap: &Cap, counter: &Counter) -> Result<bool, Unavailable> {
        let counted = self
            .shared
            .count_units(&[counter.refill_change(cap)])
            .await?;
        Ok(counted
            .first()
            .is_some_and(|counted| counter.add_share(counted)))
    }

    /// Takes the next share while the present one is used.
    fn refill_ahead(self: &Arc<Self>, cap: &Cap, counter: &Arc<Counter>) {
        let (caps, cap, counter) = (Arc::clone(self), cap.clone(), Arc::clone(counter));
        tokio::spawn(async move {
            // Another call asks already.
            let Ok(_one) = counter.refilling.try_lock() else {
                return;
            };
            if let Err(error) = caps.take_share(&cap, &counter).await {
                tracing::debug!(error = %Chain(&error), "failed to take a share of a cap ahead");
            }
        });
    }

    /// Has the other replicas give back what they hold of a count.
    async fn recall_share(&self, key: &str) -> Result<(), Unavailable> {
        let message = format!("{} {key}", self.replica.as_str());
        self.shared.publish(RECALL, &message).await
    }

    /// Has all replicas give back what they hold, so that the totals are what was used.
    async fn recall_all(&self) -> Result<(), Unavailable> {
        self.give_back(true).await;
        if self.shared.is_embedded() {
            return Ok(());
        }
        self.recall_share(ALL).await?;
        sleep(PAUSES[1]).await;
        Ok(())
    }

    /// Checks that a measured total is below the limit.
    ///
    /// # Errors
    /// `cap_reached`, `store_unavailable`.
    async fn require_room(&self, cap: &Cap, counter: &Counter) -> Result<(), Rejection> {
        let mut room = counter.has_room(cap);
        if room.is_none() {
            let _one = counter.refilling.lock().await;
            if counter.has_room(cap).is_none()
                && let Some(report) = counter.report_change(cap, true)
            {
                let trip = self.shared.count_units(std::slice::from_ref(&report));
                let counted = ask_store(counter, trip).await?;
                if let Some(counted) = counted.first() {
                    counter.apply_report(counted, report.add);
                }
            }
            room = counter.has_room(cap);
        }
        match room {
            Some(false) => Err(self.refuse_call(cap, counter)),
            Some(true) | None => Ok(()),
        }
    }

    /// Runs the background work, until the process ends.
    pub async fn run(&self) {
        tokio::join!(self.run_ticks(), self.follow_recalls());
    }

    /// Gives all shares back and reports what was measured, at the end of the process.
    pub async fn close(&self) {
        self.give_back(true).await;
        self.report_usage().await;
    }

    async fn run_ticks(&self) {
        let mut tick = ticks(TICK);
        loop {
            tick.tick().await;
            if self.counters.is_empty() {
                continue;
            }
            self.give_back(false).await;
            self.report_usage().await;
            self.counters
                .retain(|_, counter| Arc::strong_count(counter) > 1 || !counter.can_be_forgotten());
            self.count_subjects();
        }
    }

    /// Gives shares back: all, or those that lie unused.
    async fn give_back(&self, all: bool) {
        let change = |cap: &Cap, counter: &Counter| counter.take_unused(cap, all);
        // What cannot be given back is lost until the count begins again: given back twice, it would pass the limit.
        self.send_changes(change, |_, _, _| {}, "failed to give shares of caps back")
            .await;
    }

    /// Reports what was measured, and reads the totals again that are in use.
    async fn report_usage(&self) {
        let change = |cap: &Cap, counter: &Counter| match cap.count.is_by_call() {
            true => None,
            false => counter.report_change(cap, false),
        };
        // What cannot be reported is reported with the next one.
        let apply = |counter: &Counter, change: &CounterChange, counted: &CounterState| {
            counter.apply_report(counted, change.add);
        };
        self.send_changes(change, apply, "failed to report the use of caps")
            .await;
    }

    /// Sends the changes of all counters, and applies what they are counted to.
    async fn send_changes(
        &self,
        change: impl Fn(&Cap, &Counter) -> Option<CounterChange>,
        apply: impl Fn(&Counter, &CounterChange, &CounterState),
        failed: &'static str,
    ) {
        let config = self.config.snapshot();
        let caps: HashMap<String, &Cap> =
            config.cap.iter().map(|cap| (index_key(cap), cap)).collect();
        let changes = self.counters.iter().filter_map(|counter| {
            // The counts of a cap that is gone lapse where they are.
            let cap = caps.get(&counter.place.index)?;
            let changed = change(cap, &counter)?;
            Some((Arc::clone(&counter), changed))
        });
        let changes: Vec<_> = changes.collect();
        for batch in changes.chunks(BATCH) {
            let (counters, batch): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
            match self.shared.count_units(&batch).await {
                Ok(counted) => {
                    for ((counter, change), counted) in counters.iter().zip(&batch).zip(&counted) {
                        apply(counter, change, counted);
                    }
                }
                Err(error) => tracing::debug!(error = %Chain(&error), "{failed}"),
            }
        }
    }

    /// Gives back what other replicas recall.
    async fn follow_recalls(&self) {
        if self.shared.is_embedded() {
            return;
        }
        let mut subscription = self.shared.subscribe(RECALL);
        loop {
            let Notice::Message(text) = subscription.next().await else {
                continue;
            };
            let Some((replica, key)) = text.split_once(' ') else {
                continue;
            };
            if replica == self.replica.as_str() {
                continue;
            }
            if key == ALL {
                self.give_back(true).await;
                continue;
            }
            let Some(counter) = self.counters.get(key).map(|counter| Arc::clone(&counter)) else {
                continue;
            };
            let config = self.config.snapshot();
            let cap = config
                .cap
                .iter()
                .find(|cap| index_key(cap) == counter.place.index);
            let back = cap.and_then(|cap| counter.take_unused(cap, true));
            if let Some(back) = back
                && let Err(error) = self.shared.count_units(&[back]).await
            {
                tracing::debug!(error = %Chain(&error), "failed to give back a share that was recalled");
            }
        }
    }
}

/// Makes a trip, unless one failed a moment ago.
///
/// # Errors
/// `store_unavailable`.
async fn ask_store<T>(
    counter: &Counter,
    trip: impl Future<Output = Result<T, Unavailable>>,
) -> Result<T, Rejection> {
    if counter.has_failed() {
        let message = "the shared state does not answer, so that the caps cannot be counted; try again shortly";
        let rejection = Rejection::new(Reason::StoreUnavailable, message);
        return Err(rejection.with_retry_after(Duration::from_secs(1)));
    }
    let made = trip.await;
    if made.is_err() {
        counter.record_failure();
    }
    Ok(made?)
}
