//! Declarations of metric families: the table of a group ([`families!`]) is its struct and its registration.

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry,
};

use super::label::LabelMap;
use crate::closed_set::ClosedSet;

/// Histogram buckets in seconds, from 250 µs, which a loopback agent can undercut, to 30 min, the longest
/// stream. 130 s is for exchanges that end shortly after a timeout of 120 s.
pub(super) const SECONDS: [f64; 20] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    30.0, 60.0, 120.0, 130.0, 600.0, 1800.0,
];

/// The beginnings of the names, behind `a2a_gateway_`, that only a gateway has. A sidecar's constant zero would look
/// like a fault.
const GATEWAY_ONLY: &str = "audit_ cache_ card_ coherent config_ console_ event_readers events_ idempotent_ inbox_ job \
    kept_ key lapses_ linger queue_ rate_shares_ store_ stream_log_ target_permits task_notes_";

/// What a table says of one family, and where it is registered.
#[derive(Clone, Copy)]
pub(super) struct Declaration<'a> {
    pub(super) registry: &'a Registry,
    /// A sidecar has a part of a gateway's families.
    pub(super) is_sidecar: bool,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    /// Known values of the labels, with spaces between them. Their children are created, so that `rate()` includes the
    /// first event.
    pub(super) words: &'static [&'static str],
    pub(super) buckets: &'static [f64],
}

impl<'a> Declaration<'a> {
    /// Creates the declaration from which those of the families of `registry` are derived.
    pub(super) fn new(registry: &'a Registry, is_sidecar: bool) -> Self {
        Self {
            registry,
            is_sidecar,
            name: "",
            help: "",
            labels: &[],
            words: &[],
            buckets: &SECONDS,
        }
    }

    fn register<C: Collector + Clone + 'static>(&self, family: prometheus::Result<C>) -> C {
        let own = self.name.strip_prefix("a2a_gateway_");
        let is_omitted = self.is_sidecar
            && own.is_some_and(|own| GATEWAY_ONLY.split(' ').any(|room| own.starts_with(room)));
        let registered = family.and_then(|family| {
            if !is_omitted {
                self.registry.register(Box::new(family.clone()))?;
            }
            Ok(family)
        });
        registered
            .expect("metric names of this room are valid and unique: every test starts with them")
    }
}

impl From<&Declaration<'_>> for Opts {
    fn from(declared: &Declaration<'_>) -> Self {
        Self::new(declared.name, declared.help)
    }
}

impl From<&Declaration<'_>> for HistogramOpts {
    fn from(declared: &Declaration<'_>) -> Self {
        Self::new(declared.name, declared.help).buckets(declared.buckets.to_vec())
    }
}

/// A family, or a group of them.
pub(super) trait Family: Sized {
    /// Registers it.
    fn register(declared: &Declaration<'_>) -> Self;
}

impl Family for Registry {
    fn register(declared: &Declaration<'_>) -> Self {
        declared.registry.clone()
    }
}

macro_rules! register_with {
    ($($kind:ty)*, $options:ty) => {$(
        impl Family for $kind {
            fn register(declared: &Declaration<'_>) -> Self {
                declared.register(Self::with_opts(<$options>::from(declared)))
            }
        }
    )*};
    ($($kind:ty)*, $options:ty, labels) => {$(
        impl Family for $kind {
            fn register(declared: &Declaration<'_>) -> Self {
                let family = Self::new(<$options>::from(declared), declared.labels);
                let family = declared.register(family);
                for words in declared.words {
                    let values: Vec<&str> = words.split(' ').collect();
                    family.with_label_values(&values);
                }
                family
            }
        }
    )*};
}

register_with!(Counter Gauge IntCounter IntGauge, Opts);
register_with!(Histogram, HistogramOpts);
register_with!(IntCounterVec IntGaugeVec GaugeVec, Opts, labels);
register_with!(HistogramVec, HistogramOpts, labels);

macro_rules! register_by {
    ($($child:ty: $family:ty,)*) => {$(
        impl<L: ClosedSet> Family for LabelMap<L, $child> {
            fn register(declared: &Declaration<'_>) -> Self {
                let family = <$family>::register(declared);
                Self::new(|word| family.with_label_values(&[word]))
            }
        }
    )*};
}

register_by! {
    IntCounter: IntCounterVec,
    IntGauge: IntGaugeVec,
    Gauge: GaugeVec,
}

impl<A: ClosedSet, B: ClosedSet> Family for LabelMap<A, LabelMap<B, IntCounter>> {
    fn register(declared: &Declaration<'_>) -> Self {
        let family = IntCounterVec::register(declared);
        Self::new(|first| LabelMap::new(|second| family.with_label_values(&[first, second])))
    }
}

/// Declares groups of families. Each row is a field: its type, the name of the family, its labels in brackets (behind
/// `;` known values of them), its buckets after `in`, and its help, which documents the field, too. Rows without a name
/// are groups.
macro_rules! families {
    ($($(#[$about:meta])* $group:ident {
        $($field:ident: $kind:ty = $name:literal $([$($label:literal),+ $(; $($word:expr),+)?])? $(in $buckets:ident)?, $help:literal;)*
        $(#[$inner_about:meta] $inner_vis:vis $inner:ident: $inner_kind:ty;)*
    })*) => {$(
        $(#[$about])*
        pub struct $group {
            $(#[doc = $help] pub $field: $kind,)*
            $(#[$inner_about] $inner_vis $inner: $inner_kind,)*
        }

        impl $crate::metrics::family::Family for $group {
            fn register(declared: &$crate::metrics::family::Declaration<'_>) -> Self {
                use $crate::metrics::family::{Declaration, Family};
                Self {
                    $($field: Family::register(&Declaration {
                        name: $name,
                        help: $help,
                        labels: &[$($($label),+)?],
                        words: const { &[$($($($word),+)?)?] },
                        $(buckets: &$buckets,)?
                        ..*declared
                    }),)*
                    $($inner: Family::register(declared),)*
                }
            }
        }
    )*};
}

pub(super) use families;
