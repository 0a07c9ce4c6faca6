//! `/registry/discover`: the location of a workspace (`docs/reference/http-api.md`).

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use secrecy::ExposeSecret as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Caller, PathId};
use access::identity::{CredentialKind, IssuedPair};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use directory::DiscoveryResult;
use kernel::rejection::Rejection;

#[derive(Serialize, ToSchema)]
#[schema(as = Discovery)]
pub(super) struct DiscoveryResponse {
    #[serde(flatten)]
    discovered: DiscoveryResult,
    #[serde(flatten)]
    token: Option<PairToken>,
    proxy_url: String,
}

/// The credential with which a workspace may call the target.
#[derive(Serialize, ToSchema)]
struct PairToken {
    /// To workspaces: a pair token for this target.
    token: String,
    token_expires_at: Timestamp,
    /// Seconds.
    #[schema(minimum = 1)]
    token_expires_in: u64,
}

impl PairToken {
    fn from_issued(issued: &IssuedPair) -> Self {
        Self {
            token: issued.token.expose_secret().to_owned(),
            token_expires_at: Timestamp(issued.expires_at),
            token_expires_in: issued.ttl.as_secs(),
        }
    }
}

/// `GET /registry/discover/{id}`.
pub(super) async fn discover_workspace(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
) -> Result<Response, Rejection> {
    let permit = gateway.hierarchy.permit(&caller.0, &id).await?;
    if permit.caller().is_some() {
        // The token would be good for calls that pass no gateway.
        gateway.check_chain(&caller.0, &permit).await?;
        gateway.stops.check(&permit)?;
    }
    let discovered = gateway.directory.views.discover(&permit).await?;
    // A caller that is not a workspace has a credential that is valid for every target.
    let token = permit
        .caller()
        .map(|id| {
            let pair = permit.pair(id.as_str());
            gateway.identity.signed.issue_pair(pair, &caller.0)
        })
        .transpose()?;
    let about = token
        .is_some()
        .then(|| ChangeFacts::for_workspace(&id).with_fact("kind", CredentialKind::Pair.as_str()));
    let answer = Answer(DiscoveryResponse {
        discovered,
        token: token.as_ref().map(PairToken::from_issued),
        proxy_url: gateway.config().base_of(&id),
    });
    Ok((about.map(Extension), answer).into_response())
}
