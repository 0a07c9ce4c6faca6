//! `GET /caps`: the caps with their use (`docs/reference/http-api.md`, "Caps"). Operators see all; an integration sees
//! what counts in its org, or what workspaces of its subtree use.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::{FromRequestParts, Query, State};
use http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Caller, not_permitted};
use access::caps::{CapUsage, UsageQuery};
use access::identity::Principal;
use access::workspace::load_subtree;
use assembly::gateway::Gateway;
use kernel::ids::WorkspaceIncarnation;
use kernel::rejection::{Reason, Rejection};

/// Default and greatest number of subjects of one cap in an answer.
const SUBJECTS: (usize, usize) = (100, 500);

/// Workspaces of a subtree at most, for a token that looks after it: their ids are held during the request.
const SUBTREE_MAX: usize = 100_000;

/// The subjects that are asked for.
#[derive(Deserialize)]
pub(super) struct CapsQuery {
    cap: Option<String>,
    subject: Option<String>,
    limit: Option<usize>,
}

impl<S: Send + Sync> FromRequestParts<S> for CapsQuery {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let query = Query::<Self>::from_request_parts(parts, state).await;
        let fits = |limit: usize| (1..=SUBJECTS.1).contains(&limit);
        match query {
            Ok(Query(query)) if query.limit.is_none_or(fits) => Ok(query),
            _ => {
                let message = format!("`limit` is a whole number from 1 to {}", SUBJECTS.1);
                Err(Rejection::new(Reason::InvalidParams, message))
            }
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct CapsPage {
    caps: Vec<CapUsage>,
}

/// Returns the names of the workspaces of a subtree, and that of the caller who looks after it.
async fn names_in(
    gateway: &Gateway,
    caller: &Caller,
    subtree: (&str, &WorkspaceIncarnation),
) -> Result<HashSet<String>, Rejection> {
    let ids = load_subtree(&gateway.workspaces, subtree, SUBTREE_MAX).await?;
    let mut names = ids.ok_or_else(|| {
        let message = format!(
            "the subtree has more than {SUBTREE_MAX} workspaces, too many to tell their use apart: this needs an admin token"
        );
        Rejection::new(Reason::NotPermitted, message)
    })?;
    names.insert(caller.principal().name().into_owned());
    Ok(names)
}

/// `GET /caps`.
pub(super) async fn list_caps(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    query: CapsQuery,
) -> Result<Answer<CapsPage>, Rejection> {
    let (org, among) = match caller.principal() {
        Principal::Operator => (None, None),
        Principal::Org { org, within } => {
            let among = match within {
                Some(root) => Some(names_in(&gateway, &caller, (org, root)).await?),
                None => None,
            };
            (Some(org.as_str()), among)
        }
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    let wanted = UsageQuery {
        cap: query.cap.as_deref(),
        subject: query.subject.as_deref(),
        org,
        among: among.as_ref(),
        limit: query.limit.unwrap_or(SUBJECTS.0),
    };
    let caps = gateway.caps.read_usage(&wanted).await?;
    let known = |name: &str| gateway.config().cap.iter().any(|cap| cap.name == name);
    if let Some(name) = query.cap.filter(|name| !known(name)) {
        let message = format!(
            "no cap is named `{}`: GET /caps lists them",
            name.escape_debug()
        );
        return Err(Rejection::new(Reason::NotFound, message));
    }
    Ok(Answer(CapsPage { caps }))
}
