//! A store that came back empty, or without what it was told last: what it lost is copied to it again, as far
//! as it is kept here. Else whoever reads elsewhere would wait for an end that nobody writes any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::copy::{AT_ONCE, Copies};
use super::kept::Kept;
use super::{Streams, key};
use crate::store::Unavailable;

impl Streams {
    /// Looks for what is lost, if the link was since it was looked for, and queues that anew. Not while anything
    /// is copied.
    ///
    /// # Errors
    /// When the store is away: it is to be looked for again.
    pub(super) async fn find_lost(&self, copies: &Copies) -> Result<(), Unavailable> {
        // Before the look: what is lost while it goes on is found by the next one.
        let losses = copies.shared.losses();
        if copies.losses.load(Ordering::Relaxed) == losses {
            return Ok(());
        }
        let known: Vec<Arc<Kept>> = {
            let logs = self.logs();
            let known = logs.by_id.values().filter(|kept| kept.is_known());
            known.map(Arc::clone).collect()
        };
        for some in known.chunks(AT_ONCE) {
            let looks = some.iter().map(|kept| is_there(copies, kept));
            for (kept, there) in some.iter().zip(join_all(looks).await) {
                if !there? {
                    kept.forget_copy();
                    self.copy_later(kept);
                }
            }
        }
        copies.losses.store(losses, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether other replicas find what was copied. What is left of one that they do not is deleted: numbers go
/// upwards there.
async fn is_there(copies: &Copies, kept: &Kept) -> Result<bool, Unavailable> {
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
