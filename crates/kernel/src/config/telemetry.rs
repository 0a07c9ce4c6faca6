//! `[telemetry]`: logs and the export of traces.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::value::{NumberOrText, duration, secret_url};

use crate::closed_set::words;

sections! {
    /// `[telemetry]`.
    Telemetry {
        /// Log filter, in the form of `RUST_LOG`: `info`, `warn,access=off`.
        log: String,
        /// Log format: `auto` (human on a terminal, JSON otherwise), `human` or `json`.
        log_format: LogFormat,
        /// URL of the trace collector; `None`: no tracing.
        otlp_endpoint: Option<Url>,
        /// Protocol of the trace collector.
        otlp_protocol: OtlpProtocol,
        /// Fields of each request to the collector, `name=value,name=value`. Read by [`Telemetry::otlp_fields`].
        otlp_headers: SecretString as "secret_url",
        /// Timeout of one batch to the collector.
        otlp_timeout: Duration as "duration",
        /// Share of traces that are recorded.
        sampling: Ratio,
        /// True if traces recorded by callers are always recorded.
        follow_callers: bool,
        /// `service.name` of this process.
        service_name: String,
    }
}

words! {
    /// `telemetry.log_format`.
    LogFormat {
        /// Human on a terminal, JSON otherwise.
        Auto => "auto",
        /// Human-readable lines.
        Human => "human",
        /// One JSON object per line.
        Json => "json",
    }
    /// `telemetry.otlp_protocol`.
    OtlpProtocol {
        /// Protobuf over HTTP/1.1.
        HttpProtobuf => "http/protobuf",
        /// gRPC.
        Grpc => "grpc",
    }
}

/// A share from 0 to 1, written as a number; `--set` and the environment also accept an integer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(pub f64);

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(number) => Some(number),
            NumberOrText::Text(text) => text.parse().ok(),
        };
        number
            .filter(|share| (0.0..=1.0).contains(share))
            .map(Self)
            .ok_or_else(|| {
                D::Error::custom("is not a share: write a number from 0 to 1, such as 0.1")
            })
    }
}

impl Telemetry {
    /// Returns the additional header fields of requests to the collector.
    ///
    /// # Errors
    /// Returns the problem, without any part that may be secret.
    pub fn otlp_fields(&self) -> Result<HeaderMap, &'static str> {
        let mut fields = HeaderMap::new();
        for pair in self.otlp_headers.expose_secret().split(',') {
            if pair.trim().is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').ok_or("a field has no `=`")?;
            let name = HeaderName::from_bytes(name.trim().to_ascii_lowercase().as_bytes());
            let name = name.map_err(|_| "what stands before a `=` is not the name of a field")?;
            let value: Vec<u8> = percent_decode_str(value.trim()).collect();
            let value = HeaderValue::from_bytes(&value).ok();
            let value = value.filter(|value| value.to_str().is_ok());
            let mut value = value.ok_or("a value is not visible ASCII")?;
            value.set_sensitive(true);
            fields.append(name, value);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::load::tests::{refused, set};

    #[test]
    fn shares_are_written_in_several_ways() {
        for (text, share) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("1.0", 1.0)] {
            let loaded = set(&[&format!("telemetry.sampling={text}")]).unwrap();
            assert_eq!(loaded.config.telemetry.sampling.0, share, "{text}");
        }
        for bad in ["2", "-0.1", "nan", "half", "1e9"] {
            let set = set(&[&format!("telemetry.sampling={bad}")]);
            refused(set, "telemetry.sampling", "from 0 to 1");
        }
    }

    #[test]
    fn fields_for_the_collector_are_read_as_other_programs_read_them() {
        let fields = |text: &str| {
            let set = set(&[&format!("telemetry.otlp_headers={text}")]).unwrap();
            set.config.telemetry.otlp_fields().unwrap()
        };
        let read = fields("Authorization=Bearer%20a=b, x-tenant = acme ,");
        assert_eq!(read["authorization"], "Bearer a=b");
        assert_eq!(read["x-tenant"], "acme");
        assert!(read["authorization"].is_sensitive());
        assert!(fields("").is_empty());
        for bad in ["geheim", "a b=geheim", "a=geheim%0a", "=geheim"] {
            let set = set(&[&format!("telemetry.otlp_headers={bad}")]);
            let error = set.as_ref().unwrap_err().to_string();
            assert!(!error.contains("geheim"), "{error}");
            refused(set, "telemetry.otlp_headers", "name=value");
        }
    }

    #[test]
    fn an_endpoint_is_a_base_url_and_its_faults_are_said_without_it() {
        for good in [
            "http://127.0.0.1:4318",
            "https://otel.example/base/v1/traces",
        ] {
            assert!(
                set(&[&format!("telemetry.otlp_endpoint={good}")]).is_ok(),
                "{good}"
            );
        }
        for (bad, why) in [
            ("ftp://geheim", "http:// or https://"),
            ("https://u:geheim@c", "otlp_headers"),
            ("https://c?key=geheim", "must end before"),
            ("geheim", "is not a URL"),
        ] {
            let set = set(&[&format!("telemetry.otlp_endpoint={bad}")]);
            let error = set.as_ref().unwrap_err().to_string();
            assert!(!error.contains("geheim"), "{error}");
            refused(set, "telemetry.otlp_endpoint", why);
        }
        let grpc = "telemetry.otlp_protocol=grpc";
        let set_both = |url: &str| set(&[grpc, &format!("telemetry.otlp_endpoint={url}")]);
        assert!(set_both("http://127.0.0.1:4317").is_ok());
        refused(
            set_both("http://127.0.0.1:4317/v1/traces"),
            "telemetry.otlp_endpoint",
            "path",
        );
        refused(
            set(&["telemetry.otlp_protocol=udp"]),
            "telemetry.otlp_protocol",
            "grpc",
        );
        refused(
            set(&["telemetry.service_name="]),
            "telemetry.service_name",
            "empty",
        );
    }

    #[test]
    fn a_credential_in_the_clear_is_warned_of() {
        let header = "telemetry.otlp_headers=authorization=x";
        let notes = |url: &str, header: &str| {
            let loaded = set(&[header, &format!("telemetry.otlp_endpoint={url}")]).unwrap();
            loaded
                .notes
                .iter()
                .any(|note| note.contains("otlp_headers"))
        };
        assert!(notes("http://otel.internal:4318", header));
        assert!(!notes("http://127.0.0.1:4318", header));
        assert!(!notes("https://otel.internal:4318", header));
        assert!(!notes(
            "http://otel.internal:4318",
            "telemetry.otlp_headers="
        ));
    }
}
