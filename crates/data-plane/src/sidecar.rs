//! The sidecar in front of one agent (`docs/reference/sidecar.md`): the gateway's relay, behind the verification of
//! pair tokens. Any path and method that the agent serves passes; `/auth/verify` and `/auth/ready` are the sidecar's
//! own.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::admission::{
    Origins, authorization_field, method_not_allowed, refuse_declared_oversize, reject_exchange,
    request_id, require_valid, send_rejection, single_field,
};
use crate::body::read_body;
use crate::complete::watch_state;
use crate::listener::{NOSNIFF, Service, internal_error, is_proof, put_request_id, write_response};
use crate::record::{Answered, Exchange, ExchangeError, log_cause};
use crate::response::{Attempt, ExpectedAnswer, OutboundCall, relay_call};
use crate::services::ReceivedBody;
use crate::trace::{Callee, ExchangeOrigin};
use crate::upstream::{CancelWatch, Clocks, Relay, WireRequest};
use a2a::method::Method as A2aMethod;
use a2a::task::Binding;
use access::identity::ON_BEHALF_OF;
use assembly::sidecar::{Agent, CardAccess, Sidecar};
use http1::{AbortCause, HeadWriter, build_peer, is_hop_by_hop, named_by_connection};
use kernel::config::commands_proxy;
use kernel::dialect::{Dialect, ReplyForm};
use kernel::ids::{RequestId, WorkspaceId};
use kernel::metrics::Plane;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, SlotGuard};
use kernel::telemetry::traces::context::{context_fields, is_context};
use trust::PairClaims;

/// Path on which a proxy that forwards requests itself asks whether one may pass.
const VERIFY: &str = "/auth/verify";

/// Path of the readiness probe: 200 once callers can be verified.
const READY: &str = "/auth/ready";

/// Paths of agents' cards: since A2A 0.3, and before.
const CARDS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// The methods that agents serve. `CONNECT` asks for a tunnel, and an answer to `TRACE` repeats the request: neither
/// is allowed.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The field of the token if the agent has credentials of its own.
const CALLER_TOKEN: HeaderName = HeaderName::from_static("x-a2a-caller-token");

/// The sidecar's data plane.
pub(super) struct SidecarProxy {
    sidecar: Arc<Sidecar>,
    relay: Arc<Relay>,
    /// Empty: browser pages are not served here, and an agent's CORS fields are its own.
    origins: Origins,
}

impl Service for SidecarProxy {
    async fn serve(&self, session: &mut ServerSession) -> Result<(), AbortCause> {
        let head = session.req_header();
        let request_id = request_id(&head.headers);
        match head.uri.path() {
            VERIFY => self.serve_own(session, &request_id, VERIFY).await,
            READY => self.serve_own(session, &request_id, READY).await,
            _ => self.handle_request(session, request_id).await,
        }
    }

    fn record_unreadable(
        &self,
        _path: Option<&str>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) -> ReplyForm {
        let (metrics, config) = (&self.relay.metrics, &self.relay.config);
        let mut exchange = Exchange::begin(metrics, config, request_id.clone());
        if let Some(peer) = peer {
            exchange = exchange.with_client(peer.to_canonical());
        }
        exchange.record.status = rejection.reason.status();
        exchange.record_rejection(rejection);
        Dialect::Plain.into()
    }
}

impl SidecarProxy {
    pub(super) fn new(sidecar: Arc<Sidecar>, relay: Arc<Relay>) -> Self {
        Self {
            sidecar,
            relay,
            origins: Origins::default(),
        }
    }

    /// Handles a request from its token to the record.
    async fn handle_request(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), AbortCause> {
        let mut exchange = Exchange::begin(&self.relay.metrics, &self.relay.config, request_id);
        if let Some(peer) = session.client_addr().and_then(|peer| peer.as_inet()) {
            exchange = exchange.with_client(peer.ip().to_canonical());
        }
        let head = session.req_header();
        exchange.begin_trace(&self.relay.traces, head, || {
            ExchangeOrigin::past_sidecar(head)
        });
        let ended = self.run_exchange(session, &mut exchange).await;
        match exchange.record_outcome(ended) {
            Ok(ended) => ended,
            Err(rejection) => {
                self.send_rejection(session, &mut exchange, &rejection)
                    .await
            }
        }
    }

