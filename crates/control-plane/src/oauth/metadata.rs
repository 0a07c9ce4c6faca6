//! Metadata of the authorization server (RFC 8414) and of protected resources (RFC 9728). That of a resource is made of
//! its path alone: it says nothing of whether there is such a workspace.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde_json::json;

use super::token::EXCHANGE;
use crate::extract::PathId;
use crate::well_known::cacheable_response;
use assembly::gateway::Gateway;
use kernel::rejection::Rejection;

/// `GET /.well-known/oauth-authorization-server`.
pub(crate) async fn serve_server(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
) -> Response {
    let config = gateway.config();
    let url = config.public_url();
    let document = json!({
        "issuer": config.issuer(),
        "jwks_uri": format!("{url}/.well-known/jwks.json"),
        "token_endpoint": format!("{url}/oauth/token"),
        "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        "grant_types_supported": [EXCHANGE],
        "response_types_supported": [],
        "scopes_supported": ["a2a:chain"],
        "authorization_details_types_supported": ["a2a"],
    });
    cacheable_response(&headers, document.to_string())
}

/// `GET /.well-known/oauth-protected-resource/workspaces/{id}/a2a`.
pub(crate) async fn serve_resource(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let config = gateway.config();
    let document = json!({
        "resource": format!("{}/workspaces/{id}/a2a", config.public_url()),
        "authorization_servers": [config.issuer()],
        "bearer_methods_supported": ["header"],
    });
    Ok(cacheable_response(&headers, document.to_string()))
}
