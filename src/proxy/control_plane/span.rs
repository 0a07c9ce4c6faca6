//! The span of a request to the control plane.

use http::Method as Verb;
use pingora::protocols::http::ServerSession;

use crate::ids::RequestId;
use crate::proxy::services::Context;
use crate::proxy::trace::{
    error_attribute, parent_context, server_status, status_attribute, text_attribute, verb_name,
};
use crate::telemetry::traces::{KeyValue, Parent, Span, SpanFacts, SpanKind};

/// The span of one request to the control plane. It ends when it is dropped.
pub(in crate::proxy) struct ControlSpan {
    /// Taken at its end.
    span: Option<Span>,
    facts: SpanFacts,
    verb: Verb,
    request_id: RequestId,
    tls: bool,
    status: u16,
}

impl ControlSpan {
    /// Begins the span of a request to the control plane. `None` if nothing is traced.
    pub(in crate::proxy) fn begin(
        context: &Context,
        session: &ServerSession,
        request_id: &RequestId,
    ) -> Option<Self> {
        let head = session.req_header();
        let config = context.gateway.config();
        let span = context
            .relay
            .traces
            .begin_span(&config.telemetry, Parent::Callers, || {
                parent_context(&head.headers)
            })?;
        Some(Self {
            span: Some(span),
            facts: SpanFacts::default(),
            verb: head.method.clone(),
            request_id: request_id.clone(),
            tls: config.server.tls.cert.is_some(),
            status: 0,
        })
    }

    /// Returns the facts in which the control plane reports the matched route and the reason of a rejection.
    pub(in crate::proxy) fn facts(&self) -> SpanFacts {
        self.facts.clone()
    }

    /// Records the status of the answer, if one was sent.
    pub(in crate::proxy) fn record_status(&mut self, session: &ServerSession) {
        self.status = session
            .response_written()
            .map_or(0, |head| head.status.as_u16());
    }
}

impl Drop for ControlSpan {
    fn drop(&mut self) {
        let Some(span) = self.span.take().filter(Span::is_recorded) else {
            return;
        };
        let (route, reason) = match self.facts.get() {
            Some((route, reason)) => (Some(route), *reason),
            None => (None, None),
        };
        let mut set = vec![
            text_attribute("http.request.method", verb_name(&self.verb)),
            KeyValue::new("url.scheme", if self.tls { "https" } else { "http" }),
            text_attribute("a2a.request_id", self.request_id.as_str()),
        ];
        set.extend(route.map(|route| text_attribute("http.route", route)));
        if self.status > 0 {
            set.push(status_attribute(self.status));
        }
        set.extend(error_attribute(reason, self.status, 500));
        let verb = verb_name(&self.verb);
        let name = route.map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        span.end(SpanKind::Server, name, set, server_status(self.status));
    }
}
