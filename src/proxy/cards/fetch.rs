//! One short question to an agent, and its answer whole: over the connections that messages go over,
//! to the vetted address, within one clock and one bound. No redirect is followed.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout_at};

use crate::a2a::card::Card;
use crate::config::Config;
use crate::directory::{AGENT_CARD_BYTES_MAX, CardPlace, Directory};
use crate::ids::RequestId;
use crate::proxy::ended::{broken_http, too_large};
use crate::proxy::relay::{Relay, content_length, refuse_by_framing, refuse_redirect};
use crate::proxy::upstream::{Call, Home, peer};
use crate::rejection::{Reason, Rejection};

/// How long an agent may take for its card, once the connection could be there.
const PATIENCE: Duration = Duration::from_secs(5);

/// For which request a card is fetched.
pub(super) struct Asked<'a> {
    /// Its clocks and bounds.
    pub(super) config: &'a Config,
    /// Its id, which goes to the agent.
    pub(super) request_id: &'a RequestId,
    /// Gateways that it has gone through, this one included.
    pub(super) hops: u32,
}

/// Fetches the card from the first of the agent's places that has one.
///
/// # Errors
/// The reason why there is none: of the first place, where all answered and none had it.
pub(super) async fn fetch(
    relay: &Relay,
    directory: &Directory,
    place: &CardPlace,
    asked: &Asked<'_>,
) -> Result<Bytes, Rejection> {
    let fetched = try_fetch(relay, directory, place, asked).await;
    let outcome = fetched.as_ref().err();
    let outcome = outcome.map_or("fetched", |refusal| refusal.reason.word());
    relay.metrics.card_fetch(outcome);
    fetched
}

async fn try_fetch(
    relay: &Relay,
    directory: &Directory,
    place: &CardPlace,
    asked: &Asked<'_>,
) -> Result<Bytes, Rejection> {
    let timeouts = &asked.config.timeouts;
    let patience = (timeouts.connect + PATIENCE).min(timeouts.total);
    let deadline = Instant::now() + patience;
    let address = timeout_at(deadline, directory.address(&place.endpoint));
    let address = address.await.map_err(|_| late())??;
    let peer = match &place.agent {
        Some(agent) => relay.upstream.peer(agent, address, timeouts.connect).await,
        None => {
            let (tls, sni) = (place.endpoint.tls, place.endpoint.sni.clone());
            peer(address, tls, sni, timeouts.connect)
        }
    };
    let mut first = None;
    for path in &place.paths {
        let question = Question {
            peer: &peer,
            call: Call::new(request_head(place, path, asked), Bytes::new()),
            deadline,
            bytes_max: AGENT_CARD_BYTES_MAX,
            idle: asked.config.upstream.idle,
        };
        let answered = match question.ask(relay).await {
            // A pooled connection may have died under it, and a GET may be sent twice.
            Err(refusal) if refusal.reason == Reason::AgentProtocolError => {
                question.ask(relay).await
            }
            answered => answered,
        };
        let (head, body) = answered?;
        match judge(&head, &body) {
            Ok(()) => return Ok(body),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    Err(first.unwrap_or_else(|| no_card("the agent has no place for a card")))
}

/// Whether it is a card.
fn judge(head: &ResponseHeader, body: &[u8]) -> Result<(), Rejection> {
    refuse_redirect(head)?;
    if head.status != StatusCode::OK {
        let status = head.status.as_u16();
        let message =
            format!("the agent does not give its card: it answers {status} where that should be");
        return Err(no_card(message).fact("status", status));
    }
    Card::fetched(body).map(drop).map_err(|unreadable| {
        no_card("the agent's card cannot be read: what it gives is no JSON object, or is one and no agent card")
            .cause(unreadable)
    })
}

fn no_card(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message)
}

fn late() -> Rejection {
    let message = "the agent did not give its card in time";
    Rejection::new(Reason::AgentTimeout, message).fact("clock", "card")
}

/// The request: it is asked for many callers, so nothing of any caller is in it.
fn request_head(place: &CardPlace, path: &str, asked: &Asked<'_>) -> Vec<u8> {
    let mut wire = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\nuser-agent: a2a-gateway\r\n\
         x-request-id: {}\r\nx-a2a-hops: {}\r\nvia: 1.1 a2a-gateway\r\n",
        place.endpoint.host,
        asked.request_id.as_str(),
        asked.hops,
    )
    .into_bytes();
    let agent = place.agent.as_ref();
    if let Some(auth) = agent.and_then(|agent| agent.upstream_auth.as_ref()) {
        for part in [auth.name(), ": ", auth.value().expose_secret(), "\r\n"] {
            wire.extend_from_slice(part.as_bytes());
        }
    }
    wire.extend_from_slice(b"\r\n");
    wire
}

/// A request whose answer is read whole.
pub(super) struct Question<'a> {
    /// Whom: an address that may be dialled.
    pub(super) peer: &'a HttpPeer,
    /// The request for the wire.
    pub(super) call: Call,
    /// When the answer must be whole.
    pub(super) deadline: Instant,
    /// Longest body.
    pub(super) bytes_max: usize,
    /// How long the connection is kept after it.
    pub(super) idle: Duration,
}

impl Question<'_> {
    /// Asks once.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`, `agent_protocol_error`, `response_too_large`.
    pub(super) async fn ask(&self, relay: &Relay) -> Result<(ResponseHeader, Bytes), Rejection> {
        let sent = relay
            .upstream
            .send(self.peer, &self.call, self.deadline, &relay.metrics);
        let answered = async {
            let mut session = sent.await?;
            let head = head(&mut session).await?;
            let body = self.body(&mut session, &head).await?;
            Ok((session, head, body))
        };
        let answered = timeout_at(self.deadline, answered).await;
        let (session, head, body) = answered.unwrap_or_else(|_| Err(late()))?;
        let home = Home {
            upstream: &relay.upstream,
            peer: self.peer,
            idle: self.idle,
        };
        home.take_back(session).await;
        Ok((head, body))
    }

    async fn body(
        &self,
        session: &mut HttpSession,
        head: &ResponseHeader,
    ) -> Result<Bytes, Rejection> {
        let limit = self.bytes_max as u64;
        if content_length(head).is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let mut body = BytesMut::new();
        while !session.is_body_done() {
            let piece = session.read_body_bytes().await;
            let Some(piece) = piece.map_err(|e| broken_http(Some(e)))? else {
                break;
            };
            if body.len() + piece.len() > self.bytes_max {
                return Err(too_large(limit));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }
}

/// The head of the answer, past informational ones.
async fn head(session: &mut HttpSession) -> Result<ResponseHeader, Rejection> {
    loop {
        let read = session.read_response().await;
        read.map_err(|e| broken_http(Some(e)))?;
        let head = session.resp_header().ok_or_else(|| broken_http(None))?;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(broken_http(None));
        }
        if head.status.is_informational() {
            continue;
        }
        refuse_by_framing(head, &session.get_headers_raw_bytes())?;
        let coded = head.headers.get(header::CONTENT_ENCODING);
        if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
            return Err(no_card(
                "the agent compresses an answer that nobody asked it to",
            ));
        }
        return Ok(head.clone());
    }
}
