//! Waiting for the outcome of a call that runs already, on this or another replica. All waiters of a replica
//! share one poll of the table.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{Calls, Key, OpenCall, Outcome, outcome_unknown};
use crate::workspace::Timestamp;

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
        let open = self.lock_open();
        let mut open = open.get(&key.scope)?.iter();
        let open = open.find(|open| open.body == key.body)?;
        Some(OutcomeWatch(open.outcome.clone()))
    }

    /// Adds an entry for a call. `Err`: there is one already.
    pub(super) fn open_call(
        &self,
        key: &Key,
    ) -> Result<(watch::Sender<Option<Outcome>>, Arc<Notify>), OutcomeWatch> {
        let mut open = self.lock_open();
        let of_scope = open.entry(key.scope.clone()).or_default();
        if let Some(open) = of_scope.iter().find(|open| open.body == key.body) {
            return Err(OutcomeWatch(open.outcome.clone()));
        }
        let (tell, outcome) = watch::channel(None);
        let news = Arc::<Notify>::default();
        of_scope.push(OpenCall {
            body: key.body.clone(),
            outcome,
            news: Arc::clone(&news),
        });
        Ok((tell, news))
    }

    /// Removes the entry of a call that has no waiters, or has an outcome in the table.
    pub(super) fn close_call(&self, key: &Key) {
        let mut open = self.lock_open();
        if let Some(of_scope) = open.get_mut(&key.scope) {
            of_scope.retain(|open| open.body != key.body);
            if of_scope.is_empty() {
                open.remove(&key.scope);
            }
        }
    }

    /// Waits for a call that runs on another replica.
    pub(super) fn wait_elsewhere(self: &Arc<Self>, key: &Key) -> OutcomeWatch {
        let (tell, news) = match self.open_call(key) {
            Ok(begun) => begun,
            Err(waiting) => return waiting,
        };
        let waiting = OutcomeWatch(tell.subscribe());
        let (calls, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move {
            // The entry in the map holds one receiver.
            while tell.receiver_count() > 1 {
                let _ = timeout(LOOK_EVERY, news.notified()).await;
                let outcome = match calls.table.find(&key.scope, Timestamp::now().0).await {
                    Ok(Some(row)) if row.body_hash == key.body => calls.outcome_of_row(row).await,
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
