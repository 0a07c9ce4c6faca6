//! The one way in which a store fails: it cannot be asked. Both stores share it.

use std::sync::Arc;

/// A store could not answer. Never to be read as "no": whoever decides access must refuse.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{store} store: {operation} failed")]
pub struct Unavailable {
    /// `sql` or `shared`.
    pub store: &'static str,
    /// What was tried, as a metric label: a closed set of short words.
    pub operation: &'static str,
    /// What the driver said. Shared, since single-flight hands one failure to several waiters.
    #[source]
    pub source: Arc<dyn std::error::Error + Send + Sync>,
}

/// The store took longer than its clock allows.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct TooSlow(pub std::time::Duration);
