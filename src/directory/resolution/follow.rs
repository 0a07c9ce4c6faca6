//! Follows changes of URL keys by other programs, as the shared state notifies them. Most notifications are
//! renewals by heartbeats, so a cached entry is dropped only if the value differs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entries::Entries;
use super::entry::Entry;
use crate::coherence::{CachedState, Invalidation};
use crate::directory::liveness::Pulse;
use crate::ids::WorkspaceId;
use crate::shared::Notice;

/// Workspaces per round trip.
const BATCH_MAX: usize = 250;

impl Entries {
    /// Follows changes of URL keys by other programs. A background task of the server that runs until the
    /// process ends; without it such a change counts after 1 s.
    pub async fn follow_url_keys(&self) {
        if self.presence.is_embedded() {
            return;
        }
        let mut changes = self.presence.url_changes();
        let mut was_up = false;
        loop {
            let mut ids = Vec::new();
            let mut notice = Some(changes.next().await);
            while let Some(received) = notice {
                match received {
                    Notice::Message(key) => ids.extend(self.presence.id_of(&key)),
                    Notice::Down => {
                        self.watched.store(false, Ordering::Release);
                        // The store behind the link may have lost its data.
                        if was_up {
                            self.presence.leases.start_doubt();
                        }
                    }
                    Notice::Up => {
                        if was_up {
                            self.presence.leases.start_doubt();
                        }
                        // Notifications during the gap were missed. Drop the entries before the link counts as
                        // up.
                        self.coherence.apply(&Invalidation::Everything).await;
                        self.watched.store(true, Ordering::Release);
                        was_up = true;
                    }
                }
                notice = (ids.len() < BATCH_MAX)
                    .then(|| changes.try_next())
                    .flatten();
            }
            self.drop_changed(ids).await;
        }
    }

    /// Drops the entries of `ids` that have other URLs than the keys. On this replica only: each replica
    /// receives the notifications.
    async fn drop_changed(&self, mut ids: Vec<WorkspaceId>) {
        ids.sort_unstable();
        ids.dedup();
        let mut cached = Vec::new();
        for id in ids {
            match self.cache.cached_state(&id) {
                CachedState::Value(entry) => cached.push((id, entry)),
                // A load in progress may have read the old value.
                CachedState::Loading => self.coherence.apply(&Invalidation::Address(id)).await,
                CachedState::Nothing => {}
            }
        }
        let found = self
            .presence
            .stored_values(cached.iter().map(|(id, _)| id))
            .await;
        for (n, (id, entry)) in cached.into_iter().enumerate() {
            let same = match found.get(n) {
                Some([url, internal_url, lease]) => {
                    // A lease that another program deleted is a lapse.
                    let lives = lease.is_some() || !matches!(entry.pulse, Pulse::Beats(_));
                    lives && is_of(&entry, url.as_ref(), internal_url.as_ref())
                }
                // The key could not be read.
                _ => false,
            };
            if !same {
                self.coherence.apply(&Invalidation::Address(id)).await;
            }
        }
    }
}

/// True if `entry` has the URLs that follow from the values of the keys.
fn is_of(entry: &Arc<Entry>, url: Option<&String>, internal_url: Option<&String>) -> bool {
    let Some(row) = &entry.workspace else {
        return false;
    };
    // The keys are not used for a workspace with instances.
    if row.instances > 0 {
        return entry.whole;
    }
    let host = url.or(row.url.as_ref());
    let internal = internal_url.or(row.internal_url.as_ref()).or(host);
    entry.whole && entry.urls.host.as_ref() == host && entry.urls.internal.as_ref() == internal
}
