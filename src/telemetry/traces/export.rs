//! How spans leave: in batches, from threads of their own, over OTLP.
//!
//! The SDK's processor makes the batches and its exporters speak the protocols. What is ours: how many may wait,
//! that every loss is counted, and that a collector that is away is told of once a minute and not with each batch.

use std::fmt;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
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
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use url::Url;

use crate::config::{OtlpProtocol, Telemetry};
use crate::ids::ReplicaId;
use crate::metrics::Metrics;
use crate::telemetry::Chain;

/// Spans that wait for the collector at most. One takes about 2 KiB, hence 8 MiB.
const SPANS_WAITING_MAX: i64 = 4096;

/// Threads that can be between the look at the bound and the queue at once, at most.
const THREADS_MAX: usize = 1024;

/// Spans of one request. With 2 KiB each it stays below the 4 MiB that gRPC servers take.
const BATCH_MAX: usize = 512;

/// How long a span waits for others to go with it.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// How often the log says that the collector takes nothing.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Where OTLP over HTTP takes traces, below the endpoint.
const HTTP_PATH: &str = "v1/traces";

/// Why no spans can be sent. Nothing is asked of the collector for it.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// There is no thread for it.
    #[error("no thread can be started")]
    Thread(#[source] std::io::Error),
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be made")]
    Client(#[from] reqwest::Error),
    /// The endpoint cannot be used.
    #[error("telemetry.otlp_endpoint cannot be used")]
    Exporter(#[from] ExporterBuildError),
}

/// What sends spans.
pub(super) struct Sender {
    processor: BatchSpanProcessor,
    metrics: Arc<Metrics>,
}

impl Sender {
    /// Starts the threads. Connects to nothing.
    pub(super) fn start(
        endpoint: &Url,
        settings: &Telemetry,
        metrics: &Arc<Metrics>,
        replica: &ReplicaId,
    ) -> Result<Self, TracesError> {
        let runtime = runtime().map_err(TracesError::Thread)?;
        let mut exporter = {
            // gRPC's channel is made in a runtime, and lives in it.
            let _in = runtime.enter();
            exporter(endpoint, settings)?
        };
        exporter.set_resource(&resource(settings, replica));
        let counted = Counted {
            exporter: Arc::new(exporter),
            runtime,
            // The exporter's own clock also bounds its attempts; this one holds whatever it does.
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

    /// Puts a span where it waits, or counts it as dropped. Never waits.
    pub(super) fn send(&self, span: SpanData) {
        let metrics = &self.metrics.telemetry;
        if metrics.spans_waiting.get() >= SPANS_WAITING_MAX {
            metrics.spans_dropped.inc();
            return;
        }
        metrics.spans_waiting.inc();
        self.processor.on_end(span);
    }

    /// Sends what waits, for `limit` at most, and stops. Blocks.
    pub(super) fn stop(&self, limit: Duration) {
        let stopped = self.processor.shutdown_with_timeout(limit);
        let left = self.metrics.telemetry.spans_waiting.get();
        if left > 0 || matches!(stopped, Err(OTelSdkError::Timeout(_))) {
            tracing::warn!(
                left,
                "The last spans were not sent: the collector did not take them in time"
            );
        }
    }
}

/// A runtime on a thread of its own, for as long as the process lives: dropping one where others are awaited
/// would panic.
fn runtime() -> std::io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let (started, starts) = sync_channel(1);
    std::thread::Builder::new()
        .name("spans".to_owned())
        .spawn(move || {
            let _ = started.send(());
            runtime.block_on(std::future::pending::<()>());
        })?;
    let _ = starts.recv();
    Ok(handle)
}

fn exporter(
    endpoint: &Url,
    settings: &Telemetry,
) -> Result<opentelemetry_otlp::SpanExporter, TracesError> {
    // rustls panics without a provider. That one is there already is fine.
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
                // Its fields hold a credential.
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

/// The whole URL for OTLP over HTTP, from the base that it is below. An endpoint that ends with the path
/// already is taken as it is.
fn http_endpoint(endpoint: &Url) -> String {
    let base = endpoint.as_str().trim_end_matches('/');
    if base.ends_with(HTTP_PATH) {
        return base.to_owned();
    }
    format!("{base}/{HTTP_PATH}")
}

/// Who sends. `OTEL_RESOURCE_ATTRIBUTES` may say more of where it runs.
fn resource(settings: &Telemetry, replica: &ReplicaId) -> Resource {
    Resource::builder()
        .with_service_name(settings.service_name.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", replica.as_str().to_owned()),
        ])
        .build()
}

/// An exporter that counts, and runs where there is a runtime: the processor's own thread has none.
struct Counted {
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
    patience: Duration,
    metrics: Arc<Metrics>,
    trouble: Mutex<Option<Instant>>,
}

impl SpanExporter for Counted {
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
            Ok(()) => metrics.spans_exported.inc_by(count),
            Err(_) => metrics.spans_failed.inc_by(count),
        }
        self.tell(&exported);
        exported
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl Counted {
    /// Says when the trouble begins, each minute while it lasts, and when it is over.
    fn tell(&self, exported: &OTelSdkResult) {
        let mut told = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
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
