//! Decides whether a request may go to an agent, and to which one.
//!
//! The order of checks decides which rejection a caller sees (`docs/reference/a2a.md`, "Order of checks"). Nothing
//! reaches the agent before all checks passed.

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName};
use pingora::http::RequestHeader;

use crate::a2a::method::Method;
use crate::config::{Config, Limits};
use crate::directory::{AgentOptions, Destination, Preference};
use crate::gateway::Gateway;
use crate::hierarchy::Permit;
use crate::hops::{count_hops, whole_number};
use crate::identity::{A2A, Proof, Role};
use crate::ids::{InstanceId, InvalidWorkspaceId, WorkspaceId};
use crate::proxy::parking::Turn;
use crate::proxy::record::Exchange;
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;
use crate::store::Run;

const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");

/// Call that passed all checks except those of its body.
pub(super) struct AdmittedCall {
    /// The caller and its permission for the target.
    pub(super) allowed: AllowedCaller,
    /// The resolved target.
    pub(super) destination: Destination,
    /// The timeout that `X-Timeout` requests.
    pub(super) timeout: Option<Duration>,
    /// The number of gateways that the call has passed, this one included.
    pub(super) hops: u32,
    /// Preference of the call among the instances of its target; `None`: there are no named ones.
    pub(super) preference: Option<Box<Preference>>,
    /// Its turn among the calls that waited for their agent, if it was parked.
    pub(super) turn: Option<Turn>,
}

impl AdmittedCall {
    /// Runs the checks of the call.
    ///
    /// # Errors
    /// The first rejection.
    pub(super) fn new(
        allowed: AllowedCaller,
        destination: Destination,
        head: &RequestHeader,
        config: &Config,
    ) -> Result<Self, Rejection> {
        Ok(Self {
            allowed,
            destination,
            timeout: requested_timeout(head, config.timeouts.max)?,
            hops: count_hops(&head.headers, config.forward.max_hops)?,
            preference: None,
            turn: None,
        })
    }

    /// Returns the instance of the target that gets the call, if it has several.
    pub(super) fn instance(&self) -> Option<&InstanceId> {
        match &self.destination {
            Destination::Agent(agent) => agent.instance.as_ref(),
            Destination::Inbox(_) => None,
        }
    }

    /// The protocol options of the target: what the call must look like.
    pub(super) fn options(&self) -> &AgentOptions {
        self.destination.options()
    }
}

/// Caller that may reach the target, whatever state the target is in.
pub(super) struct AllowedCaller {
    /// The proven caller.
    pub(super) proof: Arc<Proof>,
    /// The permission of the caller for the target.
    pub(super) permit: Permit,
}

impl AllowedCaller {
    /// Returns the account under which the call takes memory and places.
    pub(super) fn account(&self) -> Account {
        self.proof.account
    }
}

/// Runs the checks of the caller.
///
/// # Errors
/// The first rejection.
pub(super) async fn authorize_caller(
    gateway: &Gateway,
    exchange: &mut Exchange,
    head: &RequestHeader,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
) -> Result<AllowedCaller, Rejection> {
    let target = target?;
    exchange.callee = Some(target.clone());
    let proof = authenticate_caller(gateway, exchange, head).await?;
    authorize_target(gateway, exchange, proof, &target).await
}

/// Proves the caller's identity, and that its rate, and the role of an operator, allow a request now.
///
/// # Errors
/// The first rejection.
pub(super) async fn authenticate_caller(
    gateway: &Gateway,
    exchange: &mut Exchange,
    head: &RequestHeader,
) -> Result<Arc<Proof>, Rejection> {
    refuse_declared_oversize(&exchange.config.limits, head)?;
    let proof = gateway
        .identity
        .authenticate_message(authorization_field(head)?)
        .await?;
    exchange.proof = Some(Arc::clone(&proof));
    for claimed in head.headers.get_all("x-workspace-id") {
        proof.check_caller(Some(claimed.as_bytes()))?;
    }
    exchange.allowance = gateway.rates.admit(&proof)?;
    proof.require_role(&head.method, A2A, Run::Real)?;
    if exchange.method.returns_content() {
        proof.require_at_least(Role::Admin)?;
    }
    Ok(proof)
}

