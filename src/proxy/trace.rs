//! The spans of an exchange: one for the whole exchange, whose parent is the caller's, and below it one for the call
//! to the agent ([`CallSpan`]). Requests to the control plane have a span each (`control_plane/span.rs`).
//!
//! Names are those of the OpenTelemetry semantic conventions (1.42: HTTP, RPC, GenAI) if there are any, else `a2a.…`
//! (`docs/reference/tracing.md`). Spans contain no text from a caller except ids.

use std::borrow::Cow;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode};
use pingora::http::RequestHeader;

use crate::a2a::method::Method;
use crate::config::Telemetry;
use crate::ids::{RequestId, WorkspaceId};
use crate::metrics::Outcome;
use crate::proxy::http1::named_by_connection;
use crate::rejection::Reason;
use crate::stage::Stage;
use crate::telemetry::traces::{
    KeyValue, Parent, Span, SpanContext, SpanKind, Status, TraceId, Traces, context,
};

/// The origin of an exchange.
#[derive(Clone, Copy)]
pub(super) struct ExchangeOrigin {
    /// The pattern of its route, if it has one.
    pub(super) route: Option<&'static str>,
    /// True for JSON-RPC.
    pub(super) rpc: bool,
    /// True for an accepted call (deferred, or a delegation) that is made now.
    pub(super) later: bool,
}

impl ExchangeOrigin {
    /// An exchange by a request on `route`.
    pub(super) const fn for_route(route: &'static str, rpc: bool) -> Self {
        Self {
            route: Some(route),
            rpc,
            later: false,
        }
    }

    /// An exchange by an accepted call that is made now.
    pub(super) const LATER: Self = Self {
        route: None,
        rpc: true,
        later: true,
    };

    /// An exchange through a sidecar, which has no routes.
    pub(super) fn past_sidecar(head: &RequestHeader) -> Self {
        Self {
            route: None,
            rpc: head.method == Verb::POST,
            later: false,
        }
    }
}

/// The trace data of an exchange. Its span ends with the exchange.
pub(super) struct Trace {
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
pub(super) fn parent_context(headers: &HeaderMap) -> Option<SpanContext> {
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
pub(super) fn is_context(name: &HeaderName) -> bool {
    [TRACEPARENT, TRACESTATE].contains(name)
}

/// Returns the request fields of a context.
pub(super) fn context_fields(context: &SpanContext) -> impl Iterator<Item = (HeaderName, String)> {
    let parent = (TRACEPARENT, context::to_traceparent(context));
    let state = context::to_tracestate(context).map(|state| (TRACESTATE, state));
    std::iter::once(parent).chain(state)
}

/// What the span of an exchange shows at its end.
pub(super) struct SpanFacts<'a> {
    pub(super) method: Method,
    pub(super) outcome: Outcome,
    pub(super) status: u16,
    /// `None`: the answer is no stream.
    pub(super) events: Option<u64>,
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
    pub(super) request_id: &'a RequestId,
    pub(super) caller: Option<&'a dyn fmt::Display>,
    pub(super) callee: Option<&'a WorkspaceId>,
    pub(super) rule: Option<&'static str>,
    pub(super) translation: Option<&'static str>,
    /// The stage that refused the call.
    pub(super) stage: Option<Stage>,
    /// True if the listener terminates TLS.
    pub(super) tls: bool,
}

impl Trace {
    /// Begins the span, as a child of the context in `head`.
    pub(super) fn begin(
        traces: &Traces,
        settings: &Telemetry,
        head: &RequestHeader,
        origin: ExchangeOrigin,
    ) -> Option<Box<Self>> {
        let whose = if origin.later {
            Parent::Ours
        } else {
            Parent::Callers
        };
        let span = traces.begin_span(settings, whose, || parent_context(&head.headers))?;
        Some(Box::new(Self {
            span,
            origin,
            verb: head.method.clone(),
            code: None,
            call: None,
        }))
    }

    pub(super) fn id(&self) -> TraceId {
        self.span.trace_id()
    }

    /// Returns the trace if it is recorded.
    pub(super) fn recorded_id(&self) -> Option<TraceId> {
        self.span.is_recorded().then(|| self.span.trace_id())
    }

    pub(super) fn context(&self) -> &SpanContext {
        self.span.context()
    }

    /// Begins the span of the call to the agent, and returns its context.
    pub(super) fn begin_call(
        &mut self,
        callee: &Callee<'_>,
        method: Method,
        target: Option<&WorkspaceId>,
    ) -> SpanContext {
        let call = CallSpan::new(&self.span, callee, method, target);
        let context = call.context().unwrap_or(self.span.context()).clone();
        self.call = Some(Box::new(call));
        context
    }

