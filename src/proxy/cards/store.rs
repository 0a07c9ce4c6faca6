//! The cards of the agents: what calls read from them, from memory or by a fetch.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::ServerSession;
use tokio::sync::Semaphore;

use crate::a2a::Generation;
use crate::a2a::card::AgentSides;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::ids::{RequestId, WorkspaceId};
use crate::proxy::admission::AdmittedCall;
use crate::proxy::cards::cache::{CachedCard, CardCache};
use crate::proxy::cards::fetch::CardRequest;
use crate::proxy::listener::client_disconnected;
use crate::proxy::record::{Exchange, ExchangeError, box_cold_path};
use crate::proxy::upstream::{CancelWatch, Relay};
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;

/// Maximum cards that are read at once for agents that were added.
pub(in crate::proxy) const AHEAD_MAX: usize = 64;

/// The cards of the agents, and what is known of how they are called. Cheap to clone.
#[derive(Clone)]
pub(in crate::proxy) struct Cards {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    cache: CardCache,
    /// For agents that were added.
    ahead: Arc<Semaphore>,
}

impl Cards {
    /// Creates an empty cache.
    pub(in crate::proxy) fn new(gateway: &Arc<Gateway>, relay: &Arc<Relay>) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            relay: Arc::clone(relay),
            cache: CardCache::default(),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
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
        Ok(cached.await?.said.pushes)
    }

    /// Returns what the target speaks: by its registered card, else by its own ([`Cards::known_card`]). Nothing, if it
    /// gives none.
    ///
    /// # Errors
    /// The caller left, or the process shuts down; `store_unavailable`.
    pub(in crate::proxy) async fn sides(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<AgentSides, ExchangeError> {
        let options = admitted.options();
        if options.has_card && !options.path_in_card {
            return Ok(options.spoken.clone());
        }
        let known = box_cold_path(self.known_card(caller, exchange, admitted)).await?;
        Ok(known.said.spoken.clone())
    }

    /// Returns what is known of the target by its own card. It is read before the first call, and again before it is
    /// `directory.stale` old: calls wait for that only if none has had it read meanwhile.
    async fn known_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let source = self.card_source(admitted).await?;
        let stale = exchange.call.config().directory.stale;
        if let Some(known) = self.cache.get_known(&source).await
            && known.is_informed()
            && known.age() < stale
        {
            if known.claim_refresh() {
                let request_id = exchange.call.request_id().clone();
                let by = (account_of(exchange), admitted.hops);
                tokio::spawn(self.clone().fetch_aside(source, request_id, by));
            }
            return Ok(known);
        }
        self.get_card(caller, exchange, admitted.hops, &source)
            .await
    }

    /// Has the card of an agent that was added read at once, so that its first call does not wait. Of more than
    /// [`AHEAD_MAX`] at once the first call reads it.
    pub(in crate::proxy) fn read_ahead(&self, id: &WorkspaceId) {
        let Ok(place) = Arc::clone(&self.ahead).try_acquire_owned() else {
            let outcome = Reason::Overloaded.as_str();
            return self.gateway.metrics.count_card_fetch(outcome);
        };
        let (cards, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let _place = place;
            let Ok(source) = cards.gateway.resolution.source_by_id(&id).await else {
                return;
            };
            let known = cards.cache.get_known(&source).await;
            if known.is_none_or(|known| known.claim_refresh()) {
                let by = (Account::default(), 1);
                cards.fetch_aside(source, RequestId::random(), by).await;
            }
        });
    }

    /// Fetches a card, while calls go on with what is known. `by`: the account, and the gateways that were passed.
    async fn fetch_aside(self, source: Arc<CardSource>, request_id: RequestId, by: (Account, u32)) {
        let config = self.gateway.config.snapshot();
        let asked = CardRequest {
            config: &config,
            request_id: &request_id,
            account: by.0,
            hops: by.1,
        };
        let (gateway, upstream) = (&self.gateway, &self.relay.upstream);
        let fetched = self.cache.get(gateway, upstream, &source, &config, &asked);
        let mut cut = CancelWatch::for_drain(&self.relay.drain);
        tokio::select! {
            _ = cut.cancelled(Delivery::NotSent) => {}
            _ = fetched => {}
        }
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
        Ok(cached.said.spoken.clone())
    }

    /// Returns path and query of the target's HTTP+JSON interface for callers of a generation.
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
        let path = cached.said.http_json.path_for(generation).ok_or_else(|| {
            let message = "the agent's card names an HTTP+JSON interface without an http URL: correct the url in the card";
            mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
        })?;
        Ok(path.to_owned())
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
                if cached.said.spoken.is_unknown()
                    && matches!(
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
        let cached = self.known_card(caller, exchange, admitted).await?;
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

    /// Returns what an agent speaks by the cached card, fresh or not, and the age of that.
    pub(in crate::proxy) async fn cached_sides(
        &self,
        source: &CardSource,
    ) -> Option<(AgentSides, Duration)> {
        let cached = self.cache.get_known(source).await?;
        Some((cached.said.spoken.clone(), cached.age()))
    }

    /// Returns the generation in the cached card, fresh or not, and the age of that.
    pub(in crate::proxy) async fn cached_generation(
        &self,
        source: &CardSource,
    ) -> Option<(Generation, Duration)> {
        let age = self.cache.get_known(source).await?.age();
        Some((self.cache.generation(source).await?, age))
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
            account: account_of(exchange),
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
        Ok(cached.said.generation.unwrap_or_default())
    }
}

fn account_of(exchange: &Exchange) -> Account {
    let proof = exchange.call.proof();
    proof.map_or(Account::default(), |proof| proof.account)
}

fn path_in_card(cached: &CachedCard, generation: Generation) -> Result<String, Rejection> {
    let path = cached.said.json_rpc.path_for(generation).map(str::to_owned);
    path.ok_or_else(|| {
        if let Err(refusal) = &cached.served {
            return mark_undelivered(refusal);
        }
        let message = "the workspace has no url, and the card at its card_url names no JSON-RPC \
                       interface by an http URL; one of HTTP+JSON is reached below /workspaces/{id}/a2a";
        mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
    })
}

/// Marks the call as not sent: its target's card could not be fetched.
fn mark_undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().with_delivery(Delivery::NotSent)
}
