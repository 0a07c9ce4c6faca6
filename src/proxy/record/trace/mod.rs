//! The spans of an exchange: one for the whole exchange, whose parent is the caller's, and below it one for the call
//! to the agent ([`call`]). Requests to the control plane have a span each (`control_plane/span.rs`).
//!
//! Names are those of the OpenTelemetry semantic conventions (1.42: HTTP, RPC, GenAI) if there are any, else `a2a.…`
//! (`docs/reference/tracing.md`). Spans contain no text from a caller except ids.

pub(in crate::proxy) mod attributes;
mod call;

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode};
use pingora::http::RequestHeader;

use self::attributes::{
    error_attribute, number_attribute, push_agent, push_rpc, server_status, status_attribute,
    text_attribute, truncate_caller, verb_name,
};
pub(in crate::proxy) use self::call::{CallSpan, Callee};
use super::Exchange;
use crate::a2a::method::Method;
use crate::metrics::{Outcome, Shape};
use crate::proxy::hop_by_hop::named_by_connection;
use crate::rejection::Rejection;
use crate::telemetry::traces::{
    KeyValue, Parent, Span, SpanContext, SpanKind, TraceId, Traces, context,
};

/// The origin of an exchange.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct ExchangeOrigin {
    /// The pattern of its route, if it has one.
    pub(in crate::proxy) route: Option<&'static str>,
    /// True for JSON-RPC.
    pub(in crate::proxy) rpc: bool,
    /// True for an accepted call (deferred, or a delegation) that is made now.
    pub(in crate::proxy) later: bool,
}

impl ExchangeOrigin {
    /// An exchange by a request on `route`.
    pub(in crate::proxy) const fn for_route(route: &'static str, rpc: bool) -> Self {
        Self {
            route: Some(route),
            rpc,
            later: false,
        }
    }

    /// An exchange by an accepted call that is made now.
    pub(in crate::proxy) const LATER: Self = Self {
        route: None,
        rpc: true,
        later: true,
    };

    /// An exchange through a sidecar, which has no routes.
    pub(in crate::proxy) fn past_sidecar(head: &RequestHeader) -> Self {
        Self {
            route: None,
            rpc: head.method == Verb::POST,
            later: false,
        }
    }
}

/// The trace data of an exchange. Its span ends with the exchange.
pub(in crate::proxy) struct Trace {
    span: Span,
    origin: ExchangeOrigin,
    verb: Verb,
    /// The JSON-RPC code of a rejection, if it differs from the reason's own.
    code: Option<i32>,
    call: Option<Box<CallSpan>>,
}

/// Request fields of W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Returns the trace context of a request. Like any field, one that `Connection` names ends here.
pub(in crate::proxy) fn parent_context(headers: &HeaderMap) -> Option<SpanContext> {
    let [traceparent, tracestate] = [&TRACEPARENT, &TRACESTATE].map(|name| {
        let ends_here = named_by_connection(name, headers);
        let values = headers.get_all(name).iter();
        values
            .filter(move |_| !ends_here)
            .map(HeaderValue::as_bytes)
    });
    context::parse_context(traceparent, tracestate)
}

/// True for fields that the gateway writes itself while tracing is on.
pub(in crate::proxy) fn is_context(name: &HeaderName) -> bool {
    [TRACEPARENT, TRACESTATE].contains(name)
}

/// Returns the request fields of a context.
pub(in crate::proxy) fn context_fields(
    context: &SpanContext,
) -> impl Iterator<Item = (HeaderName, String)> {
    let parent = (TRACEPARENT, context::to_traceparent(context));
    let state = context::to_tracestate(context).map(|state| (TRACESTATE, state));
    std::iter::once(parent).chain(state)
}

impl Exchange {
    /// Begins the span, as a child of the context in `head`. Does nothing while tracing is off.
    pub(in crate::proxy) fn begin_trace(
        &mut self,
        traces: &Traces,
        head: &RequestHeader,
        origin: ExchangeOrigin,
    ) {
        let whose = if origin.later {
            Parent::Ours
        } else {
            Parent::Callers
        };
        let settings = &self.config.telemetry;
        let span = traces.begin_span(settings, whose, || parent_context(&head.headers));
        self.trace = span.map(|span| {
            Box::new(Trace {
                span,
                origin,
                verb: head.method.clone(),
                code: None,
                call: None,
            })
        });
    }

