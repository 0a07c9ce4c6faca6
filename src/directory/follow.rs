//! Other programs' changes of URL keys, as the shared state tells them. Most of what it tells is that
//! a heartbeat gave a key a new time to live, so what is cached goes only if the value is another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Directory;
use super::entry::{Entry, Pulse};
use crate::coherence::{Invalidation, Known};
use crate::ids::WorkspaceId;
use crate::shared::Notice;

/// Workspaces looked at in one round trip.
const BATCH_MAX: usize = 250;

impl Directory {
    /// Follows other programs' changes of URL keys, for as long as the process lives. A background
    /// task of the server; without it such a change counts after 1 s.
    pub async fn follow(&self) {
        if self.shared.is_embedded() {
            return;
        }
        let prefixes = [&self.url_key, &self.internal_url_key].map(|key| key.prefix().to_owned());
        let mut prefixes = prefixes.to_vec();
        prefixes.dedup();
        let mut changes = self.shared.watch(prefixes);
        let mut was_up = false;
        loop {
            let mut ids = Vec::new();
            let mut notice = Some(changes.next().await);
            while let Some(told) = notice {
                match told {
                    Notice::Message(key) => ids.extend(self.id_of(&key)),
                    Notice::Down => {
                        self.watched.store(false, Ordering::Release);
                        // What is behind the link may come back empty.
                        if was_up {
                            self.leases.doubt();
                        }
                    }
                    Notice::Up => {
                        if was_up {
                            self.leases.doubt();
                        }
                        // What was said during the gap was missed. Dropped first, trusted after.
                        self.coherence.apply(&Invalidation::Everything).await;
                        self.watched.store(true, Ordering::Release);
                        was_up = true;
                    }
                }
                notice = (ids.len() < BATCH_MAX).then(|| changes.ready()).flatten();
            }
            self.compare(ids).await;
        }
    }

    fn id_of(&self, key: &str) -> Option<WorkspaceId> {
        let id = self.url_key.id(key);
        id.or_else(|| self.internal_url_key.id(key))
    }

    /// Drops the entries of those of `ids` whose URLs are other than what is cached. Here only: every
    /// replica hears of the keys by itself.
    async fn compare(&self, mut ids: Vec<WorkspaceId>) {
        ids.sort_unstable();
        ids.dedup();
        let mut cached = Vec::new();
        for id in ids {
            match self.entries.known(&id).await {
                Known::Value(entry) => cached.push((id, entry)),
                // What is being read may be the old value.
                Known::Loading => self.coherence.apply(&Invalidation::Address(id)).await,
                Known::Nothing => {}
            }
        }
        let keys = cached.iter().flat_map(|(id, _)| {
            let urls = [&self.url_key, &self.internal_url_key].map(|key| key.key(id));
            urls.into_iter().chain([self.leases.key(id)])
        });
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.shared.get_many(&keys).await.unwrap_or_default();
        for (n, (id, entry)) in cached.into_iter().enumerate() {
            let same = match found.get(3 * n..3 * n + 3) {
                Some([url, internal_url, lease]) => {
                    // A lease that another program took away is a lapse.
                    let lives = lease.is_some() || !matches!(entry.pulse, Pulse::Beats(_));
                    lives && is_of(&entry, url.as_ref(), internal_url.as_ref())
                }
                // It could not be read.
                _ => false,
            };
            if !same {
                self.coherence.apply(&Invalidation::Address(id)).await;
            }
        }
    }
}

/// Whether `entry` has the URLs that follow from the keys' values.
fn is_of(entry: &Arc<Entry>, url: Option<&String>, internal_url: Option<&String>) -> bool {
    let Some(row) = &entry.workspace else {
        return false;
    };
    let host = url.or(row.url.as_ref());
    let internal = internal_url.or(row.internal_url.as_ref()).or(host);
    entry.whole && entry.urls.host.as_ref() == host && entry.urls.internal.as_ref() == internal
}
