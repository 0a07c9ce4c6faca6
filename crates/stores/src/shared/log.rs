//! Logs: entries in one order for all replicas. The newest are kept, and a reader ([`Tail`])
//! follows them without loss.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tokio::sync::watch;

use super::connections::Attempts;
use super::memory::Memory;
use super::redis::{LogConnection, Redis};
use crate::store::Cause;

/// Most entries that one read of a log returns.
pub(super) const BATCH_MAX: usize = 256;

/// The position of an entry in its log: milliseconds since 1970 by the store's clock, and a number
/// within the millisecond. Later entries have greater ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Time of the append, in milliseconds since 1970.
    pub ms: u64,
    /// Number within that millisecond.
    pub seq: u64,
}

impl EntryId {
    /// Lower than the id of each entry.
    pub const START: Self = Self::new(0, 0);

    /// Returns the id of these numbers.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Returns the greatest id before this one.
    #[must_use]
    pub fn before(self) -> Self {
        match (self.ms, self.seq) {
            (0, 0) => self,
            (ms, 0) => Self::new(ms - 1, u64::MAX),
            (ms, seq) => Self::new(ms, seq - 1),
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// The text is not the id of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id of an entry is two numbers with `-` between")]
pub struct InvalidEntryId;

impl FromStr for EntryId {
    type Err = InvalidEntryId;

    fn from_str(text: &str) -> Result<Self, InvalidEntryId> {
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let number = plain.then(|| digits.parse().ok()).flatten();
            number.ok_or(InvalidEntryId)
        };
        let (ms, seq) = text.split_once('-').ok_or(InvalidEntryId)?;
        Ok(Self::new(number(ms)?, number(seq)?))
    }
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The position of the entry.
    pub id: EntryId,
    /// The appended text.
    pub text: String,
}

/// An event of a followed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// The newest existing entries, oldest first. Sent once, before any other entry.
    Backlog(Vec<Entry>),
    /// The entries appended since, in order.
    Entries(Vec<Entry>),
    /// Entries between the last one and the next may be missing: the log was flushed, restarted, or
    /// trimmed beyond the last entry read.
    Lost,
    /// The link is lost. Entries appended meanwhile are delivered after it is up again.
    Down,
    /// The link is up.
    Up,
}

/// The result of one read of a log.
pub(super) struct LogRead {
    /// The oldest and the newest entry kept, if there are any.
    pub(super) ends: Option<(EntryId, EntryId)>,
    /// The entries after the requested id.
    pub(super) entries: Vec<Entry>,
}

/// Follows one log ([`Shared::follow_log`](super::Shared::follow_log)).
pub struct Tail {
    source: Source,
    log: &'static str,
    keep: usize,
    last: Option<EntryId>,
    pending: VecDeque<LogEvent>,
}

enum Source {
    Memory {
        memory: Arc<Memory>,
        grown: watch::Receiver<()>,
    },
    Redis {
        redis: Arc<Redis>,
        link: Option<LogConnection>,
        attempts: Attempts,
    },
}

/// What a source has.
enum TailUpdate {
    /// The newest entries, on a link that is up.
    Newest(Vec<Entry>),
    /// What was appended after the last entry.
    Read(LogRead),
}

impl Tail {
    pub(super) fn in_memory(memory: Arc<Memory>, log: &'static str, keep: usize) -> Self {
        let grown = memory.log_grown(log);
        Self::new(Source::Memory { memory, grown }, log, keep)
    }

    pub(super) fn on_redis(redis: Arc<Redis>, log: &'static str, keep: usize) -> Self {
        let (link, attempts) = (None, Attempts::default());
        let source = Source::Redis {
            redis,
            link,
            attempts,
        };
        Self::new(source, log, keep)
    }

    fn new(source: Source, log: &'static str, keep: usize) -> Self {
        Self {
            source,
            log,
            // With no entry kept, the position at which the log continues would be unknown.
            keep: keep.max(1),
            last: None,
            pending: VecDeque::new(),
        }
    }

    /// Waits for the next event, without a limit: silence is normal. Cancellation-safe: may be
    /// dropped and called again without losing an event.
    pub async fn next(&mut self) -> LogEvent {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            self.read_or_wait().await;
        }
    }

    /// Reads once, or waits once.
    async fn read_or_wait(&mut self) {
        match self.find_entries().await {
            Some(TailUpdate::Newest(newest)) => {
                self.pending.push_back(LogEvent::Up);
                if self.last.is_none() {
                    self.last = Some(newest.last().map_or(EntryId::START, |entry| entry.id));
                    self.pending.push_back(LogEvent::Backlog(newest));
                }
            }
            Some(TailUpdate::Read(read)) => self.apply_read(read),
            None => {}
        }
    }

