//! The extended card, which is the result of a call: it tells no more of where the agent listens than
//! the other.

use std::sync::Arc;

use super::cache::{served, signed, unreadable};
use crate::a2a::card::{Card, Unreadable};
use crate::config::Config;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::rejection::{Reason, Rejection};

/// Whose extended card is asked for, and how it is served.
pub(in crate::proxy) struct ExtendedCard {
    pub(in crate::proxy) gateway: Arc<Gateway>,
    /// As it is for the exchange.
    pub(in crate::proxy) config: Arc<Config>,
    /// Whose.
    pub(in crate::proxy) source: Arc<CardSource>,
}

impl ExtendedCard {
    /// The card as callers may see it.
    ///
    /// # Errors
    /// `agent_protocol_error` when it is none.
    pub(in crate::proxy) fn served(&self, text: &str) -> Result<String, Rejection> {
        let card = Card::fetched(text.as_bytes()).map_err(|broken| match broken {
            Unreadable::NoCard | Unreadable::Form => no_card(),
            Unreadable::TooLong => unreadable(broken),
        })?;
        let card = served(card, &self.source, &self.config).map_err(unreadable)?;
        Ok(signed(&self.gateway, card, &self.config))
    }
}

fn no_card() -> Rejection {
    let message = "the agent's answer holds no card";
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}
