//! `[forward]`: additional header fields that pass to and from agents, and the names that are
//! refused.

use serde::Deserialize;

/// Request fields that pass to agents besides `forward.headers`.
pub const PASSED_TO_AGENTS: [&str; 11] = [
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

/// Fields of agents' answers that pass besides `forward.response_headers`. The gateway sets the length itself, and
/// `WWW-Authenticate` passes on a 401 only.
pub const PASSED_FROM_AGENTS: [&str; 14] = [
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

/// Request fields that the gateway sets or never forwards. Forwarding one would leak a caller's
/// credential to an agent, or let a caller impersonate another.
pub const NEVER_TO_AGENTS: &str = "authorization, connection, content-encoding, content-length, cookie, expect, \
    forwarded, host, keep-alive, proxy-authorization, te, trailer, transfer-encoding, upgrade, via, \
    x-a2a-caller-token, x-a2a-hops, x-a2a-on-behalf-of, x-request-id, x-timeout, x-workspace-id";

/// Response fields with which an agent would act for the gateway's origin, or that the gateway sets
/// itself.
const NEVER_FROM_AGENTS: &str = "alt-svc, clear-site-data, connection, content-length, content-security-policy, \
    content-security-policy-report-only, cross-origin-embedder-policy, cross-origin-opener-policy, \
    cross-origin-resource-policy, idempotent-kept, idempotent-replay, keep-alive, link, location, nel, \
    origin-agent-cluster, permissions-policy, preference-applied, proxy-authenticate, referrer-policy, refresh, \
    report-to, reporting-endpoints, server, service-worker-allowed, set-cookie, set-cookie2, sourcemap, \
    strict-transport-security, te, trailer, transfer-encoding, upgrade, x-content-type-options, x-frame-options, \
    x-request-id";

/// Name prefixes of such response fields.
const NEVER_FROM_AGENTS_PREFIXES: [&str; 4] = ["access-control-", "proxy-", "ratelimit", "x-a2a-"];

sections! {
    /// `[forward]`.
    Forward {
        /// Request fields that pass to the agent in addition to the fixed list.
        headers: Vec<String>,
        /// Response fields that pass from an agent in addition to the fixed list.
        response_headers: Vec<String>,
        /// Maximum gateways on the path of a call, this one included.
        max_hops: u32,
    }
}

/// True if a response field is a command to a proxy in front of the gateway (nginx, lighttpd,
/// Apache, Perlbal). `name` is in lower case.
pub fn commands_proxy(name: &str) -> bool {
    ["x-accel-", "x-sendfile", "x-lighttpd-", "x-reproxy-"]
        .iter()
        .any(|beginning| name.starts_with(beginning))
}

/// Returns why a request field never passes to agents, if it does not.
pub(super) fn refuse_request_field(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let own = NEVER_TO_AGENTS.split(", ").any(|own| own == lower);
    let own = own || lower.starts_with("proxy-") || lower.starts_with("x-forwarded-");
    let why = own.then_some("is the gateway's own or a credential, and is never passed on");
    quote_refused(name, why)
}

/// Returns why a response field never passes from agents, if it does not.
pub(super) fn refuse_response_field(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let begins = |beginning: &&str| lower.starts_with(*beginning);
    let mut never = NEVER_FROM_AGENTS.split(", ");
    let why = if commands_proxy(&lower) {
        Some("gives orders to a proxy in front of the gateway, and never passes from an agent")
    } else {
        (never.any(|own| own == lower) || NEVER_FROM_AGENTS_PREFIXES.iter().any(begins))
            .then_some("speaks for the gateway or its origin, and never passes from an agent")
    };
    quote_refused(name, why)
}

fn quote_refused(name: &str, why: Option<&str>) -> Option<String> {
    let is_bad = http::HeaderName::from_bytes(name.as_bytes()).is_err();
    let why = why.or(is_bad.then_some("is not the name of a field"))?;
    Some(format!("`{name}` {why}"))
}
