//! Shared state in process, for a single gateway. Lost when the process ends.
//!
//! Bounded by entries and by bytes. Lapsed entries are never read, and each write removes some of
//! them first. If the store is full of live entries, it rejects new keys and keeps the old ones: to
//! drop a revocation or a claim would widen access.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::counters::Counters;
use super::log::{BATCH_MAX, Entry as LogEntry, EntryId, LogRead};
use super::subscription::{Feed, Notice, Subscription};
use crate::store::{Cause, as_cause};
use kernel::time::Timestamp;

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
    numbered: Mutex<HashMap<String, NumberedLog>>,
    pub(super) counters: Mutex<Counters>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// The entries that lapse, soonest first.
    lapsing: BTreeSet<(Instant, Arc<str>)>,
    bytes: usize,
    feeds: Vec<(Topic, Weak<Feed>)>,
    logs: HashMap<&'static str, Log>,
}

/// The subject of a subscription.
enum Topic {
    Channel(&'static str),
    /// Keys with one of these prefixes that are written or deleted, or have lapsed.
    Changes(Vec<String>),
    /// Keys with this prefix that have lapsed.
    Lapses(String),
}

/// One log. Bounded by its writer: a number of entries of a known size.
#[derive(Default)]
struct Log {
    entries: VecDeque<LogEntry>,
    last: EntryId,
    grown: watch::Sender<()>,
}

/// A log in which the writer numbers the entries, bounded by its writer. A write removes the lapsed logs first.
#[derive(Default)]
struct NumberedLog {
    entries: VecDeque<(u64, Bytes)>,
    last: u64,
    lapses_at: Option<Instant>,
}

struct Entry {
    value: String,
    lapses_at: Option<Instant>,
}

impl Memory {
    /// Locks the state for a write, which removes lapsed entries first.
    fn lock_to_write(&self, now: Instant) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.sweep_lapsed(now);
        state
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<String>, Cause> {
        Ok(self.state.lock().live_value(key, Instant::now()))
    }

