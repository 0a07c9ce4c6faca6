//! One request to an agent, with an answer that is read whole. It uses the connections of messages, a vetted address,
//! one deadline and one size limit.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header;
use pingora::http::ResponseHeader;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, timeout_at};

use crate::metrics::Metrics;
use crate::proxy::http1::AnswerReader;
use crate::proxy::upstream::{
    AgentConnection, Upstream, WireRequest, content_length, refuse_by_framing, too_large,
};
use crate::rejection::{Delivery, Reason, Rejection};

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
        upstream.pool_handle(self.idle).check_in(answer);
        Ok((head, body))
    }

    async fn read_body(
        &self,
        answer: &mut AnswerReader,
        head: &ResponseHeader,
    ) -> Result<Bytes, Rejection> {
        let limit = self.bytes_max as u64;
        if content_length(head).is_some_and(|length| length > limit) {
            return Err(too_large(limit));
        }
        let mut body = BytesMut::new();
        while let Some(piece) = answer.read_piece().await? {
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
    answer.read_head().await?;
    let head = *answer.take_head()?;
    refuse_by_framing(&head)?;
    let coded = head.fields.headers.get(header::CONTENT_ENCODING);
    if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
        let message = "the agent compresses an answer without being asked to";
        let refusal = Rejection::new(Reason::AgentProtocolError, message);
        return Err(refusal.with_delivery(Delivery::Sent));
    }
    Ok(head.fields)
}
