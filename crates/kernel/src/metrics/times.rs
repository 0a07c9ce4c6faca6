//! Histograms of exchanges with exemplars: each bucket keeps the last exchange in it with a recorded trace.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::TraceId;
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramVec};

use super::family::{Declaration, Family, SECONDS};
use super::label::LabelMap;
use crate::closed_set::ClosedSet;

/// The last exchange in a bucket.
#[derive(Clone, Copy)]
struct Exemplar {
    trace_id: TraceId,
    seconds: f64,
    at: SystemTime,
}

/// The histogram of one shape. The memory for exemplars is constant.
pub struct Times {
    family: &'static str,
    shape: &'static str,
    histogram: Histogram,
    /// The last exchange of each bucket; the last bucket has no bound.
    last: [Mutex<Option<Exemplar>>; SECONDS.len() + 1],
}

impl Times {
    pub(super) fn for_shape(
        family: &'static str,
        histograms: &HistogramVec,
        shape: &'static str,
    ) -> Self {
        Self {
            family,
            shape,
            histogram: histograms.with_label_values(&[shape]),
            last: [const { Mutex::new(None) }; SECONDS.len() + 1],
        }
    }

    /// Records a duration. `trace_id` is that of the trace if it is recorded.
    pub(super) fn observe(&self, elapsed: Duration, trace_id: Option<TraceId>) {
        let seconds = elapsed.as_secs_f64();
        self.histogram.observe(seconds);
        if let Some(trace_id) = trace_id {
            let bucket = SECONDS.partition_point(|bound| *bound < seconds);
            let at = SystemTime::now();
            *self.last[bucket].lock() = Some(Exemplar {
                trace_id,
                seconds,
                at,
            });
        }
    }

    /// Returns the bucket series that have an exemplar, as the text format writes them, each with the
    /// suffix of its line (OpenMetrics 1.0, exemplars).
    pub(super) fn exemplars(&self) -> impl Iterator<Item = (String, String)> {
        let bounds = SECONDS.iter().map(f64::to_string);
        let bounds = bounds.chain(["+Inf".to_owned()]);
        bounds.zip(&self.last).filter_map(|(bound, last)| {
            let exemplar = (*last.lock())?;
            let (family, shape) = (self.family, self.shape);
            let series = format!("{family}_bucket{{shape=\"{shape}\",le=\"{bound}\"}}");
            Some((series, exemplar.to_suffix()))
        })
    }
}

impl<L: ClosedSet> Family for LabelMap<L, Times> {
    fn register(declared: &Declaration<'_>) -> Self {
        let family = HistogramVec::register(declared);
        Self::new(|shape| Times::for_shape(declared.name, &family, shape))
    }
}

impl Exemplar {
    fn to_suffix(self) -> String {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut text = format!(" # {{trace_id=\"{}\"}} {}", self.trace_id, self.seconds);
        // Writing to a string cannot fail.
        let _ = write!(text, " {}.{:03}", at.as_secs(), at.subsec_millis());
        text
    }
}
