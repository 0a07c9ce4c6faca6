//! `/api/…`: what the console needs of the control plane, by the control plane's own handlers. They ask for the
//! operator's token once more, judge the body, and write changes down.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use tower::ServiceExt as _;

use crate::identity::ClientAddr;
use crate::ids::RequestId;

/// Where they are.
const BASE: &str = "/api";

/// Its routes, by method and pattern: those of the control plane, below [`BASE`].
pub const API_ROUTES: &[(&str, &str)] = &[
    ("GET", "/api/workspaces/{id}"),
    ("POST", "/api/workspaces/{id}/pause"),
    ("POST", "/api/workspaces/{id}/resume"),
    ("GET", "/api/workspaces/{id}/tokens"),
    ("DELETE", "/api/workspaces/{id}/tokens/{token_id}"),
    ("GET", "/api/grants"),
    ("POST", "/api/grants"),
    ("DELETE", "/api/grants/{grant_id}"),
];

/// The routes, answered by `control`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(control: &Router) -> Router<S> {
    let mut routes = Router::new();
    for (method, path) in API_ROUTES {
        let control = control.clone();
        let handler = move |request: Request| pass(control, request);
        let filter = match *method {
            "POST" => MethodFilter::POST,
            "DELETE" => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        };
        routes = routes.route(path, on(filter, handler));
    }
    routes
}

/// A path of these, as the public listener has it.
pub(super) fn inner(path: &str) -> Option<&str> {
    let inner = path.strip_prefix(BASE)?;
    inner.starts_with('/').then_some(inner)
}

/// Hands a request on, with the path that it has on the public listener and nothing that this listener added.
async fn pass(control: Router, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map(PathAndQuery::as_str);
    let path = path.and_then(inner);
    let mut inner = http::Request::new(body);
    *inner.method_mut() = parts.method;
    *inner.uri_mut() = match path.map(str::parse) {
        Some(Ok(uri)) => uri,
        // A route has matched it.
        _ => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let field = parts.headers.get("x-request-id");
    let id = RequestId::from_caller(field.map(HeaderValue::as_bytes));
    inner.extensions_mut().insert(id);
    if let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        inner.extensions_mut().insert(ClientAddr(peer.ip()));
    }
    *inner.headers_mut() = parts.headers;
    // A router answers every request: its error type has no values.
    control
        .oneshot(inner)
        .await
        .unwrap_or_else(|never| match never {})
}
