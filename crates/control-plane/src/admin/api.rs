//! `/api/…`: the routes of the control plane that the console uses, served by the control plane's
//! own handlers. These authenticate the operator's token again, validate the body and record
//! changes.

use std::net::SocketAddr;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};
use tower::ServiceExt as _;

use crate::Offer;
use access::identity::ClientAddr;
use kernel::ids::RequestId;

/// Path prefix of the routes.
const BASE: &str = "/api";

/// The routes by method and pattern: those of the control plane for the console, below [`BASE`].
pub static API_ROUTES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let routes = crate::DECLARED.iter();
    let routes = routes.filter(|route| route.offers.contains(&Offer::Console));
    routes.map(|route| (route.method, route.api_path)).collect()
});

/// Returns the routes, served by `control`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(control: &Router) -> Router<S> {
    let mut routes = Router::new();
    for (method, path) in API_ROUTES.iter() {
        let control = control.clone();
        let handler = move |request: Request| forward_request(control, request);
        let filter = match *method {
            "POST" => MethodFilter::POST,
            "DELETE" => MethodFilter::DELETE,
            "PATCH" => MethodFilter::PATCH,
            _ => MethodFilter::GET,
        };
        routes = routes.route(path, on(filter, handler));
    }
    routes
}

/// Returns the path that one of these routes has on the public listener.
pub(super) fn strip_api_prefix(path: &str) -> Option<&str> {
    let inner = path.strip_prefix(BASE)?;
    inner.starts_with('/').then_some(inner)
}

/// Passes a request to the control plane, with its path on the public listener and without
/// extensions of this listener.
async fn forward_request(control: Router, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map(PathAndQuery::as_str);
    let path = path.and_then(strip_api_prefix);
    let mut inner = http::Request::new(body);
    *inner.method_mut() = parts.method;
    *inner.uri_mut() = match path.map(str::parse) {
        Some(Ok(uri)) => uri,
        // Unreachable: a route has matched the path.
        _ => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let field = parts.headers.get("x-request-id");
    let id = RequestId::from_caller(field.map(HeaderValue::as_bytes));
    inner.extensions_mut().insert(id);
    if let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        inner.extensions_mut().insert(ClientAddr(peer.ip()));
    }
    *inner.headers_mut() = parts.headers;
    // A router's error type has no values.
    control
        .oneshot(inner)
        .await
        .unwrap_or_else(|never| match never {})
}
