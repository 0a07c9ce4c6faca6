//! The middleware around every control route. Rejects clients with too many failures, completes changes whose caller
//! left, formats rejections as JSON, and counts and records answers.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{StatusCode, Uri};
use serde_json::Value;

use tokio::time::Instant;

use super::catalogue::{ARD_ROUTES, with_ard_members};
use super::extract::AdmittedRequest;
use super::{DECLARED, ROUTES, Route, oauth};
use access::identity::ClientAddr;
use assembly::gateway::Gateway;
use audit::change::{ChangeFacts, ChangeRequest};
use kernel::ids::RequestId;
use kernel::metrics::Plane;
use kernel::rejection::{COMMITTED, REFUSED, Reason, RejectedRequest, Rejection};
use kernel::telemetry::Chain;
use kernel::telemetry::traces::SpanFacts;
use stores::store::DRY_RUN;

/// The metric label of requests without a route: callers choose paths, so a path is no label.
const UNMATCHED: &str = "unmatched";

/// Builds the rejection of an unknown path. Those that people try in a browser have an answer of their own.
pub(super) async fn unknown_path(uri: Uri) -> Rejection {
    let message = match uri.path() {
        "/" => {
            "this is an A2A gateway: its agents are at /workspaces/{id}/a2a, its console is on the admin listener \
             (`admin.listen`)"
        }
        "/canvas" | "/canvas/" => "the canvas is off; `canvas.enabled = true` turns it on",
        "/console" | "/console/" => "the console is on the admin listener (`admin.listen`), at /",
        _ => "there is no such route on this listener; docs/reference/http-api.md lists them",
    };
    Rejection::new(Reason::NotFound, message)
}

/// Builds the rejection of a method that the path does not have.
pub(super) async fn wrong_method(path: MatchedPath) -> Rejection {
    let message = format!("this route takes {}", allowed_methods(path.as_str()));
    Rejection::new(Reason::MethodNotAllowed, message)
}

/// Wraps every route. A change runs in a task of its own, with its audit record, so that a caller that leaves cannot
/// stop it between the commit and its broadcast: a revoked token must be rejected everywhere even if its revoker left,
/// and the audit must name the revoker. A read ends with its caller.
pub(super) async fn wrap_route(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return run_route(&gateway, request, next).await;
    }
    let pattern = request.extensions().get::<MatchedPath>();
    let pattern = pattern.map_or(UNMATCHED, MatchedPath::as_str);
    let recorded = Route::find(DECLARED, request.method(), pattern).and_then(|route| route.event);
    let running = (
        gateway.drain.count_work(),
        recorded.map(|_| gateway.audit.begin_change()),
    );
    // The clocks of the body and of the stores bound the task.
    let change = tokio::spawn(async move {
        let _running = running;
        run_route(&gateway, request, next).await
    });
    change.await.unwrap_or_else(|error| {
        tracing::error!(%error, "control plane change did not complete");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}

/// Runs the route; counts and records the answer.
async fn run_route(gateway: &Gateway, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let admitted = AdmittedRequest::default();
    request.extensions_mut().insert(admitted.clone());
    let extensions = request.extensions_mut();
    let route = extensions.get::<MatchedPath>().cloned();
    let client = extensions.get::<ClientAddr>().map(|client| client.0);
    let id = extensions.get_or_insert_with(RequestId::random).clone();
    let facts = extensions.get::<SpanFacts>().cloned();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());

    let mut response = match request.extensions_mut().remove::<RejectedRequest>() {
        Some(RejectedRequest(rejection)) => rejection.into_response(),
        None => {
            let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            answered.unwrap_or_else(|_| panic_rejection().into_response())
        }
    };
    let pattern = route.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
    let about = response.extensions_mut().remove::<ChangeFacts>();
    let rejection = response.extensions_mut().remove::<Rejection>();
    let refused = rejection.as_ref().map(|rejection| rejection.reason);
    let committed = rejection.as_ref().and_then(Rejection::commit_mark);
    if let Some(facts) = facts {
        facts.set(pattern, refused);
    }
    if let Some(rejection) = rejection {
        let rejection = match client {
            Some(client) => gateway.rates.count_failure(client, rejection),
            None => rejection,
        };
        let rejection = match admitted.allowance() {
            Some(allowance) => allowance.apply_to(rejection),
            None => rejection,
        };
        let rejection = match ARD_ROUTES.contains(&pattern) {
            true => with_ard_members(rejection),
            false => rejection,
        };
        let refusals = &gateway.metrics.refusals;
        refusals.by_reason[Plane::Control][rejection.reason].inc();
        log_cause(&rejection, &id, pattern);
        response = match oauth::is_oauth_route(pattern) {
            true => oauth::format_error(&rejection, &id),
            false => format_rejection(&rejection, &id),
        };
        if rejection.reason == Reason::MethodNotAllowed
            && let Ok(allow) = HeaderValue::from_str(&allowed_methods(pattern))
        {
            response.headers_mut().insert(ALLOW, allow);
        }
    } else if let Some(allowance) = admitted.allowance() {
        response.headers_mut().extend(allowance.header_fields());
    }
    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    gateway
        .metrics
        .control
        .record_response(pattern, status, elapsed);
    let asked = ChangeRequest {
        method: &method,
        event_type: Route::event_type(Route::find(DECLARED, &method, pattern), &method),
        pattern,
        path: &path,
        id: &id,
        proof: admitted.proof(),
        client,
    };
    // A dry run that was answered is a read, and leaves no record; one that was refused leaves that of the refusal.
    if refused.is_some() || !admitted.is_dry() {
        let meant = admitted.target().filter(|_| refused.is_some());
        let about = about.or_else(|| meant.map(ChangeFacts::for_workspace));
        let committed = committed.map(|committed| (COMMITTED, committed));
        let dry = admitted.is_dry().then(|| (DRY_RUN, true.into()));
        let about = [committed, dry].into_iter().flatten().fold(about, add_fact);
        gateway.audit.record_change(asked, about, status, refused);
    }
    let headers = response.headers_mut();
    // Some answers contain tokens, and few are cacheable: those set their own field.
    let no_store = HeaderValue::from_static("no-store");
    headers.entry(CACHE_CONTROL).or_insert(no_store);
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        headers.insert("x-request-id", id);
    }
    response
}

