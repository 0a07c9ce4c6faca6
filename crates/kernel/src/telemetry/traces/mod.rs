//! Tracing: W3C Trace Context in and out, and spans for an OTLP collector ("Traces" in
//! `docs/reference/monitoring.md`).
//!
//! Tracing is off by default; [`Traces::begin_span`] is then one branch, without an id, a clock or memory. With
//! tracing on, a span that is not recorded costs two random numbers; a recorded one also costs its
//! attributes and a place in a bounded queue.

pub mod attributes;
pub mod context;
mod export;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use opentelemetry::InstrumentationScope;
pub use opentelemetry::KeyValue;
pub use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceId};
use opentelemetry::trace::{TraceFlags, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

use self::export::Sender;
pub use self::export::TracesError;
use crate::config::{Live, Telemetry};
use crate::ids::ReplicaId;
use crate::metrics::Metrics;
use crate::rejection::Reason;

/// Maximum length of a `tracestate` that is exported with a span, in bytes: the minimum that W3C requires
/// to be propagated. It is forwarded to the agent in full.
const STATE_MAX: usize = 512;

/// The tracer of this process, if tracing is on. Clones share it.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Tracer>>);

struct Tracer {
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    sender: Sender,
}

/// Facts for the span of a request, set by the handler, in the request's extensions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SpanFacts(Arc<OnceLock<(String, Option<Reason>)>>);

impl SpanFacts {
    /// Sets the pattern of the route, and the reason of the rejection, if any. The first call wins.
    pub fn set(&self, route: &str, refused: Option<Reason>) {
        let _ = self.0.set((route.to_owned(), refused));
    }

    /// Returns the facts, if they are set.
    pub fn get(&self) -> Option<&(String, Option<Reason>)> {
        self.0.get()
    }
}

/// The origin of a parent span, which decides whether its sampled flag counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The caller, as far as `telemetry.follow_callers` allows.
    Callers,
    /// This gateway, in an earlier request.
    Ours,
}

/// A span in progress. Nothing is sent before [`Span::end`].
pub struct Span {
    tracer: Arc<Tracer>,
    context: SpanContext,
    parent: SpanId,
    parent_is_remote: bool,
    begun: SystemTime,
}

impl Traces {
    /// Starts the sender of spans, if `telemetry.otlp_endpoint` is set, without connecting.
    ///
    /// # Errors
    /// When the endpoint is invalid.
    pub fn start(
        live: &Live,
        metrics: &Arc<Metrics>,
        replica: &ReplicaId,
    ) -> Result<Self, TracesError> {
        let config = live.get();
        let settings = &config.telemetry;
        let Some(endpoint) = &settings.otlp_endpoint else {
            return Ok(Self::default());
        };
        let scope = InstrumentationScope::builder("a2a-gateway")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Ok(Self(Some(Arc::new(Tracer {
            ids: RandomIdGenerator::default(),
            scope,
            sender: Sender::start(endpoint, settings, metrics, replica)?,
        }))))
    }

    /// True if tracing is on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span in the trace of `parent`, or in a new one. Returns `None` without calling `parent` if
    /// tracing is off.
    pub fn begin_span(
        &self,
        settings: &Telemetry,
        whose: Parent,
        parent: impl FnOnce() -> Option<SpanContext>,
    ) -> Option<Span> {
        let tracer = Arc::clone(self.0.as_ref()?);
        let parent = parent();
        let recorded = is_sampled(settings, whose, parent.as_ref(), rand::random::<f64>);
        let flags = TraceFlags::default().with_sampled(recorded);
        let (trace, state) = match &parent {
            Some(parent) => (parent.trace_id(), parent.trace_state().clone()),
            None => (tracer.ids.new_trace_id(), TraceState::NONE),
        };
        let own = tracer.ids.new_span_id();
        Some(Span {
            context: SpanContext::new(trace, own, flags, false, state),
            parent_is_remote: parent.is_some(),
            parent: parent.map_or(SpanId::INVALID, |parent| parent.span_id()),
            begun: SystemTime::now(),
            tracer,
        })
    }

    /// Sends the queued spans, for at most `limit`. No spans are sent after that.
    pub async fn stop(&self, limit: Duration) {
        let Some(tracer) = self.0.clone() else {
            return;
        };
        let stopped = tokio::task::spawn_blocking(move || tracer.sender.stop(limit));
        // The sender observes the limit itself; the timeout makes sure that the caller never waits for
        // longer.
        let _ = tokio::time::timeout(limit + Duration::from_millis(500), stopped).await;
    }
}

