//! Uses of workspace tokens: recorded outside of requests, one statement for all of them a second.

use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

use super::Tokens;
use kernel::time::Timestamp;

/// Uses that wait to be recorded. Further ones are dropped; the next use is recorded.
const WAITING_MAX: usize = 1024;

/// Interval of writes.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// Minimum interval between two recorded uses of one token.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// Queue of uses.
pub(crate) struct UseQueue {
    queue: mpsc::Sender<String>,
    waiting: Mutex<mpsc::Receiver<String>>,
}

impl Default for UseQueue {
    fn default() -> Self {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        Self {
            queue,
            waiting: Mutex::new(waiting),
        }
    }
}

impl UseQueue {
    /// Queues a use to be recorded, at most once a minute per token. A full queue drops it.
    pub(crate) fn record(&self, token_id: String, last_used_at: Option<i64>) {
        let is_recent = |at: i64| Timestamp::now().since(Timestamp(at)) < NOTED_EVERY;
        if !last_used_at.is_some_and(is_recent) {
            let _ = self.queue.try_send(token_id);
        }
    }

    /// Records the queued uses. Runs until it is dropped.
    pub(crate) async fn run(&self, table: &Tokens) {
        let mut waiting = self.waiting.lock().await;
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, WAITING_MAX).await > 0 {
            // Sorted, so that statements of several replicas do not deadlock.
            batch.sort_unstable();
            batch.dedup();
            if let Err(error) = table.record_uses(&batch, Timestamp::now().0).await {
                tracing::debug!(%error, "failed to record the last use of tokens");
            }
            batch.clear();
            sleep(WRITTEN_EVERY).await;
        }
    }
}
