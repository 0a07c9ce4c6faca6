//! Loads in progress by key: callers of one key share a load, and others can detect that one may have read an older
//! value.

use std::any::Any;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// Longest wait for the load of another caller. The load has clocks of its own, which count only while it is polled.
const JOINED_MAX: Duration = Duration::from_secs(30);

/// The loads in progress of a cache.
pub(super) type Loads<K> = DashMap<K, Load>;

/// The callers that load one key.
pub(super) struct Load {
    callers: usize,
    /// The `OnceCell` of the load that they share. Callers with results of several types share one load a type at most.
    result: Arc<dyn Any + Send + Sync>,
}

/// The part of one caller in a load, until dropped.
pub(super) struct LoadGuard<'a, K: Hash + Eq, T> {
    loads: &'a Loads<K>,
    key: &'a K,
    result: Arc<OnceCell<T>>,
}

impl<'a, K: Hash + Eq + Clone, T: Clone + Send + Sync + 'static> LoadGuard<'a, K, T> {
    /// Joins the load of `key` that is in progress, or begins one.
    pub(super) fn join(loads: &'a Loads<K>, key: &'a K) -> Self {
        let mine = Arc::<OnceCell<T>>::default();
        let result = match loads.entry(key.clone()) {
            Entry::Vacant(none) => {
                none.insert(Load {
                    callers: 1,
                    result: Arc::clone(&mine) as _,
                });
                mine
            }
            Entry::Occupied(mut load) => {
                let load = load.get_mut();
                load.callers += 1;
                match Arc::clone(&load.result).downcast::<OnceCell<T>>() {
                    Ok(shared) if !shared.initialized() => shared,
                    // That load is over, and its callers have not gone yet.
                    Ok(_) => {
                        load.result = Arc::clone(&mine) as _;
                        mine
                    }
                    Err(_) => mine,
                }
            }
        };
        Self { loads, key, result }
    }

    /// Returns the result of the load: of the first caller's `load`, and of the next one's if the first is dropped, or is
    /// not polled to its end in [`JOINED_MAX`].
    pub(super) async fn wait<F: Future<Output = T>>(&self, load: impl Fn() -> F) -> T {
        match timeout(JOINED_MAX, self.result.get_or_init(&load)).await {
            Ok(result) => result.clone(),
            Err(_) => load().await,
        }
    }
}

impl<K: Hash + Eq, T> Drop for LoadGuard<'_, K, T> {
    fn drop(&mut self) {
        if let Some(mut load) = self.loads.get_mut(self.key) {
            load.callers = load.callers.saturating_sub(1);
        }
        self.loads.remove_if(self.key, |_, load| load.callers == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_load_that_its_first_caller_does_not_poll_is_made_by_the_next() {
        let (loads, key) = (Loads::default(), 1_u8);
        let first = LoadGuard::join(&loads, &key);
        let slow = || async {
            tokio::task::yield_now().await;
            1
        };
        let mut unpolled = Box::pin(first.wait(slow));
        assert!(futures_util::poll!(&mut unpolled).is_pending());
        let second = LoadGuard::join(&loads, &key);
        assert_eq!(second.wait(|| async { 2 }).await, 2);
    }
}
