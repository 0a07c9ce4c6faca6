//! The spans of an exchange: one for the whole exchange, whose parent is the caller's, and below it one for the call
//! to the agent ([`CallSpan`]). Requests to the control plane have a span each (`control_plane.rs`).
//!
//! Names are those of the OpenTelemetry semantic conventions (1.42: HTTP, RPC, GenAI) if there are any, else `a2a.…`
//! (`docs/reference/monitoring.md`). Spans contain no text from a caller except ids.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode};
use pingora::http::RequestHeader;

use a2a::method::Method;
use http1::named_by_connection;
use kernel::ids::WorkspaceId;
use kernel::rejection::Reason;
use kernel::telemetry::traces::attributes::{
    OTHER, error_attribute, number_attribute, request_attributes, status_attribute, text_attribute,
    verb_name,
};
use kernel::telemetry::traces::{KeyValue, Span, SpanContext, SpanKind, Status, context};

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

/// Returns the trace context of a request. Like any field, one that `Connection` names ends here.
pub(super) fn parent_context(headers: &HeaderMap) -> Option<SpanContext> {
    let [traceparent, tracestate] = context::FIELDS.map(|name| {
        let ends_here = named_by_connection(&name, headers);
        let values = headers.get_all(name).iter();
        values
            .filter(move |_| !ends_here)
            .map(HeaderValue::as_bytes)
    });
    context::parse_context(traceparent, tracestate)
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
            set.extend(request_attributes(callee.verb, callee.tls));
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

pub(super) fn truncate_caller(text: &str) -> &str {
    &text[..text.floor_char_boundary(CALLER_MAX)]
}
