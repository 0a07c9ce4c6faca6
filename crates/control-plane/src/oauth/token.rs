//! `POST /oauth/token` (RFC 8693): a workspace exchanges the chain token that was handed to it, for a call token to one
//! target, or for a narrower chain token of its own.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::header::PRAGMA;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::client::Client;
use super::{Form, refuse};
use access::identity::{Detail, Exchanged};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// The grant.
pub(super) const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// Types of tokens.
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

/// Serves it.
pub(crate) async fn exchange_token(
    State(gateway): State<Arc<Gateway>>,
    client: Client,
    form: Form,
) -> Result<Response, Rejection> {
    check_request(&client, &form)?;
    check_actor(&gateway, &client, &form).await?;
    let subject = form.require("subject_token")?;
    let target = find_target(&gateway, &form)?;
    let identity = &gateway.identity;
    let chain = identity.verify_context(subject, &client.proof).await;
    let chain = chain.map_err(refuse_subject)?;
    let wanted = form.get("requested_token_type").unwrap_or(ACCESS_TOKEN);
    let (made, token_type) = match wanted {
        ACCESS_TOKEN => {
            if form.get("authorization_details").is_some() {
                let message = "narrow a token first: `authorization_details` goes with `requested_token_type` jwt";
                return Err(refuse("invalid_request", message));
            }
            // One that does not exist looks like one that may not be called.
            let permit = gateway.hierarchy.permit(&client.proof, &target).await;
            let permit = permit.map_err(hide_target)?;
            if !chain.may_reach(&target, None) {
                return Err(invalid_target());
            }
            let proof = client
                .proof
                .as_ref()
                .clone()
                .on_chain(Some(Arc::clone(&chain)));
            let checked = gateway.check_chain(&proof, &permit).await;
            checked.map_err(refuse_subject).map_err(hide_target)?;
            let made = identity.signed.issue_call(&chain, &proof, &target)?;
            (made, "Bearer")
        }
        JWT if target == client.id => {
            let details = form.require("authorization_details")?;
            let details = Detail::parse_all(details).ok_or_else(|| {
                let message = r#"`authorization_details` is a list of {"type":"a2a","locations":["ID"]?,"actions":["METHOD"]?}"#;
                refuse("invalid_request", message)
            })?;
            (
                identity
                    .signed
                    .narrow_context(&chain, &client.id, &details)?,
                "N_A",
            )
        }
        JWT => {
            return Err(refuse(
                "invalid_target",
                "a narrower token is for oneself: `audience` is the client",
            ));
        }
        _ => {
            let message = format!("`requested_token_type` is {ACCESS_TOKEN} or {JWT}");
            return Err(refuse("invalid_request", message));
        }
    };
    Ok(token_response(&made, (wanted, token_type), &target))
}

/// Checks the members that have one value.
fn check_request(client: &Client, form: &Form) -> Result<(), Rejection> {
    if form.require("grant_type")? != EXCHANGE {
        let message = format!("the only `grant_type` is {EXCHANGE}");
        return Err(refuse("unsupported_grant_type", message));
    }
    if form
        .get("client_id")
        .is_some_and(|id| id != client.id.as_str())
    {
        let message = "`client_id` is another workspace than the one that the credential proves";
        return Err(Rejection::new(Reason::Unauthenticated, message));
    }
    if form.get("client_secret").is_some() {
        let message = "send the credential in `Authorization`, as `Bearer` or `Basic`";
        return Err(refuse("invalid_request", message));
    }
    if form.require("subject_token_type")? != JWT {
        let message = format!("`subject_token_type` is {JWT}");
        return Err(refuse("invalid_request", message));
    }
    if form.get("scope").is_some_and(|scope| scope != "a2a:chain") {
        return Err(refuse("invalid_scope", "the only `scope` is a2a:chain"));
    }
    Ok(())
}

/// Checks that an actor token, if there is one, is of the client.
async fn check_actor(gateway: &Gateway, client: &Client, form: &Form) -> Result<(), Rejection> {
    let wrong = || {
        let message =
            "`actor_token` is a credential of the client, with its `actor_token_type`, or absent";
        refuse("invalid_request", message)
    };
    match (form.get("actor_token"), form.get("actor_token_type")) {
        (None, None) => Ok(()),
        (Some(token), Some(ACCESS_TOKEN | JWT)) => {
            let field = format!("Bearer {token}");
            let actor = gateway.identity.authenticate(Some(field.as_bytes())).await;
            let actor = actor.map_err(|why| match why.reason {
                Reason::StoreUnavailable => why,
                _ => wrong(),
            })?;
            let is_client = actor.principal.workspace() == Some(&client.id);
            is_client.then_some(()).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// Returns the target: `audience`, its id, or `resource`, the URL of its A2A endpoint.
fn find_target(gateway: &Gateway, form: &Form) -> Result<WorkspaceId, Rejection> {
    let id = match (form.get("audience"), form.get("resource")) {
        (Some(id), None) => id.to_owned(),
        (None, Some(url)) => {
            let base = format!("{}/workspaces/", gateway.config().public_url());
            let id = url
                .strip_prefix(&base)
                .and_then(|rest| rest.strip_suffix("/a2a"));
            id.ok_or_else(invalid_target)?.to_owned()
        }
        _ => {
            let message = "send the target as `audience`, its id, or as `resource`, the URL of its A2A endpoint";
            return Err(refuse("invalid_request", message));
        }
    };
    WorkspaceId::parse(&id).map_err(|_| invalid_target())
}

/// Refuses a chain as RFC 8693 has it.
fn refuse_subject(why: Rejection) -> Rejection {
    match why.reason {
        Reason::ChainInvalid
        | Reason::ChainExpired
        | Reason::ChainRevoked
        | Reason::LoopDetected => {
            let message = format!("`subject_token`: {}", why.message);
            refuse("invalid_request", message).with_fact("chain", why.reason.as_str())
        }
        _ => why,
    }
}

/// Refuses a target that may not be called like one that does not exist.
fn hide_target(why: Rejection) -> Rejection {
    match why.reason {
        Reason::NotPermitted
        | Reason::RootRequired
        | Reason::WorkspaceNotFound
        | Reason::WorkspaceRemoved => invalid_target(),
        _ => why,
    }
}

fn invalid_target() -> Rejection {
    let message = "the client may not call this target for this person, or there is no such target";
    refuse("invalid_target", message)
}

fn token_response(made: &Exchanged, types: (&str, &str), target: &WorkspaceId) -> Response {
    let (issued, token_type) = types;
    let body: Value = json!({
        "access_token": made.token.expose_secret(),
        "issued_token_type": issued,
        "token_type": token_type,
        "expires_in": made.ttl.as_secs(),
        "scope": "a2a:chain",
    });
    let kind = if token_type == "Bearer" {
        "call"
    } else {
        "context"
    };
    let about = ChangeFacts::for_workspace(target).with_fact("kind", kind);
    (Extension(about), [(PRAGMA, "no-cache")], Json(body)).into_response()
}
