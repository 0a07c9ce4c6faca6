//! How a store fails: its URL cannot be used, or it cannot be asked. Both stores share these.

pub mod skew;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::telemetry::Chain;

/// What a driver, or the system below it, said.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

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
    pub source: Cause,
}

impl Unavailable {
    /// Whether nothing was changed: the store itself said no. Of all else it may have done what was asked, or do it yet.
    pub fn is_refusal(&self) -> bool {
        let refused = self.source.downcast_ref::<Refused>();
        // A connection that broke behind a pooler, a server that was stopped, and "completion unknown" come as these, too.
        refused.is_some_and(|refused| {
            let code = refused.code.as_str();
            !code.starts_with("08") && !code.starts_with("57P") && code != "40003"
        })
    }
}

/// What the database refused, without the detail line, in which PostgreSQL repeats whole rows.
#[derive(Clone, Debug, thiserror::Error)]
#[error("database error {code}: {message}")]
pub struct Refused {
    /// As the database has it (SQLSTATE).
    pub code: String,
    /// In its words.
    pub message: String,
}

/// The store took longer than its clock allows.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct TooSlow(pub Duration);

/// A store's URL cannot be used. Never shows the URL, which may carry a password.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidUrl {
    /// The configuration key: `stores.sql` or `stores.shared`.
    pub key: &'static str,
    /// What is wrong, and what to write instead.
    pub problem: String,
    /// What the system said, when the URL is well formed but what it names cannot be used.
    #[source]
    pub source: Option<Cause>,
}

/// So many operations in a row that fail are more than a slow one.
const AWAY: u32 = 3;

/// A store that comes and goes is told of once in so long.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Tells the log when a store stops answering, and when it answers again: also that of a gateway that nobody calls.
#[derive(Debug, Default)]
pub struct Answering {
    /// Operations that failed since the last one that did not.
    failed: AtomicU32,
    /// That it does not was told last.
    away: AtomicBool,
    told: Mutex<Option<Instant>>,
    /// That it answered since the process began.
    answered: AtomicBool,
    /// That it answers, and refuses every write.
    read_only: AtomicBool,
}

impl Answering {
    /// Notes how an operation on `store` ended.
    pub fn note<T>(&self, store: &'static str, result: &Result<T, Unavailable>) {
        match result {
            Ok(_) if self.failed.load(Ordering::Relaxed) == 0 => {
                if !self.answered.load(Ordering::Relaxed) {
                    self.answered.store(true, Ordering::Relaxed);
                }
            }
            Ok(_) => {
                self.failed.store(0, Ordering::Relaxed);
                self.answered.store(true, Ordering::Relaxed);
                if self.away.swap(false, Ordering::AcqRel) {
                    tracing::info!(store, "A store answers again");
                }
            }
            Err(error) => {
                let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
                let untold = failed >= AWAY && !self.away.load(Ordering::Acquire);
                if untold && self.may_tell() {
                    self.away.store(true, Ordering::Release);
                    tracing::warn!(store, error = %Chain(error), "A store does not answer");
                }
            }
        }
    }

    /// Whether it answered since the process began.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether it answered and took writes, as far as is known.
    pub fn is_well(&self) -> bool {
        self.has_answered()
            && self.failed.load(Ordering::Relaxed) == 0
            && !self.read_only.load(Ordering::Relaxed)
    }

    /// Notes that `store` answers and refuses a write: a replica, or a server without room.
    pub fn refuses_writes(&self, store: &'static str, error: &Unavailable) {
        if !self.read_only.swap(true, Ordering::AcqRel) {
            tracing::warn!(store, error = %Chain(error), "A store takes no writes");
        }
    }

    /// Notes that `store` took one.
    pub fn takes_writes(&self, store: &'static str) {
        if self.read_only.swap(false, Ordering::AcqRel) {
            tracing::info!(store, "A store takes writes again");
        }
    }

    fn may_tell(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let may = told.is_none_or(|at| at.elapsed() >= TELL_AGAIN);
        if may {
            *told = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_of_once_and_a_slow_operation_not() {
        let answering = Answering::default();
        let note = |ends: &[bool]| {
            for well in ends {
                let failed = Unavailable {
                    store: "sql",
                    operation: "ping",
                    source: Arc::new(TooSlow(Duration::from_secs(2))),
                };
                answering.note("sql", &well.then_some(()).ok_or(failed));
            }
            answering.away.load(Ordering::Relaxed)
        };
        assert!(!note(&[false, false, true, false, false]));
        assert!(note(&[false]));
        assert!(note(&[false, false]));
        assert!(!note(&[true]));
        // Within a minute of the last word nothing is said; one that goes on is told of then.
        assert!(!note(&[false, false, false, false]));
        *answering.told.lock().unwrap() = None;
        assert!(note(&[false]));
        assert!(!note(&[true]));
    }
}
