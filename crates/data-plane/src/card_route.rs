//! Serves the cards of agents: whole, or "not modified" (`docs/reference/cards.md`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, header};
use pingora::http::{RequestHeader, ResponseHeader};

use crate::admission::{AllowedCaller, client_address, method_not_allowed, open_exchange};
use crate::cards::{FRESH, ServedCard};
use crate::plan::request_hops;
use crate::policy::authorize_caller;
use crate::record::{Answered, Exchange, ExchangeError};
use crate::services::Request;
use a2a::bridge::card::{RequestedForm, VARY};
use a2a::completion_steps::CompletionSteps;
use directory::CardSource;
use http1::has_tag;
use kernel::config::Config;
use kernel::ids::{InvalidWorkspaceId, WorkspaceId};
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;

/// Rule in the record of an exchange that read a public card.
const PUBLIC_CARD: &str = "public_card";

/// Serves the card of a workspace; `None`: of `a2a.default_workspace`.
pub(super) async fn serve(
    request: &mut Request<'_>,
    target: Option<Result<WorkspaceId, InvalidWorkspaceId>>,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    let head = request.session.req_header();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(
            method_not_allowed("a card is read with GET", "GET, HEAD, OPTIONS")
                .at(Stage::Route)
                .into(),
        );
    }
    let is_default = target.is_none();
    let target = match target {
        Some(target) => target,
        None => Ok(default_workspace(&request.exchange.call.config).at(Stage::Route)?),
    };
    let gateway = &context.gateway;
    let source = match authorize_caller(gateway, request.exchange, head, target).await {
        Ok(AllowedCaller { permit, .. }) => gateway.resolution.card_source(&permit).await?,
        Err(refusal) if is_anonymous(&refusal, head) => public_source(request, refusal).await?,
        Err(refusal) if is_default => return Err(name_default(refusal, request.exchange).into()),
        Err(refusal) => return Err(refusal.into()),
    };
    let hops = request_hops(request)?;
    let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
    let cached = context.cards.get_card(caller, exchange, hops, &source);
    let cached = cached.await?;
    let head = request.head();
    let version = head.headers.get("a2a-version");
    let version = version.and_then(|version| version.to_str().ok());
    // Only clients of 0.3 and before read that path.
    let is_old_path = head.uri.path().ends_with("/agent.json");
    let forms = cached.served.as_ref().map_err(Clone::clone)?;
    let form = RequestedForm::from_version(version, is_old_path);
    send_card(request, forms.get(form)).await
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
    let gateway = &request.context.gateway;
    let client = client_address(request.session, &gateway.config().server);
    let Some(target) = request.exchange.call.target.as_ref() else {
        return Err(refusal);
    };
    gateway.rates.count_card_read(client).at(Stage::Rate)?;
    let public = gateway.resolution.public_card_source(target).await?;
    if public.is_some() {
        request.exchange.call.set_rule(PUBLIC_CARD);
    }
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
    match exchange.call.target.as_ref() {
        Some(id) if matches!(refusal.reason, Reason::WorkspaceNotFound | Reason::WorkspaceRemoved) => Rejection {
            message: format!("a2a.default_workspace is {id}, and there is no such workspace any more, or never was")
                .into(),
            ..refusal
        },
        _ => refusal,
    }
}

/// Field that names the generations of the card's interfaces: a client of another generation cannot read the
/// card.
pub(super) const SPEAKS: &str = "x-a2a-speaks";

/// Sends the card, or 304 if the caller has it.
pub(super) async fn send_card(
    request: &mut Request<'_>,
    card: &ServedCard,
) -> Result<Answered, ExchangeError> {
    let asked = request.head();
    let known = has_tag(&asked.headers, &card.tag);
    let without_body = known || asked.method == Method::HEAD;
    let head = card_head(card, known)?;
    let head = request.response_head(head, CompletionSteps::default())?;
    let body = if without_body {
        Bytes::new()
    } else {
        card.body.clone()
    };
    request.respond(head, body).await
}

fn card_head(card: &ServedCard, known: bool) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(if known { 304 } else { 200 }, Some(12))?;
    if !known {
        head.append_header(header::CONTENT_TYPE, "application/json")?;
        head.append_header(header::CONTENT_LENGTH, card.body.len())?;
    }
    head.append_header(header::ETAG, card.tag.as_str())?;
    let modified = httpdate::fmt_http_date(card.modified);
    head.append_header(header::LAST_MODIFIED, modified)?;
    // Access is decided for each caller.
    let kept = format!("private, max-age={}", FRESH.as_secs());
    head.append_header(header::CACHE_CONTROL, kept)?;
    head.append_header(header::VARY, format!("Authorization, Origin, {VARY}"))?;
    if let Some(speaks) = card.speaks {
        head.append_header(SPEAKS, speaks)?;
    }
    Ok(head)
}
