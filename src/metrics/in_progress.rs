//! What a gauge counts for as long as it goes on.

use prometheus::IntGauge;

/// Something in progress. The gauge falls when it is dropped, also when what it is of panics or is given up.
pub struct InProgress(IntGauge);

impl InProgress {
    /// Counts it from here on.
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
