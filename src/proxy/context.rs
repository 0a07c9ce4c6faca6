//! The state that the stages of a request share. Each stage borrows it.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::HeaderName;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use super::cards::store::Cards;
use super::connect_wait::WaitingCalls;
use super::guard::Guards;
use super::load::Slot;
use super::parking::Parking;
use super::record::Exchange;
use super::relay::Relay;
use super::request::origin::{Origins, client_address};
use super::request::validate;
use crate::a2a::completion_steps::CompletionSteps;
use crate::config::Derived;
use crate::gateway::Gateway;
use crate::ids::RequestId;
use crate::proxy::relay::fields::extra_fields;
use crate::proxy::respond::internal_error;
use crate::proxy::respond::response_head;
use crate::rejection::Rejection;

/// The state of the gateway's data plane.
pub(in crate::proxy) struct Context {
    /// The rooms of the gateway.
    pub(in crate::proxy) gateway: Arc<Gateway>,
    /// The relay to the agents.
    pub(in crate::proxy) relay: Arc<Relay>,
    /// The cards of the agents.
    pub(in crate::proxy) cards: Cards,
    /// The calls that wait for agents that sleep.
    pub(in crate::proxy) parking: Arc<Parking>,
    /// The browser origins that are allowed.
    pub(in crate::proxy) origins: Derived<Origins>,
    /// The control plane, for all other routes.
    pub(in crate::proxy) control: axum::Router,
    /// The calls that wait for agents that refuse connections.
    pub(in crate::proxy) held: WaitingCalls,
    /// The guards of the configuration in force.
    pub(in crate::proxy) guards: Guards,
    /// The request fields of `forward.headers`.
    pub(in crate::proxy) extra_fields: Derived<HashSet<HeaderName>>,
}

impl Context {
    /// Creates the state.
    ///
    /// # Errors
    /// `forward.headers` names a field that may not be forwarded.
    pub(in crate::proxy) fn new(
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

    /// Runs the checks that apply to every request on any route.
    ///
    /// # Errors
    /// The first rejection.
    pub(in crate::proxy) fn check(&self, session: &mut ServerSession) -> Result<(), Rejection> {
        validate::require_valid(session)?;
        self.origins.get().check(session.req_header())?;
        self.relay.load.check_open()
    }

    /// Runs the same checks, and takes a slot among the exchanges.
    ///
    /// # Errors
    /// As [`Context::check`]; `overloaded`.
    pub(in crate::proxy) fn take_slot(
        &self,
        session: &mut ServerSession,
    ) -> Result<Slot<'_>, Rejection> {
        self.check(session)?;
        self.relay.load.take_slot()
    }

    /// Begins the record of an exchange. `heard`: it is announced to subscribers of its target.
    pub(in crate::proxy) fn begin_exchange(&self, request_id: RequestId, heard: bool) -> Exchange {
        let watchers = heard.then_some(&self.gateway.events);
        let (metrics, config) = (&self.relay.metrics, &self.relay.config);
        Exchange::begin(metrics, config, watchers, request_id)
            .with_audit(&self.gateway.audit)
            .with_console(&self.gateway.console)
    }

    /// Returns the client's address: the peer's, or the one that a trusted proxy forwarded.
    pub(in crate::proxy) fn client_address(&self, session: &ServerSession) -> IpAddr {
        let peer = session
            .client_addr()
            .and_then(|a| a.as_inet())
            .map(std::net::SocketAddr::ip);
        // All listeners are TCP, so every peer has an address.
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        client_address(
            peer,
            &session.req_header().headers,
            &self.gateway.config().server.trusted_proxies,
        )
    }

    /// Adds the fields of every answer to a head. `done`: the completions, for `X-A2A-Completed`.
    ///
    /// # Errors
    /// A field cannot be built, which is a bug.
    pub(in crate::proxy) fn response_head(
        &self,
        session: &ServerSession,
        exchange: &Exchange,
        mut head: ResponseHeader,
        done: CompletionSteps,
    ) -> Result<ResponseHeader, Rejection> {
        if let Some(bridged) = exchange.bridged {
            bridged.write_to(&mut head).map_err(internal_error)?;
        }
        let request = &session.req_header().headers;
        let completed = (!done.is_empty()).then(|| done.to_string());
        response_head(head, request, &self.origins.get(), exchange, completed)
            .map_err(internal_error)
    }
}
