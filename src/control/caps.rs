//! `GET /caps`: the caps with their use (`docs/reference/http-api.md`, "Caps"). Operators see all; an integration sees
//! what counts in its org.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::{FromRequestParts, Query, State};
use http::request::Parts;
use serde::{Deserialize, Serialize};

use super::extract::{Caller, not_permitted};
use crate::caps::{Shown, Wanted};
use crate::gateway::Gateway;
use crate::identity::Principal;
use crate::rejection::{Reason, Rejection};

/// Default and greatest number of subjects of one cap in an answer.
const SUBJECTS: (usize, usize) = (100, 500);

/// The subjects that are asked for.
#[derive(Deserialize)]
pub(super) struct Asked {
    cap: Option<String>,
    subject: Option<String>,
    limit: Option<usize>,
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let asked = Query::<Self>::from_request_parts(parts, state).await;
        let fits = |limit: usize| (1..=SUBJECTS.1).contains(&limit);
        match asked {
            Ok(Query(asked)) if asked.limit.is_none_or(fits) => Ok(asked),
            _ => {
                let message = format!("`limit` is a whole number from 1 to {}", SUBJECTS.1);
                Err(Rejection::new(Reason::InvalidParams, message))
            }
        }
    }
}

#[derive(Serialize)]
pub(super) struct Listed {
    caps: Vec<Shown>,
}

/// `GET /caps`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    asked: Asked,
) -> Result<Answer<Listed>, Rejection> {
    let org = match caller.principal() {
        Principal::Operator => None,
        Principal::Org { org } => Some(org.as_str()),
        Principal::Workspace { .. } | Principal::Canvas { .. } => {
            return Err(not_permitted("this needs an admin token or an org token"));
        }
    };
    let wanted = Wanted {
        cap: asked.cap.as_deref(),
        subject: asked.subject.as_deref(),
        org,
        limit: asked.limit.unwrap_or(SUBJECTS.0),
    };
    let caps = gateway.caps.shown(&wanted).await?;
    let known = |name: &str| gateway.config().cap.iter().any(|cap| cap.name == name);
    if let Some(name) = asked.cap.filter(|name| !known(name)) {
        let message = format!(
            "no cap is named `{}`: GET /caps lists them",
            name.escape_debug()
        );
        return Err(Rejection::new(Reason::NotFound, message));
    }
    Ok(Answer(Listed { caps }))
}
