//! How a family is made: its name, help and labels, registered.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// From 250 µs, which a loopback agent can beat, to 30 min, the longest stream. What ends by a clock of 60
/// or 120 s takes a moment more: it has a bucket of its own.
pub(super) const SECONDS: [f64; 20] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    30.0, 60.0, 120.0, 130.0, 600.0, 1800.0,
];

/// Adds a family whose name and labels are constants of this room.
pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: prometheus::Result<C>,
) -> C {
    family
        .and_then(|family| registry.register(Box::new(family.clone())).map(|()| family))
        .expect("metric names of this room are valid and unique: every test starts with them")
}

pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    register(registry, IntCounter::new(name, help))
}

pub(super) fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    register(registry, IntGauge::new(name, help))
}

/// A gauge of seconds or of shares.
pub(super) fn measure(registry: &Registry, name: &str, help: &str) -> Gauge {
    register(registry, Gauge::new(name, help))
}

pub(super) fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// Gauges of seconds or of shares.
pub(super) fn measures(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    register(registry, GaugeVec::new(Opts::new(name, help), labels))
}

/// Makes the children of a label whose values are known, so that a rate sees the first event too.
pub(super) fn begin(family: &IntCounterVec, words: &[&str]) {
    for word in words {
        family.with_label_values(&[word]);
    }
}

/// The times of exchanges and their parts.
pub(super) fn histogram(registry: &Registry, name: &str, help: &str) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
    register(registry, Histogram::with_opts(options))
}

pub(super) fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
    register(registry, HistogramVec::new(options, labels))
}
