//! One who stays: waits for an entry, follows an inbox, or waits for the reply to a message.

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

/// A place among those who wait for the reply to a message. Dropping it gives it back.
pub struct SenderPlace {
    metrics: Arc<Metrics>,
    _place: Place,
}

impl Inbox {
    /// Lets whom `proof` proves wait for the reply to its message. `None`: as many as may be wait already.
    pub fn stay_for_reply(&self, proof: &Proof) -> Option<SenderPlace> {
        let Ok(place) = self.senders.take(proof.account) else {
            self.metrics.inbox.waits_refused.inc();
            return None;
        };
        self.metrics.inbox.readers(InboxReader::Sender).inc();
        Some(SenderPlace {
            metrics: Arc::clone(&self.metrics),
            _place: place,
        })
    }
}

impl Drop for SenderPlace {
    fn drop(&mut self) {
        self.metrics.inbox.readers(InboxReader::Sender).dec();
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
