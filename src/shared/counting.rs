//! Counters with a limit, of which shares are taken: for what replicas count together.

use std::sync::Arc;

use super::counters::{CounterChange, CounterState};
use super::{Shared, Store, redis};
use crate::store::{Cause, Unavailable};

impl Shared {
    /// Changes counters, and takes shares of what is left, in one round trip. Each change is atomic.
    ///
    /// # Errors
    /// If the store does not answer, or is full; some or all changes may be made then.
    pub async fn count_units(
        &self,
        counts: &[CounterChange],
    ) -> Result<Vec<CounterState>, Unavailable> {
        if counts.is_empty() {
            return Ok(Vec::new());
        }
        self.run("count", async {
            match &self.store {
                Store::Memory(memory) => {
                    let mut counters = memory.counters.lock();
                    let counted = counts.iter().map(|count| counters.apply_change(count));
                    let counted: Result<_, _> = counted.collect();
                    counted.map_err(|full| Arc::new(full) as Cause)
                }
                Store::Redis(redis) => redis::counters::count_units(redis, counts).await,
            }
        })
        .await
    }

    /// Returns the total of a counter, without a change.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn read_total(&self, key: &str) -> Result<u64, Unavailable> {
        self.run("total", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.counters.lock().total_of(key)),
                Store::Redis(redis) => redis::counters::read_total(redis, key).await,
            }
        })
        .await
    }

    /// Returns the counters of an index that were used last, at most 1,000, with their names. `key` makes
    /// the key of a counter from its name.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn list_counters(
        &self,
        index: &str,
        key: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, CounterState)>, Unavailable> {
        self.run("counted", async {
            match &self.store {
                Store::Memory(memory) => Ok(memory.counters.lock().list_index(index)),
                Store::Redis(redis) => redis::counters::list_counters(redis, index, key).await,
            }
        })
        .await
    }
}
