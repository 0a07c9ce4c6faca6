//! Metric families of the trust keys.

use prometheus::{Gauge, IntGauge, Registry};

use super::family::{register_float_gauges, register_gauge, register_gauges};

/// Metrics of the trust keys in `keys.dir`.
pub struct KeyMetrics {
    /// 1 while the trust keys in force are those of `keys.dir`.
    pub current: IntGauge,
    active: IntGauge,
    next: IntGauge,
    retired: IntGauge,
    active_age: Gauge,
    next_age: Gauge,
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
        let count = register_gauges(
            r,
            "a2a_gateway_keys",
            "Trust keys, by where they are in their life: active, next, retired.",
            &["state"],
        );
        let age = register_float_gauges(
            r,
            "a2a_gateway_key_age_seconds",
            "Time since the trust key that signs (active), and the one that will (next), was made; 0 without one.",
            &["state"],
        );
        Self {
            current: register_gauge(
                r,
                "a2a_gateway_keys_current",
                "1 while the trust keys in force are those in keys.dir; 0 while they cannot be read again.",
            ),
            active: count.with_label_values(&["active"]),
            next: count.with_label_values(&["next"]),
            retired: count.with_label_values(&["retired"]),
            active_age: age.with_label_values(&["active"]),
            next_age: age.with_label_values(&["next"]),
        }
    }

    /// Sets the metrics.
    pub fn set_ages(&self, ages: KeyAges) {
        self.active.set(1);
        self.next.set(ages.next.is_some().into());
        let retired = i64::try_from(ages.retired).unwrap_or(i64::MAX);
        self.retired.set(retired);
        self.active_age.set(ages.active);
        self.next_age.set(ages.next.unwrap_or_default());
    }
}