    async fn find_entries(&mut self) -> Option<TailUpdate> {
        let (log, last) = (self.log, self.last);
        let (redis, link, attempts) = match (&mut self.source, last) {
            (Source::Memory { memory, .. }, None) => {
                return Some(TailUpdate::Newest(memory.log_newest(log, self.keep)));
            }
            (Source::Memory { memory, grown }, Some(last)) => {
                let read = memory.log_read(log, last);
                if !read.entries.is_empty() {
                    return Some(TailUpdate::Read(read));
                }
                // The sender lives as long as `memory`, which is held here.
                let _ = grown.changed().await;
                return None;
            }
            (
                Source::Redis {
                    redis,
                    link,
                    attempts,
                },
                _,
            ) => (redis, link, attempts),
        };
        let newest = if last.is_none() { self.keep } else { 1 };
        let error = match read_over_link(redis, link, log, (last, newest)).await {
            Ok(TailUpdate::Newest(newest)) => {
                if std::mem::take(&mut attempts.warned) {
                    tracing::info!(log, "Following a log in shared state again");
                }
                return Some(TailUpdate::Newest(newest));
            }
            Ok(read) => {
                *attempts = Attempts::default();
                return Some(read);
            }
            Err(error) => error,
        };
        if !std::mem::replace(&mut attempts.warned, true) {
            tracing::warn!(%error, log, "Cannot follow a log in shared state; retrying");
        }
        let pause = attempts.next_pause();
        if link.take().is_some() {
            self.pending.push_back(LogEvent::Down);
        } else {
            tokio::time::sleep(pause).await;
        }
        None
    }

    /// Advances, or detects that the log was replaced or trimmed.
    fn apply_read(&mut self, read: LogRead) {
        let last = self.last.unwrap_or_default();
        let known = last != EntryId::START;
        if read.ends.map_or(known, |(_, newest)| newest < last) {
            // Another log: it is read from its beginning.
            self.last = Some(EntryId::START);
            self.pending.push_back(LogEvent::Lost);
            return;
        }
        if read.ends.is_some_and(|(oldest, _)| known && last < oldest) {
            self.pending.push_back(LogEvent::Lost);
        }
        if let Some(entry) = read.entries.last() {
            self.last = Some(entry.id);
            self.pending.push_back(LogEvent::Entries(read.entries));
        }
    }
}

/// Reads what came after the last entry, or the newest entries over a link that it opens.
async fn read_over_link(
    redis: &Redis,
    link: &mut Option<LogConnection>,
    log: &str,
    (last, newest): (Option<EntryId>, usize),
) -> Result<TailUpdate, Cause> {
    if let Some(link) = link {
        let read = link.read_after(log, last.unwrap_or_default()).await?;
        return Ok(TailUpdate::Read(read));
    }
    let mut fresh = redis.log_link(log).await?;
    let newest = fresh.read_newest(log, newest).await?;
    *link = Some(fresh);
    Ok(TailUpdate::Newest(newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> EntryId {
        text.parse().unwrap()
    }

    #[test]
    fn ids_are_read_as_written_and_ordered() {
        assert_eq!(id("17-3").to_string(), "17-3");
        assert!(id("9-9") < id("10-0") && id("10-0") < id("10-1"));
        for bad in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "1-1-1",
            "+1-1",
            "a-1",
            "1-99999999999999999999",
        ] {
            assert_eq!(bad.parse::<EntryId>(), Err(InvalidEntryId), "{bad}");
        }
        assert_eq!(id("5-0").before(), id("4-18446744073709551615"));
        assert_eq!(id("5-2").before(), id("5-1"));
        assert_eq!(EntryId::START.before(), EntryId::START);
    }

    #[tokio::test]
    async fn a_tail_in_memory_begins_with_what_is_there_and_misses_nothing() {
        let memory = Arc::new(Memory::default());
        let texts = |range: std::ops::Range<usize>| -> Vec<String> {
            range.map(|n| n.to_string()).collect()
        };
        memory.append("log", &texts(0..5), 1000).unwrap();
        let mut tail = Tail::in_memory(Arc::clone(&memory), "log", 3);
        assert_eq!(tail.next().await, LogEvent::Up);
        let LogEvent::Backlog(backlog) = tail.next().await else {
            panic!("the backlog comes first");
        };
        let backlog: Vec<_> = backlog.iter().map(|entry| entry.text.as_str()).collect();
        assert_eq!(backlog, ["2", "3", "4"]);
        memory.append("log", &texts(5..700), 1000).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 695 {
            let LogEvent::Entries(entries) = tail.next().await else {
                panic!("nothing else");
            };
            seen.extend(entries.into_iter().map(|entry| entry.text));
        }
        assert_eq!(seen, texts(5..700));
        // More than is kept: it reports the loss and goes on with the entries there are.
        memory.append("log", &texts(0..2000), 1000).unwrap();
        assert_eq!(tail.next().await, LogEvent::Lost);
        assert!(matches!(tail.next().await, LogEvent::Entries(_)));
    }
}
