//! The count of one subject at this replica: the share that it holds of a limit, or what it has measured.
//!
//! A share is taken from the counter that all replicas have in common before its units are used, so the units in use
//! are never more than the limit. What is measured (bytes, time) is added after it passed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use kernel::config::{Cap, CapCount};
use kernel::time::Timestamp;
use stores::shared::{CounterChange, CounterState};

/// Life of a count without a window: from its last use.
pub(super) const IDLE: Duration = Duration::from_hours(24);

/// Time for which a share may lie unused before it is given back.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// Pause between two looks for units after the limit was reached: others may have given some back.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time within which a share that was used up makes the next one greater.
const BUSY: Duration = Duration::from_secs(1);

/// The part of the limit that one replica holds at most: one in so many. What a replica that is killed holds is lost.
const PART_MAX: u64 = 100;

/// Units that a share may have in any case, as far as they are no quarter of what is left.
const SMALL: u64 = 8;

/// Time after a failed trip in which no other is made: calls that wait do not wait for the store one after another.
const FAILED_FOR: Duration = Duration::from_millis(500);

/// Time after which a measured total is read again while calls are counted to it.
pub(super) const REFRESH: Duration = Duration::from_secs(1);

/// Greatest number that is exact in every store.
const EXACT_MAX: u64 = 1 << 53;

/// Returns the most units that one replica holds of a limit.
pub(super) fn share_max(limit: u64) -> u64 {
    (limit / PART_MAX).max(SMALL)
}

/// Returns the limit in units of the store: milliseconds for seconds.
pub(super) fn limit_of(cap: &Cap) -> u64 {
    match cap.count {
        CapCount::Seconds => cap.limit.saturating_mul(1000).min(EXACT_MAX),
        _ => cap.limit,
    }
}

/// Returns a total of the store in units of the cap.
pub(super) fn to_cap_units(count: CapCount, total: u64) -> u64 {
    match count {
        CapCount::Seconds => total / 1000,
        _ => total,
    }
}

/// Names of a count in the shared state.
#[derive(Clone, Debug)]
pub(super) struct CounterKey {
    /// The key of the counter.
    pub(super) key: String,
    /// The index in which it is listed.
    pub(super) index: String,
    /// Its name there.
    pub(super) member: String,
}

/// The count of one subject.
pub(super) struct Counter {
    pub(super) place: CounterKey,
    /// True if it is kept for further calls, which use what is left of a share.
    is_kept: bool,
    state: Mutex<State>,
    /// Held by the only one that takes a share.
    pub(super) refilling: tokio::sync::Mutex<()>,
}

struct State {
    life: String,
    /// Number of the life at this replica.
    number: u64,
    ends_at: Option<Instant>,
    /// Units of the share that are not used.
    held: u64,
    /// Units of the next share.
    wish: u64,
    refilled_at: Instant,
    /// Set when the limit was reached: the time of the next look.
    look_at: Option<Instant>,
    /// Set when the store did not answer: the time of the next trip.
    failed_until: Option<Instant>,
    used_at: Instant,
    /// The total that all replicas reported; `None`: not read yet.
    total: Option<u64>,
    read_at: Instant,
    /// Measured here, and not reported.
    unreported: u64,
    /// Calls that take time now, since `running_since`.
    running: u64,
    running_since: Instant,
}

/// Outcome of taking a unit from the share of a counter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TakeOutcome {
    /// It has a unit. True if the next share is to be taken now.
    Unit(bool),
    /// It has none, and the store may have some.
    Empty,
    /// The limit was reached a moment ago. True: it is reached for the first time in this life.
    Reached,
}