    pub(super) fn get_many(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Cause> {
        let (now, state) = (Instant::now(), self.state.lock());
        Ok(keys.iter().map(|key| state.live_value(key, now)).collect())
    }

    pub(super) fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Cause> {
        let now = Instant::now();
        let state = self.state.lock();
        Ok(state.get_live(key, now).map(|entry| {
            let ttl = entry.lapses_at.map(|at| at.saturating_duration_since(now));
            (entry.value.clone(), ttl)
        }))
    }

    pub(super) fn set(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Cause> {
        let now = Instant::now();
        let lapses_at = ttl.and_then(|ttl| lapse_time(now, ttl));
        self.lock_to_write(now)
            .insert(key, value.to_owned(), lapses_at)
    }

    pub(super) fn set_many(&self, values: &[(&str, &str)], ttl: Duration) -> Result<(), Cause> {
        let set = |(key, value): &(&str, &str)| self.set(key, value, Some(ttl));
        values.iter().try_for_each(set)
    }

    pub(super) fn set_if_absent(
        &self,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<bool, Cause> {
        let now = Instant::now();
        let mut state = self.lock_to_write(now);
        if state.get_live(key, now).is_some() {
            return Ok(false);
        }
        state.insert(key, value.to_owned(), lapse_time(now, ttl))?;
        Ok(true)
    }

    pub(super) fn refresh(&self, keys: &[&str], ttl: Duration) -> Result<Vec<bool>, Cause> {
        let now = Instant::now();
        let mut state = self.lock_to_write(now);
        let refreshed = keys.iter().map(|key| {
            let Some(value) = state.live_value(key, now) else {
                return false;
            };
            // A value of the same size always fits.
            state.insert(key, value, lapse_time(now, ttl)).is_ok()
        });
        Ok(refreshed.collect())
    }

    pub(super) fn delete(&self, keys: &[&str]) -> Result<(), Cause> {
        let mut state = self.lock_to_write(Instant::now());
        keys.iter().for_each(|key| state.remove(key));
        Ok(())
    }

    pub(super) fn take(&self, key: &str) -> Result<Option<String>, Cause> {
        let now = Instant::now();
        let mut state = self.lock_to_write(now);
        let value = state.live_value(key, now);
        state.remove(key);
        Ok(value)
    }

    pub(super) fn append(
        &self,
        log: &'static str,
        texts: &[String],
        entries_max: usize,
    ) -> Result<(), Cause> {
        let ms = u64::try_from(Timestamp::now().0).unwrap_or_default();
        let mut state = self.state.lock();
        let log = state.logs.entry(log).or_default();
        for text in texts {
            // The clock may stand still or go back; ids must not.
            log.last = match log.last {
                EntryId { ms: last, seq } if ms <= last => EntryId::new(last, seq + 1),
                _ => EntryId::new(ms, 0),
            };
            let (id, text) = (log.last, text.clone());
            log.entries.push_back(LogEntry { id, text });
            if entries_max < log.entries.len() {
                log.entries.pop_front();
            }
        }
        log.grown.send_replace(());
        Ok(())
    }

    /// A single gateway does not need such a set.
    pub(super) fn add_newest(
        &self,
        _set: &str,
        _member: &str,
        _max: i64,
        _ttl: Duration,
    ) -> Result<Vec<String>, Cause> {
        Ok(Vec::new())
    }

    pub(super) fn append_numbered(
        &self,
        log: &str,
        entries: &[(u64, Bytes)],
        keep: usize,
        ttl: Duration,
    ) -> Result<(), Cause> {
        let now = Instant::now();
        let mut logs = self.numbered.lock();
        logs.retain(|_, log| log.lapses_at.is_some_and(|at| now < at));
        let log = logs.entry(log.to_owned()).or_default();
        log.lapses_at = Some(now + ttl);
        for (number, entry) in entries {
            if log.last < *number {
                log.last = *number;
                log.entries.push_back((*number, entry.clone()));
            }
        }
        while keep < log.entries.len() {
            log.entries.pop_front();
        }
        Ok(())
    }

    pub(super) fn read_numbered(
        &self,
        log: &str,
        after: u64,
        max: usize,
    ) -> Result<Vec<(u64, Bytes)>, Cause> {
        let logs = self.numbered.lock();
        let log = logs.get(log);
        let log = log.filter(|log| log.lapses_at.is_some_and(|at| Instant::now() < at));
        let entries = log.into_iter().flat_map(|log| &log.entries);
        let newer = entries.filter(|(number, _)| after < *number);
        Ok(newer.take(max).cloned().collect())
    }

    /// Returns a receiver that is notified of each append.
    pub(super) fn log_grown(&self, log: &'static str) -> watch::Receiver<()> {
        let mut state = self.state.lock();
        state.logs.entry(log).or_default().grown.subscribe()
    }

    pub(super) fn log_newest(&self, log: &'static str, count: usize) -> Vec<LogEntry> {
        let mut state = self.state.lock();
        let entries = &state.logs.entry(log).or_default().entries;
        let skipped = entries.len().saturating_sub(count);
        entries.iter().skip(skipped).cloned().collect()
    }

    pub(super) fn log_read(&self, log: &'static str, after: EntryId) -> LogRead {
        let mut state = self.state.lock();
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
        let mut state = self.lock_to_write(now);
        let (count, lapses_at) = match state.get_live(key, now) {
            None => (Some(0), lapse_time(now, ttl)),
            Some(entry) => (entry.value.parse().ok(), entry.lapses_at),
        };
        let count = count.and_then(|count: i64| count.checked_add(1));
        let count = count.ok_or_else(|| as_cause(NotACounter))?;
        state.insert(key, count.to_string(), lapses_at)?;
        Ok(count)
    }

    pub(super) fn publish(&self, channel: &str, message: &str) -> Result<(), Cause> {
        let is_channel = |topic: &Topic| matches!(topic, Topic::Channel(name) if *name == channel);
        self.state.lock().notify(message, is_channel);
        Ok(())
    }

    pub(super) fn subscribe(&self, channel: &'static str) -> Subscription {
        Subscription::new(self.add_feed(Topic::Channel(channel)), None)
    }

    pub(super) fn watch_keys(&self, prefixes: Vec<String>) -> Subscription {
        Subscription::new(self.add_feed(Topic::Changes(prefixes)), None)
    }

    pub(super) fn watch_lapses(self: &Arc<Self>, prefix: &str) -> Subscription {
        let feed = self.add_feed(Topic::Lapses(prefix.to_owned()));
        Subscription::new(feed, Some(Box::pin(sweep_regularly(Arc::clone(self)))))
    }

    fn add_feed(&self, topic: Topic) -> Arc<Feed> {
        let feed = Arc::new(Feed::default());
        feed.push_up();
        let mut state = self.state.lock();
        state.feeds.retain(|(_, feed)| feed.strong_count() > 0);
        state.feeds.push((topic, Arc::downgrade(&feed)));
        feed
    }
}

/// Removes lapsed entries soon after they lapse. Ends when the subscription is dropped.
async fn sweep_regularly(memory: Arc<Memory>) {
    loop {
        // A bounded step at a time, so that writers do not wait for long.
        while memory.state.lock().sweep_lapsed(Instant::now()) == SWEEP_MAX {
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

    fn live_value(&self, key: &str, now: Instant) -> Option<String> {
        self.get_live(key, now).map(|entry| entry.value.clone())
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
            return Err(Arc::new(StoreFull));
        }
        self.take(key);
        let shared: Arc<str> = key.into();
        if let Some(at) = lapses_at {
            self.lapsing.insert((at, shared.clone()));
        }
        self.entries.insert(shared, Entry { value, lapses_at });
        self.bytes = bytes;
        self.notify_change(key);
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        if self.take(key) {
            self.notify_change(key);
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
                    self.notify(
                        &key,
                        |topic| matches!(topic, Topic::Lapses(prefix) if key.starts_with(prefix)),
                    );
                }
                _ => return swept,
            }
        }
        SWEEP_MAX
    }

    fn notify_change(&self, key: &str) {
        let covers = |topic: &Topic| matches!(topic, Topic::Changes(prefixes) if prefixes.iter().any(|prefix| key.starts_with(prefix)));
        self.notify(key, covers);
    }

    fn notify(&self, message: &str, covers: impl Fn(&Topic) -> bool) {
        let feeds = self.feeds.iter().filter(|(topic, _)| covers(topic));
        for feed in feeds.filter_map(|(_, feed)| feed.upgrade()) {
            feed.push_notice(Notice::Message(message.to_owned()));
        }
    }
}

/// Returns the time at which the entry lapses. None if it is beyond the clock's range.
fn lapse_time(now: Instant, ttl: Duration) -> Option<Instant> {
    now.checked_add(ttl.max(Duration::from_millis(1)))
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
            memory.get_with_ttl("lease").unwrap(),
            Some(("up".into(), Some(SECOND)))
        );
        tokio::time::advance(SECOND).await;
        assert_eq!(memory.get("lease").unwrap(), None);
        assert_eq!(memory.state.lock().entries.len(), 2);
        memory.set("other", "x", None).unwrap();
        assert_eq!(memory.state.lock().entries.len(), 2);
        assert!(memory.state.lock().lapsing.is_empty());
        assert_eq!(
            memory.get_with_ttl("fact").unwrap(),
            Some(("stays".into(), None))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_told_of_a_lapse_without_any_write() {
        let memory = Arc::new(Memory::default());
        let mut lapses = memory.watch_lapses("lease:");
        memory.set("lease:a", "up", Some(SECOND)).unwrap();
        memory.set("lease:b", "up", Some(SECOND * 3)).unwrap();
        memory.set("other", "up", Some(SECOND)).unwrap();
        assert_eq!(lapses.next().await, Notice::Up);
        assert_eq!(lapses.next().await, Notice::Message("lease:a".to_owned()));
        // A renewal is not a lapse.
        assert_eq!(
            memory.refresh(&["lease:b", "gone"], SECOND * 9).unwrap(),
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
        assert_eq!(memory.state.lock().lapsing.len(), 1);
        assert_eq!(memory.state.lock().bytes, "lease".len() + "value".len());
        memory.delete(&["lease", "missing"]).unwrap();
        assert!(memory.state.lock().lapsing.is_empty());
        assert_eq!(memory.state.lock().bytes, 0);
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
        let state = memory.state.lock();
        assert_eq!(state.feeds.len(), 2, "one of each");
    }
}
