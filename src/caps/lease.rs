//! Shares: taken when they are needed or ahead of that, given back when they lie unused, and recalled from other replicas
//! when nothing is left. Reports of what was measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::counter::{Counter, TakeOutcome};
use super::facts::index_key;
use super::{Caps, saturating_i64};
use crate::config::Cap;
use crate::rejection::{Reason, Rejection};
use crate::shared::{CounterChange, Notice};
use crate::store::Unavailable;
use crate::telemetry::Chain;

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
    pub(super) async fn take_unit(
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
            if self.shared.is_embedded() || counter.was_reached() {
                counter.mark_reached();
                return Err(self.refuse_call(cap, counter));
            }
            let Some(pause) = pauses.next() else {
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
    pub(super) async fn recall_all(&self) -> Result<(), Unavailable> {
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
    pub(super) async fn require_room(&self, cap: &Cap, counter: &Counter) -> Result<(), Rejection> {
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
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if self.counters.is_empty() {
                continue;
            }
            self.give_back(false).await;
            self.report_usage().await;
            self.counters
                .retain(|_, counter| Arc::strong_count(counter) > 1 || !counter.can_be_forgotten());
            self.metrics
                .caps
                .subjects
                .set(saturating_i64(self.counters.len()));
        }
    }

    /// Gives shares back: all, or those that lie unused.
    async fn give_back(&self, all: bool) {
        let changes = self.collect_changes(|cap, counter| match cap.count.is_by_call() {
            true => counter.take_unused(cap, all),
            false => None,
        });
        for batch in changes.chunks(BATCH) {
            let batch: Vec<CounterChange> =
                batch.iter().map(|(_, change)| change.clone()).collect();
            // What cannot be given back is lost until the count begins again: given back twice, it would pass the limit.
            if let Err(error) = self.shared.count_units(&batch).await {
                tracing::debug!(error = %Chain(&error), "failed to give shares of caps back");
            }
        }
    }

    /// Reports what was measured, and reads the totals again that are in use.
    async fn report_usage(&self) {
        let changes = self.collect_changes(|cap, counter| match cap.count.is_by_call() {
            true => None,
            false => counter.report_change(cap, false),
        });
        for batch in changes.chunks(BATCH) {
            let (counters, batch): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
            match self.shared.count_units(&batch).await {
                Ok(counted) => {
                    for ((counter, change), counted) in counters.iter().zip(&batch).zip(&counted) {
                        counter.apply_report(counted, change.add);
                    }
                }
                // It is reported with the next one.
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to report the use of caps");
                }
            }
        }
    }

    /// Returns the changes of all counters, each with its counter.
    fn collect_changes(
        &self,
        change: impl Fn(&Cap, &Counter) -> Option<CounterChange>,
    ) -> Vec<(Arc<Counter>, CounterChange)> {
        let config = self.config.snapshot();
        let caps: HashMap<String, &Cap> =
            config.cap.iter().map(|cap| (index_key(cap), cap)).collect();
        let changes = self.counters.iter().filter_map(|counter| {
            // The counts of a cap that is gone lapse where they are.
            let cap = caps.get(&counter.place.index)?;
            let changed = change(cap, &counter)?;
            Some((Arc::clone(&counter), changed))
        });
        changes.collect()
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
