//! In-process logs in which the writer numbers the entries. Lost when the process ends.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::memory::Memory;
use crate::store::Cause;

/// A log, bounded by its writer. A write removes the lapsed logs first.
pub(super) struct NumberedLog {
    entries: VecDeque<(u64, Bytes)>,
    last: u64,
    lapses_at: Instant,
}

impl Memory {
    pub(super) fn append_numbered(
        &self,
        log: &str,
        entries: &[(u64, Bytes)],
        keep: usize,
        ttl: Duration,
    ) -> Result<(), Cause> {
        let now = Instant::now();
        let mut logs = self.numbered.lock();
        logs.retain(|_, log| now < log.lapses_at);
        let log = logs.entry(log.to_owned()).or_insert_with(|| NumberedLog {
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
        Ok(())
    }

    pub(super) fn read_numbered(
        &self,
        log: &str,
        after: u64,
        max: usize,
    ) -> Result<Vec<(u64, Bytes)>, Cause> {
        let logs = self.numbered.lock();
        let log = logs.get(log).filter(|log| Instant::now() < log.lapses_at);
        let entries = log.into_iter().flat_map(|log| &log.entries);
        let newer = entries.filter(|(number, _)| after < *number);
        Ok(newer.take(max).cloned().collect())
    }
}
