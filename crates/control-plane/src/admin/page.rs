//! The console's page and its files, below `/`. They contain no data: the page asks for a token.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::HeaderMap;

use assembly::pages::CONSOLE;

/// Returns one route per file; no other path matches.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let file = |name: &'static str| {
        get(move |headers: HeaderMap| async move {
            let answer = CONSOLE.respond_to(name, &headers).unwrap_or_default();
            answer.map(Body::from)
        })
    };
    let mut routes: Router<S> = Router::new().route("/", file(""));
    for name in CONSOLE.file_names() {
        routes = routes.route(&format!("/{name}"), file(name));
    }
    routes
}