/// Decides whether a trace is recorded. If the caller does not record its trace, neither does the gateway:
/// spans without their parents are useless. If it does, the trace is sampled like any other, unless the
/// operator trusts callers (`telemetry.follow_callers`). A caller can write any flag and any trace id, so
/// neither decides alone.
fn is_sampled(
    settings: &Telemetry,
    whose: Parent,
    parent: Option<&SpanContext>,
    draw: impl FnOnce() -> f64,
) -> bool {
    let share = settings.sampling.0;
    match parent {
        Some(parent) if !parent.is_sampled() => false,
        Some(_) if whose == Parent::Ours || settings.follow_callers => true,
        _ => share >= 1.0 || share > 0.0 && draw() < share,
    }
}

impl Span {
    /// Returns the id of the trace.
    pub fn trace_id(&self) -> TraceId {
        self.context.trace_id()
    }

    /// Returns the context for children and for forwarded requests.
    pub fn context(&self) -> &SpanContext {
        &self.context
    }

    /// True if the span will be exported. Otherwise its attributes need not be built.
    pub fn is_recorded(&self) -> bool {
        self.context.is_sampled()
    }

    /// Creates a child span.
    pub fn new_child(&self) -> Self {
        let context = &self.context;
        Self {
            tracer: Arc::clone(&self.tracer),
            context: SpanContext::new(
                context.trace_id(),
                self.tracer.ids.new_span_id(),
                context.trace_flags(),
                false,
                context.trace_state().clone(),
            ),
            parent: context.span_id(),
            parent_is_remote: false,
            begun: self.begun,
        }
    }

    /// Moves the start of the span to now.
    pub fn restart(&mut self) {
        if self.is_recorded() {
            self.begun = SystemTime::now();
        }
    }

    /// Ends the span, and queues it for export if it is recorded. Never waits.
    pub fn end(
        self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        attributes: Vec<KeyValue>,
        status: Status,
    ) {
        if !self.is_recorded() {
            return;
        }
        let context = if self.context.trace_state().header().len() > STATE_MAX {
            let (trace, own) = (self.context.trace_id(), self.context.span_id());
            let flags = self.context.trace_flags();
            SpanContext::new(trace, own, flags, false, TraceState::NONE)
        } else {
            self.context
        };
        self.tracer.sender.send(SpanData {
            span_context: context,
            parent_span_id: self.parent,
            parent_span_is_remote: self.parent_is_remote,
            span_kind: kind,
            name: name.into(),
            start_time: self.begun,
            // A clock that was set back must not make the span end before it began.
            end_time: SystemTime::now().max(self.begun),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.tracer.scope.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ratio;
    use crate::config::load::{Layers, load};

    fn parent(flags: &str) -> SpanContext {
        let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        context::parse_context([text.as_bytes()], []).unwrap()
    }

    #[test]
    fn a_caller_can_have_less_recorded_but_not_more() {
        let mut settings = load(&Layers::default()).unwrap().config.telemetry;
        let decide = |settings: &Telemetry, whose, flags: Option<&str>, drawn: f64| {
            is_sampled(settings, whose, flags.map(parent).as_ref(), || drawn)
        };
        settings.sampling = Ratio(0.25);
        settings.follow_callers = false;
        for (flags, drawn, expected) in [
            (None, 0.2, true),
            (None, 0.3, false),
            (Some("01"), 0.2, true),
            (Some("01"), 0.3, false),
            (Some("00"), 0.2, false),
        ] {
            let found = decide(&settings, Parent::Callers, flags, drawn);
            assert_eq!(found, expected, "{flags:?} {drawn}");
        }
        // The earlier decision of this gateway holds.
        assert!(decide(&settings, Parent::Ours, Some("01"), 0.9));
        assert!(!decide(&settings, Parent::Ours, Some("00"), 0.0));
        settings.follow_callers = true;
        assert!(decide(&settings, Parent::Callers, Some("01"), 0.9));
        assert!(!decide(&settings, Parent::Callers, Some("00"), 0.0));
        assert!(!decide(&settings, Parent::Callers, None, 0.9));
        settings.sampling = Ratio(0.0);
        assert!(!decide(&settings, Parent::Callers, None, 0.0));
        settings.sampling = Ratio(1.0);
        assert!(decide(&settings, Parent::Callers, None, 1.0));
    }

    #[test]
    fn off_is_off() {
        let settings = load(&Layers::default()).unwrap().config.telemetry;
        let off = Traces::default();
        let asked = || -> Option<SpanContext> { panic!("nobody is asked") };
        assert!(off.begin_span(&settings, Parent::Callers, asked).is_none());
        assert!(!off.is_on());
    }
}
