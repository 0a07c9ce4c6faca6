//! `GET /canvas/…`: a page for talking with agents, if `canvas.enabled`. It is the same for all users and needs no
//! credential; the requests it makes do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawPathParams, State};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode, Uri};

use super::answer::unknown_path;
use assembly::gateway::Gateway;
use assembly::pages::CANVAS;
use kernel::rejection::Rejection;

/// `GET /canvas`: redirects to the path with a slash, relative to which the page finds its files.
pub(super) async fn redirect_to_page(
    State(gateway): State<Arc<Gateway>>,
    uri: Uri,
) -> Result<Response, Rejection> {
    if !gateway.config().canvas.enabled {
        return Err(unknown_path(uri).await);
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    let fields = response.headers_mut();
    // Relative, since a proxy in front may have put the gateway below a path.
    fields.insert(LOCATION, HeaderValue::from_static("canvas/"));
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// `GET /canvas/` and `GET /canvas/{file}`.
pub(super) async fn serve_file(
    State(gateway): State<Arc<Gateway>>,
    path: RawPathParams,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let name = path.iter().next().map_or("", |(_, name)| name);
    let enabled = gateway.config().canvas.enabled;
    match CANVAS.respond_to(name, &headers).filter(|_| enabled) {
        Some(answer) => Ok(answer.map(Body::from)),
        None => Err(unknown_path(uri).await),
    }
}
