//! Long-lived readers of an inbox: requests that wait for an entry, follow the inbox, or wait for the reply
//! to a message.

use std::sync::Arc;

use super::Inbox;
use super::wake::Watch;
use crate::events::ReaderSlot;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::metrics::{InboxReader, Metrics};
use crate::rejection::Rejection;

/// The slot of a long-lived reader. Dropping it frees the slot.
pub struct Reader {
    watch: Watch,
    metrics: Arc<Metrics>,
    kind: InboxReader,
    _slot: ReaderSlot,
}

impl Inbox {
    /// Takes a slot for the caller, to wait for new entries of an inbox on any replica.
    ///
    /// # Errors
    /// `overloaded` and `rate_limited` beyond the bounds of `[inbox]`.
    pub fn open_reader(
        &self,
        workspace: &WorkspaceId,
        proof: &Proof,
        kind: InboxReader,
    ) -> Result<Reader, Rejection> {
        let slot = self.readers.take(proof.account)?;
        self.metrics.inbox.readers(kind).inc();
        Ok(Reader {
            watch: self.watch_inbox(workspace),
            metrics: Arc::clone(&self.metrics),
            kind,
            _slot: slot,
        })
    }
}

/// The slot of a sender that waits for the reply to its message. Dropping it frees the slot.
pub struct SenderSlot {
    metrics: Arc<Metrics>,
    _slot: ReaderSlot,
}

impl Inbox {
    /// Takes a slot for the caller, to wait for the reply to its message. `None`: there is none free.
    pub fn take_sender_slot(&self, proof: &Proof) -> Option<SenderSlot> {
        let Ok(slot) = self.senders.take(proof.account) else {
            self.metrics.inbox.waits_refused.inc();
            return None;
        };
        self.metrics.inbox.readers(InboxReader::Sender).inc();
        Some(SenderSlot {
            metrics: Arc::clone(&self.metrics),
            _slot: slot,
        })
    }
}

impl Drop for SenderSlot {
    fn drop(&mut self) {
        self.metrics.inbox.readers(InboxReader::Sender).dec();
    }
}

impl Reader {
    /// Waits until there may be new entries since it was created, or since the last call. Read first, then
    /// wait. Cancel-safe.
    pub async fn changed(&mut self) {
        self.watch.changed().await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.metrics.inbox.readers(self.kind).dec();
    }
}