/// Checks that the proven caller may reach the target, and that no stop covers the call. A card may be read of an agent
/// that is stopped.
///
/// # Errors
/// `not_permitted`, `stopped`, `store_unavailable`.
pub(super) async fn authorize_target(
    gateway: &Gateway,
    exchange: &mut Exchange,
    proof: Arc<Proof>,
    target: &WorkspaceId,
) -> Result<AllowedCaller, Rejection> {
    let permit = gateway.hierarchy.permit(&proof, target).await?;
    exchange.record_permit(&permit);
    if exchange.method != Method::AgentCard {
        gateway.stops.check(&permit)?;
    }
    Ok(AllowedCaller { proof, permit })
}

/// Returns the only `Authorization` field. Two of them are ambiguous and prove nothing.
///
/// # Errors
/// `unauthenticated`.
pub(super) fn authorization_field(head: &RequestHeader) -> Result<Option<&[u8]>, Rejection> {
    let mut values = head.headers.get_all(header::AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Rejection::new(
            Reason::Unauthenticated,
            "the request has several `Authorization` fields: send exactly one",
        )),
        (first, None) => Ok(first.map(http::HeaderValue::as_bytes)),
    }
}

/// Returns the only value of a field that must not be repeated: two proxies could each read a different one.
///
/// # Errors
/// `invalid_request`.
pub(super) fn single_field<'h>(
    head: &'h RequestHeader,
    name: &HeaderName,
) -> Result<Option<&'h [u8]>, Rejection> {
    let mut values = head.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Rejection::new(
            Reason::InvalidRequest,
            format!("the request has several `{name}` fields; send one"),
        )),
        (first, None) => Ok(first.map(http::HeaderValue::as_bytes)),
    }
}

/// Rejects a body with a declared length above the limit.
///
/// # Errors
/// `body_too_large`.
pub(super) fn refuse_declared_oversize(
    limits: &Limits,
    head: &RequestHeader,
) -> Result<(), Rejection> {
    let declared = head
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok());
    let limit = limits.request_bytes;
    match declared.and_then(|v| v.trim().parse::<u64>().ok()) {
        Some(bytes) if bytes > limit.0 => Err(too_large(limit.0)),
        _ => Ok(()),
    }
}

/// Builds `body_too_large`, with the limit in its message.
pub(super) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::BodyTooLarge,
        format!("the request body is larger than limits.request_bytes, {limit} bytes"),
    )
    .with_fact("limit", limit)
}

/// Reads `X-Timeout: <seconds>`, bounded by `timeouts.max`.
///
/// # Errors
/// `invalid_request`.
pub(super) fn requested_timeout(
    head: &RequestHeader,
    max: Duration,
) -> Result<Option<Duration>, Rejection> {
    let Some(field) = single_field(head, &X_TIMEOUT)? else {
        return Ok(None);
    };
    match whole_number(field) {
        Some(seconds) if seconds > 0 => Ok(Some(Duration::from_secs(seconds).min(max))),
        _ => Err(Rejection::new(
            Reason::InvalidRequest,
            "X-Timeout is a positive whole number of seconds",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_timeout_is_a_positive_integer_and_bounded() {
        let max = Duration::from_secs(1800);
        let ask = |value: &str| {
            let mut head = RequestHeader::build("POST", b"/", None).unwrap();
            head.insert_header("x-timeout", value).unwrap();
            requested_timeout(&head, max).map_err(|r| r.reason)
        };
        assert_eq!(ask("5"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(ask("99999"), Ok(Some(max)));
        assert_eq!(ask("99999999999999999999999"), Ok(Some(max)));
        for bad in ["0", "000", "-1", "+1", "1.5", "1s", "", " "] {
            assert_eq!(ask(bad), Err(Reason::InvalidRequest), "{bad:?}");
        }
    }
}
