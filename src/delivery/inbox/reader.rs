//! One who stays: waits for an entry, or follows an inbox.

use std::sync::Arc;

use super::Inbox;
use super::wake::Watch;
use crate::events::Place;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::metrics::{InboxReader, Metrics};
use crate::rejection::Rejection;

/// A place among those who stay. Dropping it gives it back.
pub struct Reader {
    watch: Watch,
    metrics: Arc<Metrics>,
    kind: InboxReader,
    _place: Place,
}

impl Inbox {
    /// Lets whom `proof` proves wait for more in an inbox, from whichever replica.
    ///
    /// # Errors
    /// `overloaded` and `rate_limited` beyond `[inbox]`.
    pub fn stay(
        &self,
        workspace: &WorkspaceId,
        proof: &Proof,
        kind: InboxReader,
    ) -> Result<Reader, Rejection> {
        let place = self.places.take(proof.account)?;
        self.metrics.inbox.readers(kind).inc();
        Ok(Reader {
            watch: self.watch(workspace),
            metrics: Arc::clone(&self.metrics),
            kind,
            _place: place,
        })
    }
}

impl Reader {
    /// Waits until there may be more since it was made, or since the last time. Look first, then wait. May
    /// be dropped and called again without missing any.
    pub async fn changed(&mut self) {
        self.watch.changed().await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.metrics.inbox.readers(self.kind).dec();
    }
}
