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

use self::answer::send_card;
use crate::a2a::bridge::card::RequestedForm;
use crate::config::Config;
use crate::dialect::Dialect;
use crate::directory::CardSource;
use crate::hops::count_hops;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{AllowedCaller, authorize_caller};
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::record::trace::ExchangeOrigin;
use crate::proxy::record::{Exchange, GrantingRule};
use crate::proxy::request::{Request, method_not_allowed};
use crate::rejection::{Reason, Rejection};

/// Rule in the record of an exchange that read a public card.
const PUBLIC_CARD: &str = "public_card";

/// Workspace of a requested card.
pub(super) enum CardTarget {
    /// Workspace in the path.
    Workspace(Result<WorkspaceId, InvalidWorkspaceId>),
    /// Workspace of `a2a.default_workspace`.
    Default,
}

impl CardTarget {
    pub(super) fn origin(&self, dialect: Dialect) -> ExchangeOrigin {
        match (self, dialect) {
            (Self::Default, _) => ExchangeOrigin::for_route("/.well-known/agent-card.json", false),
            // Two paths of one card, and the A2A base itself.
            (Self::Workspace(_), Dialect::Plain) => {
                ExchangeOrigin::for_route("/workspaces/{id}/.well-known/agent-card.json", false)
            }
            (Self::Workspace(_), _) => ExchangeOrigin::for_route("/workspaces/{id}/a2a", false),
        }
    }
}

/// Serves a card.
pub(in crate::proxy) async fn serve(
    request: &mut Request<'_>,
    whose: CardTarget,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let _slot = context.take_slot(request.session)?;
    let head = request.session.req_header();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(method_not_allowed("a card is read with GET", "GET, HEAD, OPTIONS").into());
    }
    let (target, is_default) = match whose {
        CardTarget::Workspace(target) => (target, false),
        CardTarget::Default => (Ok(default_workspace(&request.exchange.config)?), true),
    };
    let gateway = &context.gateway;
    let source = match authorize_caller(gateway, request.exchange, head, target).await {
        Ok(AllowedCaller { permit, .. }) => gateway.resolution.card_source(&permit).await?,
        Err(refusal) if is_anonymous(&refusal, head) => public_source(request, refusal).await?,
        Err(refusal) if is_default => return Err(name_default(refusal, request.exchange).into()),
        Err(refusal) => return Err(refusal.into()),
    };
    let max_hops = request.exchange.config.forward.max_hops;
    let hops = count_hops(&request.head().headers, max_hops)?;
    let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
    let cached = context.cards.get_card(caller, exchange, hops, &source);
    let cached = cached.await?;
    let head = request.head();
    let version = head.headers.get("a2a-version");
    let version = version.and_then(|version| version.to_str().ok());
    // Only clients of 0.3 and before read that path.
    let is_old_path = head.uri.path().ends_with("/agent.json");
    let forms = cached.served.as_ref().map_err(Clone::clone)?;
    send_card(
        request,
        forms.get(RequestedForm::from_version(version, is_old_path)),
    )
    .await
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
    let client = context.client_address(request.session);
    let Some(target) = &request.exchange.callee else {
        return Err(refusal);
    };
    context.gateway.rates.count_card_read(client)?;
    let public = context
        .gateway
        .resolution
        .public_card_source(target)
        .await?;
    request.exchange.granted = public.is_some().then_some(GrantingRule {
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
fn name_default(refusal: Rejection, exchange: &Exchange) -> Rejection {
    match &exchange.callee {
        Some(id) if matches!(refusal.reason, Reason::WorkspaceNotFound | Reason::WorkspaceRemoved) => Rejection {
            message: format!("a2a.default_workspace is {id}, and there is no such workspace any more, or never was")
                .into(),
            ..refusal
        },
        _ => refusal,
    }
}
