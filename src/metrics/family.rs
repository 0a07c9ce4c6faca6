//! Helpers that create and register metric families.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::label::By;
use crate::closed_set::ClosedSet;

/// Histogram buckets in seconds, from 250 µs, which a loopback agent can undercut, to 30 min, the longest
/// stream. 130 s is for exchanges that end shortly after a timeout of 120 s.
pub(super) const SECONDS: [f64; 20] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    30.0, 60.0, 120.0, 130.0, 600.0, 1800.0,
];

/// Registers a family. Its name and labels are constants of this module.
pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: prometheus::Result<C>,
) -> C {
    family
        .and_then(|family| registry.register(Box::new(family.clone())).map(|()| family))
        .expect("metric names of this room are valid and unique: every test starts with them")
}

pub(super) fn register_counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    register(registry, IntCounter::new(name, help))
}

pub(super) fn register_counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> IntCounterVec {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

/// Registers counters, one for each value of their label.
pub(super) fn register_counters_by<L: ClosedSet>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> By<L, IntCounter> {
    let family = register_counters(registry, name, help, &[label]);
    By::new(|word| family.with_label_values(&[word]))
}

/// Registers gauges, one for each value of their label.
pub(super) fn register_gauges_by<L: ClosedSet>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> By<L, IntGauge> {
    let family = register_gauges(registry, name, help, &[label]);
    By::new(|word| family.with_label_values(&[word]))
}

pub(super) fn register_gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    register(registry, IntGauge::new(name, help))
}

/// Registers a gauge of seconds or ratios.
pub(super) fn register_float_gauge(registry: &Registry, name: &str, help: &str) -> Gauge {
    register(registry, Gauge::new(name, help))
}

pub(super) fn register_gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// Registers gauges of seconds or ratios.
pub(super) fn register_float_gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> GaugeVec {
    register(registry, GaugeVec::new(Opts::new(name, help), labels))
}

/// Creates the children of a label with known values, so that `rate()` includes the first event.
pub(super) fn create_children(family: &IntCounterVec, words: &[&str]) {
    for word in words {
        family.with_label_values(&[word]);
    }
}

/// Registers a histogram of durations.
pub(super) fn register_histogram(registry: &Registry, name: &str, help: &str) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
    register(registry, Histogram::with_opts(options))
}

pub(super) fn register_histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
    register(registry, HistogramVec::new(options, labels))
}
