//! One request to an agent, with an answer that is read whole. It uses the connections of messages, a vetted address,
//! one deadline and one size limit.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, header};
use pingora::http::ResponseHeader;
use pingora::upstreams::peer::HttpPeer;
use secrecy::ExposeSecret as _;
use tokio::time::{Instant, timeout_at};

use crate::upstream::{
    AgentConnection, Upstream, WireRequest, build_agent_peer, refuse_by_framing, reject_answer,
    reject_unread, too_large,
};
use assembly::gateway::Gateway;
use directory::{CardLocation, Endpoint, LookupFor};
use http1::{AnswerReader, HeadWriter, content_length_of};
use kernel::metrics::Metrics;
use kernel::rejection::Rejection;
use kernel::shares::Account;

/// A request with an answer that is read whole.
pub(super) struct BufferedRequest<'a> {
    /// The agent, at an address that passed the check.
    pub(super) peer: &'a HttpPeer,
    /// The request in wire format.
    pub(super) call: WireRequest,
    /// The deadline of the whole answer.
    pub(super) deadline: Instant,
    /// Maximum bytes of the body.
    pub(super) bytes_max: usize,
    /// The time for which the connection is pooled afterwards.
    pub(super) idle: Duration,
    /// Builds the rejection after the deadline.
    pub(super) late: fn() -> Rejection,
}

impl BufferedRequest<'_> {
    /// Sends the request once.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`, `agent_protocol_error`, `response_too_large`.
    pub(super) async fn send(
        &self,
        upstream: &Upstream,
        metrics: &Metrics,
    ) -> Result<(ResponseHeader, Bytes), Rejection> {
        let connected = timeout_at(self.deadline, upstream.connect(self.peer)).await;
        let connection = connected.map_err(|_| (self.late)())??;
        self.send_over(connection, upstream, metrics).await
    }

    /// Sends the request over an established connection.
    ///
    /// # Errors
    /// As [`BufferedRequest::send`].
    pub(super) async fn send_over(
        &self,
        connection: AgentConnection,
        upstream: &Upstream,
        metrics: &Metrics,
    ) -> Result<(ResponseHeader, Bytes), Rejection> {
        let sent = upstream.send_over(
            connection,
            self.peer,
            &self.call,
            self.deadline,
            (metrics, None),
        );
        let answered = async {
            let mut answer = sent.await?;
            let head = read_head(&mut answer).await?;
            let body = self.read_body(&mut answer, &head).await?;
            Ok((answer, head, body))
        };
        let answered = timeout_at(self.deadline, answered).await;
        let (answer, head, body) = answered.unwrap_or_else(|_| Err((self.late)()))?;
        upstream.connector.pool_handle(self.idle).check_in(answer);
        Ok((head, body))
    }

    async fn read_body(
        &self,
        answer: &mut AnswerReader,
        head: &ResponseHeader,
    ) -> Result<Bytes, Rejection> {
        let limit = self.bytes_max as u64;
        if content_length_of(&head.headers).is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let mut body = BytesMut::new();
        while let Some(piece) = answer.read_piece().await.map_err(reject_unread)? {
            if body.len() + piece.len() > self.bytes_max {
                return Err(too_large(limit));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }
}

/// Returns the head of the answer, after informational ones.
async fn read_head(answer: &mut AnswerReader) -> Result<ResponseHeader, Rejection> {
    answer.read_head().await.map_err(reject_unread)?;
    let head = *answer.take_head().map_err(reject_unread)?;
    refuse_by_framing(&head)?;
    let coded = head.fields.headers.get(header::CONTENT_ENCODING);
    if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
        let message = "the agent compresses an answer without being asked to";
        return Err(reject_answer(message));
    }
    Ok(head.fields)
}

/// Returns the peer of an agent, or of a server with its card, for a request of the gateway's own.
///
/// # Errors
/// `address_forbidden`, `agent_unreachable`, `store_unavailable`; `late` after `deadline`.
pub(super) async fn locate_card(
    (gateway, upstream): (&Gateway, &Upstream),
    place: &CardLocation,
    account: Account,
    (connect, deadline): (Duration, Instant),
    late: fn() -> Rejection,
) -> Result<Box<HttpPeer>, Rejection> {
    let (addresses, asker) = (&gateway.directory.addresses, LookupFor::for_call(account));
    let witness = &mut ();
    let address = addresses.agent_address(&place.address_decision, &place.endpoint, asker, witness);
    let address = timeout_at(deadline, address).await.map_err(|_| late())??;
    Ok(match &place.agent {
        Some(agent) => upstream.agent_peer(agent, address, connect).await,
        None => build_agent_peer(address, &place.endpoint, connect),
    })
}

/// Writes the head of a `GET` of the gateway's own, with `lines` and the credential that the agent at `place` requires.
pub(super) fn get_head(place: &CardLocation, path: &str, lines: &[&str]) -> Vec<u8> {
    let mut head = HeadWriter::new("GET", path, &place.endpoint.host, 0);
    head.write_lines(lines);
    let agent = place.agent.as_ref();
    if let Some(auth) = agent.and_then(|agent| agent.upstream_auth.as_ref()) {
        head.write_field(auth.name.as_str(), auth.value.expose_secret());
    }
    head.finish()
}

/// Writes the head of a request of the gateway's own with a body of JSON, signed by a token. The operator's `fields`
/// take the place of the token's, which is `other` then.
pub(super) fn signed_head<'f>(
    (method, endpoint): (&str, &Endpoint),
    body_len: usize,
    fields: impl IntoIterator<Item = (HeaderName, &'f str)>,
    (token, other): (&str, &str),
) -> Vec<u8> {
    let (target, host) = (&endpoint.path_and_query, &endpoint.host);
    let mut head = HeadWriter::new(method, target, host, body_len);
    head.write_lines(&[
        "content-type: application/json",
        "accept: application/json",
        "user-agent: a2a-gateway",
    ]);
    head.write_display("content-length", body_len);
    let mut is_taken = false;
    for (name, value) in fields {
        is_taken |= name == header::AUTHORIZATION;
        head.write_field(name.as_str(), value);
    }
    match is_taken {
        true => head.write_field(other, token),
        false => head.write_display("authorization", format_args!("Bearer {token}")),
    }
    head.finish()
}

/// Returns the audience of a token for the server of an endpoint.
pub(super) fn audience_of(endpoint: &Endpoint) -> String {
    let scheme = if endpoint.tls { "https" } else { "http" };
    format!("{scheme}://{}", endpoint.host)
}
