//! Agent cards (`docs/reference/cards.md`): admitted like a call, fetched from the agent or taken from the
//! registry, and served with the gateway's URL in place of the agent's ([`crate::a2a::card`]).

mod answer;
mod cache;
mod extended;
mod fetch;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;

use self::answer::answer;
use self::cache::{CardCache, Kept};
pub(super) use self::extended::ExtendedCard;
use self::fetch::Asked;
use crate::a2a::Generation;
use crate::a2a::refs::Refs;
use crate::config::Config;
use crate::dialect::Dialect;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::hops::hops;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Admitted, Allowed, allow};
use crate::proxy::outcome::Ended;
use crate::proxy::rare;
use crate::proxy::record::trace::Came;
use crate::proxy::record::{Exchange, Granted};
use crate::proxy::relay::Relay;
use crate::proxy::relay::failure::shutting_down;
use crate::proxy::request::ownership::{is_about_push, require_push};
use crate::proxy::request::{Request, wrong_method};
use crate::proxy::respond::client_disconnected;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;

/// Rule in the record of an exchange that read a public card.
const PUBLIC_CARD: &str = "public_card";

/// Workspace of a requested card.
pub(super) enum Whose {
    /// Workspace in the path.
    Workspace(Result<WorkspaceId, InvalidWorkspaceId>),
    /// Workspace of `a2a.default_workspace`.
    Default,
}

impl Whose {
    pub(super) fn came(&self, dialect: Dialect) -> Came {
        match (self, dialect) {
            (Self::Default, _) => Came::by("/.well-known/agent-card.json", false),
            // Two paths of one card, and the A2A base itself.
            (Self::Workspace(_), Dialect::Plain) => {
                Came::by("/workspaces/{id}/.well-known/agent-card.json", false)
            }
            (Self::Workspace(_), _) => Came::by("/workspaces/{id}/a2a", false),
        }
    }
}

/// The cards of the agents.
pub(in crate::proxy) struct Cards {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    cache: CardCache,
}

/// Serves a card.
pub(in crate::proxy) async fn serve(
    request: &mut Request<'_>,
    whose: Whose,
) -> Result<Ended, Ended> {
    let context = request.context;
    let _place = context.enter(request.session)?;
    let head = request.session.req_header();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(wrong_method("a card is read with GET", "GET, HEAD, OPTIONS").into());
    }
    let (target, is_default) = match whose {
        Whose::Workspace(target) => (target, false),
        Whose::Default => (Ok(default_workspace(&request.exchange.config)?), true),
    };
    let gateway = &context.gateway;
    let source = match allow(gateway, request.exchange, head, target).await {
        Ok(Allowed { permit, .. }) => gateway.resolution.card_source(&permit).await?,
        Err(refusal) if is_anonymous(&refusal, head) => public_source(request, refusal).await?,
        Err(refusal) if is_default => return Err(of_default(refusal, request.exchange).into()),
        Err(refusal) => return Err(refusal.into()),
    };
    let max_hops = request.exchange.config.forward.max_hops;
    let hops = hops(&request.head().headers, max_hops)?;
    let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
    let kept = context.cards.kept_card(caller, exchange, hops, &source);
    let card = kept.await?.served.clone()?;
    answer(request, &card).await
}

/// Returns the source of a card that is read without a credential.
///
/// # Errors
/// `refusal`, the same for a card that is not public and for an unknown id; `rate_limited`,
/// `store_unavailable`.
async fn public_source(
    request: &mut Request<'_>,
    refusal: Rejection,
) -> Result<Arc<CardSource>, Rejection> {
    let context = request.context;
    let client = context.client(request.session);
    let Some(target) = &request.exchange.callee else {
        return Err(refusal);
    };
    context.gateway.rates.read_card(client)?;
    let public = context
        .gateway
        .resolution
        .public_card_source(target)
        .await?;
    request.exchange.granted = public.is_some().then_some(Granted {
        rule: PUBLIC_CARD,
        org: None,
    });
    public.ok_or(refusal)
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

    /// Returns the path of the target's HTTP+JSON interface for callers of a generation, without a trailing
    /// slash; `None`: its card has none, or there is no card.
    pub(in crate::proxy) async fn http_json(
        &self,
        session: &mut ServerSession,
        exchange: &Exchange,
        admitted: &Admitted,
        generation: Generation,
    ) -> Result<Option<String>, Ended> {
        let kept = self.kept_of(Some(session), exchange, admitted).await?;
        if let Err(refusal) = &kept.served
            && matches!(
                refusal.reason,
                Reason::AgentUnreachable | Reason::AgentTimeout
            )
        {
            // The agent's interfaces are unknown.
            return Err(undelivered(refusal).into());
        }
        let path = kept.http_json.path(generation);
        Ok(path.map(|path| path.trim_end_matches('/').to_owned()))
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
    async fn kept_card(
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
        let mut cut = self.relay.drain.watch();
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
            () = cut.requested() => Err(shutting_down(Delivery::NotSent).into()),
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

/// True if a request was rejected because it has no credential.
fn is_anonymous(refusal: &Rejection, head: &RequestHeader) -> bool {
    refusal.reason == Reason::Unauthenticated && !head.headers.contains_key(header::AUTHORIZATION)
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

/// # Errors
/// `not_found`: there is none.
fn default_workspace(config: &Config) -> Result<WorkspaceId, Rejection> {
    config.a2a.default_workspace.clone().ok_or_else(|| {
        let message = "there is no default agent card: set a2a.default_workspace, or request \
                       /workspaces/{id}/.well-known/agent-card.json";
        Rejection::new(Reason::NotFound, message)
    })
}

/// Names the default workspace in the message, for callers that may know that it does not exist.
fn of_default(refusal: Rejection, exchange: &Exchange) -> Rejection {
    match &exchange.callee {
        Some(id) if matches!(refusal.reason, Reason::WorkspaceNotFound | Reason::WorkspaceRemoved) => Rejection {
            message: format!("a2a.default_workspace is {id}, and there is no such workspace any more, or never was")
                .into(),
            ..refusal
        },
        _ => refusal,
    }
}

/// Marks the call as not sent: its target's card could not be fetched.
fn undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().delivered(Delivery::NotSent)
}