    async fn run_exchange(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
    ) -> Result<Answered, ExchangeError> {
        let _place = self.check_preliminaries(session)?;
        exchange.call.target = Some(self.sidecar.settings.workspace.clone());
        if matches!(session.req_header().method, Method::CONNECT | Method::TRACE) {
            let message = "a sidecar passes neither CONNECT nor TRACE";
            return Err(method_not_allowed(message, METHODS).into());
        }
        // A request without a token must have no body, so that a stranger cannot hold a slot with a slow one.
        let public = session.is_body_empty() && self.is_public(session.req_header());
        let head = session.req_header();
        refuse_declared_oversize(&exchange.call.config.limits, head)?;
        let received = if public {
            ReceivedBody {
                body: Bytes::new(),
                share: self.relay.load.new_share(Account::default()),
            }
        } else {
            let token = presented_token(&self.sidecar, head)?;
            let claims = self.sidecar.authenticate(token).await?;
            let field = single_field(session.req_header(), &ON_BEHALF_OF)?;
            exchange.call.root = self.sidecar.verify_chain(&claims, field)?;
            exchange.call.pair = Some(Box::new(claims));
            // All come through gateways, which give each caller its share.
            let (load, config) = (&self.relay.load, &exchange.call.config);
            read_body(load, config, session, Account::default()).await?
        };
        let body = &received.body;
        exchange.record.request_bytes = body.len() as u64;
        let method = read_call(session.req_header(), body, exchange);
        if let Some(claims) = exchange.call.pair.as_ref() {
            self.sidecar.check_body(claims, body, method.as_deref())?;
            self.sidecar.mark_used(claims)?;
        }
        drop(method);
        let forward = self.build_forward(session, exchange, received).await?;
        let answer = |head: &_, _: &ServerSession, exchange: &Exchange| {
            response_head(head, &exchange.call.request_id).map_err(internal_error)
        };
        exchange.record.start_call_span();
        let upstream = &self.relay.upstream;
        let mut cut = CancelWatch::for_drain(&self.relay.drain);
        let connection = tokio::select! {
            biased;
            connected = upstream.connect_by(&forward.peer, forward.clocks.total) => {
                connected.map_err(Rejection::from)?
            }
            why = cut.cancelled(Delivery::NotSent) => return Err(why.into()),
        };
        let call = (forward, connection);
        relay_call(&self.relay, session, exchange, call, answer).await
    }

    /// Runs the checks of every request that takes a slot.
    fn check_preliminaries(&self, session: &mut ServerSession) -> Result<SlotGuard<'_>, Rejection> {
        require_valid(session)?;
        self.relay.load.check_open()?;
        self.relay.load.take_slot()
    }

    async fn build_forward(
        &self,
        session: &ServerSession,
        exchange: &mut Exchange,
        ReceivedBody { body, share }: ReceivedBody,
    ) -> Result<OutboundCall, Rejection> {
        let agent = &self.sidecar.settings.agent;
        let address = agent.resolve_address().await?;
        exchange.begin_call_span(&Callee {
            verb: &session.req_header().method,
            host: &agent.sni,
            port: address.port(),
            tls: agent.tls,
            rpc: exchange.call.method != A2aMethod::Unread,
        });
        let timeouts = &exchange.call.config.timeouts;
        let wire = request_head(session.req_header(), agent, exchange, body.len());
        Ok(OutboundCall {
            peer: build_peer(address, agent.tls, &agent.sni, timeouts.connect),
            call: WireRequest::new(wire, body),
            follows: None,
            keeps_place: false,
            share,
            clocks: Clocks::new(timeouts, exchange.call.started, None, None),
            rewrite: None,
            snapshot: None,
            learner: watch_state(exchange.call.method, Binding::Rpc),
            slot: None,
            turn: None,
            expected: ExpectedAnswer::Any,
            attempt: Attempt::Only,
        })
    }

    fn is_public(&self, head: &RequestHeader) -> bool {
        let reads = matches!(head.method, Method::GET | Method::HEAD);
        self.sidecar.settings.card == CardAccess::Public
            && reads
            && CARDS.contains(&head.uri.path())
    }

    async fn send_rejection(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        rejection: &Rejection,
    ) -> Result<(), AbortCause> {
        if session.req_header().method != Method::POST {
            exchange.call.dialect = Dialect::Plain;
        }
        let sent = reject_exchange(session, &self.origins, exchange, rejection);
        AbortCause::from_write(sent.await)
    }
}

