//! Deletes lapsed rows of claims, on every replica.

use std::time::Duration;

use crate::deadline::ticks;
use crate::store::Unavailable;
use crate::telemetry::Chain;

/// Interval of purges.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Runs `purge` regularly, and again at once while it returns true: there may be more rows. Runs until it is dropped.
pub(super) async fn purge_regularly<W>(rows: &'static str, purge: impl Fn() -> W)
where
    W: Future<Output = Result<bool, Unavailable>>,
{
    let mut tick = ticks(PURGE_EVERY);
    loop {
        tick.tick().await;
        loop {
            match purge().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(rows, error = %Chain(&error), "purge of lapsed rows failed; will retry");
                    break;
                }
            }
        }
    }
}
