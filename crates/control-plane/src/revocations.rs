//! `/revocations`: what a person, a session, a run or a credential began by now is over
//! (`docs/reference/credentials.md`, "Revocations"). Operators; org tokens within their org.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json as Answer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::{UniqueJson, check_note};
use super::dry_run::ChangeResponse;
use super::extract::{Caller, PathTokenId, not_permitted};
use super::page::Page;
use super::tokens::{RevokeResponse, revoke_response};
use access::identity::Principal;
use access::revocations::{NewRevocation, Revocation, RootName, SessionName, Subject};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::rejection::{Reason, Rejection};

/// The body of `POST /revocations`: one of `root`, `session`, `run` and `credential`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRevocation)]
pub(super) struct RevocationRequest {
    /// A person, by the issuer's name; of our issuer: a canvas user or a workspace.
    root: Option<RootName>,
    /// A session at a provider.
    session: Option<SessionName>,
    /// The `txn` of chain tokens.
    #[schema(min_length = 1, max_length = 512)]
    run: Option<String>,
    /// The id of a credential; of a signed token its `jti`.
    #[schema(min_length = 1, max_length = 512)]
    credential: Option<String>,
    /// For lists and records.
    #[schema(max_length = 256, pattern = r"^[^\x00-\x1F\x7F-\x9F]*$")]
    reason: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Revocation)]
pub(super) struct RevocationResponse {
    id: String,
    /// As in the request: an object with `root`, `session`, `run` or `credential`.
    #[schema(value_type = Object)]
    subject: Box<RawValue>,
    /// The org to which it is confined: a token of the org made it.
    org: Option<String>,
    /// What began by then is over.
    before: Timestamp,
    reason: Option<String>,
    /// As records name a caller.
    created_by: String,
    /// The end of the revocation: what it covers has ended by then.
    expires_at: Timestamp,
}

#[derive(Serialize)]
pub(super) struct RevocationPage {
    revocations: Vec<RevocationResponse>,
    next_cursor: Option<String>,
}

impl RevocationRequest {
    fn to_subject(&self) -> Result<Subject, Rejection> {
        let named = [
            self.root.clone().map(Subject::Root),
            self.session.clone().map(Subject::Session),
            self.run.clone().map(Subject::Run),
            self.credential.clone().map(Subject::Credential),
        ];
        let mut named = named.into_iter().flatten();
        let (Some(subject), None) = (named.next(), named.next()) else {
            return Err(Rejection::new(
                Reason::InvalidParams,
                r#"a revocation is of one of these: {"root":{"iss","sub"}}, {"session":{"iss","sid"}}, {"run"} or {"credential"}"#,
            ));
        };
        subject.check()?;
        Ok(subject)
    }
}

/// Returns the org to which the caller's revocations are confined; `None` for an operator.
async fn find_org<'a>(gateway: &Gateway, caller: &'a Caller) -> Result<Option<&'a str>, Rejection> {
    gateway.hierarchy.require_root(caller.principal()).await?;
    match caller.principal() {
        Principal::Operator => Ok(None),
        Principal::Org { org, within: None } => Ok(Some(org)),
        Principal::Org { .. } | Principal::Workspace { .. } | Principal::Canvas { .. } => Err(
            not_permitted("this needs an admin token, or a token of the whole org"),
        ),
    }
}

/// `POST /revocations`.
pub(super) async fn create_revocation(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    UniqueJson(new): UniqueJson<RevocationRequest>,
) -> Result<Response, Rejection> {
    let org = find_org(&gateway, &caller).await?.map(str::to_owned);
    let subject = new.to_subject()?;
    check_note(new.reason.as_deref())?;
    let made = revoke(&gateway, &caller, (subject, org, new.reason)).await?;
    let about = ChangeFacts::default()
        .with_fact("before", made.before.to_string())
        .with_fact("reason", made.reason.as_deref())
        .with_fact("revocation_id", made.id.as_str())
        .with_fact("subject", to_value(&made.subject));
    Ok(caller.respond_created(about, revocation_response(made)?))
}

/// `GET /revocations`.
pub(super) async fn list_revocations(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
) -> Result<Answer<RevocationPage>, Rejection> {
    let org = find_org(&gateway, &caller).await?;
    let revocations = &gateway.identity.revocations;
    let found = revocations.list(org, &page.after, page.look_ahead());
    let mut found = found.await?;
    let next_cursor = page.truncate_page(&mut found, |one| &one.id);
    let shown = found.into_iter().map(revocation_response);
    Ok(Answer(RevocationPage {
        revocations: shown.collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// `DELETE /canvas/tokens/{token_id}`.
pub(super) async fn revoke_canvas(
    State(gateway): State<Arc<Gateway>>,
    PathTokenId(id): PathTokenId,
    caller: Caller,
) -> Result<
    (
        Extension<ChangeFacts>,
        Answer<ChangeResponse<RevokeResponse>>,
    ),
    Rejection,
> {
    let subject = Subject::Credential(id);
    let own = caller.0.revocable();
    let is_holder = own.is_some_and(|own| own.keys.contains(&subject.key()));
    if !is_holder && !matches!(caller.principal(), Principal::Operator) {
        return Err(not_permitted(
            "this needs the token itself, or an admin token; a token of an org sends POST /revocations",
        ));
    }
    let reason = "by its holder".to_owned();
    revoke(
        &gateway,
        &caller,
        (subject, None, is_holder.then_some(reason)),
    )
    .await?;
    let about = ChangeFacts::default().with_fact("kind", "canvas");
    revoke_response(&caller, true).map(|answer| (Extension(about), answer))
}

async fn revoke(
    gateway: &Gateway,
    caller: &Caller,
    (subject, org, reason): (Subject, Option<String>, Option<String>),
) -> Result<Revocation, Rejection> {
    let new = NewRevocation {
        subject,
        org,
        reason,
        created_by: caller.0.principal.name().into_owned(),
    };
    gateway
        .identity
        .revocations
        .revoke(&new, caller.run())
        .await
}

/// Ends the chains that were begun or passed on with a token which was revoked. Where there are as many revocations as
/// may be, they end by themselves.
pub(super) async fn end_chains(
    gateway: &Gateway,
    caller: &Caller,
    token_id: String,
) -> Result<(), Rejection> {
    let subject = (Subject::Credential(token_id), None, None);
    match revoke(gateway, caller, subject).await {
        Err(why) if why.reason == Reason::Conflict => {
            tracing::warn!(
                "chains of a revoked token live on: there are as many revocations as may be"
            );
            Ok(())
        }
        ended => ended.map(drop),
    }
}

fn to_value(subject: &str) -> Value {
    serde_json::from_str(subject).unwrap_or_default()
}

fn revocation_response(made: Revocation) -> Result<RevocationResponse, Rejection> {
    let subject = RawValue::from_string(made.subject).map_err(|error| {
        Rejection::new(Reason::Internal, "a revocation in the table cannot be read")
            .with_cause(error)
    })?;
    Ok(RevocationResponse {
        id: made.id,
        subject,
        org: made.org,
        before: made.before,
        reason: made.reason,
        created_by: made.created_by,
        expires_at: made.expires_at,
    })
}
