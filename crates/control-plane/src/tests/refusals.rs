//! Rejections by the control plane, for all kinds of callers.

use super::*;

#[tokio::test]
async fn wrong_paths_methods_and_bodies_are_refused_as_json() {
    let house = House::plain().await;
    let unknown = house.get("/nowhere", "").await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.reason()),
        (404, "not_found")
    );
    let wrong = house.call("PUT", "/workspaces/a", "", Value::Null).await;
    assert_eq!(wrong.reason(), "method_not_allowed");
    assert_eq!(wrong.headers["allow"], "GET, PATCH, DELETE, HEAD");
    let wrong = house
        .call("PATCH", "/workspaces/a/tokens", "", Value::Null)
        .await;
    assert_eq!(wrong.headers["allow"], "GET, POST, HEAD");

    let send = async |field: (&str, &str), body: Vec<u8>| {
        let request = request("POST", "/workspaces")
            .header("authorization", format!("Bearer {}", house.admin()))
            .header(field.0, field.1);
        house.send(request.body(Body::from(body)).unwrap()).await
    };
    let json = ("content-type", "application/json");
    let oversize = format!("{{\"name\":\"{}\"}}", "x".repeat(1 << 20));
    for (field, body, reason) in [
        (json, &b"{"[..], "parse_error"),
        (json, b"[]", "invalid_request"),
        (json, b"{}", "invalid_params"),
        (json, b"{\"name\":\"\"}", "invalid_params"),
        (json, oversize.as_bytes(), "body_too_large"),
        (
            ("content-type", "text/plain"),
            b"{}",
            "unsupported_media_type",
        ),
        (
            ("content-encoding", "gzip"),
            b"{}",
            "unsupported_media_type",
        ),
        (("origin", "http://x"), b"{}", "unsupported_media_type"),
        (("content-length", "1048577"), b"{}", "body_too_large"),
    ] {
        assert_eq!(send(field, body.to_vec()).await.reason(), reason);
    }
    let mut card = registration("a");
    card["agent_card"] = json!({"x": "y".repeat(256 * 1024)});
    let refused = house.post("/registry/register", house.admin(), card).await;
    assert_eq!(refused.reason(), "body_too_large");
}

#[tokio::test]
async fn the_requests_id_is_in_the_answer() {
    let house = House::plain().await;
    let asked = request("GET", "/nowhere").extension(RequestId::from_caller(Some(b"r-1")));
    let reply = house.send(asked.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.headers["x-request-id"], "r-1");
    assert_eq!(reply.json["request_id"], "r-1");
}

#[tokio::test]
async fn who_asks_or_fails_too_often_is_told_to_wait() {
    let house = House::new(|config| {
        config.rate.caller_per_second = 1;
        config.rate.caller_burst = 2;
        config.rate.failures_per_second = 1;
    })
    .await;
    let path = "/workspaces/nowhere";
    for reason in ["workspace_not_found", "workspace_not_found", "rate_limited"] {
        let reply = house.get(path, house.admin()).await;
        assert_eq!(reply.reason(), reason);
        if reason == "rate_limited" {
            assert_eq!(reply.status, 429);
            assert_eq!(reply.headers["retry-after"], "1");
            assert_eq!(reply.headers["ratelimit-limit"], "2");
            assert_eq!(reply.headers["ratelimit-remaining"], "0");
        }
    }
    let from = ClientAddr(IpAddr::from([192, 0, 2, 7]));
    for reason in ["unauthenticated", "rate_limited"] {
        let asked = request("GET", path).extension(from);
        let reply = house.send(asked.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.reason(), reason);
    }
}

#[tokio::test]
async fn open_mode_is_the_canvas_and_no_more() {
    let house = House::new(|config| config.auth.mode = AuthMode::Open).await;
    let token = house.workspace(json!({"id": "a", "name": "A"})).await;
    let read = house.get("/workspaces/a", "").await;
    assert_eq!(read.status, 200);
    assert_eq!(read.json["url"], Value::Null);
    let refused = house.get("/workspaces/a", "wrong").await;
    assert_eq!(refused.reason(), "unauthenticated");
    let refused = house.post("/workspaces", "", json!({"name": "B"})).await;
    assert_eq!(refused.reason(), "not_permitted");
    assert_eq!(house.get("/workspaces/a", &token).await.status, 200);
}

#[tokio::test]
async fn a_store_that_is_away_is_said() {
    let house = House::plain().await;
    house.gateway.db.pool().close().await;
    let token = format!("a2aw_{}", "x".repeat(43));
    let reply = house.get("/workspaces/a", &token).await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.reason(), "store_unavailable");
    assert_eq!(reply.headers["retry-after"], "1");
}

/// Changes that leave no record, each for the reason that [`event`] gives.
const PASSED_OVER: [&str; 6] = [
    "/explore",
    "/search",
    "/policy/prove",
    "/registry/heartbeat",
    "/registry/check-access",
    "/workspaces/{id}/activity/ack",
];

/// Reads that leave a record: they issue a token, or resume an answer.
const READ_AND_RECORDED: [&str; 2] = [
    "/registry/discover/{id}",
    "/workspaces/{id}/streams/{stream}",
];

#[test]
fn every_route_that_changes_something_leaves_a_record() {
    for (method, pattern) in ROUTES {
        let method: http::Method = method.parse().unwrap();
        let passed_over = PASSED_OVER.contains(pattern) || method.is_safe();
        let told_of_a_call = READ_AND_RECORDED.contains(pattern);
        let recorded =
            Route::find(DECLARED, &method, pattern).is_some_and(|route| route.event.is_some());
        let expected = !passed_over || told_of_a_call;
        assert_eq!(recorded, expected, "{method} {pattern}");
    }
}
