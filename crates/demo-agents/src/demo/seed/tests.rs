//! Tests of the setup against a stub that answers as docs/reference/http-api.md describes ("Workspaces",
//! "Registry"). The integration tests use the real gateway.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;

use super::*;

/// The requests that the stub got: path, credential, body.
type Seen = Arc<Mutex<Vec<(&'static str, String, Value)>>>;

fn note(seen: &Seen, path: &'static str, headers: &HeaderMap, body: &Value) {
    let credential = headers["authorization"].to_str().unwrap();
    let credential = credential.strip_prefix("Bearer ").unwrap().to_owned();
    seen.lock().push((path, credential, body.clone()));
}

async fn create(State(seen): State<Seen>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let known = seen
        .lock()
        .iter()
        .any(|(path, _, earlier)| *path == "/workspaces" && earlier["id"] == body["id"]);
    note(&seen, "/workspaces", &headers, &body);
    if known {
        let refusal = json!({"error": "it exists", "reason": "conflict"});
        return (StatusCode::CONFLICT, Json(refusal)).into_response();
    }
    let token = format!("a2ae_{}", body["id"].as_str().unwrap());
    (StatusCode::CREATED, Json(json!({"enrolment_token": token}))).into_response()
}

async fn register(
    State(seen): State<Seen>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Json<Value> {
    note(&seen, "/registry/register", &headers, &body);
    let id = body["id"].as_str().unwrap();
    let enrolled = headers["authorization"].to_str().unwrap().contains("a2ae_");
    Json(if enrolled {
        json!({"status": "registered", "token": format!("a2aw_{id}")})
    } else {
        json!({"status": "registered"})
    })
}

async fn wake(
    State(seen): State<Seen>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Json<Value> {
    note(&seen, "/workspaces/rival-night", &headers, &body);
    Json(json!({}))
}

/// Starts the stub, and a demo that uses it as the gateway.
async fn demo(kept: Option<PathBuf>) -> (DemoGateway, Seen) {
    let seen = Seen::default();
    let router = Router::new()
        .route("/readyz", get(|| async { "{}" }))
        .route("/workspaces", post(create))
        .route("/registry/register", post(register))
        .route("/workspaces/rival-night", patch(wake))
        .route(
            "/registry/deregister",
            post(|| async { Json(json!({"status": "deregistered"})) }),
        )
        .route(
            "/canvas/tokens",
            post(|| async { Json(json!({"token": "canvas.jwt"})) }),
        )
        .route(
            "/workspaces/acme-pm/a2a",
            post(|| async { Json(json!({"result": {}})) }),
        )
        .with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base: Url = format!("http://{}/", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let demo = DemoGateway {
        public: base.clone(),
        admin: base,
        waker: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
        operator: "a2aa_operator".to_owned(),
        has_canvas: true,
        has_console: true,
        folder: "/tmp/demo".into(),
        tokens_file: kept,
    };
    (demo, seen)
}

#[tokio::test]
async fn every_seat_is_made_by_the_operator_and_registers_itself() {
    let (demo, seen) = demo(None).await;
    let issued = demo.seed().await.unwrap();
    assert_eq!(issued.token("acme-intern"), "a2aw_acme-intern");
    assert_eq!(issued.canvas.as_deref(), Some("canvas.jwt"));
    let seen = seen.lock();
    assert_eq!(seen.len(), 2 * WORKSPACES.len() + 1);
    let (path, token, body) = seen.last().unwrap();
    assert_eq!(
        (*path, token.as_str()),
        ("/workspaces/rival-night", "a2aa_operator")
    );
    assert!(
        body["wake"]["url"]
            .as_str()
            .unwrap()
            .ends_with("/wake/rival-night")
    );
    for (made, registered) in seen.iter().step_by(2).zip(seen.iter().skip(1).step_by(2)) {
        let id = made.2["id"].as_str().unwrap();
        assert_eq!((made.0, made.1.as_str()), ("/workspaces", "a2aa_operator"));
        assert_eq!(registered.0, "/registry/register");
        assert_eq!(registered.1, format!("a2ae_{id}"));
        let push = registered.2["delivery_mode"] == "push";
        assert_eq!(push, registered.2["url"].is_string(), "{id}");
        assert!(registered.2["agent_card"].is_object(), "{id}");
    }
}

#[tokio::test]
async fn a_folder_that_is_kept_brings_the_same_tokens_back() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("demo-tokens.json");
    let (demo, seen) = demo(Some(kept.clone())).await;
    let first = demo.seed().await.unwrap();
    let second = demo.seed().await.unwrap();
    assert_eq!(first.tokens, second.tokens);
    {
        let seen = seen.lock();
        let last = &seen[seen.len() - 2];
        assert_eq!(
            (last.0, last.1.as_str()),
            ("/registry/register", "a2aw_rival-night")
        );
    }
    std::fs::remove_file(kept).unwrap();
    let error = demo.seed().await.err().unwrap().to_string();
    assert!(
        error.starts_with("acme-pm is known to the gateway"),
        "{error}"
    );
}
