//! Waiting for the outcome of a call that runs already, on this or another replica. All waiters of a replica
//! share one poll of the table.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{Calls, Key, Open, Outcome, unknown};
use crate::workspace::Timestamp;

/// Interval of polls without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A request that waits for the outcome of a call.
pub struct Waiting(pub(super) watch::Receiver<Option<Outcome>>);

impl Waiting {
    /// Waits for the outcome, without a limit: the call has its own timeouts. Cancel-safe.
    pub async fn outcome(&mut self) -> Outcome {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The task that ran it ended without a result, which is a bug.
            Ok(None) | Err(_) => Outcome::Refused(unknown()),
        }
    }
}

impl Calls {
    /// Returns a waiter for the call of that key and body, if there is an entry for it here.
    pub(super) fn waiting(&self, key: &Key) -> Option<Waiting> {
        let open = self.open();
        let mut open = open.get(&key.scope)?.iter();
        let open = open.find(|open| open.body == key.body)?;
        Some(Waiting(open.outcome.clone()))
    }

    /// Adds an entry for a call. `Err`: there is one already.
    pub(super) fn begin(
        &self,
        key: &Key,
    ) -> Result<(watch::Sender<Option<Outcome>>, Arc<Notify>), Waiting> {
        let mut open = self.open();
        let of_scope = open.entry(key.scope.clone()).or_default();
        if let Some(open) = of_scope.iter().find(|open| open.body == key.body) {
            return Err(Waiting(open.outcome.clone()));
        }
        let (tell, outcome) = watch::channel(None);
        let news = Arc::<Notify>::default();
        of_scope.push(Open {
            body: key.body.clone(),
            outcome,
            news: Arc::clone(&news),
        });
        Ok((tell, news))
    }

    /// Removes the entry of a call that has no waiters, or has an outcome in the table.
    pub(super) fn close(&self, key: &Key) {
        let mut open = self.open();
        if let Some(of_scope) = open.get_mut(&key.scope) {
            of_scope.retain(|open| open.body != key.body);
            if of_scope.is_empty() {
                open.remove(&key.scope);
            }
        }
    }

    /// Waits for a call that runs on another replica.
    pub(super) fn wait_elsewhere(self: &Arc<Self>, key: &Key) -> Waiting {
        let (tell, news) = match self.begin(key) {
            Ok(begun) => begun,
            Err(waiting) => return waiting,
        };
        let waiting = Waiting(tell.subscribe());
        let (calls, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move {
            // The entry in the map holds one receiver.
            while tell.receiver_count() > 1 {
                let _ = timeout(LOOK_EVERY, news.notified()).await;
                let outcome = match calls.table.find(&key.scope, Timestamp::now().0).await {
                    Ok(Some(row)) if row.body_hash == key.body => calls.outcome(row).await,
                    Ok(_) => Some(Outcome::Nothing),
                    // Polls until the store is back, or no waiter is left.
                    Err(_) => None,
                };
                if outcome.is_some() {
                    tell.send_replace(outcome);
                    break;
                }
            }
            calls.close(&key);
        });
        waiting
    }
}
