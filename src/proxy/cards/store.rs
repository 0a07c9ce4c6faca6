//! The cards of the agents: what calls read from them, from memory or by a fetch.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::ServerSession;

use crate::a2a::Generation;
use crate::a2a::card::AgentSides;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::proxy::admission::AdmittedCall;
use crate::proxy::cards::cache::{CachedCard, CardCache};
use crate::proxy::cards::fetch::CardRequest;
use crate::proxy::listener::client_disconnected;
use crate::proxy::record::{Exchange, ExchangeError};
use crate::proxy::upstream::{CancelWatch, Relay};
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;

/// The cards of the agents.
pub(in crate::proxy) struct Cards {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    cache: CardCache,
}

impl Cards {
    /// Creates an empty cache.
    pub(in crate::proxy) fn new(gateway: &Arc<Gateway>, relay: &Arc<Relay>) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            relay: Arc::clone(relay),
            cache: CardCache::default(),
        }
    }

    /// Returns whether the target sends push notifications, by its own card. `None`: the card does not say.
    ///
    /// # Errors
    /// The caller left, or the process shuts down; `store_unavailable`.
    pub(in crate::proxy) async fn sends_push(
        &self,
        caller: &mut ServerSession,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Option<bool>, ExchangeError> {
        let cached = self.card_of_target(Some(caller), exchange, admitted);
        Ok(cached.await?.pushes)
    }

    /// Returns what the target speaks: by its registered card, else by the fetched one that is in memory. Fetches no
    /// card.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn known_sides(
        &self,
        admitted: &AdmittedCall,
    ) -> Result<AgentSides, Rejection> {
        let options = admitted.options();
        if options.has_card {
            return Ok(options.spoken.clone());
        }
        let source = self.card_source(admitted).await?;
        Ok(self.cache.cached_sides(&source).await)
    }

    /// Returns what the target speaks by the card that callers get, which is fetched if it is not fresh.
    ///
    /// # Errors
    /// The agent cannot be reached; the caller left, or the process shuts down.
    pub(in crate::proxy) async fn fetch_sides(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<AgentSides, ExchangeError> {
        let cached = self.reachable_card(caller, exchange, admitted).await?;
        Ok(cached.spoken.clone())
    }

    /// Returns the path of the target's HTTP+JSON interface for callers of a generation, without a trailing slash.
    ///
    /// # Errors
    /// As [`Cards::fetch_sides`]; `agent_protocol_error` if the card that callers get has no such interface.
    pub(in crate::proxy) async fn http_json_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        generation: Generation,
    ) -> Result<String, ExchangeError> {
        let cached = self.reachable_card(caller, exchange, admitted).await?;
        let path = cached.http_json.path_for(generation).ok_or_else(|| {
            let message = "the agent's card names an HTTP+JSON interface without an http URL: correct the url in the card";
            mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
        })?;
        Ok(path.trim_end_matches('/').to_owned())
    }

    /// Returns the card of the target, unless the agent cannot be reached: then its interfaces are unknown.
    async fn reachable_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let cached = self.card_of_target(caller, exchange, admitted).await?;
        match &cached.served {
            Err(refusal)
                if matches!(
                    refusal.reason,
                    Reason::AgentUnreachable | Reason::AgentTimeout
                ) =>
            {
                Err(mark_undelivered(refusal).into())
            }
            _ => Ok(cached),
        }
    }

    /// Returns the path for a call of `method` at a target with a card URL only.
    ///
    /// # Errors
    /// The reason why there is no card; `agent_protocol_error` if it has no such interface.
    pub(in crate::proxy) async fn json_rpc_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        method: Option<&str>,
    ) -> Result<String, ExchangeError> {
        let cached = self.card_of_target(caller, exchange, admitted).await?;
        let generation = method.map_or_else(Generation::default, Generation::of_method);
        Ok(path_in_card(&cached, generation)?)
    }

    /// As [`Cards::json_rpc_path`], from the card in memory, with its age. `None`: it would be fetched.
    ///
    /// # Errors
    /// As [`Cards::json_rpc_path`].
    pub(in crate::proxy) async fn peek_path(
        &self,
        source: &CardSource,
        generation: Generation,
    ) -> Option<(Result<String, Rejection>, Duration)> {
        let config = self.gateway.config.snapshot();
        let cached = self
            .cache
            .get_cached(&self.gateway, source, &config)
            .await?;
        Some((path_in_card(&cached, generation), cached.age()))
    }

    /// Returns the card of the target of a call.
    async fn card_of_target(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let source = self.card_source(admitted).await?;
        self.get_card(caller, exchange, admitted.hops, &source)
            .await
    }

    async fn card_source(&self, admitted: &AdmittedCall) -> Result<Arc<CardSource>, Rejection> {
        let permit = &admitted.allowed.permit;
        self.gateway.resolution.card_source(permit).await
    }

    /// Returns what an agent speaks by the cached card, fresh or not.
    pub(in crate::proxy) async fn cached_sides(&self, source: &CardSource) -> AgentSides {
        self.cache.cached_sides(source).await
    }

    /// Returns the generation in the cached card, fresh or not.
    pub(in crate::proxy) async fn cached_generation(
        &self,
        source: &CardSource,
    ) -> Option<Generation> {
        self.cache.generation(source).await
    }

    /// Returns a card. Waits until the caller disconnects, if there is one, or the process is cut. Of several
    /// requests that wait for one fetch each can leave alone: if it was the one that fetches, the next begins a
    /// new fetch.
    pub(in crate::proxy) async fn get_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        hops: u32,
        source: &CardSource,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let asked = CardRequest {
            config: exchange.call.config(),
            request_id: exchange.call.request_id(),
            account: exchange
                .call
                .proof()
                .map_or(Account::default(), |proof| proof.account),
            hops,
        };
        let (gateway, upstream) = (&self.gateway, &self.relay.upstream);
        let cached = self
            .cache
            .get(gateway, upstream, source, exchange.call.config(), &asked);
        let mut cut = CancelWatch::for_drain(&self.relay.drain);
        let gone = async {
            // While a body is to come, as with an unusual GET, a disconnect cannot be detected without reading
            // it.
            match caller {
                Some(session) => {
                    if session.is_body_done() {
                        client_disconnected(session).await;
                    } else {
                        pending::<()>().await;
                    }
                }
                None => pending().await,
            }
        };
        tokio::select! {
            why = cut.cancelled(Delivery::NotSent) => Err(why.into()),
            cached = cached => Ok(cached),
            () = gone => Err(ExchangeError::CallerLeft),
        }
    }

    /// Returns the generation of the target of a call: from the registered card, else from the fetched one. If
    /// it is needed and no card was fetched yet, the card is fetched: to complete the call, or to find its
    /// path.
    ///
    /// # Errors
    /// The caller left, or the process shuts down.
    pub(in crate::proxy) async fn generation(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        is_bare: bool,
    ) -> Result<Generation, ExchangeError> {
        let options = admitted.options();
        if options.has_card {
            return Ok(options.generation);
        }
        let Ok(source) = self.card_source(admitted).await else {
            return Ok(options.generation);
        };
        if let Some(generation) = self.cache.generation(&source).await {
            return Ok(generation);
        }
        if !is_bare && !options.path_in_card {
            return Ok(options.generation);
        }
        let cached = self
            .get_card(caller, exchange, admitted.hops, &source)
            .await?;
        Ok(cached.generation.unwrap_or_default())
    }
}

fn path_in_card(cached: &CachedCard, generation: Generation) -> Result<String, Rejection> {
    if let Err(refusal) = &cached.served {
        return Err(mark_undelivered(refusal));
    }
    let path = cached.json_rpc.path_for(generation).map(str::to_owned);
    path.ok_or_else(|| {
        let message = "the workspace has no url, and the card at its card_url names no JSON-RPC \
                       interface by an http URL; one of HTTP+JSON is reached below /workspaces/{id}/a2a";
        mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
    })
}

/// Marks the call as not sent: its target's card could not be fetched.
fn mark_undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().with_delivery(Delivery::NotSent)
}
