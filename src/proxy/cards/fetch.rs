//! Fetches the card of an agent from its places. Redirects are not followed.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use pingora::http::ResponseHeader;
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout_at};

use crate::a2a::card::Card;
use crate::config::Config;
use crate::directory::{AGENT_CARD_BYTES_MAX, CardLocation, LookupFor};
use crate::gateway::Gateway;
use crate::ids::RequestId;
use crate::proxy::fetch::BufferedRequest;
use crate::proxy::upstream::{Upstream, WireRequest, build_agent_peer, refuse_redirect};
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;

/// Timeout of a fetch, after the connect timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// Request that a card is fetched for.
pub(super) struct CardRequest<'a> {
    /// Timeouts and limits of the request.
    pub(super) config: &'a Config,
    /// Id of the request, which is sent to the agent.
    pub(super) request_id: &'a RequestId,
    /// Account for the look-up of the agent's name.
    pub(super) account: Account,
    /// Gateways that the call has passed, this one included.
    pub(super) hops: u32,
}

/// Fetches the card from the first of the agent's places that has one.
///
/// # Errors
/// The reason why there is none: of the first place, if all answered and none had it.
pub(super) async fn fetch_card(
    upstream: &Upstream,
    gateway: &Gateway,
    place: &CardLocation,
    asked: &CardRequest<'_>,
) -> Result<Bytes, Rejection> {
    let fetched = try_fetch(upstream, gateway, place, asked).await;
    let outcome = fetched.as_ref().err();
    let outcome = outcome.map_or("fetched", |refusal| refusal.reason.as_str());
    gateway.metrics.count_card_fetch(outcome);
    fetched
}

async fn try_fetch(
    upstream: &Upstream,
    gateway: &Gateway,
    place: &CardLocation,
    asked: &CardRequest<'_>,
) -> Result<Bytes, Rejection> {
    let timeouts = &asked.config.timeouts;
    let patience = (timeouts.connect + PATIENCE).min(timeouts.total);
    let deadline = Instant::now() + patience;
    let asker = LookupFor::for_call(asked.account);
    let (addresses, witness) = (&gateway.directory.addresses, &mut ());
    let address = addresses.agent_address(&place.address_decision, &place.endpoint, asker, witness);
    let address = timeout_at(deadline, address);
    let address = address.await.map_err(|_| card_timeout())??;
    let peer = match &place.agent {
        Some(agent) => upstream.agent_peer(agent, address, timeouts.connect).await,
        None => build_agent_peer(address, &place.endpoint, timeouts.connect),
    };
    let mut first = None;
    for path in &place.paths {
        let question = BufferedRequest {
            peer: &peer,
            call: WireRequest::new(request_head(place, path, asked), Bytes::new()),
            deadline,
            bytes_max: AGENT_CARD_BYTES_MAX,
            idle: asked.config.upstream.idle,
            late: card_timeout,
        };
        let answered = match question.send(upstream, &gateway.metrics).await {
            // The pooled connection may have died, and a GET may be sent twice.
            Err(refusal) if refusal.reason == Reason::AgentProtocolError => {
                question.send(upstream, &gateway.metrics).await
            }
            answered => answered,
        };
        let (head, body) = answered?;
        match check_card(&head, &body) {
            Ok(()) => return Ok(body),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    Err(first.unwrap_or_else(|| no_card("the agent has no place for a card")))
}

/// Checks that a response is a card.
fn check_card(head: &ResponseHeader, body: &[u8]) -> Result<(), Rejection> {
    refuse_redirect(head)?;
    if head.status != StatusCode::OK {
        let status = head.status.as_u16();
        let message =
            format!("the agent does not give its card: it answers {status} where that should be");
        return Err(no_card(message).with_fact("status", status));
    }
    Card::parse_fetched(body).map(drop).map_err(|unreadable| {
        no_card("the agent's card cannot be read: what it gives is no JSON object, or is one and no agent card")
            .with_cause(unreadable)
    })
}

fn no_card(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message)
}

fn card_timeout() -> Rejection {
    let message = "the agent did not give its card in time";
    Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "card")
}

/// Returns the request. It serves many callers, so it has no data of any caller.
fn request_head(place: &CardLocation, path: &str, asked: &CardRequest<'_>) -> Vec<u8> {
    let mut wire = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\nuser-agent: a2a-gateway\r\n\
         x-request-id: {}\r\nx-a2a-hops: {}\r\nvia: 1.1 a2a-gateway\r\n",
        place.endpoint.host,
        asked.request_id.as_str(),
        asked.hops,
    )
    .into_bytes();
    end_head(&mut wire, place);
    wire
}

/// Ends the head of a request that is the gateway's own, with the credential that the agent at `place` requires.
pub(in crate::proxy) fn end_head(wire: &mut Vec<u8>, place: &CardLocation) {
    let agent = place.agent.as_ref();
    if let Some(auth) = agent.and_then(|agent| agent.upstream_auth.as_ref()) {
        for part in [auth.name(), ": ", auth.value().expose_secret(), "\r\n"] {
            wire.extend_from_slice(part.as_bytes());
        }
    }
    wire.extend_from_slice(b"\r\n");
}
