//! Exports spans over OTLP in batches, on dedicated threads.
//!
//! The SDK provides the batch processor and the exporters. This module bounds the queue, counts every lost
//! span, and limits the log about an unavailable collector to one line a minute.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use url::Url;

use crate::config::{OtlpProtocol, Telemetry};
use crate::ids::ReplicaId;
use crate::metrics::{Metrics, SpanOutcome};
use crate::telemetry::Chain;

/// Maximum number of queued spans. A span takes about 2 KiB, hence 8 MiB.
const SPANS_WAITING_MAX: i64 = 4096;

/// Maximum number of threads between the check of the bound and the queue at once.
const THREADS_MAX: usize = 1024;

/// Spans in one request. With 2 KiB each it stays below the 4 MiB that gRPC servers accept.
const BATCH_MAX: usize = 512;

/// Maximum time that a span waits for its batch to fill.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// Minimum interval between two log lines about an unavailable collector.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// The path of OTLP over HTTP, below the endpoint.
const HTTP_PATH: &str = "v1/traces";

/// The reason why spans cannot be sent. The collector is not contacted to find out.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The thread cannot be started.
    #[error("no thread can be started")]
    Thread(#[source] std::io::Error),
    /// The HTTP client cannot be built.
    #[error("the HTTP client cannot be made")]
    Client(#[from] reqwest::Error),
    /// The endpoint is invalid.
    #[error("telemetry.otlp_endpoint cannot be used")]
    Exporter(#[from] ExporterBuildError),
}

/// The sender of spans.
pub(super) struct Sender {
    processor: BatchSpanProcessor,
    metrics: Arc<Metrics>,
}

impl Sender {
    /// Starts the threads, without connecting.
    pub(super) fn start(
        endpoint: &Url,
        settings: &Telemetry,
        metrics: &Arc<Metrics>,
        replica: &ReplicaId,
    ) -> Result<Self, TracesError> {
        let runtime = start_runtime().map_err(TracesError::Thread)?;
        let mut exporter = {
            // The channel of gRPC must be created inside a runtime, and lives in it.
            let _in = runtime.enter();
            build_exporter(endpoint, settings)?
        };
        exporter.set_resource(&build_resource(settings, replica));
        let counted = CountingExporter {
            exporter: Arc::new(exporter),
            runtime,
            // The exporter bounds its attempts, too. This timeout holds whatever the exporter does.
            patience: settings.otlp_timeout + Duration::from_secs(1),
            metrics: Arc::clone(metrics),
            trouble: Mutex::default(),
        };
        let waiting = usize::try_from(SPANS_WAITING_MAX).unwrap_or(usize::MAX);
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(waiting + THREADS_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        Ok(Self {
            processor: BatchSpanProcessor::new(counted, config),
            metrics: Arc::clone(metrics),
        })
    }

    /// Queues a span, or counts it as dropped. Never waits.
    pub(super) fn send(&self, span: SpanData) {
        let metrics = &self.metrics.telemetry;
        if metrics.spans_waiting.get() >= SPANS_WAITING_MAX {
            metrics.spans[SpanOutcome::Dropped].inc();
            return;
        }
        metrics.spans_waiting.inc();
        self.processor.on_end(span);
    }

    /// Sends the queued spans, for at most `limit`, and stops. Blocks.
    pub(super) fn stop(&self, limit: Duration) {
        let stopped = self.processor.shutdown_with_timeout(limit);
        let left = self.metrics.telemetry.spans_waiting.get();
        if left > 0 || matches!(stopped, Err(OTelSdkError::Timeout(_))) {
            tracing::warn!(
                left,
                "the last spans were not sent: the collector did not accept them in time"
            );
        }
    }
}

/// Starts a runtime on a dedicated thread that lives as long as the process: dropping a runtime inside
/// async code panics.
fn start_runtime() -> std::io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("spans".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

fn build_exporter(
    endpoint: &Url,
    settings: &Telemetry,
) -> Result<opentelemetry_otlp::SpanExporter, TracesError> {
    // rustls needs a default crypto provider. The call fails if one is installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let headers = settings.otlp_fields().unwrap_or_default();
    let builder = opentelemetry_otlp::SpanExporter::builder();
    match settings.otlp_protocol {
        OtlpProtocol::HttpProtobuf => {
            let text =
                |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = headers.iter();
            let headers = headers.map(|(name, value)| (name.to_string(), text(value)));
            let client = reqwest::Client::builder()
                // The request headers hold a credential.
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .timeout(settings.otlp_timeout);
            let client = if endpoint.scheme() == "https" {
                client.https_only(true).build()?
            } else {
                client.tls_certs_only([]).build()?
            };
            let exporter = builder
                .with_http()
                .with_http_client(client)
                .with_endpoint(http_endpoint(endpoint))
                .with_protocol(Protocol::HttpBinary)
                .with_headers(headers.collect())
                .with_timeout(settings.otlp_timeout);
            Ok(exporter.build()?)
        }
        OtlpProtocol::Grpc => {
            let mut exporter = builder
                .with_tonic()
                .with_endpoint(endpoint.as_str())
                .with_metadata(MetadataMap::from_headers(headers))
                .with_timeout(settings.otlp_timeout);
            if endpoint.scheme() == "https" {
                exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
            }
            Ok(exporter.build()?)
        }
    }
}

/// Returns the URL of OTLP over HTTP below the endpoint. An endpoint that already ends with the path is
/// used as it is.
fn http_endpoint(endpoint: &Url) -> String {
    let base = endpoint.as_str().trim_end_matches('/');
    if base.ends_with(HTTP_PATH) {
        return base.to_owned();
    }
    format!("{base}/{HTTP_PATH}")
}

/// Returns the resource of all spans. `OTEL_RESOURCE_ATTRIBUTES` may add to it.
fn build_resource(settings: &Telemetry, replica: &ReplicaId) -> Resource {
    Resource::builder()
        .with_service_name(settings.service_name.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", replica.as_str().to_owned()),
        ])
        .build()
}

/// An exporter that counts, and runs on the runtime of this module: the thread of the processor has none.
struct CountingExporter {
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
    patience: Duration,
    metrics: Arc<Metrics>,
    trouble: Mutex<Option<Instant>>,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let (exporter, patience) = (Arc::clone(&self.exporter), self.patience);
        let export = async move { timeout(patience, exporter.export(batch)).await };
        let exported = match self.runtime.spawn(export).await {
            Ok(Ok(exported)) => exported,
            Ok(Err(_)) => Err(OTelSdkError::Timeout(patience)),
            Err(panicked) => Err(OTelSdkError::InternalFailure(panicked.to_string())),
        };
        let metrics = &self.metrics.telemetry;
        metrics.spans_waiting.sub(i64::try_from(count).unwrap_or(0));
        match &exported {
            Ok(()) => metrics.spans[SpanOutcome::Exported].inc_by(count),
            Err(_) => metrics.spans[SpanOutcome::Failed].inc_by(count),
        }
        self.log_outcome(&exported);
        exported
    }
}

impl fmt::Debug for CountingExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountingExporter")
    }
}

impl CountingExporter {
    /// Logs when exports begin to fail, once a minute while they do, and when they succeed again.
    fn log_outcome(&self, exported: &OTelSdkResult) {
        let mut told = self.trouble.lock();
        match (exported, *told) {
            (Ok(()), Some(_)) => {
                *told = None;
                tracing::info!("The collector takes spans again");
            }
            (Err(error), told_at)
                if told_at.is_none_or(|at: Instant| at.elapsed() >= TELL_AGAIN) =>
            {
                *told = Some(Instant::now());
                tracing::warn!(
                    error = %Chain(error),
                    "Spans are lost: the collector (telemetry.otlp_endpoint) does not take them"
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_base_or_the_whole_url() {
        for (given, whole) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
            ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
        ] {
            assert_eq!(http_endpoint(&Url::parse(given).unwrap()), whole);
        }
    }
}
