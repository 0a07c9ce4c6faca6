//! Metric families of the trust keys.

use prometheus::{Gauge, IntGauge, Registry};

use super::family::{gauge, gauges, measures};

/// Metrics of the trust keys in `keys.dir`.
pub struct KeyMetrics {
    /// 1 while the trust keys in force are those of `keys.dir`.
    pub current: IntGauge,
    /// Keys by state: active, next, retired.
    count: [IntGauge; 3],
    /// Ages by state: active, next.
    age: [Gauge; 2],
}

/// The ages of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeyAges {
    /// Age in seconds of the active key, which signs.
    pub active: f64,
    /// Age in seconds of the next key to sign, if there is one.
    pub next: Option<f64>,
    /// Number of keys that no longer sign, and still verify.
    pub retired: usize,
}

impl KeyMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let count = gauges(
            r,
            "a2a_gateway_keys",
            "Trust keys, by where they are in their life: active, next, retired.",
            &["state"],
        );
        let age = measures(
            r,
            "a2a_gateway_key_age_seconds",
            "Time since the trust key that signs (active), and the one that will (next), was made; 0 without one.",
            &["state"],
        );
        Self {
            current: gauge(
                r,
                "a2a_gateway_keys_current",
                "1 while the trust keys in force are those in keys.dir; 0 while they cannot be read again.",
            ),
            count: ["active", "next", "retired"].map(|state| count.with_label_values(&[state])),
            age: ["active", "next"].map(|state| age.with_label_values(&[state])),
        }
    }

    /// Sets the metrics.
    pub fn set(&self, ages: KeyAges) {
        let retired = i64::try_from(ages.retired).unwrap_or(i64::MAX);
        let counts = [1, i64::from(ages.next.is_some()), retired];
        for (gauge, count) in self.count.iter().zip(counts) {
            gauge.set(count);
        }
        self.age[0].set(ages.active);
        self.age[1].set(ages.next.unwrap_or_default());
    }
}
