//! The routes of the operator's listener: metrics, health, readiness, version, configuration,
//! audit, explain and the console. The public listener serves none of them.
//!
//! Routes without a credential must not expose a caller, a workspace, a name of the configuration or a secret. Other
//! routes are behind [`gate`]; routes that change state are behind its stricter middleware. A request with a foreign
//! name in `Host` is rejected, so that a page in the operator's browser cannot read this listener by DNS rebinding.

mod api;
mod audit;
mod config;
mod console;
mod explain;
mod gate;
mod health;
mod host;
mod page;
mod session;
mod sign_in;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use crate::{Route, format_rejection};
use ::audit::Audit;
use a2a::accept::prefers_media;
use access::explain::ExplainFn;
use assembly::gateway::Gateway;
use assembly::sidecar::Sidecar;
use kernel::config::Live;
use kernel::ids::RequestId;
use kernel::metrics::{Format, Metrics};
use kernel::rejection::{Reason, Rejection};
use stores::store::Run;

pub use self::api::API_ROUTES;
pub use self::console::ROUTES as CONSOLE_ROUTES;
#[cfg(test)]
pub(crate) use self::console::described;
pub use self::sign_in::SIGN_IN_ROUTES;

/// The state of the routes that need no credential.
#[derive(Clone)]
struct Process {
    config: Live,
    metrics: Arc<Metrics>,
    /// Audit for rejected changes. A sidecar has none.
    audit: Option<Arc<Audit>>,
}

/// Returns every route of the admin listener. `explain` explains the checks of a message; `control`
/// is the control plane, of which the console uses some routes.
pub fn router(gateway: Arc<Gateway>, explain: Option<ExplainFn>, control: &Router) -> Router {
    let process = Process {
        config: gateway.config.clone(),
        metrics: Arc::clone(&gateway.metrics),
        audit: Some(Arc::clone(&gateway.audit)),
    };
    let mut told = operator_routes(Arc::clone(&gateway), explain);
    if gateway.config().admin.console {
        told = told.merge(console_routes(&gateway, control));
        let door = session::SessionGate::new(&gateway);
        let sign_in = sign_in::routes(&gateway, door.sessions());
        // Outside the gates of all routes so far, so that it runs before them.
        told = told.route_layer(from_fn_with_state(door, session::add_session_token));
        told = told.merge(sign_in).merge(page::routes());
    }
    let asked = Arc::clone(&gateway);
    let probes = Probes {
        everything: get(move || health::serve_readiness(Arc::clone(&asked))),
        traffic: get(move || health::serve_traffic_readiness(Arc::clone(&gateway))),
    };
    build_router(process, probes, told)
}

/// Returns the routes that expose data of callers and workspaces, or the names of issuers, guards and stores.
fn operator_routes(gateway: Arc<Gateway>, explain: Option<ExplainFn>) -> Router<Process> {
    let mut routes = Router::new()
        .route(
            "/audit",
            get(audit::list_records).with_state(Arc::clone(&gateway)),
        )
        .route(
            "/audit/chain",
            get(audit::show_chain).with_state(Arc::clone(&gateway)),
        )
        .route("/config", get(serve_config));
    if let Some(explain) = explain {
        let explain = move |query| explain::serve_explain(Arc::clone(&explain), query);
        routes = routes.route("/explain", get(explain));
    }
    // route_layer covers the routes added before it.
    routes.route_layer(from_fn_with_state(gateway, gate::operators_only))
}

/// Returns the data and actions of the console, which always need a token.
fn console_routes(gateway: &Arc<Gateway>, control: &Router) -> Router<Process> {
    let own = console::routes().with_state(Arc::clone(gateway));
    own.merge(api::routes(control))
        .route_layer(from_fn_with_state(
            Arc::clone(gateway),
            gate::operators_with_token,
        ))
}

/// Returns the routes of a sidecar's admin listener.
pub fn sidecar_router(sidecar: Arc<Sidecar>) -> Router {
    let process = Process {
        config: sidecar.config.clone(),
        metrics: Arc::clone(&sidecar.metrics),
        audit: None,
    };
    let readyz: MethodRouter<Process> =
        get(move || health::serve_sidecar_readiness(Arc::clone(&sidecar)));
    let probes = Probes {
        everything: readyz.clone(),
        traffic: readyz,
    };
    let config = get(async |State(process): State<Process>| {
        if process.config.get().admin.needs_token() {
            let message = "a sidecar knows no operators' tokens: read its configuration with admin.auth = \"auto\" and \
                           admin.listen on loopback";
            return Err(Rejection::new(Reason::Unauthenticated, message));
        }
        Ok(serve_config(State(process)).await)
    });
    build_router(process, probes, Router::new().route("/config", config))
}

/// Returns the declaration of a route: the console's own, or one of the control plane.
fn declared_route(method: &Method, pattern: &str) -> Option<&'static Route> {
    match api::strip_api_prefix(pattern) {
        Some(public) => Route::find(crate::DECLARED, method, public),
        None => Route::find(console::DECLARED, method, pattern),
    }
}

