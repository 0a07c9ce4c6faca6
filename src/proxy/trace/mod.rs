//! The spans of an exchange: one for the whole of it, which the caller's is the parent of, and below it one for the
//! call to the agent ([`call`]). And one for each request to the control plane ([`control`]).
//!
//! Names are those of the OpenTelemetry semantic conventions (1.42: HTTP, RPC, GenAI) where there are any, else
//! `a2a.…` (`docs/reference/tracing.md`). Nothing is said that a caller wrote, but for ids.

mod attributes;
mod call;
mod control;

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode};
use pingora::http::RequestHeader;

use self::attributes::{agent, cut, error_of, number, rpc, server_status, status_of, text, verb};
pub(super) use self::call::{CallSpan, Callee};
pub(super) use self::control::ControlSpan;
use super::exchange::Exchange;
use super::fields::named_by_connection;
use super::relay::Relay;
use crate::a2a::method::Method;
use crate::metrics::{Outcome, Shape};
use crate::rejection::Rejection;
use crate::telemetry::traces::{KeyValue, Parent, Span, SpanContext, SpanKind, TraceId, context};

/// How an exchange came about.
#[derive(Clone, Copy)]
pub(super) struct Came {
    /// The pattern of its route, if it has one.
    pub(super) route: Option<&'static str>,
    /// Whether it is JSON-RPC.
    pub(super) rpc: bool,
    /// Whether it is a call that was accepted before and is made now.
    pub(super) later: bool,
}

impl Came {
    /// By a request.
    pub(super) const fn by(route: &'static str, rpc: bool) -> Self {
        Self {
            route: Some(route),
            rpc,
            later: false,
        }
    }

    /// Accepted before, made now.
    pub(super) const LATER: Self = Self {
        route: None,
        rpc: true,
        later: true,
    };

    /// Through a sidecar, which knows no routes.
    pub(super) fn past_sidecar(head: &RequestHeader) -> Self {
        Self {
            route: None,
            rpc: head.method == Verb::POST,
            later: false,
        }
    }
}

/// What an exchange leaves in its trace. Its span ends with the exchange.
pub(super) struct Trace {
    span: Span,
    came: Came,
    verb: Verb,
    /// The code of a refusal, where it is not the reason's own.
    code: Option<i32>,
    call: Option<Box<CallSpan>>,
}

/// Where W3C Trace Context is in a request.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The context that a request came with. What `Connection` names ends here, as for all fields.
fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let [traceparent, tracestate] = [&TRACEPARENT, &TRACESTATE].map(|name| {
        let ends_here = named_by_connection(name, headers);
        let values = headers.get_all(name).iter();
        values
            .filter(move |_| !ends_here)
            .map(HeaderValue::as_bytes)
    });
    context::read(traceparent, tracestate)
}

/// Whether a field is one of those that the gateway writes itself while it traces.
pub(super) fn is_context(name: &HeaderName) -> bool {
    [TRACEPARENT, TRACESTATE].contains(name)
}

/// The fields that tell of a context.
pub(super) fn context_fields(context: &SpanContext) -> impl Iterator<Item = (HeaderName, String)> {
    let parent = (TRACEPARENT, context::traceparent(context));
    let state = context::tracestate(context).map(|state| (TRACESTATE, state));
    std::iter::once(parent).chain(state)
}

impl Exchange {
    /// Begins its span, as a child of what `head` says. Nothing happens while tracing is off.
    pub(super) fn trace(&mut self, relay: &Relay, head: &RequestHeader, came: Came) {
        let whose = if came.later {
            Parent::Ours
        } else {
            Parent::Callers
        };
        let settings = &self.config.telemetry;
        let span = relay
            .traces
            .begin(settings, whose, || parent(&head.headers));
        self.trace = span.map(|span| {
            Box::new(Trace {
                span,
                came,
                verb: head.method.clone(),
                code: None,
                call: None,
            })
        });
    }