impl Counter {
    /// Creates a counter: of one call, which takes one unit, unless it is kept for further ones.
    pub(super) fn new(place: CounterKey, is_kept: bool) -> Self {
        let now = Instant::now();
        Self {
            place,
            is_kept,
            state: Mutex::new(State {
                life: String::new(),
                number: 0,
                ends_at: None,
                held: 0,
                wish: 2,
                refilled_at: now,
                look_at: None,
                failed_until: None,
                used_at: now,
                total: None,
                read_at: now,
                unreported: 0,
                running: 0,
                running_since: now,
            }),
            refilling: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the time, and the state at it.
    fn lock_state(&self) -> (Instant, MutexGuard<'_, State>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.ends_at.is_some_and(|ends| ends <= now) {
            state.begin_again();
        }
        (now, state)
    }

    /// Takes a unit of the share.
    pub(super) fn take_unit(&self, cap: &Cap) -> TakeOutcome {
        let (now, mut state) = self.lock_state();
        state.used_at = now;
        if state.held > 0 {
            state.held -= 1;
            let ahead = share_max(cap.limit) > SMALL && state.look_at.is_none();
            return TakeOutcome::Unit(ahead && state.held < state.wish / 2);
        }
        match state.look_at {
            Some(at) if now < at => TakeOutcome::Reached,
            _ => TakeOutcome::Empty,
        }
    }

    /// Judges a call by an observed cap, which this replica counts alone, by its whole limit. False: it is over it.
    pub(super) fn observe_call(&self, cap: &Cap) -> bool {
        let (now, mut state) = self.lock_state();
        state.used_at = now;
        state.measure_running(now);
        if state.ends_at.is_none() {
            state.begin_again();
            (state.held, state.total, state.unreported) = (limit_of(cap), Some(0), 0);
        }
        if state.ends_at.is_none() || cap.window.is_none() {
            state.ends_at = Some(now + cap.window.unwrap_or(IDLE));
        }
        if !cap.count.is_by_call() {
            return state.unreported < limit_of(cap);
        }
        let fits = state.held > 0;
        state.held = state.held.saturating_sub(1);
        fits
    }

    /// Returns the number of the present life, for [`Counter::give_back`].
    pub(super) fn life_number(&self) -> u64 {
        self.lock_state().1.number
    }

    /// Takes a unit back that was not used, if the life in which it was taken goes on.
    pub(super) fn give_back(&self, number: u64) {
        let (_, mut state) = self.lock_state();
        if state.number == number {
            state.held += 1;
        }
    }

    /// Returns the change that takes the next share.
    pub(super) fn refill_change(&self, cap: &Cap) -> CounterChange {
        let (now, mut state) = self.lock_state();
        let max = share_max(cap.limit);
        let busy = now.duration_since(state.refilled_at) < BUSY;
        state.wish = if busy { state.wish * 2 } else { state.wish / 2 }.clamp(2, max);
        let want = if self.is_kept {
            state.wish.min(max.saturating_sub(state.held)).max(1)
        } else {
            1
        };
        self.build_change(cap, &state.life, 0, want)
    }

    /// Adds the share that was taken. True if there was one.
    pub(super) fn add_share(&self, counted: &CounterState) -> bool {
        let (now, mut state) = self.lock_state();
        state.adopt_life(counted, now);
        state.held += counted.taken;
        state.total = Some(counted.total);
        state.refilled_at = now;
        if counted.taken > 0 {
            state.look_at = None;
        }
        counted.taken > 0
    }

    /// Records that the limit is reached. True if it is so for the first time in this life.
    pub(super) fn mark_reached(&self) -> bool {
        let (now, mut state) = self.lock_state();
        state.look_at.replace(now + LOOK_AGAIN).is_none()
    }

    /// Records that the store did not answer.
    pub(super) fn record_failure(&self) {
        let (now, mut state) = self.lock_state();
        state.failed_until = Some(now + FAILED_FOR);
    }

    /// True if the store did not answer a moment ago.
    pub(super) fn has_failed(&self) -> bool {
        let (now, state) = self.lock_state();
        state.failed_until.is_some_and(|until| now < until)
    }

    /// True if the limit was reached before, so that a look for units waits for no other replica.
    pub(super) fn was_reached(&self) -> bool {
        self.lock_state().1.look_at.is_some()
    }

    /// Returns the time at which the count begins again.
    pub(super) fn resets_at(&self) -> Option<(Timestamp, Duration)> {
        let (now, state) = self.lock_state();
        let left = state.ends_at?.saturating_duration_since(now);
        Some((Timestamp::now().after(left), left))
    }

    /// Takes the share out to give it back: all of it, or only what lay unused for a while.
    pub(super) fn take_unused(&self, cap: &Cap, all: bool) -> Option<CounterChange> {
        let (now, mut state) = self.lock_state();
        let idle = now.duration_since(state.used_at) >= LEASE;
        if state.held == 0 || !(all || idle) {
            return None;
        }
        let held = std::mem::take(&mut state.held);
        state.wish = 2;
        let back = i64::try_from(held).unwrap_or(i64::MAX);
        Some(self.build_change(cap, &state.life, -back, 0))
    }

    /// True if nothing is lost when the counter is forgotten: it is idle, holds nothing and has reported everything.
    pub(super) fn can_be_forgotten(&self) -> bool {
        let (now, state) = self.lock_state();
        let idle = now.duration_since(state.used_at) >= 5 * LEASE;
        if self.place.index.is_empty() {
            return idle && state.running == 0 && state.ends_at.is_none();
        }
        idle && state.held == 0 && state.unreported == 0 && state.running == 0
    }

    pub(super) fn build_change(&self, cap: &Cap, life: &str, add: i64, want: u64) -> CounterChange {
        CounterChange {
            key: self.place.key.clone(),
            index: self.place.index.clone(),
            member: self.place.member.clone(),
            life: life.to_owned(),
            add,
            want,
            limit: limit_of(cap),
            ttl: cap.window.unwrap_or(IDLE),
            renews: cap.window.is_none(),
        }
    }
}

/// Counters of measured amounts: bytes and seconds.
impl Counter {
    /// True if the measured total is below the limit; `None` if it has not been read yet.
    pub(super) fn has_room(&self, cap: &Cap) -> Option<bool> {
        let (now, mut state) = self.lock_state();
        state.used_at = now;
        state.measure_running(now);
        let total = state.total?.saturating_add(state.unreported);
        Some(total < limit_of(cap))
    }

