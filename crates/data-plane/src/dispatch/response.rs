//! The response of an agent to a deferred call.

use http::StatusCode;
use pingora::http::ResponseHeader;
use serde_json::value::RawValue;

use crate::upstream::refuse_redirect;
use a2a::reply::Reply;
use kernel::rejection::{Delivery, Reason, Rejection};
use mailbox::jobs::Ending;

/// Reads the agent's response.
///
/// # Errors
/// `agent_redirected`, `agent_protocol_error`.
pub(super) fn read_response(head: &ResponseHeader, body: &[u8]) -> Result<Ending, Rejection> {
    refuse_redirect(head)?;
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    let reply = Reply::parse(body);
    if let Some(error) = reply.as_ref().and_then(Reply::error).and_then(raw) {
        return Ok(Ending::Error(error));
    }
    let result = reply.as_ref().and_then(Reply::result).and_then(raw);
    match result.filter(|_| head.status.is_success()) {
        Some(result) => Ok(Ending::Result(result)),
        None => {
            let message = if head.status == StatusCode::OK {
                "the agent's answer is no JSON-RPC response"
            } else {
                "the agent answered with an HTTP status other than 200, and no JSON-RPC error"
            };
            Err(Rejection::new(Reason::AgentProtocolError, message)
                .with_fact("status", head.status.as_u16())
                .with_delivery(Delivery::Sent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_answers_is_a_result_an_error_or_neither() {
        let head = |status: u16| ResponseHeader::build(status, None).unwrap();
        let answer = |status, body: &str| read_response(&head(status), body.as_bytes());
        let result = answer(200, r#"{"jsonrpc":"2.0","id":"1","result":{"a":1.0}}"#);
        assert!(matches!(result, Ok(Ending::Result(raw)) if raw.get() == r#"{"a":1.0}"#));
        for status in [200, 400, 500] {
            let error = answer(status, r#"{"error":{"code":-32001,"message":"no"}}"#);
            assert!(matches!(error, Ok(Ending::Error(_))), "{status}");
        }
        for (status, body) in [(200, "hello"), (200, "{}"), (500, r#"{"result":1}"#)] {
            let why = answer(status, body).unwrap_err();
            assert_eq!(why.reason, Reason::AgentProtocolError, "{body}");
            assert_eq!(why.delivered, Some(Delivery::Sent));
        }
        let redirect = answer(307, "{}").unwrap_err();
        assert_eq!(redirect.reason, Reason::AgentRedirected);
    }
}
