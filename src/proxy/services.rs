//! The state of the data plane, which the stages of a request share, and the request itself.

use std::collections::HashSet;
use std::sync::Arc;

use http::HeaderName;
use pingora::protocols::http::ServerSession;

use crate::config::Derived;
use crate::gateway::Gateway;
use crate::proxy::admission::Origins;
use crate::proxy::cards::store::Cards;
use crate::proxy::guard::Guards;
use crate::proxy::http1::is_hop_by_hop;
use crate::proxy::parking::{Parking, WaitingCalls};
use crate::proxy::record::Exchange;
use crate::proxy::upstream::Relay;

/// The state of the gateway's data plane.
pub(super) struct Context {
    /// The rooms of the gateway.
    pub(super) gateway: Arc<Gateway>,
    /// The relay to the agents.
    pub(super) relay: Arc<Relay>,
    /// The cards of the agents.
    pub(super) cards: Cards,
    /// The calls that wait for agents that sleep.
    pub(super) parking: Arc<Parking>,
    /// The browser origins that are allowed.
    pub(super) origins: Derived<Origins>,
    /// The control plane, for all other routes.
    pub(super) control: axum::Router,
    /// The calls that wait for agents that refuse connections.
    pub(super) held: WaitingCalls,
    /// The guards of the configuration in force.
    pub(super) guards: Guards,
    /// The request fields of `forward.headers`.
    pub(super) extra_fields: Derived<HashSet<HeaderName>>,
}

impl Context {
    /// Creates the state.
    ///
    /// # Errors
    /// `forward.headers` names a field that may not be forwarded.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        control: axum::Router,
        relay: Arc<Relay>,
    ) -> Result<Self, String> {
        // Errors surface at the start. A reload is checked before it is applied.
        extra_fields(&gateway.config().forward.headers)?;
        Ok(Self {
            cards: Cards::new(&gateway, &relay),
            parking: Parking::new(
                gateway.config.clone(),
                Arc::clone(&gateway.metrics),
                &gateway.coherence,
            ),
            guards: Guards::new(&gateway, &relay.drain),
            relay,
            control,
            held: WaitingCalls::default(),
            origins: Derived::new(&gateway.config, |config, _| Origins::new(config)),
            extra_fields: Derived::new(&gateway.config, |config, _| {
                extra_fields(&config.forward.headers).unwrap_or_default()
            }),
            gateway,
        })
    }
}

/// A request in progress: each stage takes it, reads from the session, and notes in the record.
pub(super) struct Request<'a> {
    /// The shared state.
    pub(super) context: &'a Context,
    /// The caller's side.
    pub(super) session: &'a mut ServerSession,
    /// The record.
    pub(super) exchange: &'a mut Exchange,
}

/// Field of the caller token for an agent that uses `Authorization` itself (`docs/reference/a2a.md`, "Request fields
/// that the agent receives").
pub(super) const CALLER_TOKEN: &str = "x-a2a-caller-token";

/// Parses `forward.headers`: fields that could break framing or forge an identity are not allowed.
///
/// # Errors
/// The first name that is not allowed, with the reason.
pub fn extra_fields(names: &[String]) -> Result<HashSet<HeaderName>, String> {
    names
        .iter()
        .map(|name| {
            let parsed = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|_| format!("`{name}` is not the name of a header field"))?;
            let own = matches!(
                parsed.as_str(),
                "host"
                    | "content-length"
                    | "content-encoding"
                    | "expect"
                    | "via"
                    | "authorization"
                    | "cookie"
                    | CALLER_TOKEN
                    | "x-a2a-hops"
                    | "x-request-id"
                    | "x-workspace-id"
            );
            if own || is_hop_by_hop(&parsed) || parsed.as_str().starts_with("x-forwarded-") {
                return Err(format!(
                    "`{name}` is set by the gateway and can't be forwarded"
                ));
            }
            Ok(parsed)
        })
        .collect()
}