    /// Adds what was measured.
    pub(super) fn add_units(&self, units: u64) {
        let (now, mut state) = self.lock_state();
        state.used_at = now;
        state.unreported = state.unreported.saturating_add(units);
    }

    /// Begins to count the time of a call.
    pub(super) fn begin_call(&self) {
        let (now, mut state) = self.lock_state();
        state.measure_running(now);
        state.running += 1;
    }

    /// Ends the count of the time of a call.
    pub(super) fn end_call(&self) {
        let (now, mut state) = self.lock_state();
        state.measure_running(now);
        state.used_at = now;
        state.running = state.running.saturating_sub(1);
    }

    /// Returns the change that reports what was measured, or reads the total again; `None`: neither is due. `first`: it
    /// is read in any case.
    pub(super) fn report_change(&self, cap: &Cap, first: bool) -> Option<CounterChange> {
        let (now, mut state) = self.lock_state();
        state.measure_running(now);
        let in_use = state.running > 0 || now.duration_since(state.used_at) < 2 * REFRESH;
        let stale = in_use && now.duration_since(state.read_at) >= REFRESH;
        if !first && state.unreported == 0 && !stale {
            return None;
        }
        let units = i64::try_from(state.unreported).unwrap_or(i64::MAX);
        Some(self.build_change(cap, &state.life, units, 0))
    }

