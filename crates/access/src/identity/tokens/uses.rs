//! Uses of workspace tokens: recorded outside of requests, one statement for all of them a second.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::Tokens;
use kernel::time::Timestamp;

/// Uses that wait to be recorded. Further ones are dropped; the next use is recorded.
const WAITING_MAX: usize = 1024;

/// Interval of writes.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// Minimum interval between two recorded uses of one token.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// The tokens with a use that waits to be recorded: sorted, so that statements of several replicas do not deadlock.
#[derive(Default)]
pub(in crate::identity) struct UseQueue(Mutex<BTreeSet<String>>);

impl UseQueue {
    /// Queues a use to be recorded, at most once a minute per token. A full queue drops it.
    pub(in crate::identity) fn record(&self, token_id: String, last_used_at: Option<i64>) {
        let is_recent = |at: i64| Timestamp::now().since(Timestamp(at)) < NOTED_EVERY;
        let mut waiting = self.0.lock();
        if waiting.len() < WAITING_MAX && !last_used_at.is_some_and(is_recent) {
            waiting.insert(token_id);
        }
    }

    /// Records the queued uses. Runs until it is dropped.
    pub(in crate::identity) async fn run(&self, table: &Tokens) {
        loop {
            sleep(WRITTEN_EVERY).await;
            let batch: Vec<String> = mem::take(&mut *self.0.lock()).into_iter().collect();
            if batch.is_empty() {
                continue;
            }
            if let Err(error) = table.record_uses(&batch, Timestamp::now().0).await {
                tracing::debug!(%error, "failed to record the last use of tokens");
            }
        }
    }
}
