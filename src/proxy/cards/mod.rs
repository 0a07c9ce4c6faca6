//! Agent cards (contract §5): admitted like a call, fetched from the agent or taken from the registry,
//! and served with the gateway in the agent's place ([`crate::a2a::card`]).

mod answer;
mod cache;
mod extended;
mod fetch;

use std::future::pending;
use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use self::answer::answer;
pub(super) use self::cache::Cards;
use self::cache::Kept;
pub(super) use self::extended::ExtendedCard;
use self::fetch::Asked;
use super::admit::{Admitted, Allowed, allow, hops};
use super::ended::{Ended, left, shutting_down};
use super::exchange::Exchange;
use super::listener::BrokenOff;
use super::{Proxy, wrong_method};
use crate::a2a::{Generation, method};
use crate::directory::{Agent, CardSource};
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

/// In which words a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// JSON-RPC's, as on every A2A route.
    Rpc,
    /// The other routes'.
    Plain,
}

impl Proxy {
    /// Serves the card of `target`.
    pub(super) async fn card(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
        words: Words,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.gateway.drain.enter();
        // Nobody who watches the target hears of it: it is no call.
        let mut exchange = Exchange::begin(&self.relay, None, request_id);
        exchange.method = method::Method::AgentCard;
        let ended = self.card_exchange(session, &mut exchange, target).await;
        match exchange.ended(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.refuse(session, exchange, rejection, words).await,
        }
    }

    async fn card_exchange(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        if !matches!(session.req_header().method, Method::GET | Method::HEAD) {
            return Err(wrong_method("a card is read with GET", "GET, HEAD, OPTIONS").into());
        }
        let head = session.req_header();
        let Allowed { permit, .. } = allow(&self.gateway, exchange, head, target).await?;
        let hops = hops(head, exchange.config.forward.max_hops)?;
        let source = self.gateway.directory.card_source(&permit).await?;
        drop(permit);
        let kept = self.kept_card(exchange, hops, &source);
        let mut cut = self.relay.drain.watch();
        let gone = async {
            // Of one that sends a body with a GET nobody can tell without reading it.
            if session.is_body_empty() {
                left(session).await;
            } else {
                pending::<()>().await;
            }
        };
        let kept = tokio::select! {
            biased;
            kept = kept => kept,
            () = gone => return Err(Ended::CallerLeft),
            () = cut.requested() => return Err(shutting_down("unknown").into()),
        };
        let card = kept.served.clone()?;
        answer(session, &self.origins.get(), exchange, &card).await
    }

    /// The path at which the target speaks HTTP+JSON to callers of a generation, without a slash at its
    /// end; `None`: its card names none, or there is no card.
    pub(super) async fn http_json(
        &self,
        exchange: &Exchange,
        admitted: &Admitted,
        generation: Generation,
    ) -> Result<Option<String>, Rejection> {
        let source = self.gateway.directory.card_source(&admitted.permit).await?;
        let kept = self.kept_card(exchange, admitted.hops, &source).await;
        if let Err(refusal) = &kept.served
            && matches!(
                refusal.reason,
                Reason::AgentUnreachable | Reason::AgentTimeout
            )
        {
            // Nobody knows how it wants to be spoken to.
            return Err(undelivered(refusal));
        }
        let path = kept.http_json.path(generation);
        Ok(path.map(|path| path.trim_end_matches('/').to_owned()))
    }

    /// The path at which a target that only its card's place is known of takes a call of `method`.
    ///
    /// # Errors
    /// Why there is no card; `agent_protocol_error` where it names none.
    pub(super) async fn json_rpc(
        &self,
        exchange: &Exchange,
        admitted: &Admitted,
        method: Option<&str>,
    ) -> Result<String, Rejection> {
        let source = self.gateway.directory.card_source(&admitted.permit).await?;
        let kept = self.kept_card(exchange, admitted.hops, &source).await;
        if let Err(refusal) = &kept.served {
            return Err(undelivered(refusal));
        }
        let generation = method.map_or_else(Generation::default, Generation::of_method);
        let path = kept.json_rpc.path(generation).map(str::to_owned);
        path.ok_or_else(|| {
            let message = "the workspace has no url, and the card at its card_url names no JSON-RPC \
                           interface by an http URL";
            undelivered(&Rejection::new(Reason::AgentProtocolError, message))
        })
    }

    async fn kept_card(&self, exchange: &Exchange, hops: u32, source: &CardSource) -> Arc<Kept> {
        let asked = Asked {
            config: &exchange.config,
            request_id: &exchange.request_id,
            hops,
        };
        let through = (&*self.gateway, &*self.relay);
        self.cards
            .get(through, source, &exchange.config, &asked)
            .await
    }

    /// Which generation the target of a call speaks. Where it registered no card, by the one that was
    /// fetched; and where nobody ever asked for that, and it is needed, it is fetched: to put the call
    /// together, or to know where it goes.
    pub(super) async fn generation(
        &self,
        exchange: &Exchange,
        admitted: &Admitted,
        agent: &Agent,
        is_bare: bool,
    ) -> Generation {
        if agent.has_card {
            return agent.generation;
        }
        let Ok(source) = self.gateway.directory.card_source(&admitted.permit).await else {
            return agent.generation;
        };
        if let Some(generation) = self.cards.generation(&source).await {
            return generation;
        }
        if !is_bare && !agent.path_in_card {
            return agent.generation;
        }
        let kept = self.kept_card(exchange, admitted.hops, &source).await;
        kept.generation.unwrap_or_default()
    }
}

/// Of a call whose target did not give its card: the call itself was not sent, whatever was.
fn undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().fact("delivered", "false")
}
