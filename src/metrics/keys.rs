//! The families of the trust keys.

use prometheus::{Gauge, IntGauge, Registry};

use super::family::{gauge, gauges, measures};

/// The trust keys of `keys.dir`.
pub struct KeyMetrics {
    /// 1 while the trust keys in force are those of `keys.dir`.
    pub current: IntGauge,
    /// Active, next, retired.
    count: [IntGauge; 3],
    /// Active, next.
    age: [Gauge; 2],
}

/// The keys at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeyAges {
    /// Seconds since the key that signs was made.
    pub active: f64,
    /// Seconds since the one that will sign was made; `None`: there is none.
    pub next: Option<f64>,
    /// Those that signed, and still verify.
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

    /// Notes the keys as they are.
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
