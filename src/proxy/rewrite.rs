//! How an agent's answer is changed before it goes to the caller: where the gateway translated the
//! call, or where the answer says what is not for this caller.

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;

use super::ended::broken_http;
use crate::a2a::bare_result::{self, Answer};
use crate::rejection::{Reason, Rejection};

/// What is done to an answer.
#[derive(Debug)]
pub(super) enum Rewrite {
    /// The call came without JSON-RPC, and was translated: its result goes back bare.
    BareResult,
}

/// Fields that speak of the body as it was.
const OF_THE_BODY: [&str; 5] = [
    "etag",
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
        _is_stream: bool,
    ) -> Result<(), Rejection> {
        let coded = head.headers.get(header::CONTENT_ENCODING);
        if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
            return Err(unreadable(
                "the agent compressed its answer, which nobody asked for",
            ));
        }
        match self {
            Self::BareResult => Ok(()),
        }
    }

    /// The body that goes to the caller, and its status.
    ///
    /// # Errors
    /// `agent_protocol_error` when it can't be read.
    pub(super) fn answer(self, head: &mut ResponseHeader, body: Bytes) -> Result<Bytes, Rejection> {
        for name in OF_THE_BODY {
            head.remove_header(name);
        }
        match self {
            Self::BareResult => bare_result(head, body),
        }
    }

    /// Whole events as they go to the caller.
    pub(super) fn events(&self, events: Bytes) -> Bytes {
        match self {
            Self::BareResult => bare_result::events(&events).into(),
        }
    }
}

fn bare_result(head: &mut ResponseHeader, body: Bytes) -> Result<Bytes, Rejection> {
    match bare_result::read(&body) {
        Answer::Result(result) => Ok(body.slice_ref(result.as_bytes())),
        Answer::Error(error, code) => {
            let status = StatusCode::from_u16(bare_result::status(code));
            // The agent's own word, where it says that something is wrong.
            if head.status.is_success() {
                head.set_status(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
                    .map_err(|e| broken_http(Some(e)))?;
            }
            Ok(bare_result::error_body(error).into())
        }
        Answer::Neither if head.status.is_success() => {
            Err(unreadable("the agent's answer is no JSON-RPC response"))
        }
        Answer::Neither => Ok(body),
    }
}

fn unreadable(message: &'static str) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}