/// The readiness probes.
struct Probes {
    /// For people and alerts.
    everything: MethodRouter<Process>,
    /// For load balancers.
    traffic: MethodRouter<Process>,
}

fn build_router(process: Process, probes: Probes, told: Router<Process>) -> Router {
    Router::new()
        .route("/metrics", get(serve_metrics))
        .route("/healthz", get(serve_liveness))
        .route("/readyz", probes.everything)
        .route("/readyz/traffic", probes.traffic)
        .route("/version", get(serve_version))
        .merge(told)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(process.clone(), check_request))
        .with_state(process)
}

/// Serves the metrics in the requested format: Prometheus asks for `OpenMetrics`; the default is
/// its text format.
async fn serve_metrics(State(process): State<Process>, headers: HeaderMap) -> Response {
    let dropped = kernel::telemetry::lines_dropped();
    let dropped = i64::try_from(dropped).unwrap_or(i64::MAX);
    process.metrics.telemetry.log_lines_dropped.set(dropped);
    let format = if prefers_media(&headers, "application/openmetrics-text", "text/plain") {
        Format::OpenMetrics
    } else {
        Format::Text
    };
    let fields = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, "Accept"),
    ];
    (fields, process.metrics.render(format)).into_response()
}

/// Serves the liveness probe. Checks no store, so that an outage of a store does not restart the
/// gateway.
async fn serve_liveness() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

/// Serves the version. `commit` is set in builds with a known commit.
async fn serve_version() -> Response {
    let body = json!({
        "name": "a2a-gateway",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("A2A_GATEWAY_COMMIT"),
    });
    json_response(StatusCode::OK, &body)
}

/// Serves the configuration: values in force, their sources, and values that need a restart.
async fn serve_config(State(process): State<Process>) -> Response {
    json_response(
        StatusCode::OK,
        &config::config_as_json(&process.config.view()),
    )
}

async fn not_found() -> Rejection {
    let message = "this listener serves /metrics, /healthz, /readyz, /readyz/traffic, /version, /config and, of a gateway, \
                   /explain, /audit and the console at /; workspaces and the registry are on the public listener";
    Rejection::new(Reason::NotFound, message)
}

async fn method_not_allowed(path: Option<MatchedPath>) -> Rejection {
    let changes = path.is_some_and(|path| {
        let path = path.as_str();
        path.starts_with("/api/")
            || [
                "/console/keys/rotate",
                "/console/session",
                "/console/sign-in",
            ]
            .contains(&path)
    });
    let message = if changes {
        "this route takes the methods that `Allow` names"
    } else {
        "every route of the admin listener is read with GET"
    };
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    // For routes that change state, the router sets `Allow`.
    rejection.allow = (!changes).then_some("GET, HEAD");
    rejection
}

/// Header fields of every response: it must not be cached, and no page may show, run or read it.
const FIELDS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Rejects foreign names in `Host`, and adds the request id to every response.
async fn check_request(
    State(process): State<Process>,
    mut request: Request,
    next: Next,
) -> Response {
    let field = request.headers().get("x-request-id");
    let request_id = RequestId::from_caller(field.map(HeaderValue::as_bytes));
    let named = HeaderValue::from_str(request_id.as_str()).ok();
    if let Some(value) = &named {
        request.headers_mut().insert("x-request-id", value.clone());
    }
    let host = request
        .headers()
        .get(header::HOST)
        .map(HeaderValue::as_bytes);
    let twice = [header::HOST, header::ORIGIN]
        .iter()
        .any(|name| request.headers().get_all(name).iter().nth(1).is_some());
    let refused = if twice {
        let message = "the request has several Host or Origin fields";
        Some(Rejection::new(Reason::InvalidRequest, message))
    } else if host::is_own_host(host, &process.config.get()) {
        refuse_dry_run(&request).err()
    } else {
        let message = "this Host is not one of the gateway's; add the name to server.hosts";
        Some(Rejection::new(Reason::Misdirected, message))
    };
    let mut response = match refused {
        None => next.run(request).await,
        Some(rejection) => {
            if let Some(audit) = &process.audit {
                let told = (rejection.reason, rejection.reason.status());
                gate::record_refusal(audit, &request, None, told);
            }
            rejection.into_response()
        }
    };
    if let Some(rejection) = response.extensions_mut().remove::<Rejection>() {
        // Of a route that changes state, the router has set it.
        let allow = response.headers_mut().remove(header::ALLOW);
        response = format_rejection(&rejection, &request_id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    if let Some(value) = named {
        response.headers_mut().insert("x-request-id", value);
    }
    let fields = response.headers_mut();
    for (name, value) in FIELDS {
        // Files of the page have their own caching and content policy.
        fields
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Refuses `dry_run` on the routes that change something here. Those of the control plane judge it themselves.
///
/// # Errors
/// `invalid_params`.
fn refuse_dry_run(request: &Request) -> Result<(), Rejection> {
    let path = request.uri().path();
    if request.method().is_safe() || api::strip_api_prefix(path).is_some() {
        return Ok(());
    }
    Run::refuse_in(request.uri().query(), request.method().as_str(), path)
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}
