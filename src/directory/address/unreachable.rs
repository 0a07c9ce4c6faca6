//! Rejections of names without the address that is needed.

use super::endpoint::Endpoint;
use super::nameservers::Failure;
use crate::rejection::{Delivery, Reason, Rejection};

/// Rejects an endpoint at one address that its name does not have any more.
pub(super) fn left_name(endpoint: &Endpoint) -> Rejection {
    let title = endpoint.title;
    let message = format!(
        "the name in {title} does not have the address of this instance any more: try again"
    );
    Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent)
}

/// Rejects an endpoint whose name has no address. `failure`: of the look-up.
pub(super) fn unknown_name(endpoint: &Endpoint, failure: Failure) -> Rejection {
    let title = endpoint.title;
    let message =
        format!("the name in {title} has no address: check it, and the DNS that the gateway asks");
    let refusal =
        Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent);
    Rejection {
        cause: failure,
        ..refusal
    }
}
