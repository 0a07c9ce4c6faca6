//! A guard that counts work in progress in a gauge.

use prometheus::IntGauge;

/// Work in progress. Dropping it decrements the gauge, also on a panic or a cancellation.
pub struct InProgress(IntGauge);

impl InProgress {
    /// Increments the gauge until the guard is dropped.
    pub fn begin(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.dec();
    }
}