    /// Records that the call is being sent.
    pub(super) fn record_call_sent(&mut self) {
        if let Some(call) = &mut self.call {
            call.record_sent();
        }
    }

    /// Records the status of the agent's answer.
    pub(super) fn record_call_status(&mut self, status: StatusCode) {
        if let Some(call) = &mut self.call {
            call.record_status(status);
        }
    }

    /// Takes the span of the call, which continues apart from the exchange.
    pub(super) fn take_call(&mut self) -> Option<Box<CallSpan>> {
        self.call.take()
    }

    /// Records the JSON-RPC code of a rejection, which may have one of its own.
    pub(super) fn record_code(&mut self, code: Option<i32>) {
        self.code = code;
    }

    /// Ends the span and that of the call.
    pub(super) fn end(mut self, facts: &SpanFacts<'_>) {
        if let (Some(call), Outcome::Rejected(reason)) = (&mut self.call, facts.outcome) {
            call.record_failure(reason);
        }
        drop(self.call.take());
        if !self.span.is_recorded() {
            return;
        }
        let attributes = self.span_attributes(facts);
        let (kind, name) = (self.span_kind(), self.span_name(facts.method));
        let status = server_status(facts.status);
        self.span.end(kind, name, attributes, status);
    }

    fn span_attributes(&self, facts: &SpanFacts<'_>) -> Vec<KeyValue> {
        let method = facts.method;
        let refused = match facts.outcome {
            Outcome::Rejected(reason) => Some(reason),
            Outcome::Answered | Outcome::CallerLeft => None,
        };
        let mut set = Vec::with_capacity(24);
        if !self.origin.later {
            set.push(text_attribute("http.request.method", verb_name(&self.verb)));
            let scheme = if facts.tls { "https" } else { "http" };
            set.push(KeyValue::new("url.scheme", scheme));
            let route = self.origin.route;
            set.extend(route.map(|route| KeyValue::new("http.route", route)));
        }
        if facts.status > 0 {
            set.push(status_attribute(facts.status));
        }
        if self.origin.rpc {
            push_rpc(&mut set, method);
            if let Some(reason) = refused {
                let code = self.code.unwrap_or_else(|| reason.rpc_code());
                set.push(text_attribute(
                    "rpc.response.status_code",
                    &code.to_string(),
                ));
            }
        }
        push_agent(&mut set, method, facts.callee);
        set.extend(error_attribute(refused, facts.status, 500));
        set.push(KeyValue::new("a2a.method", method.label()));
        set.push(KeyValue::new("a2a.outcome", facts.outcome.as_str()));
        set.push(text_attribute("a2a.request_id", facts.request_id.as_str()));
        if let Some(caller) = facts.caller {
            let caller = caller.to_string();
            set.push(text_attribute("a2a.caller", truncate_caller(&caller)));
        }
        let callee = facts.callee;
        set.extend(callee.map(|id| text_attribute("a2a.callee", id.as_str())));
        set.extend(facts.rule.map(|rule| KeyValue::new("a2a.rule", rule)));
        let stage = facts.stage;
        set.extend(stage.map(|stage| KeyValue::new("a2a.stage", stage.as_str())));
        let bridged = facts.translation;
        set.extend(bridged.map(|label| KeyValue::new("a2a.bridged", label)));
        for (key, bytes) in [
            ("http.request.body.size", facts.request_bytes),
            ("http.response.body.size", facts.response_bytes),
        ] {
            set.push(number_attribute(key, bytes));
        }
        set.extend(
            facts
                .events
                .map(|events| number_attribute("a2a.events", events)),
        );
        set
    }

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

// The span of a call to an agent. The agent receives its id as the parent.

/// The target of a call, and its transport.
pub(super) struct Callee<'a> {
    /// The HTTP method.
    pub(super) verb: &'a Verb,
    /// The name or address.
    pub(super) host: &'a str,
    /// The TCP port.
    pub(super) port: u16,
    /// True for TLS.
    pub(super) tls: bool,
    /// True for JSON-RPC.
    pub(super) rpc: bool,
}

/// The span of the call to the agent. It ends when it is dropped, and is discarded if the call was never sent.
pub(super) struct CallSpan {
    /// Taken at its end.
    span: Option<Span>,
    attributes: Vec<KeyValue>,
    name: Cow<'static, str>,
    sent: bool,
    status: Option<StatusCode>,
    failed: Option<Reason>,
}

impl CallSpan {
    pub(super) fn new(
        above: &Span,
        callee: &Callee<'_>,
        method: Method,
        target: Option<&WorkspaceId>,
    ) -> Self {
        let mut call = Self {
            span: Some(above.new_child()),
            attributes: Vec::new(),
            name: Cow::Borrowed(""),
            sent: false,
            status: None,
            failed: None,
        };
        if above.is_recorded() {
            call.name = match (method.name(), target) {
                (Some(_), Some(target)) if method.sends() => {
                    format!("invoke_agent {target}").into()
                }
                (Some(name), _) if callee.rpc => name.into(),
                _ => verb_name(callee.verb).to_owned().into(),
            };
            call.attributes.reserve(16);
            let set = &mut call.attributes;
            set.push(text_attribute(
                "http.request.method",
                verb_name(callee.verb),
            ));
            set.push(KeyValue::new(
                "url.scheme",
                if callee.tls { "https" } else { "http" },
            ));
            set.push(text_attribute("server.address", callee.host));
            set.push(number_attribute("server.port", callee.port.into()));
            if callee.rpc {
                push_rpc(set, method);
            }
            push_agent(set, method, target);
            set.push(KeyValue::new("a2a.method", method.label()));
            set.extend(target.map(|id| text_attribute("a2a.callee", id.as_str())));
        }
        call
    }

