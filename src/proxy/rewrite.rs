//! How an agent's answer is changed before it goes to the caller: where the gateway translated the
//! call, or where the answer says what is not for this caller.

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;

use super::cards::ExtendedCard;
use super::ended::internal;
use crate::a2a::bare_result;
use crate::a2a::reply::Reply;
use crate::rejection::{Reason, Rejection};

/// What is done to an answer.
pub(super) enum Rewrite {
    /// The call came without JSON-RPC, and was translated: its result goes back bare.
    BareResult,
    /// The agent's card is in it.
    ExtendedCard(Box<ExtendedCard>),
}

/// Fields that speak of the body as it was.
const OF_THE_BODY: [&str; 6] = [
    "etag",
    "last-modified",
    "content-md5",
    "content-digest",
    "repr-digest",
    "digest",
];

impl Rewrite {
    /// Refuses what could not be read.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) fn refuse_by_head(
        &self,
        head: &ResponseHeader,
        is_stream: bool,
    ) -> Result<(), Rejection> {
        let coded = head.headers.get(header::CONTENT_ENCODING);
        if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
            return Err(unreadable(
                "the agent compressed its answer, which nobody asked for",
            ));
        }
        match self {
            Self::ExtendedCard(_) if is_stream => Err(unreadable(
                "the agent answered with a stream where it was asked for one thing",
            )),
            Self::BareResult | Self::ExtendedCard(_) => Ok(()),
        }
    }

    /// The body that goes to the caller, and the head with it.
    ///
    /// # Errors
    /// `agent_protocol_error` when it can't be read.
    pub(super) fn answer(self, head: &mut ResponseHeader, body: Bytes) -> Result<Bytes, Rejection> {
        for name in OF_THE_BODY {
            head.remove_header(name);
        }
        match self {
            Self::BareResult => bare_result(head, body),
            Self::ExtendedCard(card) => card.answer(head.status.is_success(), body),
        }
    }

    /// Whole events as they go to the caller.
    pub(super) fn events(&self, events: Bytes) -> Bytes {
        match self {
            Self::BareResult => bare_result::events(&events).into(),
            Self::ExtendedCard(_) => events,
        }
    }
}

fn bare_result(head: &mut ResponseHeader, body: Bytes) -> Result<Bytes, Rejection> {
    let reply = Reply::read(&body);
    if let Some(error) = reply.as_ref().and_then(Reply::error) {
        let code = reply.as_ref().map_or(0, Reply::error_code);
        let status = StatusCode::from_u16(bare_result::status(code));
        // The agent's own status, where it says itself that something is wrong.
        if head.status.is_success() {
            head.set_status(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
                .map_err(internal)?;
        }
        return Ok(bare_result::error_body(error).into());
    }
    match reply.as_ref().and_then(Reply::result) {
        Some(result) => Ok(Bytes::copy_from_slice(result.as_bytes())),
        None if head.status.is_success() => {
            Err(unreadable("the agent's answer is no JSON-RPC response"))
        }
        None => Ok(body),
    }
}

fn unreadable(message: &'static str) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}
