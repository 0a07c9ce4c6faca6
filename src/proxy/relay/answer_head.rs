//! The head of an agent's answer: refused, or passed with a closed list of fields, plus `forward.response_headers`. The
//! answer comes from the gateway's origin, so fields that set policy for an origin, or instruct a proxy in front, would
//! act with the gateway's authority.

use std::collections::HashSet;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pingora::http::ResponseHeader;

use super::answer::{AnswerHead, HEAD_BYTES_MAX};
use super::failure::{broken_http, head_too_long, too_large};
use crate::a2a::accept::is_json;
use crate::config::Config;
use crate::proxy::hop_by_hop::named_by_connection;
use crate::rejection::{Delivery, Reason, Rejection};

/// Maximum fields of that head.
const FIELDS_MAX: usize = 100;

/// Fields for which the head for a caller has room at first: the usual ones, and the gateway's own.
const FIELDS: usize = 12;

/// Fields that pass besides `forward.response_headers`. The gateway sets the length itself, and `WWW-Authenticate`
/// passes on a 401 only.
const PASSED: [&str; 14] = [
    "content-type",
    "content-encoding",
    "content-language",
    "etag",
    "last-modified",
    "cache-control",
    "date",
    "vary",
    "retry-after",
    "a2a-version",
    "a2a-extensions",
    "x-a2a-extensions",
    "traceparent",
    "tracestate",
];

/// The parsed names of `forward.response_headers`.
pub(in crate::proxy) struct ResponseFields {
    added: HashSet<HeaderName>,
}

impl ResponseFields {
    /// Parses the names. The check of the configuration has already rejected invalid ones.
    pub(in crate::proxy) fn new(config: &Config) -> Self {
        let names = config.forward.response_headers.iter();
        let added = names.filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        Self {
            added: added.collect(),
        }
    }

    /// Returns the agent's head with the fields that pass, and capacity for the gateway's own. A type other than JSON
    /// or an event stream is sandboxed, so that a browser that opens it runs no code in the gateway's origin.
    ///
    /// # Errors
    /// A field cannot be built. The parser of the answer rules this out.
    pub(in crate::proxy) fn filter_head(
        &self,
        agent: &ResponseHeader,
    ) -> pingora::Result<ResponseHeader> {
        // Without the map of spelled names, which is as large as that of the fields: a stream keeps its head.
        let mut head = ResponseHeader::build_no_case(agent.status, Some(FIELDS))?;
        for (name, value) in &agent.headers {
            // Of several media types a browser takes the last one, but the check below reads the first.
            let repeats = *name == header::CONTENT_TYPE && head.headers.contains_key(name);
            if self.allows_field(name, agent) && !repeats {
                head.append_header(name, value)?;
            }
        }
        if !is_event_stream(agent) && !is_json_answer(agent) {
            head.insert_header(
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static("sandbox"),
            )?;
        }
        Ok(head)
    }

    fn allows_field(&self, name: &HeaderName, agent: &ResponseHeader) -> bool {
        let listed = PASSED.contains(&name.as_str())
            || self.added.contains(name)
            || *name == header::WWW_AUTHENTICATE && agent.status == StatusCode::UNAUTHORIZED;
        listed && !named_by_connection(name, &agent.headers)
    }
}

fn is_json_answer(agent: &ResponseHeader) -> bool {
    let content_type = agent.headers.get(header::CONTENT_TYPE);
    // A browser takes the last type of a list.
    content_type.is_some_and(|value| {
        value
            .to_str()
            .is_ok_and(|value| is_json(value) && !value.contains(','))
    })
}

/// Rejects an answer with a head that is too large.
///
/// # Errors
/// `agent_protocol_error` if the head has too many bytes or fields.
fn refuse_large_head(head: &AnswerHead) -> Result<(), Rejection> {
    let fields = head.fields.headers.len();
    if head.bytes > HEAD_BYTES_MAX {
        return Err(head_too_long(Some(head.bytes), HEAD_BYTES_MAX));
    }
    if fields > FIELDS_MAX {
        let message = format!(
            "the head of the agent's answer has {fields} fields, and may have {FIELDS_MAX}"
        );
        return Err(
            Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
        );
    }
    Ok(())
}

/// Rejects an answer with a head that is too large, with ambiguous framing, or with a transfer coding that would be
/// lost, as for requests (RFC 9112, 6.1 and 6.3).
pub(in crate::proxy) fn refuse_by_framing(head: &AnswerHead) -> Result<(), Rejection> {
    refuse_large_head(head)?;
    let headers = &head.fields.headers;
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    if head.framed_twice || !chunked {
        return Err(broken_http(None));
    }
    Ok(())
}

/// Rejects a redirect. It is neither followed nor passed on: its target was not checked.
pub(in crate::proxy) fn refuse_redirect(head: &ResponseHeader) -> Result<(), Rejection> {
    if !head.status.is_redirection() {
        return Ok(());
    }
    let message =
        "the agent answered with a redirect, which is never followed; register its final URL";
    Err(Rejection::new(Reason::AgentRedirected, message).with_delivery(Delivery::Sent))
}

/// Rejects an answer by its framing, its coding or its length.
pub(in crate::proxy) fn refuse_by_head(head: &ResponseHeader, limit: u64) -> Result<(), Rejection> {
    let coded = head.headers.get(header::CONTENT_ENCODING);
    if is_event_stream(head) && coded.is_some_and(|c| c.as_bytes() != b"identity") {
        return Err(Rejection::new(
            Reason::AgentProtocolError,
            "the agent compressed a stream of events, which can't be passed on event by event",
        )
        .with_delivery(Delivery::Sent));
    }
    match content_length(head) {
        Some(length) if length > limit && !is_event_stream(head) => Err(too_large(limit)),
        _ => Ok(()),
    }
}

pub(in crate::proxy) fn content_length(head: &ResponseHeader) -> Option<u64> {
    content_length_of(&head.headers)
}

pub(in crate::proxy) fn content_length_of(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// True for an event stream. The response decides, not the method: a streaming call may be answered by one error.
pub(in crate::proxy) fn is_event_stream(head: &ResponseHeader) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value
            .get(..TYPE.len())
            .is_some_and(|essence| essence.eq_ignore_ascii_case(TYPE))
            && matches!(value.get(TYPE.len()), None | Some(b';' | b' ' | b'\t'))
            // A browser takes the last type of a list.
            && !value.contains(&b',')
    })
}
