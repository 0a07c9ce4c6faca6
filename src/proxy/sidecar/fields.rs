//! The header fields that pass through a sidecar: all but hop-by-hop fields and those that identify the caller. The
//! list is wider than the gateway's, because the request has already passed the gateway.

use http::{HeaderName, header};
use pingora::http::{RequestHeader, ResponseHeader};

use crate::config::commands_proxy;
use crate::ids::{RequestId, WorkspaceId};
use crate::proxy::http1::{NOSNIFF, is_hop_by_hop, named_by_connection};
use crate::proxy::listener::{is_proof, put_request_id};
use crate::proxy::record::Exchange;
use crate::proxy::sidecar::{is_identity_field, is_spent_token};
use crate::proxy::trace::{context_fields, is_context};
use crate::sidecar::Agent;
use crate::trust::PairClaims;

/// The caller of any kind: a workspace, `canvas:<user>`, `org:<org>`.
pub(super) const CALLER: &str = "x-a2a-caller";

/// The calling workspace; absent for other callers.
pub(super) const WORKSPACE: &str = "x-workspace-id";

/// Writes the request head in wire format.
pub(super) fn request_head(
    head: &RequestHeader,
    agent: &Agent,
    exchange: &Exchange,
    body_len: usize,
) -> Vec<u8> {
    let mut wire = Vec::with_capacity(1024 + body_len.min(crate::proxy::http1::ONE_WRITE));
    wire.extend_from_slice(head.method.as_str().as_bytes());
    wire.push(b' ');
    let target = head.uri.path_and_query().map_or("/", |t| t.as_str());
    wire.extend_from_slice(target.as_bytes());
    wire.extend_from_slice(b" HTTP/1.1\r\n");
    let mut put = |name: &str, value: &[u8]| {
        wire.extend_from_slice(name.as_bytes());
        wire.extend_from_slice(b": ");
        wire.extend_from_slice(value);
        wire.extend_from_slice(b"\r\n");
    };
    put("host", agent.host.as_bytes());
    let known = exchange.call.pair().is_some();
    let context = exchange.call.outgoing_trace();
    for (name, value) in &head.headers {
        let own = context.is_some() && is_context(name);
        if !own && is_forwarded(name, head) && (known || is_public_field(name)) {
            put(name.as_str(), value.as_bytes());
        }
    }
    let framed = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING]
        .iter()
        .any(|name| head.headers.contains_key(name));
    if framed || body_len > 0 {
        put("content-length", body_len.to_string().as_bytes());
    }
    for (name, value) in context.into_iter().flat_map(context_fields) {
        put(name.as_str(), value.as_bytes());
    }
    put(
        "x-request-id",
        exchange.call.request_id().as_str().as_bytes(),
    );
    if let Some(claims) = exchange.call.pair() {
        for (name, value) in identity_fields(claims) {
            put(name, value.as_bytes());
        }
    }
    put("via", b"1.1 a2a-gateway-sidecar");
    wire.extend_from_slice(b"\r\n");
    wire
}

/// True if a field passes. Fields with `_` do not: some servers read `_` as `-`, so one could forge the caller.
fn is_forwarded(name: &HeaderName, head: &RequestHeader) -> bool {
    let set_here = matches!(
        name.as_str(),
        "host" | "content-length" | "expect" | "x-request-id"
    );
    !set_here
        && !is_hop_by_hop(name)
        && !is_identity_field(name)
        && !is_spent_token(name, head)
        && !name.as_str().contains('_')
        && !named_by_connection(name, &head.headers)
}

/// Fields that pass on an unauthenticated request for the card: those of content negotiation and of the route taken, no
/// credentials, and none that some servers read as another method or path.
const PUBLIC_FIELDS: &str = "accept accept-language accept-encoding user-agent a2a-version if-none-match \
    if-modified-since traceparent tracestate x-forwarded-for x-forwarded-proto x-forwarded-host via";

fn is_public_field(name: &HeaderName) -> bool {
    let name = name.as_str();
    PUBLIC_FIELDS.split(' ').any(|public| public == name)
}

/// Returns the fields that identify the caller.
pub(super) fn identity_fields(claims: &PairClaims) -> impl Iterator<Item = (&'static str, String)> {
    let workspace = WorkspaceId::parse(&claims.sub).ok();
    let workspace = workspace.map(|id| (WORKSPACE, id.as_str().to_owned()));
    [(CALLER, encode_visible(&claims.sub))]
        .into_iter()
        .chain(workspace)
}

/// Percent-encodes bytes that are not visible ASCII, and `%` (RFC 3986, 2.1), so that a field can carry the name.
fn encode_visible(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Builds the head of the answer: the agent's, without hop-by-hop fields and those that instruct a proxy in front. The
/// sidecar's origin is the agent's own, so fields that set policy for an origin pass.
///
/// # Errors
/// A field cannot be built. The parsers on both sides rule this out.
pub(super) fn response_head(
    upstream: &ResponseHeader,
    request_id: &RequestId,
) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(upstream.status, Some(upstream.headers.len() + 4))?;
    for (name, value) in &upstream.headers {
        let set_here = matches!(name.as_str(), "content-length" | "x-request-id");
        if !set_here
            && !is_proof(name)
            && !commands_proxy(name.as_str())
            && !is_hop_by_hop(name)
            && !named_by_connection(name, &upstream.headers)
        {
            head.append_header(name, value)?;
        }
    }
    head.insert_header(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF)?;
    put_request_id(&mut head, request_id)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_carried_in_visible_ascii() {
        assert_eq!(
            encode_visible("canvas:ada@example.com"),
            "canvas:ada@example.com"
        );
        assert_eq!(
            encode_visible("canvas:Zoë 100%"),
            "canvas:Zo%C3%AB%20100%25"
        );
    }
}
