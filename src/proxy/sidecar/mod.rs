//! The sidecar in front of one agent (`docs/reference/sidecar.md`): the gateway's relay, behind the verification of pair
//! tokens. Any path and method that the agent serves passes; `/auth/verify` and `/auth/ready` are the sidecar's own.

mod fields;
mod verify;

use crate::a2a::method;
use crate::a2a::task::Binding;
use crate::dialect::{Dialect, ReplyForm};
use crate::ids::RequestId;
use crate::proxy::admission::{
    Origins, authorization_field, refuse_declared_oversize, single_field,
};
use crate::proxy::body::ReceivedBody;
use crate::proxy::complete::watch_state;
use crate::proxy::http1::AbortCause;
use crate::proxy::listener::{Service, internal_error};
use crate::proxy::record::{Answered, Exchange, ExchangeError};
use crate::proxy::reject::reject_exchange;
use crate::proxy::response::{Attempt, ExpectedAnswer, OutboundCall, relay_call};
use crate::proxy::sidecar::fields::{request_head, response_head};
use crate::proxy::trace::{Callee, ExchangeOrigin};
use crate::proxy::upstream::{CancelWatch, Clocks, Relay, WireRequest, build_peer};
use crate::proxy::{admission, body};
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;
use crate::sidecar::{CardAccess, Sidecar};
use bytes::Bytes;
use http::{HeaderName, Method, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

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
        let request_id = admission::request_id(&head.headers);
        match head.uri.path() {
            VERIFY => self.serve_verify(session, &request_id).await,
            READY => self.serve_ready(session, &request_id).await,
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
        exchange.record.set_status(rejection.reason.status());
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
        exchange
            .call
            .set_target(self.sidecar.settings.workspace.clone());
        refuse_method(&session.req_header().method)?;
        // A request without a token must have no body, so that a stranger cannot hold a slot with a slow one.
        let public = session.is_body_empty() && self.is_public(session.req_header());
        let head = session.req_header();
        refuse_declared_oversize(&exchange.call.config().limits, head)?;
        let received = if public {
            ReceivedBody {
                body: Bytes::new(),
                share: self.relay.load.new_share(Account::default()),
            }
        } else {
            let token = presented_token(&self.sidecar, head)?;
            exchange
                .call
                .set_pair(self.sidecar.authenticate(token).await?);
            // All come through gateways, which give each caller its share.
            body::read_body(
                &self.relay.load,
                exchange.call.config(),
                session,
                Account::default(),
            )
            .await?
        };
        let body = &received.body;
        exchange.record.set_request_bytes(body.len());
        let method = read_call(session.req_header(), body, exchange);
        if let Some(claims) = exchange.call.pair() {
            self.sidecar.check_body(claims, body, method.as_deref())?;
            self.sidecar.mark_used(claims)?;
        }
        drop(method);
        let forward = self.build_forward(session, exchange, received).await?;
        let answer = |head: &_, _: &ServerSession, exchange: &Exchange| {
            response_head(head, exchange.call.request_id()).map_err(internal_error)
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
    fn check_preliminaries(
        &self,
        session: &mut ServerSession,
    ) -> Result<crate::shares::SlotGuard<'_>, Rejection> {
        admission::require_valid(session)?;
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
            rpc: exchange.call.method() != method::Method::Unread,
        });
        let timeouts = &exchange.call.config().timeouts;
        let wire = request_head(session.req_header(), agent, exchange, body.len());
        Ok(OutboundCall {
            peer: build_peer(address, agent.tls, &agent.sni, timeouts.connect),
            call: WireRequest::new(wire, body),
            follows: None,
            keeps_place: false,
            share,
            clocks: Clocks::new(timeouts, exchange.call.started(), None, None),
            rewrite: None,
            snapshot: None,
            learner: watch_state(exchange.call.method(), Binding::Rpc),
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
            exchange.call.set_dialect(Dialect::Plain);
        }
        let sent = reject_exchange(session, &self.origins, exchange, rejection);
        AbortCause::from_write(sent.await)
    }
}

/// Rejects methods that agents do not serve.
///
/// # Errors
/// `method_not_allowed`.
fn refuse_method(method: &Method) -> Result<(), Rejection> {
    if !matches!(*method, Method::CONNECT | Method::TRACE) {
        return Ok(());
    }
    let message = "a sidecar passes neither CONNECT nor TRACE";
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    rejection.allow = Some(METHODS);
    Err(rejection)
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
    exchange.call.set_rpc_id(
        read.id
            .map(|id| id.get().to_owned())
            .filter(|id| id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())),
    );
    let method = read.method?;
    exchange.call.set_method(method::Method::parse(&method));
    Some(method)
}

/// True for fields that end here besides hop-by-hop fields: only the sidecar sets the identity of the caller.
fn is_identity_field(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "x-workspace-id" | "x-a2a-caller" | "x-a2a-caller-token"
    )
}

/// True if the credential was the token. A token is not passed beyond the sidecar that verifies it.
fn is_spent_token(name: &HeaderName, head: &RequestHeader) -> bool {
    *name == header::AUTHORIZATION && !head.headers.contains_key(CALLER_TOKEN)
}
