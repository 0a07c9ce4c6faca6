//! Long-lived readers of an inbox: requests that wait for an entry, follow the inbox, or wait for the reply
//! to a message.

use super::Inbox;
use crate::wake::Watch;
use access::identity::Proof;
use directory::events::ReaderSlot;
use kernel::ids::WorkspaceId;
use kernel::metrics::{InProgress, InboxReader};
use kernel::rejection::Rejection;

/// The slot of a long-lived reader, or of a sender that waits for the reply to its message. Dropping it frees the slot.
pub struct Reader {
    watch: Watch,
    _slot: SenderSlot,
}

/// The slot of a sender that waits for the reply to its message. Dropping it frees the slot.
pub struct SenderSlot {
    _slot: ReaderSlot,
    _counted: InProgress,
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
        Ok(Reader {
            _slot: self.count_slot(slot, kind),
            watch: self.watch_inbox(workspace),
        })
    }

    /// Takes a slot for the caller, to wait for the reply to its message. `None`: there is none free.
    pub fn take_sender_slot(&self, proof: &Proof) -> Option<SenderSlot> {
        let Ok(slot) = self.senders.take(proof.account) else {
            self.mailbox.metrics.inbox.waits_refused.inc();
            return None;
        };
        Some(self.count_slot(slot, InboxReader::Sender))
    }

    fn count_slot(&self, slot: ReaderSlot, kind: InboxReader) -> SenderSlot {
        let gauge = &self.mailbox.metrics.inbox.readers[kind];
        SenderSlot {
            _slot: slot,
            _counted: InProgress::begin(gauge),
        }
    }
}

impl Reader {
    /// Waits until there may be new entries since it was created, or since the last call. Read first, then
    /// wait. Cancel-safe.
    pub async fn changed(&mut self) {
        self.watch.changed().await;
    }
}
