//! Restores copies that the store lost, after a restart without data or without the latest writes: logs that
//! are still kept here are copied again. Without it, readers on other replicas would wait for an end that is
//! never written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::copy::{AT_ONCE, Copies};
use super::stream_log::StreamLog;
use super::{Streams, key};
use crate::store::Unavailable;

/// Looks for lost copies if the connection to the store was lost since the last check, and queues them
/// again. Must not run while logs are copied.
///
/// # Errors
/// When the store is unavailable: the check is to be repeated.
pub(super) async fn requeue_lost(streams: &Streams, copies: &Copies) -> Result<(), Unavailable> {
    // Read before the check: losses during the check are found by the next one.
    let losses = copies.shared.loss_count();
    if copies.losses.load(Ordering::Relaxed) == losses {
        return Ok(());
    }
    let known: Vec<Arc<StreamLog>> = {
        let logs = streams.lock_logs();
        let known = logs.by_id.values().filter(|kept| kept.is_known());
        known.map(Arc::clone).collect()
    };
    for some in known.chunks(AT_ONCE) {
        let looks = some.iter().map(|kept| has_copy(copies, kept));
        for (kept, there) in some.iter().zip(join_all(looks).await) {
            if !there? {
                kept.mark_uncopied();
                streams.copy_later(kept);
            }
        }
    }
    copies.losses.store(losses, Ordering::Relaxed);
    Ok(())
}

/// True if other replicas can read the copied entries. Otherwise the rest of the copy is deleted, since entry
/// numbers must increase.
async fn has_copy(copies: &Copies, kept: &StreamLog) -> Result<bool, Unavailable> {
    let shared = &copies.shared;
    let events = key::events(kept.id);
    if shared.get(&key::meta(kept.id)).await?.is_some() {
        let Some(last) = kept.last_copied() else {
            return Ok(true);
        };
        let found = shared.read_numbered(&events, last - 1, 1).await?;
        if found.first().is_some_and(|(n, _)| *n == last) {
            return Ok(true);
        }
    }
    shared.delete(&[&events]).await?;
    Ok(false)
}
