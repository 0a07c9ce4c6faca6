//! Readiness: of everything, for people and alerts, and of what traffic needs, for load balancers.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::json_answer;
use crate::gateway::Gateway;
use crate::sidecar::Sidecar;

/// Whether all is well, part by part. Each store has its own clock.
pub(super) async fn everything(gateway: Arc<Gateway>) -> Response {
    let (sql, shared) = tokio::join!(gateway.db.ping(), gateway.shared.ping());
    let draining = gateway.draining();
    let ready = sql.is_ok() && shared.is_ok() && !draining;
    readiness(ready, parts(sql.is_ok(), shared.is_ok(), draining))
}

/// Whether requests should be sent here. A store that went away does not count: what is in memory is served on, and a
/// balancer would take every replica out at once. One that never answered does. Once both did, none is asked.
pub(super) async fn traffic(gateway: Arc<Gateway>) -> Response {
    if !(gateway.db.is_migrated() && gateway.shared.has_answered()) {
        // How they end is noted there.
        let _ = tokio::join!(gateway.db.ping(), gateway.shared.ping());
    }
    let began = gateway.db.is_migrated() && gateway.shared.has_answered();
    let draining = gateway.draining();
    let parts = parts(gateway.db.is_well(), gateway.shared.is_well(), draining);
    readiness(began && !draining, parts)
}

/// A sidecar is ready when it has the gateway's keys.
pub(super) async fn sidecar(sidecar: Arc<Sidecar>) -> Response {
    let (keys, draining) = (sidecar.ready().is_ok(), sidecar.drain.begun());
    let parts = json!({"keys": word(keys), "draining": draining});
    readiness(keys && !draining, parts)
}

fn parts(sql: bool, shared: bool, draining: bool) -> Value {
    json!({
        "sql": word(sql),
        "shared": word(shared),
        // A gateway without its keys does not start: that there is one says that they are loaded.
        "keys": "ok",
        "draining": draining,
    })
}

fn word(ok: bool) -> &'static str {
    if ok { "ok" } else { "unavailable" }
}

/// The answer to whether new exchanges should be sent here, with its parts.
fn readiness(ready: bool, mut parts: Value) -> Response {
    let (status, word) = if ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not_ready")
    };
    parts["status"] = word.into();
    json_answer(status, &parts)
}