    /// The trace that it belongs to; `None`: nothing is traced.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref().map(|trace| trace.span.trace_id())
    }

    /// The same, if it is recorded.
    pub(super) fn recorded_trace(&self) -> Option<TraceId> {
        let trace = self.trace.as_ref().filter(|trace| trace.span.recorded());
        trace.map(|trace| trace.span.trace_id())
    }

    /// What is told to those that follow from it without a call of now.
    pub(super) fn context(&self) -> Option<&SpanContext> {
        self.trace.as_ref().map(|trace| trace.span.context())
    }

    /// Makes the id of the call to the agent, which goes into the head of the request.
    pub(super) fn will_call(&mut self, callee: &Callee<'_>) {
        let (method, target) = (self.method, self.callee.as_ref());
        if let Some(trace) = &mut self.trace {
            let call = CallSpan::new(&trace.span, callee, method, target);
            trace.call = Some(Box::new(call));
        }
    }

    /// The context for the agent: that of the call, if one is to be made.
    pub(super) fn outgoing(&self) -> Option<&SpanContext> {
        let trace = self.trace.as_ref()?;
        let call = trace.call.as_ref().and_then(|call| call.context());
        Some(call.unwrap_or(trace.span.context()))
    }

    /// The call is made now.
    pub(super) fn calls(&mut self) {
        if let Some(call) = self.trace.as_mut().and_then(|trace| trace.call.as_mut()) {
            call.made();
        }
    }

    /// The agent answered the call with a status.
    pub(super) fn called(&mut self, status: StatusCode) {
        if let Some(call) = self.trace.as_mut().and_then(|trace| trace.call.as_mut()) {
            call.answered(status);
        }
    }

    /// The call goes on by itself, apart from the exchange.
    pub(super) fn take_call(&mut self) -> Option<Box<CallSpan>> {
        self.trace.as_mut()?.call.take()
    }

    /// A refusal may have a code of its own.
    pub(super) fn trace_refusal(&mut self, rejection: &Rejection) {
        if let Some(trace) = &mut self.trace {
            trace.code = rejection.rpc_code;
        }
    }

    /// Ends its span, and that of its call.
    pub(super) fn end_trace(&mut self, outcome: Outcome) {
        let Some(mut trace) = self.trace.take() else {
            return;
        };
        if let (Some(call), Outcome::Rejected(reason)) = (&mut trace.call, outcome) {
            call.failed(reason);
        }
        drop(trace.call.take());
        if !trace.span.recorded() {
            return;
        }
        let attributes = self.attributes(&trace, outcome);
        let status = server_status(self.status);
        let (kind, name) = (trace.kind(), trace.name(self.method));
        trace.span.end(kind, name, attributes, status);
    }

    fn attributes(&self, trace: &Trace, outcome: Outcome) -> Vec<KeyValue> {
        let method = self.method;
        let refused = match outcome {
            Outcome::Rejected(reason) => Some(reason),
            Outcome::Answered | Outcome::CallerLeft => None,
        };
        let mut set = Vec::with_capacity(24);
        if !trace.came.later {
            let tls = self.config.server.tls.cert.is_some();
            set.push(text("http.request.method", verb(&trace.verb)));
            set.push(KeyValue::new(
                "url.scheme",
                if tls { "https" } else { "http" },
            ));
            set.extend(
                trace
                    .came
                    .route
                    .map(|route| KeyValue::new("http.route", route)),
            );
        }
        if self.status > 0 {
            set.push(status_of(self.status));
        }
        if trace.came.rpc {
            rpc(&mut set, method);
            if let Some(reason) = refused {
                let code = trace.code.unwrap_or_else(|| reason.rpc_code());
                set.push(text("rpc.response.status_code", &code.to_string()));
            }
        }
        let callee = self.named_callee();
        agent(&mut set, method, callee);
        set.extend(error_of(refused, self.status, 500));
        set.push(KeyValue::new("a2a.method", method.label()));
        set.push(KeyValue::new("a2a.outcome", outcome.word()));
        set.push(text("a2a.request_id", self.request_id.as_str()));
        if let Some(caller) = self.caller() {
            set.push(text("a2a.caller", cut(&caller.to_string())));
        }
        set.extend(callee.map(|id| text("a2a.callee", id.as_str())));
        set.extend(self.rule.map(|rule| KeyValue::new("a2a.rule", rule)));
        set.push(number("http.request.body.size", self.request_bytes));
        set.push(number("http.response.body.size", self.response_bytes));
        if self.shape == Shape::Stream {
            set.push(number("a2a.events", self.events));
        }
        set
    }
}

impl Trace {
    fn kind(&self) -> SpanKind {
        if self.came.later {
            SpanKind::Consumer
        } else {
            SpanKind::Server
        }
    }

    /// Of few words: what the call asks for, or the pattern of its route.
    fn name(&self, method: Method) -> Cow<'static, str> {
        match (method.name(), self.came.route) {
            (Some(name), _) if self.came.later => format!("make {name}").into(),
            (Some(name), _) if self.came.rpc => name.into(),
            (_, Some(route)) => format!("{} {route}", verb(&self.verb)).into(),
            (_, None) => verb(&self.verb).to_owned().into(),
        }
    }
}
