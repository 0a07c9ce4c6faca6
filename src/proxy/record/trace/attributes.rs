//! Attributes of spans, by the OpenTelemetry semantic conventions.

use http::Method as Verb;

use crate::a2a::method::Method;
use crate::ids::WorkspaceId;
use crate::rejection::Reason;
use crate::telemetry::traces::{KeyValue, Status};

/// Maximum bytes of a caller's name in a span: spans that wait for export take memory.
const CALLER_MAX: usize = 256;

/// The name of a method that no version of A2A has.
const OTHER: &str = "_OTHER";

/// Returns the status of a server span. Only statuses from 500 on are errors; a correct rejection is not.
pub(in crate::proxy) fn server_status(status: u16) -> Status {
    if status >= 500 {
        Status::error("")
    } else {
        Status::Unset
    }
}

/// Returns `error.type`: the gateway's reason, or the status if it is `least` or higher.
pub(in crate::proxy) fn error_attribute(
    reason: Option<Reason>,
    status: u16,
    least: u16,
) -> Option<KeyValue> {
    match reason {
        Some(reason) => Some(KeyValue::new("error.type", reason.as_str())),
        None if status >= least => Some(text_attribute("error.type", &status.to_string())),
        None => None,
    }
}

pub(in crate::proxy) fn push_rpc(set: &mut Vec<KeyValue>, method: Method) {
    set.push(KeyValue::new("rpc.system.name", "jsonrpc"));
    set.push(KeyValue::new("jsonrpc.protocol.version", "2.0"));
    if method != Method::Unread {
        set.push(KeyValue::new("rpc.method", method.name().unwrap_or(OTHER)));
    }
}

pub(in crate::proxy) fn push_agent(
    set: &mut Vec<KeyValue>,
    method: Method,
    target: Option<&WorkspaceId>,
) {
    if let Some(target) = target.filter(|_| method.sends()) {
        set.push(KeyValue::new("gen_ai.operation.name", "invoke_agent"));
        set.push(text_attribute("gen_ai.agent.id", target.as_str()));
    }
}

pub(in crate::proxy) fn status_attribute(status: u16) -> KeyValue {
    number_attribute("http.response.status_code", status.into())
}

pub(in crate::proxy) fn text_attribute(key: &'static str, value: &str) -> KeyValue {
    KeyValue::new(key, value.to_owned())
}

pub(in crate::proxy) fn number_attribute(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

/// Returns the HTTP method for a span's name: callers may send any.
pub(in crate::proxy) fn verb_name(verb: &Verb) -> &str {
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

pub(in crate::proxy) fn truncate_caller(text: &str) -> &str {
    &text[..text.floor_char_boundary(CALLER_MAX)]
}
