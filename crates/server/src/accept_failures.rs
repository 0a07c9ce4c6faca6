//! Failures to accept a connection, most often for want of file descriptors: one log line a second, and descriptors
//! that the admin listener keeps for itself, so that an operator reaches the gateway then.

use std::fs::File;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Delay before the next accept when the system has no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Minimum time between two log lines about one listener.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Number of file descriptors in a [`DescriptorReserve`].
const RESERVED: usize = 16;

/// Failed accepts of one listener, on all its threads.
pub(super) struct AcceptFailures {
    listener: &'static str,
    count: Mutex<FailureCount>,
}

/// The failures since the last log line.
#[derive(Default)]
struct FailureCount {
    count: u64,
    logged_at: Option<Instant>,
}

impl FailureCount {
    /// Counts a failure. Returns how many to log, if a log line is due.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

impl AcceptFailures {
    pub(super) fn new(listener: &'static str) -> Self {
        Self {
            listener,
            count: Mutex::default(),
        }
    }

    /// Logs the failures since the last line, at most once a second.
    pub(super) fn log_failure(&self, error: &io::Error) {
        let due = self.count.lock().add(Instant::now());
        if let Some(failures) = due {
            tracing::warn!(%error, listener = self.listener, failures, "failed to accept connections; if no file \
                descriptors are left, raise the limit (ulimit -n, LimitNOFILE=) or lower server.max_connections");
        }
    }

    /// As [`AcceptFailures::log_failure`], and waits before the next accept.
    pub(super) async fn log_and_pause(&self, error: &io::Error) {
        self.log_failure(error);
        sleep(ACCEPT_PAUSE).await;
    }
}

/// File descriptors held open, to be released when the process has no others.
#[derive(Default)]
pub(super) struct DescriptorReserve(Vec<File>);

impl DescriptorReserve {
    /// Takes as many as the reserve lacks and the process can have.
    pub(super) fn fill(&mut self) {
        while self.0.len() < RESERVED
            && let Ok(file) = File::open("/dev/null")
        {
            self.0.push(file);
        }
    }

    /// Releases one. Returns false if none is left.
    pub(super) fn release(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_once_a_second_with_their_count() {
        let mut failures = FailureCount::default();
        let start = Instant::now();
        let mut at = |ms| failures.add(start + Duration::from_millis(ms));
        let logged = [0, 1, 500, 999, 1000, 1001, 5000].map(&mut at);
        assert_eq!(logged, [Some(1), None, None, None, Some(4), None, Some(2)]);
    }
}
