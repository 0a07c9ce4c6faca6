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
    /// The card as callers may see it. `None`: it has nothing that a card has, and is an answer like
    /// any other.
    ///
    /// # Errors
    /// `agent_protocol_error` when it can't be read.
    pub(in crate::proxy) fn served(&self, text: &str) -> Result<Option<String>, Rejection> {
        let card = match Card::fetched(text.as_bytes()) {
            Ok(card) => card,
            Err(Unreadable::NoCard) => return Ok(None),
            Err(Unreadable::Form) => return Err(no_card()),
            Err(broken) => return Err(unreadable(broken)),
        };
        let card = served(card, &self.source, &self.config).map_err(unreadable)?;
        Ok(Some(signed(&self.gateway, card, &self.config)))
    }
}

fn no_card() -> Rejection {
    let message = "the agent's answer holds no card";
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}
