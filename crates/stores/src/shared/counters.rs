//! Counters in the memory of a single gateway, and the form of their changes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::memory::Memory;
use crate::store::{Cause, as_cause};
use kernel::time::Timestamp;

/// Most counters in the memory of a single gateway.
const COUNTERS_MAX: usize = 200_000;

/// Most counters of one index that can be listed: those that were used last.
pub(super) const LISTED_MAX: usize = 1000;

/// Part of what is left that one share may be: one in so many.
pub(super) const PART: u64 = 4;

/// A change of one counter.
#[derive(Clone, Debug)]
pub struct CounterChange {
    /// The key of the counter.
    pub key: String,
    /// The key of the index in which it is listed, as `member`.
    pub index: String,
    /// Its name in the index.
    pub member: String,
    /// The life of the counter that `add` belongs to; empty: any. A counter that lapsed begins a new life.
    pub life: String,
    /// Units to add; below zero: units to give back. Dropped if that life is over.
    pub add: i64,
    /// Units to take at most. A share is a quarter of what is left up to `limit`, and one unit at least.
    pub want: u64,
    /// The greatest total to which shares are taken.
    pub limit: u64,
    /// The life of the counter from its first use or, with `renews`, from its last.
    pub ttl: Duration,
    /// True if each change begins the time to live again.
    pub renews: bool,
}

/// A counter after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterState {
    /// The name of its life; empty: it has not begun, since nothing is counted.
    pub life: String,
    /// All units that were added or taken.
    pub total: u64,
    /// Units that this change took.
    pub taken: u64,
    /// Time to live.
    pub left: Duration,
}

/// There are as many counters as may be.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the in-process store is full of counters; put `stores.shared` on Redis")]
struct CountersFull;

/// The counters of a single gateway. Lost when the process ends.
#[derive(Default)]
pub(super) struct Counters {
    counters: HashMap<String, Counter>,
    /// Number of counters above which lapsed ones are removed.
    sweep_at: usize,
}

struct Counter {
    life: String,
    total: u64,
    lapses_at: Instant,
    index: String,
    member: String,
    used_at: Instant,
}

impl Counters {
    fn apply_change(&mut self, count: &CounterChange) -> Result<CounterState, CountersFull> {
        let now = Instant::now();
        self.remove_lapsed(now);
        let found = self.counters.get(&count.key);
        let found = found.filter(|counter| now < counter.lapses_at);
        let (total, life, lapses_at) = match found {
            Some(counter) => (counter.total, counter.life.clone(), counter.lapses_at),
            None => (0, new_life(), now + count.ttl),
        };
        let same = count.life.is_empty() || count.life == life;
        let add = if same { count.add } else { 0 };
        let mut total = total.saturating_add_signed(add);
        let taken = share_of(count.want, count.limit.saturating_sub(total));
        total += taken;
        let lapses_at = if count.renews {
            now + count.ttl
        } else {
            lapses_at
        };
        let is_new = found.is_none();
        // The life of a counter begins with the first unit.
        let life = if is_new && total == 0 {
            String::new()
        } else {
            life
        };
        if !life.is_empty() {
            if is_new && self.counters.len() >= COUNTERS_MAX {
                return Err(CountersFull);
            }
            let counter = Counter {
                life: life.clone(),
                total,
                lapses_at,
                index: count.index.clone(),
                member: count.member.clone(),
                used_at: now,
            };
            self.counters.insert(count.key.clone(), counter);
        }
        Ok(CounterState {
            life,
            total,
            taken,
            left: lapses_at - now,
        })
    }

    /// Removes lapsed counters each time that their number has grown by a half.
    fn remove_lapsed(&mut self, now: Instant) {
        if self.counters.len() <= self.sweep_at {
            return;
        }
        self.counters.retain(|_, counter| now < counter.lapses_at);
        let grown = self.counters.len() + self.counters.len() / 2;
        self.sweep_at = grown.clamp(1024, COUNTERS_MAX - 1);
    }
}

impl Memory {
    pub(super) fn count_units(&self, counts: &[CounterChange]) -> Result<Vec<CounterState>, Cause> {
        let mut counters = self.counters.lock();
        let counted = counts.iter().map(|count| counters.apply_change(count));
        counted.collect::<Result<_, _>>().map_err(as_cause)
    }

    pub(super) fn read_total(&self, key: &str) -> Result<u64, Cause> {
        let (now, counters) = (Instant::now(), self.counters.lock());
        let found = counters.counters.get(key);
        let found = found.filter(|counter| now < counter.lapses_at);
        Ok(found.map_or(0, |counter| counter.total))
    }

    pub(super) fn list_counters(
        &self,
        index: &str,
        _key: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, CounterState)>, Cause> {
        let (now, counters) = (Instant::now(), self.counters.lock());
        let all = counters.counters.values();
        let mut listed: Vec<_> = all
            .filter(|counter| counter.index == index && now < counter.lapses_at)
            .collect();
        listed.sort_by_key(|counter| std::cmp::Reverse(counter.used_at));
        let listed = listed.into_iter().take(LISTED_MAX).map(|counter| {
            let counted = CounterState {
                life: counter.life.clone(),
                total: counter.total,
                taken: 0,
                left: counter.lapses_at - now,
            };
            (counter.member.clone(), counted)
        });
        Ok(listed.collect())
    }
}

/// Returns the share of `left` for a wish of `want` units.
pub(super) fn share_of(want: u64, left: u64) -> u64 {
    want.min((left / PART).max(1)).min(left)
}

/// Returns a name for the life of a counter that begins.
pub(super) fn new_life() -> String {
    let random = uuid::Uuid::new_v4().as_fields().0;
    format!("{:x}-{random:x}", Timestamp::now().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(life: &str, add: i64, want: u64) -> CounterChange {
        CounterChange {
            key: "k".to_owned(),
            index: "i".to_owned(),
            member: "m".to_owned(),
            life: life.to_owned(),
            add,
            want,
            limit: 10,
            ttl: Duration::from_secs(60),
            renews: false,
        }
    }

    #[test]
    fn shares_shrink_and_end_at_the_limit() {
        let mut table = Counters::default();
        let mut taken = Vec::new();
        let mut take = |count: &CounterChange| table.apply_change(count).unwrap();
        for _ in 0..12 {
            taken.push(take(&change("", 0, 100)).taken);
        }
        assert_eq!(taken, [2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
        let life = take(&change("", 0, 0)).life;
        // What is given back can be taken again; of another life nothing is given back.
        assert_eq!(take(&change("else", -3, 0)).total, 10);
        assert_eq!(take(&change(&life, -3, 1)).taken, 1);
        assert_eq!(take(&change(&life, 0, 0)).total, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_counter_lapses_after_its_first_use_or_its_last() {
        for (renews, left) in [(false, 0), (true, 1)] {
            let memory = Memory::default();
            let apply = |count: CounterChange| memory.count_units(&[count]).unwrap().remove(0);
            let first = CounterChange {
                renews,
                ..change("", 1, 0)
            };
            let life = apply(first).life;
            tokio::time::advance(Duration::from_secs(40)).await;
            apply(CounterChange {
                renews,
                ..change(&life, 0, 0)
            });
            tokio::time::advance(Duration::from_secs(40)).await;
            let listed = memory.list_counters("i", str::to_owned).unwrap();
            assert_eq!(listed.len(), left);
            let again = apply(CounterChange {
                renews,
                ..change(&life, 1, 0)
            });
            assert_eq!(again.total, if renews { 2 } else { 0 });
        }
    }
}