    /// Takes the answer to a report of `added` units.
    pub(super) fn apply_report(&self, counted: &CounterState, added: i64) {
        let (now, mut state) = self.lock_state();
        state.adopt_life(counted, now);
        let added = u64::try_from(added).unwrap_or(0);
        state.unreported = state.unreported.saturating_sub(added);
        state.total = Some(counted.total);
        state.read_at = now;
    }
}

impl State {
    /// Begins a new life: what was held and counted is of the old one. What is not reported yet counts in the new one.
    fn begin_again(&mut self) {
        self.life.clear();
        self.number += 1;
        (self.held, self.ends_at, self.look_at) = (0, None, None);
        self.total = self.total.map(|_| 0);
    }

    /// Adopts the life that the store names.
    fn adopt_life(&mut self, counted: &CounterState, now: Instant) {
        if self.life != counted.life {
            if !self.life.is_empty() {
                self.begin_again();
            }
            self.life.clone_from(&counted.life);
        }
        self.ends_at = (!counted.life.is_empty()).then(|| now + counted.left);
    }

    /// Adds the time of the calls in progress, in milliseconds.
    fn measure_running(&mut self, now: Instant) {
        let passed = now.duration_since(self.running_since).as_millis();
        let passed = u64::try_from(passed).unwrap_or(0);
        if self.running > 0 {
            let units = self.running.saturating_mul(passed);
            self.unreported = self.unreported.saturating_add(units);
        }
        // What is below a millisecond is kept for the next time, while there are calls.
        self.running_since = match self.running {
            0 => now,
            _ => self.running_since + Duration::from_millis(passed),
        };
    }
}

/// The counts of one call. Dropped before [`Charge::mark_sent`], it gives back what it took: a call that was refused
/// counts nothing.
#[derive(Default)]
pub struct Charge {
    units: Vec<Unit>,
    sent: bool,
    shows_task: bool,
    /// Bytes that were counted.
    bytes: u64,
    /// Observed caps that the call is over.
    observed: Vec<String>,
}

/// One count of a call.
struct Unit {
    counter: Arc<Counter>,
    count: CapCount,
    /// The life of the count in which the unit was taken.
    life: u64,
}

impl Charge {
    pub(super) fn add(&mut self, cap: &Cap, counter: Arc<Counter>) {
        self.units.push(Unit {
            life: counter.life_number(),
            count: cap.count,
            counter,
        });
    }

    pub(super) fn add_observed(&mut self, cap: &Cap) {
        self.observed.push(cap.name.clone());
    }

