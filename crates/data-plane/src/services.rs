//! The state of the data plane, which the stages of a request share, and the request itself.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderName;
use pingora::protocols::http::ServerSession;

use crate::admission::Origins;
use crate::cards::Cards;
use crate::guard::Guards;
use crate::parking::{Parking, WaitingCalls};
use crate::record::Exchange;
use crate::upstream::Relay;
use assembly::gateway::Gateway;
use kernel::config::Derived;
use kernel::shares::Share;

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
    pub(super) fn new(gateway: Arc<Gateway>, control: axum::Router, relay: Arc<Relay>) -> Self {
        Self {
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
                // Checked when the configuration was loaded.
                let names = config.forward.headers.iter();
                let known = names.filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
                known.collect()
            }),
            gateway,
        }
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
    /// The body, if it was read before its target was known.
    pub(super) early_body: Option<ReceivedBody>,
}

/// A body, with the share of the memory of bodies that it takes.
pub(super) struct ReceivedBody {
    pub(super) body: Bytes,
    pub(super) share: Share,
}

/// Field of the caller token for an agent that uses `Authorization` itself (`docs/reference/a2a.md`, "Request fields
/// that the agent receives").
pub(super) const CALLER_TOKEN: &str = "x-a2a-caller-token";