fn add_fact(about: Option<ChangeFacts>, (name, value): (&str, Value)) -> Option<ChangeFacts> {
    Some(about.unwrap_or_default().with_fact(name, value))
}

/// Builds the rejection after a panic, which was logged without the request's id.
fn panic_rejection() -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the gateway failed; the log says more under the request's id",
    )
    .with_cause(io::Error::other("the route panicked"))
}

/// Formats a rejection as JSON, with the fields of its reason.
pub(crate) fn format_rejection(rejection: &Rejection, id: &RequestId) -> Response {
    let mut response = Response::new(Body::from(rejection.plain_body(id)));
    *response.status_mut() = status_of(rejection);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REFUSED, HeaderValue::from_static(rejection.reason.as_str()));
    if let Some(allow) = rejection.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if let Some(seconds) = rejection.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if rejection.reason == Reason::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    for (name, value) in &rejection.fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(*name, value);
        }
    }
    response
}

fn status_of(rejection: &Rejection) -> StatusCode {
    StatusCode::from_u16(rejection.reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the methods of a pattern as a list. `HEAD` is allowed with `GET`.
fn allowed_methods(pattern: &str) -> String {
    let of_pattern = ROUTES.iter().filter(|(_, path)| *path == pattern);
    let mut methods: Vec<&str> = of_pattern.map(|(method, _)| *method).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.join(", ")
}

/// Logs a failure of the gateway with its causes; errors of the caller are counted, and logged at debug level only.
fn log_cause(rejection: &Rejection, id: &RequestId, pattern: &str) {
    let reason = rejection.reason.as_str();
    let Some(cause) = &rejection.cause else {
        return;
    };
    let error = Chain(cause.as_ref());
    if rejection.reason == Reason::Internal {
        tracing::error!(exchange.id = %id, route = pattern, reason, %error, "control plane request failed");
    } else if rejection.reason.status() >= 500 {
        tracing::warn!(exchange.id = %id, route = pattern, reason, %error, "control plane request rejected");
    } else {
        tracing::debug!(exchange.id = %id, route = pattern, reason, %error, "control plane request rejected");
    }
}