    /// Returns the trace of the exchange. `None` if nothing is traced.
    pub(in crate::proxy) fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref().map(|trace| trace.span.trace_id())
    }

    /// Returns the trace of the exchange if it is recorded.
    pub(in crate::proxy) fn recorded_trace(&self) -> Option<TraceId> {
        let trace = self.trace.as_ref().filter(|trace| trace.span.is_recorded());
        trace.map(|trace| trace.span.trace_id())
    }

    /// Returns the context for work that follows from the exchange without an immediate call.
    pub(in crate::proxy) fn trace_context(&self) -> Option<&SpanContext> {
        self.trace.as_ref().map(|trace| trace.span.context())
    }

    /// Creates the span of the call to the agent. Its id goes into the head of the request.
    pub(in crate::proxy) fn begin_call_span(&mut self, callee: &Callee<'_>) {
        let (method, target) = (self.method, self.callee.as_ref());
        if let Some(trace) = &mut self.trace {
            let call = CallSpan::new(&trace.span, callee, method, target);
            trace.call = Some(Box::new(call));
        }
    }

    /// Returns the context for the agent: that of the call, if there is one.
    pub(in crate::proxy) fn outgoing_context(&self) -> Option<&SpanContext> {
        let trace = self.trace.as_ref()?;
        let call = trace.call.as_ref().and_then(|call| call.context());
        Some(call.unwrap_or(trace.span.context()))
    }

    /// Records that the call is being sent.
    pub(in crate::proxy) fn record_call_sent(&mut self) {
        if let Some(call) = self.trace.as_mut().and_then(|trace| trace.call.as_mut()) {
            call.record_sent();
        }
    }

    /// Records the status of the agent's answer.
    pub(in crate::proxy) fn record_call_status(&mut self, status: StatusCode) {
        if let Some(call) = self.trace.as_mut().and_then(|trace| trace.call.as_mut()) {
            call.record_status(status);
        }
    }

    /// Takes the span of the call, which continues apart from the exchange.
    pub(in crate::proxy) fn take_call_span(&mut self) -> Option<Box<CallSpan>> {
        self.trace.as_mut()?.call.take()
    }

    /// Records the JSON-RPC code of a rejection, which may have one of its own.
    pub(in crate::proxy) fn trace_refusal(&mut self, rejection: &Rejection) {
        if let Some(trace) = &mut self.trace {
            trace.code = rejection.rpc_code;
        }
    }

    /// Ends the span and that of the call.
    pub(in crate::proxy) fn end_trace(&mut self, outcome: Outcome) {
        let Some(mut trace) = self.trace.take() else {
            return;
        };
        if let (Some(call), Outcome::Rejected(reason)) = (&mut trace.call, outcome) {
            call.record_failure(reason);
        }
        drop(trace.call.take());
        if !trace.span.is_recorded() {
            return;
        }
        let attributes = self.span_attributes(&trace, outcome);
        let status = server_status(self.answer.status);
        let (kind, name) = (trace.span_kind(), trace.span_name(self.method));
        trace.span.end(kind, name, attributes, status);
    }

    fn span_attributes(&self, trace: &Trace, outcome: Outcome) -> Vec<KeyValue> {
        let method = self.method;
        let refused = match outcome {
            Outcome::Rejected(reason) => Some(reason),
            Outcome::Answered | Outcome::CallerLeft => None,
        };
        let mut set = Vec::with_capacity(24);
        if !trace.origin.later {
            let tls = self.config.server.tls.cert.is_some();
            set.push(text_attribute(
                "http.request.method",
                verb_name(&trace.verb),
            ));
            set.push(KeyValue::new(
                "url.scheme",
                if tls { "https" } else { "http" },
            ));
            set.extend(
                trace
                    .origin
                    .route
                    .map(|route| KeyValue::new("http.route", route)),
            );
        }
        if self.answer.status > 0 {
            set.push(status_attribute(self.answer.status));
        }
        if trace.origin.rpc {
            push_rpc(&mut set, method);
            if let Some(reason) = refused {
                let code = trace.code.unwrap_or_else(|| reason.rpc_code());
                set.push(text_attribute(
                    "rpc.response.status_code",
                    &code.to_string(),
                ));
            }
        }
        let callee = self.named_callee();
        push_agent(&mut set, method, callee);
        set.extend(error_attribute(refused, self.answer.status, 500));
        set.push(KeyValue::new("a2a.method", method.label()));
        set.push(KeyValue::new("a2a.outcome", outcome.as_str()));
        set.push(text_attribute("a2a.request_id", self.request_id.as_str()));
        if let Some(caller) = self.caller() {
            set.push(text_attribute(
                "a2a.caller",
                truncate_caller(&caller.to_string()),
            ));
        }
        set.extend(callee.map(|id| text_attribute("a2a.callee", id.as_str())));
        set.extend(self.rule().map(|rule| KeyValue::new("a2a.rule", rule)));
        set.extend(
            self.translation()
                .map(|label| KeyValue::new("a2a.bridged", label)),
        );
        set.push(number_attribute(
            "http.request.body.size",
            self.request_bytes,
        ));
        set.push(number_attribute(
            "http.response.body.size",
            self.answer.bytes,
        ));
        if self.answer.shape == Shape::Stream {
            set.push(number_attribute("a2a.events", self.answer.events));
        }
        set
    }
}

impl Trace {
    fn span_kind(&self) -> SpanKind {
        if self.origin.later {
            SpanKind::Consumer
        } else {
            SpanKind::Server
        }
    }

    /// Returns a name of low cardinality: the called method, or the pattern of the route.
    fn span_name(&self, method: Method) -> Cow<'static, str> {
        match (method.name(), self.origin.route) {
            (Some(name), _) if self.origin.later => format!("make {name}").into(),
            (Some(name), _) if self.origin.rpc => name.into(),
            (_, Some(route)) => format!("{} {route}", verb_name(&self.verb)).into(),
            (_, None) => verb_name(&self.verb).to_owned().into(),
        }
    }
}
