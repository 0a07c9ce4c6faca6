//! The head of a request to an agent: the fields that pass, and those that the gateway sets.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write as _;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use pingora::http::RequestHeader;
use secrecy::ExposeSecret;

use crate::directory::Agent;
use crate::identity::CallerToken;
use crate::ids::{RequestId, WorkspaceId};
use crate::proxy::hop_by_hop::{is_hop_by_hop, named_by_connection};
use crate::proxy::record::trace::{context_fields, is_context};
use crate::proxy::request::validate::authority;
use crate::proxy::translation::TranslatedHeaders;
use crate::telemetry::traces::SpanContext;

/// Request fields that pass to the agent besides `forward.headers`.
const PASSED: [&str; 11] = [
    "accept",
    "accept-language",
    "user-agent",
    "a2a-version",
    "a2a-extensions",
    "x-a2a-extensions",
    "traceparent",
    "tracestate",
    "baggage",
    "last-event-id",
    "content-type",
];

/// Field of the caller token for an agent that uses `Authorization` itself (`docs/reference/a2a.md`, "Request fields
/// that the agent receives").
const CALLER_TOKEN: &str = "x-a2a-caller-token";

/// The inputs to the head of a forwarded request.
pub(in crate::proxy) struct RequestHeadInput<'a> {
    /// The head of the caller's request.
    pub(in crate::proxy) head: &'a RequestHeader,
    /// The HTTP method for the agent.
    pub(in crate::proxy) verb: &'a Method,
    /// Path and query for the agent.
    pub(in crate::proxy) target: &'a str,
    /// The target.
    pub(in crate::proxy) agent: &'a Agent,
    /// The exchange's id.
    pub(in crate::proxy) request_id: &'a RequestId,
    /// The proven caller, if it is a workspace.
    pub(in crate::proxy) caller: Option<&'a WorkspaceId>,
    /// The token that proves the caller to the target.
    pub(in crate::proxy) caller_token: &'a CallerToken,
    /// The number of gateways that the call has passed, this one included.
    pub(in crate::proxy) hops: u32,
    /// The client's address: the peer's, or the one that a trusted proxy forwarded.
    pub(in crate::proxy) client: IpAddr,
    /// `http` or `https`, as the caller connected.
    pub(in crate::proxy) scheme: &'static str,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(in crate::proxy) version_1_0: bool,
    /// The fields of a translated request, in place of the caller's.
    pub(in crate::proxy) wire: Option<&'a TranslatedHeaders>,
    /// The trace context for the agent. `None` if nothing is traced: the caller's own context passes.
    pub(in crate::proxy) context: Option<&'a SpanContext>,
    /// Length of the completed body.
    pub(in crate::proxy) body_len: usize,
}

/// Writes the request head in wire format: one allocation, no intermediate map.
pub(in crate::proxy) fn request_head(
    forwarded: &RequestHeadInput<'_>,
    extra: &HashSet<HeaderName>,
) -> Vec<u8> {
    let mut head = HeadWriter(Vec::with_capacity(
        1024 + forwarded.body_len.min(super::upstream::ONE_WRITE),
    ));
    head.0.extend_from_slice(forwarded.verb.as_str().as_bytes());
    head.0.push(b' ');
    head.0.extend_from_slice(forwarded.target.as_bytes());
    head.0.extend_from_slice(b" HTTP/1.1\r\n");
    head.write_field("host", forwarded.agent.endpoint.host.as_bytes());
    let auth = forwarded.agent.upstream_auth.as_ref();
    let caller_token = forwarded.caller_token;
    if let Some(auth) = auth {
        head.write_field(auth.name(), auth.value().expose_secret().as_bytes());
        head.write_field(CALLER_TOKEN, caller_token.bare_token().as_bytes());
    } else {
        head.write_field("authorization", caller_token.authorization().as_bytes());
    }
    let headers = &forwarded.head.headers;
    let mut typed = false;
    for (name, value) in headers {
        let own = auth.is_some_and(|auth| auth.name() == name.as_str())
            || forwarded.context.is_some() && is_context(name)
            || forwarded.wire.is_some() && is_translated(name);
        if !own && is_forwarded((name, value), headers, extra) {
            typed |= *name == header::CONTENT_TYPE;
            head.write_field(name.as_str(), value.as_bytes());
        }
    }
    // RFC 9110, 8.6: Content-Length is sent if the method gives a body a meaning.
    let bodiless = forwarded.body_len == 0
        && !matches!(*forwarded.verb, Method::POST | Method::PUT | Method::PATCH);
    if let Some(wire) = forwarded.wire {
        head.write_field("accept", wire.accept.as_bytes());
        head.write_field("a2a-version", wire.version.as_bytes());
        if forwarded.body_len > 0 {
            head.write_field("content-type", wire.content_type.as_bytes());
        }
        let named = EXTENSIONS.iter().flat_map(|name| headers.get_all(*name));
        for value in named {
            head.write_field(wire.extensions, value.as_bytes());
        }
    } else if !typed && forwarded.body_len > 0 {
        head.write_field("content-type", b"application/json");
    }
    if forwarded.wire.is_none() && forwarded.version_1_0 && !headers.contains_key("a2a-version") {
        head.write_field("a2a-version", b"1.0");
    }
    if !bodiless {
        head.write_display("content-length", forwarded.body_len);
    }
    for (name, value) in forwarded.context.into_iter().flat_map(context_fields) {
        head.write_field(name.as_str(), value.as_bytes());
    }
    head.write_field("x-request-id", forwarded.request_id.as_str().as_bytes());
    if let Some(caller) = forwarded.caller {
        head.write_field("x-workspace-id", caller.as_str().as_bytes());
    }
    head.write_display("x-forwarded-for", forwarded.client);
    head.write_field("x-forwarded-proto", forwarded.scheme.as_bytes());
    if let Some(host) = authority(forwarded.head) {
        head.write_field("x-forwarded-host", host.as_bytes());
    }
    head.write_display("x-a2a-hops", forwarded.hops);
    head.write_field("via", b"1.1 a2a-gateway");
    head.0.extend_from_slice(b"\r\n");
    head.0
}

