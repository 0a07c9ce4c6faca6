//! Agent cards (`docs/reference/cards.md`): admitted like a call, fetched from the agent or taken from the
//! registry, and served with the gateway's URL in place of the agent's ([`crate::a2a::card`]).

mod answer;
mod cache;
pub(in crate::proxy) mod extended;
pub(in crate::proxy) mod fetch;
mod forms;
pub(in crate::proxy) mod store;

use std::sync::Arc;

use http::{Method, header};
use pingora::http::RequestHeader;

use self::answer::answer;
use crate::a2a::bridge::card::Asked;
use crate::config::Config;
use crate::dialect::Dialect;
use crate::directory::CardSource;
use crate::hops::hops;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Allowed, allow};
use crate::proxy::outcome::Ended;
use crate::proxy::record::trace::Came;
use crate::proxy::record::{Exchange, Granted};
use crate::proxy::request::{Request, wrong_method};
use crate::rejection::{Reason, Rejection};

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
    let kept = kept.await?;
    let head = request.head();
    let version = head.headers.get("a2a-version");
    let version = version.and_then(|version| version.to_str().ok());
    // Only clients of 0.3 and before read that path.
    let is_old_path = head.uri.path().ends_with("/agent.json");
    let forms = kept.served.as_ref().map_err(Clone::clone)?;
    answer(request, forms.form(Asked::of(version, is_old_path))).await
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
        born_at: 0,
    });
    public.ok_or(refusal)
}

/// True if a request was rejected because it has no credential.
fn is_anonymous(refusal: &Rejection, head: &RequestHeader) -> bool {
    refusal.reason == Reason::Unauthenticated && !head.headers.contains_key(header::AUTHORIZATION)
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