    /// Takes the names of the observed caps that the call is over.
    pub fn take_observed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.observed)
    }

    /// True if the call counts for nothing.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Records that the call is sent, or kept for its target: it counts from here on.
    pub fn mark_sent(&mut self) {
        if self.sent {
            return;
        }
        self.sent = true;
        for counter in self.counters_of(CapCount::Seconds) {
            counter.begin_call();
        }
    }

    /// Returns the counts of a call that is sent.
    #[must_use]
    pub fn into_sent(mut self: Box<Self>) -> Box<Self> {
        self.mark_sent();
        self
    }

    /// Records that nothing was sent after all: the call counts nothing.
    pub fn not_sent(&mut self) {
        if self.sent {
            self.end_clocks();
        }
        self.sent = false;
    }

    /// Records that the answer will be searched for its task, so that its end tells whether the call began one.
    pub fn shows_its_task(&mut self) {
        self.shows_task = true;
    }

    /// Records that the whole answer named no task: the call began none.
    pub fn began_no_task(&mut self) {
        if !self.shows_task {
            return;
        }
        for unit in self
            .units
            .extract_if(.., |unit| unit.count == CapCount::Tasks)
        {
            unit.counter.give_back(unit.life);
        }
    }

    /// Counts the bytes that passed; `total` are those of the call so far.
    pub fn record_bytes(&mut self, total: u64) {
        let more = total.saturating_sub(self.bytes);
        if !self.sent || more == 0 {
            return;
        }
        self.bytes = total;
        for counter in self.counters_of(CapCount::Bytes) {
            counter.add_units(more);
        }
    }

    fn end_clocks(&self) {
        for counter in self.counters_of(CapCount::Seconds) {
            counter.end_call();
        }
    }

    fn counters_of(&self, count: CapCount) -> impl Iterator<Item = &Counter> {
        let units = self.units.iter().filter(move |unit| unit.count == count);
        units.map(|unit| &*unit.counter)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.sent {
            return self.end_clocks();
        }
        for unit in &self.units {
            if unit.count.is_by_call() {
                unit.counter.give_back(unit.life);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::config::{CapPer, Scope};

    fn cap(limit: u64, count: CapCount) -> Cap {
        Cap {
            name: "a".to_owned(),
            per: CapPer::Run,
            count,
            limit,
            window: Some(Duration::from_secs(60)),
            scope: Scope::all(),
            mode: kernel::config::GuardMode::Enforce,
        }
    }

    fn counter() -> Counter {
        let place = CounterKey {
            key: "k".to_owned(),
            index: "i".to_owned(),
            member: "m".to_owned(),
        };
        Counter::new(place, true)
    }

    fn counted(life: &str, total: u64, taken: u64) -> CounterState {
        CounterState {
            life: life.to_owned(),
            total,
            taken,
            left: Duration::from_secs(60),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn units_are_used_once_and_end_with_their_life() {
        let (cap, counter) = (cap(100, CapCount::Messages), counter());
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Empty);
        assert!(counter.add_share(&counted("one", 2, 2)));
        let number = counter.life_number();
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Unit(false));
        counter.give_back(number);
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Unit(false));
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Unit(false));
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Empty);
        assert!(!counter.add_share(&counted("one", 100, 0)));
        assert!(counter.mark_reached());
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Reached);
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Empty);
        assert!(!counter.mark_reached());
        tokio::time::advance(Duration::from_secs(60)).await;
        // A unit of the life that is over is not given back into the next one.
        counter.give_back(number);
        assert_eq!(counter.take_unit(&cap), TakeOutcome::Empty);
        assert!(counter.mark_reached());
    }

    #[tokio::test(start_paused = true)]
    async fn shares_grow_with_use_and_lie_unused_for_a_moment_only() {
        let (cap, counter) = (cap(10_000, CapCount::Messages), counter());
        let mut wants = Vec::new();
        for _ in 0..7 {
            let want = counter.refill_change(&cap).want;
            wants.push(want);
            counter.add_share(&counted("one", 0, 0));
        }
        assert_eq!(wants, [4, 8, 16, 32, 64, 100, 100]);
        tokio::time::advance(BUSY).await;
        assert_eq!(counter.refill_change(&cap).want, 50);
        counter.add_share(&counted("one", 50, 50));
        // The next share is taken when half of this one is used.
        let mut early = 0;
        while counter.take_unit(&cap) == TakeOutcome::Unit(false) {
            early += 1;
        }
        assert_eq!(early, 25);
        assert!(counter.take_unused(&cap, false).is_none());
        tokio::time::advance(LEASE).await;
        let back = counter.take_unused(&cap, false).unwrap();
        assert_eq!((back.add, &*back.life), (-24, "one"));
        assert!(counter.take_unused(&cap, true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_that_of_all_calls_in_progress() {
        let (cap, counter) = (cap(2, CapCount::Seconds), counter());
        assert_eq!(counter.has_room(&cap), None);
        counter.apply_report(&counted("", 0, 0), 0);
        assert_eq!(counter.has_room(&cap), Some(true));
        counter.begin_call();
        counter.begin_call();
        tokio::time::advance(Duration::from_millis(900)).await;
        counter.end_call();
        tokio::time::advance(Duration::from_millis(150)).await;
        assert_eq!(counter.has_room(&cap), Some(true));
        let report = counter.report_change(&cap, false).unwrap();
        assert_eq!((report.add, report.want), (1950, 0));
        counter.apply_report(&counted("one", 1950, 0), report.add);
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!(counter.has_room(&cap), Some(false));
        counter.end_call();
        assert!(!counter.can_be_forgotten());
    }
}