/// A head that is being written.
struct HeadWriter(Vec<u8>);

impl HeadWriter {
    fn write_field(&mut self, name: &str, value: &[u8]) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    /// Puts a value that is shown, without a text of its own.
    fn write_display(&mut self, name: &str, value: impl Display) {
        self.write_field(name, b"");
        self.0.truncate(self.0.len() - b"\r\n".len());
        // Writing to memory cannot fail.
        let _ = write!(self.0, "{value}\r\n");
    }
}

/// The fields in which either generation names extensions.
const EXTENSIONS: [&str; 2] = ["a2a-extensions", "x-a2a-extensions"];

/// True for a field that a translated request has anew.
fn is_translated(name: &HeaderName) -> bool {
    matches!(name.as_str(), "accept" | "content-type" | "a2a-version")
        || EXTENSIONS.contains(&name.as_str())
}

/// True if a request field passes to the agent.
pub(in crate::proxy) fn is_forwarded(
    (name, value): (&HeaderName, &HeaderValue),
    headers: &HeaderMap,
    extra: &HashSet<HeaderName>,
) -> bool {
    let passed = PASSED.contains(&name.as_str()) || extra.contains(name);
    passed && !named_by_connection(name, headers) && !(name == "last-event-id" && is_ours(value))
}

/// True if an event id has the gateway's own form, `<stream>-<number>`. Agents do not receive such ids: callers
/// recognize the gateway's own events by the name of a stream, so agents must not learn it.
fn is_ours(id: &HeaderValue) -> bool {
    let id = id.as_bytes().trim_ascii();
    let (name, number) = id.split_at(id.len().min(32));
    let number = number.strip_prefix(b"-");
    name.iter().all(u8::is_ascii_hexdigit)
        && number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

/// Parses `forward.headers`: fields that could break framing or forge an identity are not allowed.
///
/// # Errors
/// The first name that is not allowed, with the reason.
pub fn extra_fields(names: &[String]) -> Result<HashSet<HeaderName>, String> {
    names
        .iter()
        .map(|name| {
            let parsed = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|_| format!("`{name}` is not the name of a header field"))?;
            let own = matches!(
                parsed.as_str(),
                "host"
                    | "content-length"
                    | "content-encoding"
                    | "expect"
                    | "via"
                    | "authorization"
                    | "cookie"
                    | CALLER_TOKEN
                    | "x-a2a-hops"
                    | "x-request-id"
                    | "x-workspace-id"
            );
            if own || is_hop_by_hop(&parsed) || parsed.as_str().starts_with("x-forwarded-") {
                return Err(format!(
                    "`{name}` is set by the gateway and can't be forwarded"
                ));
            }
            Ok(parsed)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;
    use crate::directory::UpstreamAuth;

    #[test]
    fn an_agent_gets_its_own_ids_of_events_and_none_of_ours() {
        let name = "01a20410667173f9b0570ddf9405f3b5";
        let ours = [
            format!("{name}-17"),
            format!(" {name}-1\t"),
            format!("{}-0", name.to_uppercase()),
            format!("{name}-"),
        ];
        for id in ours {
            assert!(is_ours(&id.parse().unwrap()), "{id:?}");
        }
        let theirs = [
            String::new(),
            "e-7".to_owned(),
            name.to_owned(),
            format!("{name}-x"),
            format!("{name}1-17"),
            format!("{}-17", &name[1..]),
            uuid::Uuid::nil().to_string(),
        ];
        for id in theirs {
            assert!(!is_ours(&id.parse().unwrap()), "{id:?}");
        }
    }

    #[test]
    fn an_agents_credential_takes_the_place_of_no_field_of_ours() {
        let own = [
            "host",
            "content-length",
            "x-request-id",
            "x-workspace-id",
            CALLER_TOKEN,
            "x-a2a-hops",
            "via",
        ];
        let client = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
        for name in PASSED.iter().chain(&own).chain(&client) {
            let auth = json!({"type": "header", "name": name, "value": "v"});
            let taken = UpstreamAuth::parse(&to_raw_value(&auth).unwrap());
            assert!(taken.is_err(), "{name}");
        }
    }
}
