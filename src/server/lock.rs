//! The lock of what the services keep.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another holder: no value here is ever half written.
pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
