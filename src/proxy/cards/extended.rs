//! The extended card, which is the result of a call: it tells no more of where the agent listens than
//! the other.

use std::sync::Arc;

use bytes::Bytes;

use super::cache::{served, unreadable};
use crate::a2a::card::{Card, Unreadable};
use crate::a2a::reply::Reply;
use crate::config::Config;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::rejection::{Reason, Rejection};

/// How an answer with a card in it is changed.
pub(in crate::proxy) struct ExtendedCard {
    pub(in crate::proxy) gateway: Arc<Gateway>,
    /// As it is for the exchange.
    pub(in crate::proxy) config: Arc<Config>,
    /// Whose card it is.
    pub(in crate::proxy) source: Arc<CardSource>,
    /// Whether it is the result of a JSON-RPC call, or stands alone.
    pub(in crate::proxy) in_envelope: bool,
}

impl ExtendedCard {
    /// The agent's answer with the card in it as callers may see it. Errors are the agent's own, and
    /// pass.
    ///
    /// # Errors
    /// `agent_protocol_error` for a success that holds no card.
    pub(in crate::proxy) fn answer(&self, success: bool, body: Bytes) -> Result<Bytes, Rejection> {
        if !self.in_envelope {
            return match (self.served(&body)?, success) {
                (Some(card), _) => Ok(card.into()),
                (None, false) => Ok(body),
                (None, true) => Err(no_card()),
            };
        }
        let reply = Reply::read(&body);
        let Some(result) = reply.as_ref().and_then(Reply::result) else {
            let error = reply.is_some_and(|reply| reply.error().is_some());
            return if error || !success {
                Ok(body)
            } else {
                Err(no_card())
            };
        };
        let card = self.served(result.as_bytes())?.ok_or_else(no_card)?;
        Ok(reply
            .map_or_else(|| card.clone(), |reply| reply.with_result(card.clone()))
            .into())
    }

    /// `None`: it is no card.
    fn served(&self, text: &[u8]) -> Result<Option<String>, Rejection> {
        match Card::fetched(text) {
            Ok(card) => {
                let card = served(card, &self.source, &self.config).map_err(unreadable)?;
                Ok(Some(super::cache::signed(
                    &self.gateway,
                    card,
                    &self.config,
                )))
            }
            Err(Unreadable::NoCard | Unreadable::Form) => Ok(None),
            Err(broken) => Err(unreadable(broken)),
        }
    }
}

fn no_card() -> Rejection {
    let message = "the agent's answer holds no card";
    Rejection::new(Reason::AgentProtocolError, message).fact("delivered", "true")
}
