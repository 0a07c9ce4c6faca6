//! Rejections of calls that an agent was sent, and that it did not answer.

use std::time::Duration;

use crate::proxy::outcome::Failure;
use crate::rejection::{Delivery, Reason, Rejection};

/// Builds `agent_protocol_error`: the request was sent, and the response is not HTTP.
pub(in crate::proxy) fn broken_http(error: Option<Box<pingora::Error>>) -> Rejection {
    let rejection = Rejection::new(
        Reason::AgentProtocolError,
        "the agent closed the connection or broke HTTP before its answer was complete",
    )
    .with_delivery(Delivery::Sent);
    match error {
        Some(error) => rejection.with_cause(Failure(error)),
        None => rejection,
    }
}

/// Builds `agent_timeout`, with the name of the clock. The request was already sent.
pub(in crate::proxy) fn timed_out(clock: &'static str) -> Rejection {
    Rejection::new(
        Reason::AgentTimeout,
        format!("the agent did not answer in time (timeouts.{clock}); of a gateway, X-Timeout may ask for more"),
    )
    .with_fact("clock", clock)
    .with_delivery(Delivery::Sent)
}

/// Builds `shutting_down` for a call that was already started.
pub(in crate::proxy) fn shutting_down(delivered: Delivery) -> Rejection {
    Rejection::new(
        Reason::ShuttingDown,
        "this process is shutting down before the agent was done; ask again for the task",
    )
    .with_delivery(delivered)
}

/// Builds `agent_silent`.
pub(in crate::proxy) fn agent_silent(idle: Duration) -> Rejection {
    Rejection::new(
        Reason::AgentSilent,
        format!(
            "the agent sent nothing for {}",
            humantime::format_duration(idle)
        ),
    )
    .with_fact("clock", "idle")
    .with_delivery(Delivery::Sent)
}

pub(in crate::proxy) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::ResponseTooLarge,
        format!("the agent's answer is larger than {limit} bytes"),
    )
    .with_fact("limit", limit)
    .with_delivery(Delivery::Sent)
}

/// Builds the rejection of a head of so many bytes; `None`: of more than `max`.
pub(in crate::proxy) fn head_too_long(bytes: Option<usize>, max: usize) -> Rejection {
    let bytes = bytes.map_or_else(|| format!("more than {max}"), |bytes| bytes.to_string());
    Rejection::new(
        Reason::AgentProtocolError,
        format!("the head of the agent's answer has {bytes} bytes, and may have {max}"),
    )
    .with_delivery(Delivery::Sent)
}
