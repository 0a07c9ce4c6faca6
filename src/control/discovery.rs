//! `/registry/discover`: where a workspace is (contract §4.4).

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use serde::Serialize;

use super::extract::{Caller, PathId};
use crate::directory::Discovered;
use crate::gateway::Gateway;
use crate::rejection::Rejection;

/// No token yet: the pair token and its times come with the trust room.
#[derive(Serialize)]
pub(super) struct Discovery {
    #[serde(flatten)]
    discovered: Discovered,
    proxy_url: String,
}

/// `GET /registry/discover/{id}`.
pub(super) async fn discover(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Answer<Discovery>, Rejection> {
    let permit = gateway.hierarchy.permit(&caller.0, &id).await?;
    Ok(Answer(Discovery {
        discovered: gateway.directory.discover(&permit).await?,
        proxy_url: format!("{}/workspaces/{id}/a2a", gateway.config().public_url()),
    }))
}
