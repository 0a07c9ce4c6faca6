//! The errors and the health of stores, shared by the SQL and the shared store.

mod run;
pub mod skew;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::run::{DRY_RUN, Run};
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;

/// The error of a driver, or of the system below it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Returns an error as a cause.
pub(crate) fn as_cause(error: impl std::error::Error + Send + Sync + 'static) -> Cause {
    Arc::new(error)
}

/// Awaits work for at most that time.
pub(crate) async fn wait_within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Cause>>,
) -> Result<T, Cause> {
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_| Err(as_cause(StoreTimeout(limit))))
}

/// A store did not respond. It never means "no": access decisions must deny.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{store} store: {operation} failed")]
pub struct Unavailable {
    /// `sql` or `shared`.
    pub store: &'static str,
    /// The operation, as a metric label from a closed set.
    pub operation: &'static str,
    /// The error of the driver. Shared, since single-flight returns one failure to several callers.
    #[source]
    pub source: Cause,
}

impl Unavailable {
    /// Returns the failure of an operation.
    pub fn new(
        store: &'static str,
        operation: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let source = Arc::new(source);
        Self {
            store,
            operation,
            source,
        }
    }

    /// True if the store itself rejected the operation, so nothing was changed. After any other error it
    /// may have been done, or may still be.
    pub fn is_refusal(&self) -> bool {
        let refused = self.source.downcast_ref::<DatabaseError>();
        // A broken connection behind a pooler, a server shutdown and "completion unknown" also have codes.
        refused.is_some_and(|refused| {
            let code = refused.code.as_str();
            !code.starts_with("08") && !code.starts_with("57P") && code != "40003"
        })
    }
}

impl From<Unavailable> for Rejection {
    fn from(error: Unavailable) -> Self {
        Self::new(
            Reason::StoreUnavailable,
            "the gateway cannot read a fact it needs to decide safely; try again shortly",
        )
        .with_retry_after(Duration::from_secs(1))
        .with_cause(error)
    }
}

/// A rejection by the database, without the detail line, in which PostgreSQL repeats whole rows.
#[derive(Clone, Debug, thiserror::Error)]
#[error("database error {code}: {message}")]
pub struct DatabaseError {
    /// The code of the database (SQLSTATE).
    pub code: String,
    /// The message of the database.
    pub message: String,
}

/// The operation exceeded its timeout.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct StoreTimeout(pub Duration);

/// The URL of a store is invalid. Never shows the URL, which may contain a password.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidUrl {
    /// The configuration key: `stores.sql` or `stores.shared`.
    pub key: &'static str,
    /// The problem, and the correct form.
    pub problem: String,
    /// The error of the system, if the URL is well-formed but its resource cannot be used.
    #[source]
    pub source: Option<Cause>,
}

/// Number of failed operations in a row after which a store counts as down.
const AWAY: u32 = 3;

/// Minimum interval between two log lines about an outage.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// The health of a store. Logs when it stops responding and when it responds again, also in a gateway
/// without traffic.
#[derive(Debug, Default)]
pub struct StoreHealth {
    /// Failed operations since the last success.
    failed: AtomicU32,
    /// True if the last log line was about an outage.
    away: AtomicBool,
    logged_at: Mutex<Option<Instant>>,
    /// True if the store has responded since startup.
    answered: AtomicBool,
    /// True if the store responds, but rejects writes.
    read_only: AtomicBool,
}

impl StoreHealth {
    /// Records the result of an operation on `store`.
    pub fn record_result<T>(&self, store: &'static str, result: &Result<T, Unavailable>) {
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
                let unlogged = failed >= AWAY && !self.away.load(Ordering::Acquire);
                if unlogged && self.may_log() {
                    self.away.store(true, Ordering::Release);
                    tracing::warn!(store, error = %Chain(error), "A store does not answer");
                }
            }
        }
    }

    /// True if the store has responded since startup.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// True if the store responded and accepted writes, as far as is known.
    pub fn is_well(&self) -> bool {
        self.has_answered()
            && self.failed.load(Ordering::Relaxed) == 0
            && !self.read_only.load(Ordering::Relaxed)
    }

    /// Records that `store` responds but rejects a write: a read-only replica, or a full server.
    pub fn record_refused_write(&self, store: &'static str, error: &Unavailable) {
        if !self.read_only.swap(true, Ordering::AcqRel) {
            tracing::warn!(store, error = %Chain(error), "A store takes no writes");
        }
    }

    /// Records that `store` accepted a write.
    pub fn record_accepted_write(&self, store: &'static str) {
        if self.read_only.swap(false, Ordering::AcqRel) {
            tracing::info!(store, "A store takes writes again");
        }
    }

    fn may_log(&self) -> bool {
        let mut logged_at = self.logged_at.lock();
        let may = logged_at.is_none_or(|at| at.elapsed() >= LOG_AGAIN);
        if may {
            *logged_at = Some(Instant::now());
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_of_once_and_a_slow_operation_not() {
        let health = StoreHealth::default();
        let note = |ends: &[bool]| {
            for well in ends {
                let failed = Unavailable {
                    store: "sql",
                    operation: "ping",
                    source: Arc::new(StoreTimeout(Duration::from_secs(2))),
                };
                health.record_result("sql", &well.then_some(()).ok_or(failed));
            }
            health.away.load(Ordering::Relaxed)
        };
        assert!(!note(&[false, false, true, false, false]));
        assert!(note(&[false]));
        assert!(note(&[false, false]));
        assert!(!note(&[true]));
        // An outage within a minute of the last log line is logged only if it lasts beyond that minute.
        assert!(!note(&[false, false, false, false]));
        *health.logged_at.lock() = None;
        assert!(note(&[false]));
        assert!(!note(&[true]));
    }
}