    /// Returns the context that the agent receives.
    pub(super) fn context(&self) -> Option<&SpanContext> {
        self.span.as_ref().map(Span::context)
    }

    /// Records that the call is being sent, and restarts the span's clock.
    pub(super) fn record_sent(&mut self) {
        self.sent = true;
        if let Some(span) = &mut self.span {
            span.restart();
        }
    }

    /// Records the status of the agent's answer.
    pub(super) fn record_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Records that the gateway ended the call with a rejection.
    pub(super) fn record_failure(&mut self, reason: Reason) {
        self.failed = Some(reason);
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let Some(span) = self
            .span
            .take()
            .filter(|span| self.sent && span.is_recorded())
        else {
            return;
        };
        let mut attributes = std::mem::take(&mut self.attributes);
        let status = self.status.map_or(0, |status| status.as_u16());
        if status > 0 {
            attributes.push(status_attribute(status));
        }
        attributes.extend(error_attribute(self.failed, status, 400));
        let status = if self.failed.is_some() || status >= 400 {
            Status::error("")
        } else {
            Status::Unset
        };
        let name = std::mem::take(&mut self.name);
        span.end(SpanKind::Client, name, attributes, status);
    }
}

// Attributes of spans, by the OpenTelemetry semantic conventions.

/// Maximum bytes of a caller's name in a span: spans that wait for export take memory.
const CALLER_MAX: usize = 256;

/// The name of a method that no version of A2A has.
const OTHER: &str = "_OTHER";

/// Returns the status of a server span. Only statuses from 500 on are errors; a correct rejection is not.
pub(super) fn server_status(status: u16) -> Status {
    if status >= 500 {
        Status::error("")
    } else {
        Status::Unset
    }
}

/// Returns `error.type`: the gateway's reason, or the status if it is `least` or higher.
pub(super) fn error_attribute(reason: Option<Reason>, status: u16, least: u16) -> Option<KeyValue> {
    match reason {
        Some(reason) => Some(KeyValue::new("error.type", reason.as_str())),
        None if status >= least => Some(text_attribute("error.type", &status.to_string())),
        None => None,
    }
}

pub(super) fn push_rpc(set: &mut Vec<KeyValue>, method: Method) {
    set.push(KeyValue::new("rpc.system.name", "jsonrpc"));
    set.push(KeyValue::new("jsonrpc.protocol.version", "2.0"));
    if method != Method::Unread {
        set.push(KeyValue::new("rpc.method", method.name().unwrap_or(OTHER)));
    }
}

pub(super) fn push_agent(set: &mut Vec<KeyValue>, method: Method, target: Option<&WorkspaceId>) {
    if let Some(target) = target.filter(|_| method.sends()) {
        set.push(KeyValue::new("gen_ai.operation.name", "invoke_agent"));
        set.push(text_attribute("gen_ai.agent.id", target.as_str()));
    }
}

pub(super) fn status_attribute(status: u16) -> KeyValue {
    number_attribute("http.response.status_code", status.into())
}

pub(super) fn text_attribute(key: &'static str, value: &str) -> KeyValue {
    KeyValue::new(key, value.to_owned())
}

pub(super) fn number_attribute(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

/// Returns the HTTP method for a span's name: callers may send any.
pub(super) fn verb_name(verb: &Verb) -> &str {
    const KNOWN: [Verb; 7] = [
        Verb::GET,
        Verb::HEAD,
        Verb::POST,
        Verb::PUT,
        Verb::PATCH,
        Verb::DELETE,
        Verb::OPTIONS,
    ];
    if KNOWN.contains(verb) {
        verb.as_str()
    } else {
        OTHER
    }
}

pub(super) fn truncate_caller(text: &str) -> &str {
    &text[..text.floor_char_boundary(CALLER_MAX)]
}
