//! The cards of the agents: what calls read from them, from memory or by a fetch.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::ServerSession;

use super::cache::{CardCache, Kept};
use super::fetch::Asked;
use crate::a2a::Generation;
use crate::a2a::card::Spoken;
use crate::a2a::refs::Refs;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::proxy::admit::Admitted;
use crate::proxy::outcome::Ended;
use crate::proxy::outcome::rare;
use crate::proxy::record::Exchange;
use crate::proxy::relay::Cut;
use crate::proxy::relay::Relay;
use crate::proxy::request::ownership::{is_about_push, require_push};
use crate::proxy::respond::client_disconnected;
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

    /// Checks in the agent's own card that it sends push notifications, if no card is registered and a call
    /// asks for them.
    ///
    /// # Errors
    /// `push_not_supported`.
    pub(in crate::proxy) async fn check_push(
        &self,
        session: &mut ServerSession,
        exchange: &Exchange,
        admitted: &Admitted,
        refs: &Refs,
    ) -> Result<(), Ended> {
        let options = admitted.options();
        require_push(options.push_notifications, exchange.method, refs)?;
        if options.has_card || !is_about_push(exchange.method, refs) {
            return Ok(());
        }
        let kept = self.kept_of(Some(session), exchange, admitted);
        let pushes = rare(kept).await?.pushes;
        require_push(pushes != Some(false), exchange.method, refs)?;
        Ok(())
    }

    /// Returns what the target speaks: by its registered card, else by the fetched one that is in memory. Fetches no
    /// card.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn spoken(&self, admitted: &Admitted) -> Result<Spoken, Rejection> {
        let options = admitted.options();
        if options.has_card {
            return Ok(options.spoken.clone());
        }
        let source = self.source(admitted).await?;
        Ok(self.cache.spoken(&source).await)
    }

    /// Returns what the target speaks by the card that callers get, which is fetched if it is not fresh.
    ///
    /// # Errors
    /// The agent cannot be reached; the caller left, or the process shuts down.
    pub(in crate::proxy) async fn fetched(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &Admitted,
    ) -> Result<Spoken, Ended> {
        let kept = self.reachable(caller, exchange, admitted).await?;
        Ok(kept.spoken.clone())
    }

    /// Returns the path of the target's HTTP+JSON interface for callers of a generation, without a trailing slash.
    ///
    /// # Errors
    /// As [`Cards::fetched`]; `agent_protocol_error` if the card that callers get has no such interface.
    pub(in crate::proxy) async fn http_json(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &Admitted,
        generation: Generation,
    ) -> Result<String, Ended> {
        let kept = self.reachable(caller, exchange, admitted).await?;
        let path = kept.http_json.path(generation).ok_or_else(|| {
            let message = "the agent's card names an HTTP+JSON interface without an http URL: correct the url in the card";
            undelivered(&Rejection::new(Reason::AgentProtocolError, message))
        })?;
        Ok(path.trim_end_matches('/').to_owned())
    }

    /// Returns the card of the target, unless the agent cannot be reached: then its interfaces are unknown.
    async fn reachable(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &Admitted,
    ) -> Result<Arc<Kept>, Ended> {
        let kept = self.kept_of(caller, exchange, admitted).await?;
        match &kept.served {
            Err(refusal)
                if matches!(
                    refusal.reason,
                    Reason::AgentUnreachable | Reason::AgentTimeout
                ) =>
            {
                Err(undelivered(refusal).into())
            }
            _ => Ok(kept),
        }
    }

    /// Returns the path for a call of `method` at a target with a card URL only.
    ///
    /// # Errors
    /// The reason why there is no card; `agent_protocol_error` if it has no such interface.
    pub(in crate::proxy) async fn json_rpc(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &Admitted,
        method: Option<&str>,
    ) -> Result<String, Ended> {
        let kept = self.kept_of(caller, exchange, admitted).await?;
        let generation = method.map_or_else(Generation::default, Generation::of_method);
        Ok(json_rpc_path(&kept, generation)?)
    }

    /// As [`Cards::json_rpc`], from the card in memory, with its age. `None`: it would be fetched.
    ///
    /// # Errors
    /// As [`Cards::json_rpc`].
    pub(in crate::proxy) async fn look_at_card(
        &self,
        source: &CardSource,
        generation: Generation,
    ) -> Option<(Result<String, Rejection>, Duration)> {
        let config = self.gateway.config.hold();
        let kept = self.cache.known(&self.gateway, source, &config).await?;
        Some((json_rpc_path(&kept, generation), kept.age()))
    }

    /// Returns the card of the target of a call.
    async fn kept_of(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &Admitted,
    ) -> Result<Arc<Kept>, Ended> {
        let source = self.source(admitted).await?;
        self.kept_card(caller, exchange, admitted.hops, &source)
            .await
    }

    async fn source(&self, admitted: &Admitted) -> Result<Arc<CardSource>, Rejection> {
        let permit = &admitted.allowed.permit;
        self.gateway.resolution.card_source(permit).await
    }

    /// Returns what an agent speaks by the cached card, fresh or not.
    pub(in crate::proxy) async fn cached_spoken(&self, source: &CardSource) -> Spoken {
        self.cache.spoken(source).await
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
    pub(super) async fn kept_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        hops: u32,
        source: &CardSource,
    ) -> Result<Arc<Kept>, Ended> {
        let asked = Asked {
            config: &exchange.config,
            request_id: &exchange.request_id,
            account: exchange
                .proof
                .as_ref()
                .map_or(Account::default(), |proof| proof.account),
            hops,
        };
        let (gateway, upstream) = (&self.gateway, &self.relay.upstream);
        let kept = self
            .cache
            .get(gateway, upstream, source, &exchange.config, &asked);
        let mut cut = Cut::of_drain(&self.relay.drain);
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
            why = cut.requested(Delivery::NotSent) => Err(why.into()),
            kept = kept => Ok(kept),
            () = gone => Err(Ended::CallerLeft),
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
        admitted: &Admitted,
        is_bare: bool,
    ) -> Result<Generation, Ended> {
        let options = admitted.options();
        if options.has_card {
            return Ok(options.generation);
        }
        let Ok(source) = self.source(admitted).await else {
            return Ok(options.generation);
        };
        if let Some(generation) = self.cache.generation(&source).await {
            return Ok(generation);
        }
        if !is_bare && !options.path_in_card {
            return Ok(options.generation);
        }
        let kept = self
            .kept_card(caller, exchange, admitted.hops, &source)
            .await?;
        Ok(kept.generation.unwrap_or_default())
    }
}

fn json_rpc_path(kept: &Kept, generation: Generation) -> Result<String, Rejection> {
    if let Err(refusal) = &kept.served {
        return Err(undelivered(refusal));
    }
    let path = kept.json_rpc.path(generation).map(str::to_owned);
    path.ok_or_else(|| {
        let message = "the workspace has no url, and the card at its card_url names no JSON-RPC \
                       interface by an http URL; one of HTTP+JSON is reached below /workspaces/{id}/a2a";
        undelivered(&Rejection::new(Reason::AgentProtocolError, message))
    })
}

/// Marks the call as not sent: its target's card could not be fetched.
fn undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().delivered(Delivery::NotSent)
}
