//! Attributes of spans, by the OpenTelemetry semantic conventions.

use http::Method as Verb;

use super::{KeyValue, Status};
use crate::rejection::Reason;

/// The name of a method that no convention has.
pub const OTHER: &str = "_OTHER";

/// Returns the status of a server span. Only statuses from 500 on are errors; a correct rejection is not.
pub fn server_status(status: u16) -> Status {
    if status >= 500 {
        Status::error("")
    } else {
        Status::Unset
    }
}

/// Returns `error.type`: the gateway's reason, or the status if it is `least` or higher.
pub fn error_attribute(reason: Option<Reason>, status: u16, least: u16) -> Option<KeyValue> {
    match reason {
        Some(reason) => Some(KeyValue::new("error.type", reason.as_str())),
        None if status >= least => Some(text_attribute("error.type", &status.to_string())),
        None => None,
    }
}

/// Returns the method and the scheme of a request.
pub fn request_attributes(verb: &Verb, tls: bool) -> [KeyValue; 2] {
    let scheme = if tls { "https" } else { "http" };
    [
        text_attribute("http.request.method", verb_name(verb)),
        KeyValue::new("url.scheme", scheme),
    ]
}

/// Returns `http.response.status_code`.
pub fn status_attribute(status: u16) -> KeyValue {
    number_attribute("http.response.status_code", status.into())
}

/// Returns an attribute that is a text.
pub fn text_attribute(key: &'static str, value: &str) -> KeyValue {
    KeyValue::new(key, value.to_owned())
}

/// Returns an attribute that is a number.
pub fn number_attribute(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

/// Returns the HTTP method for a span's name: callers may send any.
pub fn verb_name(verb: &Verb) -> &str {
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
