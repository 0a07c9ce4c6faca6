//! `/auth/verify`, asked directly and by a real nginx with the configuration of `docs/design/security.md`.

use serde_json::json;

use crate::harness::documents::block;
use crate::harness::nginx::Nginx;
use crate::harness::sidecar::{Guarded, bound, call, claims};
use crate::harness::{Agent, CALL, Request, assert_refusal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_hears_who_calls() {
    let guarded = Guarded::start(&[]).await;
    let ask = |token: &str| Request::get("/auth/verify").bearer(token);
    let unbound = guarded.sign(&claims(json!({})));
    for _ in 0..2 {
        let forged = ask(&unbound).field("X-Workspace-ID", "boss");
        let answer = guarded.call(&forged).await.has(200);
        answer.has_field("x-workspace-id", "caller");
        answer.has_field("x-a2a-caller", "caller");
        answer.has_field("cache-control", "no-store");
    }
    let canvas = guarded.sign(&claims(json!({"sub": "canvas:mia"})));
    let in_its_own_field = Request::get("/auth/verify")
        .field("X-A2A-Caller-Token", canvas)
        .bearer("the-agents-own");
    let answer = guarded.call(&in_its_own_field).await;
    assert_eq!(answer.field("x-a2a-caller"), Some("canvas:mia"));
    assert!(answer.field("x-workspace-id").is_none());
    // The body is not seen, so it is not compared; but a bound token counts once.
    let token = guarded.token("whatever");
    guarded.call(&ask(&token)).await.has(200);
    let refusals = [
        ("again", ask(&token)),
        ("no token", Request::get("/auth/verify")),
    ];
    for (what, request) in refusals {
        let answer = guarded.call(&request.field("X-Request-Id", "r-1")).await;
        assert_refusal(&answer, "/auth/verify", "r-1", "unauthenticated", what);
    }
    let post = Request::post("/auth/verify", "{}").bearer(&unbound);
    let answer = guarded.call(&post).await;
    assert_eq!(answer.status, 405);
    assert_eq!(answer.field("allow"), Some("GET, HEAD"));
    assert_eq!(guarded.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_admits_with_a_token_and_refuses_without() {
    let guarded = Guarded::start(&[]).await;
    // The sidecar only answers questions here: nginx itself forwards, to an agent of its own.
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":"from the agent"}"#).await;
    let locations = block("### A proxy that asks the sidecar", "nginx")
        .replace("127.0.0.1:8000", &format!("127.0.0.1:{}", agent.port))
        .replace("127.0.0.1:8081", &guarded.sidecar.address.to_string());
    let nginx = Nginx::start(&locations);

    let forged = |request: Request| {
        request
            .field("X-Workspace-ID", "boss")
            .field("X-A2A-Caller", "boss")
    };
    let answer = nginx.call(&forged(call(&guarded.token(CALL)))).await;
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), nginx.log());
    assert!(answer.text().contains("from the agent"));
    let seen = agent.take();
    assert_eq!(seen.text(), CALL);
    assert_eq!(seen.fields("x-workspace-id"), ["caller"], "{}", seen.head);
    assert_eq!(seen.fields("x-a2a-caller"), ["caller"], "{}", seen.head);
    assert!(seen.field("authorization").is_none(), "{}", seen.head);

    let canvas = guarded.sign(&bound(CALL, json!({"sub": "canvas:mia"})));
    nginx.call(&forged(call(&canvas))).await.has(200);
    let seen = agent.take();
    assert!(seen.field("x-workspace-id").is_none(), "{}", seen.head);
    assert_eq!(seen.fields("x-a2a-caller"), ["canvas:mia"]);

    let used = guarded.token(CALL);
    nginx.call(&call(&used)).await.has(200);
    agent.take();
    let with = |more| call(&guarded.sign(&claims(more)));
    let question = Request::get("/auth/verify").bearer(&guarded.token(CALL));
    for (what, request, expected) in [
        ("no token", forged(Request::post("/", CALL)), 401),
        ("a used token", call(&used), 401),
        ("another target's", with(json!({"aud": "other"})), 401),
        ("an expired one", with(json!({"exp": 1})), 401),
        ("the question itself", question, 404),
    ] {
        let status = nginx.call(&request).await.status;
        assert_eq!(status, expected, "{what}: {}", nginx.log());
    }
    assert_eq!(agent.count(), 0);
}
