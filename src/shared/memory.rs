//! Shared state in process, for a single gateway. Lost when the process ends.
//!
//! Bounded by entries and by bytes. Lapsed entries are never read, and each write removes some of
//! them first. If the store is full of live entries, it rejects new keys and keeps the old ones: to
//! drop a revocation or a claim would widen access.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;

use super::counters::Counters;
use super::log::{BATCH_MAX, Entry as LogEntry, EntryId, LogRead};
use super::numbered_logs::NumberedLogs;
use super::subscription::{Feed, Subscription};
use crate::store::Cause;

/// Most keys at once.
const ENTRIES_MAX: usize = 1_000_000;

/// Most bytes of keys and values at once: 256 MiB.
const BYTES_MAX: usize = 256 << 20;

/// Most lapsed keys that one write removes, which bounds its cost.
const SWEEP_MAX: usize = 128;

/// Interval between sweeps for lapsed keys while there is a subscriber to them.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// The store is at its limit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the in-process store is full; put `stores.shared` on Redis")]
struct StoreFull;

/// The value is not a counter and cannot be incremented.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key does not hold a counter")]
struct NotACounter;

#[derive(Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    pub(super) numbered: NumberedLogs,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// The entries that lapse, soonest first.
    lapsing: BTreeSet<(Instant, Arc<str>)>,
    bytes: usize,
    channels: HashMap<&'static str, Vec<Weak<Feed>>>,
    watches: Vec<(Vec<String>, Weak<Feed>)>,
    /// Subscribers to lapsed keys, by prefix.
    lapse_feeds: Vec<(String, Weak<Feed>)>,
    logs: HashMap<&'static str, Log>,
}

/// One log. Bounded by its writer: a number of entries of a known size.
#[derive(Default)]
struct Log {
    entries: VecDeque<LogEntry>,
    last: EntryId,
    grown: watch::Sender<()>,
}

struct Entry {
    value: String,
    lapses_at: Option<Instant>,
}

