//! Counters with a limit, of which shares are taken: for what replicas count together.

use std::sync::Arc;

use super::counters::{Count, Counted};
use super::{Shared, Store, redis};
use crate::store::{Cause, Unavailable};

impl Shared {
    /// Changes counters, and takes shares of what is left, in one round trip. Each change is atomic.
    ///
    /// # Errors
    /// If the store does not answer, or is full; some or all changes may be made then.
    pub async fn count(&self, counts: &[Count]) -> Result<Vec<Counted>, Unavailable> {
        if counts.is_empty() {
            return Ok(Vec::new());
        }
        self.run("count", async {
            match &self.store {
                Store::Memory(memory) => {
                    let mut counters = memory.counters.lock();
                    let counted = counts.iter().map(|count| counters.count(count));
                    let counted: Result<_, _> = counted.collect();
                    counted.map_err(|full| Arc::new(full) as Cause)
                }
                Store::Redis(redis) => redis::counted::count(redis, counts).await,
            }
        })
        .await
    }

    /// Returns the total of a counter, without a change.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn total(&self, key: &str) -> Result<u64, Unavailable> {
        self.run("total", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.counters.lock().total(key)),
                Store::Redis(redis) => redis::counted::total(redis, key).await,
            }
        })
        .await
    }

    /// Returns the counters of an index that were used last, at most 1,000, with their names. `key` makes
    /// the key of a counter from its name.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn counted(
        &self,
        index: &str,
        key: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, Counted)>, Unavailable> {
        self.run("counted", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.counters.lock().list(index)),
                Store::Redis(redis) => redis::counted::counted(redis, index, key).await,
            }
        })
        .await
    }
}
