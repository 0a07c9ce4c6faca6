//! Operators: who the caller is as one, and tokens of operators with a role (`docs/reference/http-api.md`,
//! "Operators"). The session of a person who signed in at the console is in the list, and ends like a token.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::dry_run::ChangeResponse;
use super::extract::{Caller, PathTokenId, not_permitted};
use super::page::Page;
use super::tokens::{
    NewToken, RevokeResponse, TokenPage, issue_response, page_by, revoke_response,
};
use access::identity::{Operator, OperatorRow, Role};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use kernel::rejection::{Reason, Rejection};

/// The operator who asks.
#[derive(Serialize, ToSchema)]
pub(super) struct OperatorResponse {
    #[serde(flatten)]
    operator: Operator,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<Timestamp>,
}

/// A token in a list, or the session of a person.
#[derive(Serialize, ToSchema)]
pub(super) struct OperatorToken {
    id: String,
    prefix: String,
    #[serde(flatten)]
    operator: Operator,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<Timestamp>,
}

/// `GET /operators/me`: the role and the name of the caller.
pub(super) async fn show_self(caller: Caller) -> Result<Answer<OperatorResponse>, Rejection> {
    let operator = caller.0.operator.as_deref().cloned();
    Ok(Answer(OperatorResponse {
        operator: operator.ok_or_else(|| not_permitted("this needs an admin token"))?,
        expires_at: caller.0.ends_at().map(Timestamp),
    }))
}

/// `GET /operators/tokens`.
pub(super) async fn list_tokens(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
) -> Result<Answer<TokenPage<OperatorToken>>, Rejection> {
    caller.require_operator()?;
    let (after, look_ahead) = (&page.after, page.look_ahead());
    let rows = gateway.identity.tokens.list_operators(after, look_ahead);
    Ok(page_by(
        &page,
        rows.await?,
        |row: &OperatorRow| &row.token_id,
        token_row,
    ))
}

fn token_row(row: OperatorRow) -> OperatorToken {
    OperatorToken {
        id: row.token_id,
        prefix: row.prefix,
        operator: Operator {
            token_id: None,
            ..row.operator
        },
        created_at: Timestamp(row.created_at),
        expires_at: row.expires_at.map(Timestamp),
    }
}

/// The body of `POST /operators/tokens`. A misspelt end would make a token without one.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOperatorToken {
    #[schema(value_type = Role)]
    role: String,
    /// What lists and records call it. No credential.
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = r"^[^\x00-\x1F\x7F-\x9F]*[^\x00-\x1F\x7F-\x9F\s][^\x00-\x1F\x7F-\x9F]*$"
    )]
    label: Option<String>,
    /// When it ends, in the future. Not with `expires_in`.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Seconds until it ends. Not with `expires_at`.
    #[schema(minimum = 1, maximum = 315360000)]
    expires_in: Option<u64>,
}

/// `POST /operators/tokens`. The role of the caller covers that of the token, since only `admin` comes here.
pub(super) async fn issue_token(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(new): Json<NewOperatorToken>,
) -> Result<Response, Rejection> {
    caller.require_operator()?;
    let role = Role::parse(&new.role).ok_or_else(|| {
        let message = "`role` is `read`, `operate` or `admin`";
        Rejection::new(Reason::InvalidParams, message)
    })?;
    let terms = NewToken {
        label: new.label,
        expires_at: new.expires_at,
        expires_in: new.expires_in,
    };
    let terms = terms.into_terms(Timestamp::now())?;
    let issue = gateway
        .identity
        .tokens
        .issue_operator(role, &terms, caller.run());
    let kind = (Some(role), None);
    Ok(issue_response(&caller, &issue.await?, &terms, kind))
}

/// `DELETE /operators/tokens/{token_id}`: also ends the session of a person.
pub(super) async fn revoke_token(
    State(gateway): State<Arc<Gateway>>,
    PathTokenId(token_id): PathTokenId,
    caller: Caller,
) -> Result<Answer<ChangeResponse<RevokeResponse>>, Rejection> {
    caller.require_operator()?;
    let found = gateway
        .identity
        .tokens
        .revoke_operator(&token_id, caller.run());
    revoke_response(&caller, found.await?)
}
