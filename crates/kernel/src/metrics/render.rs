//! Renders the metrics as text: in the Prometheus format, and in `OpenMetrics`, which supports exemplars.

use std::collections::HashMap;

use prometheus::TextEncoder;

use super::Metrics;

/// The format of a response with metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format, version 0.0.4.
    Text,
    /// `OpenMetrics` 1.0: the same series, with exemplars.
    OpenMetrics,
}

impl Format {
    /// Returns the value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Metrics {
    /// Returns the number of store operations so far, over both stores.
    pub fn store_operations(&self) -> u64 {
        use prometheus::core::Collector;
        self.store_seconds
            .collect()
            .iter()
            .flat_map(|family| family.get_metric().iter())
            .map(|metric| metric.get_histogram().get_sample_count())
            .sum()
    }

    /// Renders the current values of all families.
    pub fn render(&self, format: Format) -> String {
        self.process.refresh_values();
        let families = self.registry.gather();
        let mut text = String::with_capacity(64 * 1024);
        // Encoding into memory fails only for inconsistent families, which `new` rules out.
        if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
            tracing::error!(%error, "cannot encode the metrics");
        }
        match format {
            Format::Text => text,
            Format::OpenMetrics => {
                let times = self.head_seconds.iter().chain(self.total_seconds.iter());
                let exemplars = times.flat_map(|times| times.exemplars()).collect();
                open_metrics(&text, &exemplars)
            }
        }
    }
}

/// Converts the text format to `OpenMetrics`: removes `_total` from the family names of counters, writes
/// bucket bounds with a decimal point, escapes quotes in help texts, appends exemplars to their buckets and
/// ends with `# EOF`.
fn open_metrics(text: &str, exemplars: &HashMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for line in text.lines() {
        let about = line.strip_prefix("# ").and_then(|rest| {
            let (keyword, rest) = rest.split_once(' ')?;
            Some((keyword, rest.split_once(' ')?))
        });
        if let Some((keyword, (name, what))) = about {
            let family = name.strip_suffix("_total").unwrap_or(name);
            let what = what.replace('"', "\\\"");
            out.extend(["# ", keyword, " ", family, " ", &what]);
        } else if let Some((before, bound, value)) = split_bucket_line(line) {
            let point = if bound.contains(['.', '+']) { "" } else { ".0" };
            out.extend([before, bound, point, value]);
            let series = line.rsplit_once(' ').map_or("", |(series, _)| series);
            out.push_str(exemplars.get(series).map_or("", String::as_str));
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

/// Splits the line of a bucket into the part before its bound, the bound and the rest.
fn split_bucket_line(line: &str) -> Option<(&str, &str, &str)> {
    const BOUND: &str = "le=\"";
    // The last label.
    let at = line.rfind(BOUND)? + BOUND.len();
    let (before, rest) = line.split_at(at);
    let (bound, value) = rest.split_at(rest.find('"')?);
    line.split_once('{')?
        .0
        .ends_with("_bucket")
        .then_some((before, bound, value))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry::TraceId;

    use super::*;
    use crate::metrics::{Outcome, Shape};
    use a2a::method::Method;

    /// An exchange of 1.5 s, and the head of another of 1 h.
    fn some() -> Metrics {
        let metrics = Metrics::new();
        let (method, outcome) = (Method::ALL[0], Outcome::Answered);
        let long = Duration::from_millis(1500);
        metrics.record_exchange(
            (method, outcome, Shape::Unary),
            long,
            Some(TraceId::from(0xab)),
        );
        metrics.record_exchange((method, outcome, Shape::Unary), long * 10, None);
        metrics.record_head_time(
            Shape::Stream,
            Duration::from_secs(3600),
            Some(TraceId::from(0xcd)),
        );
        metrics
    }

    #[test]
    fn exemplars_stand_behind_their_buckets_and_nowhere_else() {
        let text = some().render(Format::OpenMetrics);
        let found: Vec<&str> = text.lines().filter(|line| line.contains(" # ")).collect();
        let [total, head] = found[..] else {
            panic!("{found:?}");
        };
        let expected = "a2a_gateway_exchange_seconds_bucket{shape=\"unary\",le=\"2.5\"} 1 # \
                        {trace_id=\"000000000000000000000000000000ab\"} 1.5 ";
        assert!(total.starts_with(expected), "{total}");
        let expected = "a2a_gateway_head_seconds_bucket{shape=\"stream\",le=\"+Inf\"} 1 # \
                        {trace_id=\"000000000000000000000000000000cd\"} 3600 ";
        assert!(head.starts_with(expected), "{head}");
        let at = head.rsplit_once(' ').unwrap().1;
        let (seconds, millis) = at.split_once('.').unwrap();
        assert!(seconds.len() >= 10 && millis.len() == 3, "{at}");
        assert!(!some().render(Format::Text).contains("trace_id"));
    }

    #[test]
    fn both_formats_tell_the_same() {
        let metrics = some();
        // The process metrics change between the two renderings.
        let lines = |format| {
            let text = metrics.render(format);
            let lines = text.lines().filter(|line| !line.contains("process_"));
            let lines = lines.map(|line| line.split_once(" # {").map_or(line, |(line, _)| line));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let (text, open) = (lines(Format::Text), lines(Format::OpenMetrics));
        assert_eq!(open.last().unwrap(), "# EOF");
        assert_eq!(text.len(), open.len() - 1);
        let mut counters = 0;
        for (text, open) in text.iter().zip(&open) {
            if text == open {
                continue;
            }
            if text.starts_with("# ") {
                let family = open.split(' ').nth(2).unwrap();
                assert_eq!(
                    text.replacen(&format!("{family}_total "), &format!("{family} "), 1),
                    *open
                );
                counters += 1;
            } else {
                assert_eq!(text.replacen("\"}", ".0\"}", 1), *open);
                assert!(text.contains("_bucket{"), "{text}");
            }
        }
        assert!(counters > 50, "{counters}");
    }

    #[test]
    fn a_counter_is_named_as_open_metrics_wants_it_and_nothing_else_is() {
        let metrics = Metrics::new();
        for family in metrics.registry.gather() {
            let is_counter = family.get_field_type() == prometheus::proto::MetricType::COUNTER;
            assert_eq!(
                family.name().ends_with("_total"),
                is_counter,
                "{}",
                family.name()
            );
        }
    }
}
