//! The span of a call to an agent. The agent receives its id as the parent.

use std::borrow::Cow;

use http::{Method as Verb, StatusCode};

use super::attributes::{
    error_attribute, number_attribute, push_agent, push_rpc, status_attribute, text_attribute,
    verb_name,
};
use crate::a2a::method::Method;
use crate::ids::WorkspaceId;
use crate::rejection::Reason;
use crate::telemetry::traces::{KeyValue, Span, SpanContext, SpanKind, Status};

/// The target of a call, and its transport.
pub(in crate::proxy) struct Callee<'a> {
    /// The HTTP method.
    pub(in crate::proxy) verb: &'a Verb,
    /// The name or address.
    pub(in crate::proxy) host: &'a str,
    /// The TCP port.
    pub(in crate::proxy) port: u16,
    /// True for TLS.
    pub(in crate::proxy) tls: bool,
    /// True for JSON-RPC.
    pub(in crate::proxy) rpc: bool,
}

/// The span of the call to the agent. It ends when it is dropped, and is discarded if the call was never sent.
pub(in crate::proxy) struct CallSpan {
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
    pub(in crate::proxy) fn record_sent(&mut self) {
        self.sent = true;
        if let Some(span) = &mut self.span {
            span.restart();
        }
    }

    /// Records the status of the agent's answer.
    pub(in crate::proxy) fn record_status(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// Records that the gateway ended the call with a rejection.
    pub(in crate::proxy) fn record_failure(&mut self, reason: Reason) {
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
