//! Waiting for the outcome of a call that runs already, on this or another replica. All waiters of a replica
//! share one poll of the table.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::{Calls, Key, Outcome, outcome_unknown};
use crate::wake::Topic;

/// Interval of polls without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that waits for the outcome of a call.
pub struct OutcomeWatch(pub(super) watch::Receiver<Option<Outcome>>);

impl OutcomeWatch {
    /// Waits for the outcome, without a limit: the call has its own timeouts. Cancel-safe.
    pub async fn wait_for_outcome(&mut self) -> Outcome {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The task that ran it ended without a result, which is a bug.
            Ok(None) | Err(_) => Outcome::Refused(outcome_unknown()),
        }
    }
}

impl Calls {
    /// Returns a waiter for the call of that key and body, if there is an entry for it here.
    pub(super) fn find_watch(&self, key: &Key) -> Option<OutcomeWatch> {
        self.open.lock().get(key).cloned().map(OutcomeWatch)
    }

    /// Adds an entry for a call. `Err`: there is one already.
    pub(super) fn open_call(
        &self,
        key: &Key,
    ) -> Result<watch::Sender<Option<Outcome>>, OutcomeWatch> {
        match self.open.lock().entry(key.clone()) {
            Entry::Occupied(open) => Err(OutcomeWatch(open.get().clone())),
            Entry::Vacant(free) => {
                let (tell, outcome) = watch::channel(None);
                free.insert(outcome);
                Ok(tell)
            }
        }
    }

    /// Removes the entry of a call that has no waiters, or has an outcome in the table.
    pub(super) fn close_call(&self, key: &Key) {
        self.open.lock().remove(key);
    }

    /// Waits for a call that runs on another replica.
    pub(super) fn wait_elsewhere(self: &Arc<Self>, key: &Key) -> OutcomeWatch {
        let tell = match self.open_call(key) {
            Ok(begun) => begun,
            Err(waiting) => return waiting,
        };
        let waiting = OutcomeWatch(tell.subscribe());
        let (calls, key) = (Arc::clone(self), key.clone());
        let mut news = self.mailbox.hub.watch_topic(Topic::call(&key.scope));
        tokio::spawn(async move {
            // The entry in the map holds one receiver.
            while tell.receiver_count() > 1 {
                let _ = timeout(LOOK_EVERY, news.changed()).await;
                let outcome = match calls.find(&key.scope).await {
                    Ok(Some(row)) if row.body_hash == key.body => {
                        calls.outcome_of_row(&key, row).await
                    }
                    Ok(_) => Some(Outcome::Nothing),
                    // Polls until the store is back, or no waiter is left.
                    Err(_) => None,
                };
                if outcome.is_some() {
                    tell.send_replace(outcome);
                    break;
                }
            }
            calls.close_call(&key);
        });
        waiting
    }
}