impl Memory {
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let now = Instant::now();
        self.lock()
            .get_live(key, now)
            .map(|entry| entry.value.clone())
    }

    pub(super) fn get_many(&self, keys: &[&str]) -> Vec<Option<String>> {
        let now = Instant::now();
        let state = self.lock();
        keys.iter()
            .map(|key| state.get_live(key, now).map(|entry| entry.value.clone()))
            .collect()
    }

    pub(super) fn get_with_ttl(&self, key: &str) -> Option<(String, Option<Duration>)> {
        let now = Instant::now();
        let state = self.lock();
        let entry = state.get_live(key, now)?;
        let ttl = entry.lapses_at.map(|at| at.saturating_duration_since(now));
        Some((entry.value.clone(), ttl))
    }

    pub(super) fn set(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Cause> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep_lapsed(now);
        state.insert(
            key,
            value.to_owned(),
            ttl.and_then(|ttl| lapse_time(now, ttl)),
        )
    }

    pub(super) fn set_if_absent(
        &self,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<bool, Cause> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep_lapsed(now);
        if state.get_live(key, now).is_some() {
            return Ok(false);
        }
        state.insert(key, value.to_owned(), lapse_time(now, ttl))?;
        Ok(true)
    }

    pub(super) fn refresh(&self, keys: &[&str], ttl: Duration) -> Vec<bool> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep_lapsed(now);
        keys.iter()
            .map(|key| state.refresh(key, now, ttl))
            .collect()
    }

    pub(super) fn delete(&self, keys: &[&str]) {
        let mut state = self.lock();
        state.sweep_lapsed(Instant::now());
        for key in keys {
            state.remove(key);
        }
    }

    pub(super) fn take(&self, key: &str) -> Option<String> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep_lapsed(now);
        let value = state.get_live(key, now).map(|entry| entry.value.clone());
        state.remove(key);
        value
    }

    pub(super) fn log_append(&self, log: &'static str, texts: &[String], entries_max: usize) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let ms = since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let mut state = self.lock();
        let log = state.logs.entry(log).or_default();
        for text in texts {
            // The clock may stand still or go back; ids must not.
            log.last = match log.last {
                EntryId { ms: last, seq } if ms <= last => EntryId {
                    ms: last,
                    seq: seq + 1,
                },
                _ => EntryId { ms, seq: 0 },
            };
            log.entries.push_back(LogEntry {
                id: log.last,
                text: text.clone(),
            });
            if entries_max < log.entries.len() {
                log.entries.pop_front();
            }
        }
        log.grown.send_replace(());
    }

    /// Returns a receiver that is notified of each append.
    pub(super) fn log_grown(&self, log: &'static str) -> watch::Receiver<()> {
        self.lock().logs.entry(log).or_default().grown.subscribe()
    }

    pub(super) fn log_newest(&self, log: &'static str, count: usize) -> Vec<LogEntry> {
        let mut state = self.lock();
        let entries = &state.logs.entry(log).or_default().entries;
        let skipped = entries.len().saturating_sub(count);
        entries.iter().skip(skipped).cloned().collect()
    }

    pub(super) fn log_read(&self, log: &'static str, after: EntryId) -> LogRead {
        let mut state = self.lock();
        let entries = &state.logs.entry(log).or_default().entries;
        let from = entries.partition_point(|entry| entry.id <= after);
        let ends = entries.front().zip(entries.back());
        LogRead {
            ends: ends.map(|(oldest, newest)| (oldest.id, newest.id)),
            entries: entries.iter().skip(from).take(BATCH_MAX).cloned().collect(),
        }
    }

    pub(super) fn increment(&self, key: &str, ttl: Duration) -> Result<i64, Cause> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep_lapsed(now);
        let (count, lapses_at) = match state.get_live(key, now) {
            None => (0, lapse_time(now, ttl)),
            Some(entry) => {
                let count: i64 = entry.value.parse().map_err(|_| to_cause(NotACounter))?;
                (count, entry.lapses_at)
            }
        };
        let count = count.checked_add(1).ok_or_else(|| to_cause(NotACounter))?;
        state.insert(key, count.to_string(), lapses_at)?;
        Ok(count)
    }

    pub(super) fn publish(&self, channel: &str, message: &str) {
        let mut state = self.lock();
        let Some(feeds) = state.channels.get_mut(channel) else {
            return;
        };
        feeds.retain(|feed| {
            let feed = feed.upgrade();
            feed.iter()
                .for_each(|feed| feed.push_message(message.to_owned()));
            feed.is_some()
        });
    }

    pub(super) fn subscribe(&self, channel: &'static str) -> Subscription {
        let feed = Arc::new(Feed::default());
        feed.push_up();
        let mut state = self.lock();
        let feeds = state.channels.entry(channel).or_default();
        feeds.retain(|feed| feed.strong_count() > 0);
        feeds.push(Arc::downgrade(&feed));
        Subscription::in_process(feed)
    }

    pub(super) fn watch_keys(&self, prefixes: Vec<String>) -> Subscription {
        let feed = Arc::new(Feed::default());
        feed.push_up();
        let mut state = self.lock();
        state.watches.retain(|(_, feed)| feed.strong_count() > 0);
        state.watches.push((prefixes, Arc::downgrade(&feed)));
        Subscription::in_process(feed)
    }

    pub(super) fn watch_lapses(memory: &Arc<Self>, prefix: &str) -> Subscription {
        let feed = Arc::new(Feed::default());
        feed.push_up();
        let mut state = memory.lock();
        state
            .lapse_feeds
            .retain(|(_, feed)| feed.strong_count() > 0);
        let feed_of = (prefix.to_owned(), Arc::downgrade(&feed));
        state.lapse_feeds.push(feed_of);
        Subscription::over_link(feed, Box::pin(sweep_regularly(Arc::clone(memory))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state consistent, so a panic elsewhere cannot have broken it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes lapsed entries soon after they lapse. Ends when the subscription is dropped.
async fn sweep_regularly(memory: Arc<Memory>) {
    loop {
        // A bounded step at a time, so that writers do not wait for long.
        while memory.lock().sweep_lapsed(Instant::now()) == SWEEP_MAX {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

impl State {
    fn get_live(&self, key: &str, now: Instant) -> Option<&Entry> {
        self.entries
            .get(key)
            .filter(|entry| entry.lapses_at.is_none_or(|at| now < at))
    }

    fn insert(
        &mut self,
        key: &str,
        value: String,
        lapses_at: Option<Instant>,
    ) -> Result<(), Cause> {
        let old_value = self.entries.get(key).map(|entry| entry.value.len());
        let old_bytes = old_value.map_or(0, |value| key.len() + value);
        let bytes = self.bytes - old_bytes + key.len() + value.len();
        if BYTES_MAX < bytes || (old_value.is_none() && ENTRIES_MAX <= self.entries.len()) {
            return Err(to_cause(StoreFull));
        }
        self.take(key);
        let shared: Arc<str> = key.into();
        if let Some(at) = lapses_at {
            self.lapsing.insert((at, shared.clone()));
        }
        self.entries.insert(shared, Entry { value, lapses_at });
        self.bytes = bytes;
        self.notify_watches(key);
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        if self.take(key) {
            self.notify_watches(key);
        }
    }

    fn take(&mut self, key: &str) -> bool {
        let Some((key, entry)) = self.entries.remove_entry(key) else {
            return false;
        };
        self.bytes -= key.len() + entry.value.len();
        if let Some(at) = entry.lapses_at {
            self.lapsing.remove(&(at, key));
        }
        true
    }

    /// Removes lapsed entries, at most [`SWEEP_MAX`]. Returns how many were removed.
    fn sweep_lapsed(&mut self, now: Instant) -> usize {
        for swept in 0..SWEEP_MAX {
            match self.lapsing.first() {
                Some((at, key)) if *at <= now => {
                    let key = key.clone();
                    self.remove(&key);
                    self.notify_lapse(&key);
                }
                _ => return swept,
            }
        }
        SWEEP_MAX
    }

    fn refresh(&mut self, key: &str, now: Instant, ttl: Duration) -> bool {
        let Some(value) = self.get_live(key, now).map(|entry| entry.value.clone()) else {
            return false;
        };
        // A value of the same size always fits.
        self.insert(key, value, lapse_time(now, ttl)).is_ok()
    }

    fn notify_lapse(&self, key: &str) {
        for (prefix, feed) in &self.lapse_feeds {
            if key.starts_with(prefix.as_str())
                && let Some(feed) = feed.upgrade()
            {
                feed.push_message(key.to_owned());
            }
        }
    }

    fn notify_watches(&self, key: &str) {
        for (prefixes, feed) in &self.watches {
            if prefixes.iter().any(|prefix| key.starts_with(prefix))
                && let Some(feed) = feed.upgrade()
            {
                feed.push_message(key.to_owned());
            }
        }
    }
}

/// Returns the time at which the entry lapses. None if it is beyond the clock's range.
fn lapse_time(now: Instant, ttl: Duration) -> Option<Instant> {
    now.checked_add(ttl.max(Duration::from_millis(1)))
}

fn to_cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Notice;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn lapsed_keys_are_not_read_and_the_next_write_removes_them() {
        let memory = Memory::default();
        memory.set("lease", "up", Some(SECOND)).unwrap();
        memory.set("fact", "stays", None).unwrap();
        assert_eq!(
            memory.get_with_ttl("lease"),
            Some(("up".into(), Some(SECOND)))
        );
        tokio::time::advance(SECOND).await;
        assert_eq!(memory.get("lease"), None);
        assert_eq!(memory.lock().entries.len(), 2);
        memory.set("other", "x", None).unwrap();
        assert_eq!(memory.lock().entries.len(), 2);
        assert!(memory.lock().lapsing.is_empty());
        assert_eq!(memory.get_with_ttl("fact"), Some(("stays".into(), None)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_told_of_a_lapse_without_any_write() {
        let memory = Arc::new(Memory::default());
        let mut lapses = Memory::watch_lapses(&memory, "lease:");
        memory.set("lease:a", "up", Some(SECOND)).unwrap();
        memory.set("lease:b", "up", Some(SECOND * 3)).unwrap();
        memory.set("other", "up", Some(SECOND)).unwrap();
        assert_eq!(lapses.next().await, Notice::Up);
        assert_eq!(lapses.next().await, Notice::Message("lease:a".to_owned()));
        // A renewal is not a lapse.
        assert_eq!(
            memory.refresh(&["lease:b", "gone"], SECOND * 9),
            [true, false]
        );
        let next = tokio::time::timeout(SECOND * 5, lapses.next()).await;
        assert!(next.is_err(), "{next:?}");
        assert_eq!(lapses.next().await, Notice::Message("lease:b".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn overwriting_leaves_nothing_behind() {
        let memory = Memory::default();
        for round in 0..1_000_u64 {
            let ttl = Some(SECOND + Duration::from_millis(round));
            memory.set("lease", "value", ttl).unwrap();
        }
        assert_eq!(memory.lock().lapsing.len(), 1);
        assert_eq!(memory.lock().bytes, "lease".len() + "value".len());
        memory.delete(&["lease", "missing"]);
        assert!(memory.lock().lapsing.is_empty());
        assert_eq!(memory.lock().bytes, 0);
    }

    #[test]
    fn a_full_store_refuses_new_bytes_and_keeps_the_old() {
        let memory = Memory::default();
        let big = "x".repeat(BYTES_MAX - 10);
        memory.set("big", &big, None).unwrap();
        assert!(memory.set("another", "12345678", None).is_err());
        assert!(memory.increment("count", SECOND).is_ok());
        memory.set("big", "small", None).unwrap();
        assert!(memory.set("another", "12345678", None).is_ok());
    }

    #[test]
    fn dropped_subscribers_are_forgotten() {
        let memory = Memory::default();
        drop(memory.subscribe("news"));
        drop(memory.watch_keys(vec!["ws:".to_owned()]));
        let (_news, _watch) = (memory.subscribe("news"), memory.watch_keys(Vec::new()));
        let state = memory.lock();
        assert_eq!(state.channels["news"].len(), 1);
        assert_eq!(state.watches.len(), 1);
    }
}