/// Returns the token of a request: from its own field, or from the credential.
///
/// # Errors
/// `unauthenticated`; `invalid_request` if the field is repeated.
fn presented_token<'h>(sidecar: &Sidecar, head: &'h RequestHeader) -> Result<&'h str, Rejection> {
    let text = |field: &'h [u8]| {
        std::str::from_utf8(field)
            .map_err(|_| sidecar.reject_missing_token("the token is not text"))
    };
    if let Some(field) = single_field(head, &CALLER_TOKEN)? {
        return text(field).map(str::trim);
    }
    let none = || {
        sidecar.reject_missing_token(
            "the request has no pair token: the gateway puts one into `Authorization`, or into `X-A2A-Caller-Token`",
        )
    };
    let field = authorization_field(head)?.ok_or_else(none)?;
    let (scheme, token) = text(field)?.trim().split_once(' ').ok_or_else(none)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(none());
    }
    Ok(token.trim())
}

/// Reads the JSON-RPC id and method of a call, for the record and for rejections. Returns the method.
fn read_call<'b>(
    head: &RequestHeader,
    body: &'b [u8],
    exchange: &mut Exchange,
) -> Option<Cow<'b, str>> {
    /// The members that are read. A duplicate key makes the body invalid as a call.
    #[derive(Deserialize)]
    struct CallMembers<'b> {
        #[serde(borrow)]
        id: Option<&'b RawValue>,
        #[serde(borrow)]
        method: Option<Cow<'b, str>>,
    }
    if head.method != Method::POST {
        return None;
    }
    // With `a2a.complete = "off"` the gateway leaves a byte order mark in place.
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let read: CallMembers<'_> = serde_json::from_slice(text).ok()?;
    exchange.call.rpc_id = read
        .id
        .map(|id| id.get().to_owned())
        .filter(|id| id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit()));
    let method = read.method?;
    exchange.call.method = A2aMethod::parse(&method);
    Some(method)
}

// The header fields that pass through a sidecar: all but hop-by-hop fields and those that identify the caller. The
// list is wider than the gateway's, because the request has already passed the gateway.

/// The caller of any kind: a workspace, `canvas:<user>`, `org:<org>`.
const CALLER: &str = "x-a2a-caller";

/// The calling workspace; absent for other callers.
const WORKSPACE: &str = "x-workspace-id";

/// The root of the chain on which the call is made; absent without one.
const ROOT: &str = "x-a2a-root";

/// Writes the request head in wire format.
fn request_head(
    head: &RequestHeader,
    agent: &Agent,
    exchange: &Exchange,
    body_len: usize,
) -> Vec<u8> {
    let target = head.uri.path_and_query().map_or("/", |t| t.as_str());
    let mut wire = HeadWriter::new(head.method.as_str(), target, &agent.host, body_len);
    let known = exchange.call.pair.as_ref().is_some();
    let context = exchange.call.outgoing_trace();
    for (name, value) in &head.headers {
        let own = context.is_some() && is_context(name);
        if !own && is_forwarded(name, head) && (known || is_listed(name, PUBLIC_FIELDS)) {
            wire.write_field(name.as_str(), value);
        }
    }
    let framed = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING]
        .iter()
        .any(|name| head.headers.contains_key(name));
    if framed || body_len > 0 {
        wire.write_display("content-length", body_len);
    }
    for (name, value) in context.into_iter().flat_map(context_fields) {
        wire.write_field(name.as_str(), value);
    }
    wire.write_field("x-request-id", exchange.call.request_id.as_str());
    if let Some(claims) = exchange.call.pair.as_ref() {
        for (name, value) in identity_fields(claims) {
            wire.write_field(name, value);
        }
    }
    if let Some(root) = &exchange.call.root {
        wire.write_field(ROOT, encode_visible(root));
    }
    wire.write_field("via", "1.1 a2a-gateway-sidecar");
    wire.finish()
}

/// True if a field passes. Fields with `_` do not: some servers read `_` as `-`, so one could forge the caller.
fn is_forwarded(name: &HeaderName, head: &RequestHeader) -> bool {
    // Only the sidecar sets the identity of the caller.
    let set_here = "host content-length expect x-request-id x-workspace-id x-a2a-caller x-a2a-caller-token \
         x-a2a-root";
    // The credential was the token, which is not passed beyond the sidecar that verifies it.
    let is_spent = *name == header::AUTHORIZATION && !head.headers.contains_key(CALLER_TOKEN);
    !is_listed(name, set_here)
        && !is_hop_by_hop(name)
        && !is_spent
        && !name.as_str().contains('_')
        && !named_by_connection(name, &head.headers)
}

