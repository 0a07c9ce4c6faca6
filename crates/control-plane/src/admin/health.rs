//! Readiness probes: of all parts, for people and alerts; and of the parts that traffic needs, for
//! load balancers.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::json_response;
use assembly::gateway::Gateway;
use assembly::sidecar::Sidecar;
use kernel::drain::Drain;

/// Serves the readiness of all parts. Each store has its own timeout.
pub(super) async fn serve_readiness(gateway: Arc<Gateway>) -> Response {
    let sql = async {
        gateway.db.ping().await?;
        // Calls are refused until the stops are known.
        gateway.stops.ensure_known().await
    };
    let (sql, shared) = tokio::join!(sql, gateway.shared.ping());
    let (ready, parts) = readiness_parts(&gateway.drain, (sql.is_ok(), shared.is_ok()));
    readiness_response(ready && sql.is_ok() && shared.is_ok(), parts)
}

/// Serves the readiness for traffic. A store that became unavailable does not count: the gateway
/// serves from memory, and a load balancer would remove every replica at once. A store that has
/// never responded counts. Once both stores have responded, neither is pinged.
pub(super) async fn serve_traffic_readiness(gateway: Arc<Gateway>) -> Response {
    if !(gateway.db.is_migrated() && gateway.shared.has_answered()) {
        // The stores keep the results.
        let _ = tokio::join!(gateway.db.ping(), gateway.shared.ping());
    }
    let began = gateway.db.is_migrated() && gateway.shared.has_answered();
    let stores = (gateway.db.is_well(), gateway.shared.is_well());
    let (ready, parts) = readiness_parts(&gateway.drain, stores);
    readiness_response(began && ready, parts)
}

/// Serves the readiness of a sidecar, which needs the gateway's keys.
pub(super) async fn serve_sidecar_readiness(sidecar: Arc<Sidecar>) -> Response {
    let (keys, drain) = (sidecar.check_ready().is_ok(), &sidecar.drain);
    let listening = drain.is_open();
    let parts = json!({"keys": status_word(keys), "listener": status_word(listening), "draining": drain.has_begun()});
    readiness_response(keys && listening && !drain.has_begun(), parts)
}

/// Returns whether the process takes traffic, and the parts of its readiness.
fn readiness_parts(drain: &Drain, (sql, shared): (bool, bool)) -> (bool, Value) {
    let (listening, draining) = (drain.is_open(), drain.is_leaving());
    let parts = json!({
        "sql": status_word(sql),
        "shared": status_word(shared),
        // A gateway does not start without its keys.
        "keys": "ok",
        // It opens after the admin listener.
        "listener": status_word(listening),
        "draining": draining,
    });
    (listening && !draining, parts)
}

fn status_word(ok: bool) -> &'static str {
    if ok { "ok" } else { "unavailable" }
}

/// Returns the response of a readiness probe, with its parts.
fn readiness_response(ready: bool, mut parts: Value) -> Response {
    let (status, word) = if ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
    };
    parts["status"] = word.into();
    json_response(status, &parts)
}
