//! Extended card, which is the result of a call. Like the public card it does not contain the agent's URLs.

use std::sync::Arc;

use crate::a2a::Generation;
use crate::a2a::card::{Card, CardError};
use crate::config::Config;
use crate::directory::{AGENT_CARD_BYTES_MAX, CardSource};
use crate::gateway::Gateway;
use crate::proxy::cards::cache::{render_card, sign_if_enabled, unreadable_card};
use crate::proxy::cards::forms;
use crate::proxy::upstream::too_large;
use crate::rejection::{Delivery, Reason, Rejection};

/// Workspace of the extended card, and the form of the response.
pub(in crate::proxy) struct ExtendedCard {
    pub(in crate::proxy) gateway: Arc<Gateway>,
    /// Configuration of the exchange.
    pub(in crate::proxy) config: Arc<Config>,
    /// The workspace.
    pub(in crate::proxy) source: Arc<CardSource>,
    /// The generation of the call.
    pub(in crate::proxy) generation: Generation,
}

impl ExtendedCard {
    /// Returns the card as callers may see it. `None`: it is empty.
    ///
    /// # Errors
    /// `agent_protocol_error` if it is no card, `response_too_large`.
    pub(in crate::proxy) fn render(&self, text: &str) -> Result<Option<String>, Rejection> {
        if text.len() > AGENT_CARD_BYTES_MAX {
            return Err(too_large(AGENT_CARD_BYTES_MAX as u64));
        }
        if text.trim() == "{}" {
            return Ok(None);
        }
        let card = Card::parse_fetched(text.as_bytes()).map_err(|broken| match broken {
            CardError::NoCard | CardError::Form => no_card(),
            CardError::TooLong => unreadable_card(broken),
        })?;
        let card = render_card(card, &self.source, &self.config).map_err(unreadable_card)?;
        let base = self.config.base_of(&self.source.id);
        let card = forms::form_for_call(&card, &base, self.source.bridge, self.generation);
        Ok(Some(sign_if_enabled(&self.gateway, card, &self.config)))
    }
}

fn no_card() -> Rejection {
    let message = "the agent's answer holds no card";
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}