/// Fields that pass on an unauthenticated request for the card: those of content negotiation and of the route taken, no
/// credentials, and none that some servers read as another method or path.
const PUBLIC_FIELDS: &str = "accept accept-language accept-encoding user-agent a2a-version if-none-match \
    if-modified-since traceparent tracestate x-forwarded-for x-forwarded-proto x-forwarded-host via";

fn is_listed(name: &HeaderName, names: &str) -> bool {
    names.split(' ').any(|listed| listed == name.as_str())
}

/// Returns the fields that identify the caller.
fn identity_fields(claims: &PairClaims) -> impl Iterator<Item = (&'static str, String)> {
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
fn response_head(
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

// `GET /auth/verify`, for a proxy that forwards requests itself after asking (nginx `auth_request`, Traefik
// ForwardAuth, Caddy `forward_auth`), and `GET /auth/ready`, for probes.
//
// The sidecar does not see the body of the request in question, so it does not compare its hash.

impl SidecarProxy {
    /// Answers a request for one of the sidecar's own routes: 200, to `/auth/verify` with the fields that identify the
    /// caller, or the rejection.
    async fn serve_own(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
        route: &'static str,
    ) -> Result<(), AbortCause> {
        let started = Instant::now();
        let said: Result<Vec<_>, _> = match route {
            VERIFY => {
                let verified = self.verify_caller(session).await;
                tracing::info!(
                    target: "access",
                    {
                    exchange.id = request_id.as_str(),
                    caller = verified.as_ref().ok().map(|claims| claims.sub.as_str()),
                    callee = self.sidecar.settings.workspace.as_str(),
                    outcome = verified.as_ref().map_or_else(|r| r.reason.as_str(), |_| "verified"),
                    },
                    "A proxy asked who calls"
                );
                verified.map(|claims| identity_fields(&claims).collect())
            }
            _ => self.check_ready(session).map(|()| Vec::new()),
        };
        let status = said.as_ref().map_or_else(|r| r.reason.status(), |_| 200);
        let (metrics, elapsed) = (&self.relay.metrics, started.elapsed());
        metrics.control.record_response(route, status, elapsed);
        // The proxy does not send the body of the request in question.
        AbortCause::from_write(match said {
            Ok(fields) => write_fields(session, request_id, &fields).await,
            Err(rejection) => {
                metrics.refusals.by_reason[Plane::Control][rejection.reason].inc();
                log_cause(&rejection, request_id);
                let form = Dialect::Plain.into();
                send_rejection(session, &self.origins, request_id, &rejection, &form).await
            }
        })
    }

    /// Checks that callers can be verified.
    fn check_ready(&self, session: &mut ServerSession) -> Result<(), Rejection> {
        require_valid(session)?;
        require_read(session)?;
        if self.relay.drain.has_begun() {
            let message = "this process is shutting down";
            return Err(Rejection::new(Reason::ShuttingDown, message));
        }
        self.sidecar.check_ready()
    }

    async fn verify_caller(&self, session: &mut ServerSession) -> Result<PairClaims, Rejection> {
        let _place = self.check_preliminaries(session)?;
        require_read(session)?;
        let token = presented_token(&self.sidecar, session.req_header())?;
        let claims = self.sidecar.authenticate(token).await?;
        self.sidecar.mark_used(&claims)?;
        Ok(claims)
    }
}

fn require_read(session: &ServerSession) -> Result<(), Rejection> {
    match session.req_header().method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(method_not_allowed("ask with GET", "GET, HEAD")),
    }
}

async fn write_fields(
    session: &mut ServerSession,
    request_id: &RequestId,
    fields: &[(&'static str, String)],
) -> Result<(), ExchangeError> {
    let mut head = ResponseHeader::build(200, Some(6))?;
    for (name, value) in fields {
        head.append_header(*name, value.as_str())?;
    }
    head.append_header(header::CONTENT_LENGTH, 0)?;
    head.append_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
    head.append_header(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF)?;
    put_request_id(&mut head, request_id)?;
    write_response(session, head, Bytes::new()).await
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
