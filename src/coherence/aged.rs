//! Facts with their age, for who tells what was decided by.

use std::hash::Hash;

use tokio::time::Instant;

use super::Coherent;

impl<K, V> Coherent<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// As [`Coherent::get`], with when it was read.
    pub async fn get_aged(&self, key: &K) -> Option<(V, Instant)> {
        let found = self.entries.get(key).await;
        let entry = found.filter(|entry| self.counts(entry))?;
        self.metrics.cache(self.name, true);
        Some((entry.value.clone(), entry.loaded_at))
    }

    /// All facts in memory that count, with when they were read: a look at each, for who asks seldom.
    pub fn all(&self) -> impl Iterator<Item = (V, Instant)> {
        let counting = self.entries.iter().map(|(_, entry)| entry);
        let counting = counting.filter(|entry| self.counts(entry));
        counting.map(|entry| (entry.value.clone(), entry.loaded_at))
    }
}
