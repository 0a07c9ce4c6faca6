//! Loads in progress by key, so that a caller can detect that one may have read an older value.

use std::hash::Hash;

use dashmap::DashMap;

/// A load in progress, until dropped.
pub(super) struct Loading<'a, K: Hash + Eq> {
    all: &'a DashMap<K, usize>,
    key: &'a K,
}

impl<'a, K: Hash + Eq + Clone> Loading<'a, K> {
    pub(super) fn begin(all: &'a DashMap<K, usize>, key: &'a K) -> Self {
        *all.entry(key.clone()).or_insert(0) += 1;
        Self { all, key }
    }
}

impl<K: Hash + Eq> Drop for Loading<'_, K> {
    fn drop(&mut self) {
        if let Some(mut count) = self.all.get_mut(self.key) {
            *count = count.saturating_sub(1);
        }
        self.all.remove_if(self.key, |_, count| *count == 0);
    }
}
