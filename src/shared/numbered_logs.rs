//! In-process logs in which the writer numbers the entries. Lost when the process ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Logs by name, each bounded by its writer. A write removes the lapsed logs first.
#[derive(Default)]
pub(super) struct NumberedLogs(Mutex<HashMap<String, Log>>);

struct Log {
    entries: VecDeque<(u64, Bytes)>,
    last: u64,
    lapses_at: Instant,
}

impl NumberedLogs {
    pub(super) fn append(&self, log: &str, entries: &[(u64, Bytes)], keep: usize, ttl: Duration) {
        let now = Instant::now();
        let mut logs = self.lock();
        logs.retain(|_, log| now < log.lapses_at);
        let log = logs.entry(log.to_owned()).or_insert_with(|| Log {
            entries: VecDeque::new(),
            last: 0,
            lapses_at: now,
        });
        log.lapses_at = now + ttl;
        for (number, entry) in entries {
            if log.last < *number {
                log.last = *number;
                log.entries.push_back((*number, entry.clone()));
            }
        }
        while keep < log.entries.len() {
            log.entries.pop_front();
        }
    }

    pub(super) fn read(&self, log: &str, after: u64, max: usize) -> Vec<(u64, Bytes)> {
        let logs = self.lock();
        let log = logs.get(log).filter(|log| Instant::now() < log.lapses_at);
        let entries = log.into_iter().flat_map(|log| &log.entries);
        let newer = entries.filter(|(number, _)| after < *number);
        newer.take(max).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Log>> {
        // Each step leaves the logs consistent, so a panic elsewhere cannot have broken them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
