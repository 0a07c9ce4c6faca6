//! The clock skew between a store and this machine.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::store::Unavailable;

/// Maximum skew that is not logged.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(5);

/// The clock of one store.
#[derive(Debug)]
pub struct Skew {
    store: &'static str,
    logged: bool,
}

impl Skew {
    /// Creates the clock of `store`: `sql` or `shared`.
    pub fn new(store: &'static str) -> Self {
        Self {
            store,
            logged: false,
        }
    }

    /// Reads the store's clock, and logs when the skew becomes too large and when it no longer is.
    pub async fn compare(
        &mut self,
        ask: impl Future<Output = Result<Option<SystemTime>, Unavailable>>,
    ) {
        let (began, here) = (Instant::now(), SystemTime::now());
        let Ok(Some(there)) = ask.await else { return };
        let taken = began.elapsed();
        // The store read its clock between the request and the response.
        let here = here + taken / 2;
        let apart = match there.duration_since(here) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        let differs = apart > CLOCK_SKEW_MAX + taken;
        let store = self.store;
        match (std::mem::replace(&mut self.logged, differs), differs) {
            (false, true) => tracing::warn!(
                store,
                apart_ms = u64::try_from(apart.as_millis()).unwrap_or(u64::MAX),
                "The clock of a store and of this machine differ by more than {CLOCK_SKEW_MAX:?}: leases and \
                 tokens end too early or too late; let all machines follow one time server"
            ),
            (true, false) => tracing::info!(
                store,
                "The clock of a store and of this machine agree again"
            ),
            _ => {}
        }
    }
}
