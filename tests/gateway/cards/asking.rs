//! Who may read a card, and how often it is asked for.

use serde_json::json;

use super::{add, card_of, patch, serving};
use crate::harness::{Builder, Gateway, Pair, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_admitted_like_a_call() {
    let gateway = Builder::new(Pair::Embedded)
        .set("cors.origins", "https://canvas.example")
        .start()
        .await;
    let card = json!({"name": "A", "url": "http://{agent}/"});
    let (caller, target) = gateway
        .pair(serving("/.well-known/agent-card.json", &card).await)
        .await;
    gateway
        .create(json!({"id": "else", "name": "else", "org": "other"}))
        .await;
    let path = format!("{}/.well-known/agent-card.json", target.path());
    let beside = "/workspaces/target/.well-known/agent-card.json";
    let get = |path: &str| Request::get(path).bearer(&caller.token);
    assert_eq!(gateway.call(&get(&path)).await.status, 200);
    assert_eq!(
        gateway.call(&get(&caller.path())).await.status,
        200,
        "its own, as registered"
    );
    for (request, status, reason) in [
        (Request::get(&path), 401, "unauthenticated"),
        (
            Request::get(&path).bearer("nonsense"),
            401,
            "unauthenticated",
        ),
        (
            get(&path).field("X-Workspace-ID", "target"),
            403,
            "caller_mismatch",
        ),
        (get("/workspaces/else/a2a"), 403, "not_permitted"),
        (
            get("/workspaces/nobody/a2a/.well-known/agent.json"),
            403,
            "not_permitted",
        ),
        (get("/workspaces/a:b/a2a"), 400, "invalid_workspace_id"),
        (
            get(&path).field("Origin", "https://evil.example"),
            403,
            "origin_forbidden",
        ),
        (get(&path).field("Host", "evil.example"), 421, "misdirected"),
        (get(&path).field("X-A2A-Hops", "8"), 508, "loop_detected"),
    ] {
        let answer = gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "{request:?}"
        );
        assert!(answer.json()["jsonrpc"] == "2.0", "an A2A route");
        let beside = Request {
            path: request.path.replace("/a2a", ""),
            ..request
        };
        if beside.path.contains(".well-known") {
            let answer = gateway.call(&beside).await;
            assert_eq!(
                (answer.status, answer.json()["reason"].as_str()),
                (status, Some(reason)),
                "{beside:?}"
            );
        }
    }
    assert_eq!(
        gateway
            .as_operator(Request::get("/workspaces/nobody/a2a"))
            .await
            .reason(),
        "workspace_not_found"
    );
    for (method, path, allow) in [
        ("POST", path.as_str(), "GET, HEAD, OPTIONS"),
        ("DELETE", beside, "GET, HEAD, OPTIONS"),
        ("PUT", "/workspaces/target/a2a", "GET, HEAD, POST, OPTIONS"),
    ] {
        let mut request = get(path);
        request.method = method.into();
        let answer = gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.field("allow")),
            (405, Some(allow)),
            "{method} {path}"
        );
    }
    // Even a page's GET of a card has a preflight: a2a-js sends `A2A-Version` with it.
    for path in [path.as_str(), beside, "/workspaces/target/a2a"] {
        let page = |request: Request| request.field("Origin", "https://canvas.example");
        let mut preflight = page(Request::get(path))
            .field("Access-Control-Request-Method", "GET")
            .field(
                "Access-Control-Request-Headers",
                "a2a-version,authorization",
            );
        preflight.method = "OPTIONS".into();
        let answer = gateway.call(&preflight).await;
        assert_eq!(answer.status, 204);
        assert!(
            answer
                .field("access-control-allow-headers")
                .unwrap()
                .contains("a2a-version")
        );
        let answer = gateway
            .call(&page(get(path)).field("A2A-Version", "1.0"))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.field("access-control-allow-origin"),
            Some("https://canvas.example")
        );
        assert!(
            answer
                .field("access-control-expose-headers")
                .unwrap()
                .contains("etag")
        );
    }
    // Without a default there is nothing at the origin.
    assert_eq!(
        gateway
            .call(&get("/.well-known/agent-card.json"))
            .await
            .reason(),
        "not_found"
    );
    let seen = target.agent.take();
    for name in [
        "x-workspace-id",
        "authorization",
        "x-a2a-caller-token",
        "cookie",
    ] {
        assert_eq!(
            seen.field(name),
            None,
            "{name}: a card is fetched for nobody in particular"
        );
    }
    let labels = ["method=\"agent_card\"", "outcome=\"answered\""];
    let exchanges = "a2a_gateway_exchanges_total";
    gateway.until_counted(exchanges, &labels, 5.0).await;
    assert!(
        gateway
            .metric("a2a_gateway_card_fetches_total", &["outcome=\"fetched\""])
            .await
            >= 1.0
    );
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_kept_until_it_changes() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let card = json!({"name": "A", "url": "http://{agent}/", "x": 1});
    let agent = serving("/.well-known/agent-card.json", &card).await;
    add(&gateway, "target", json!({"url": agent.url()})).await;
    let all = (0..20).map(|_| card_of(&gateway, "target"));
    let answers = futures_util::future::join_all(all).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(agent.count(), 1, "one fetch for all who ask at once");
    let tag = answers[0].field("etag").unwrap().to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    for (name, value) in [
        ("content-type", "application/json"),
        ("cache-control", "private, max-age=30"),
        ("vary", "Authorization, Origin, A2A-Version"),
    ] {
        assert_eq!(answers[0].field(name), Some(value));
    }
    assert!(answers[0].field("last-modified").unwrap().ends_with(" GMT"));
    let path = "/workspaces/target/a2a/.well-known/agent-card.json";
    for (known, status) in [
        (tag.clone(), 304),
        (format!("\"x\", W/{tag}"), 304),
        ("*".into(), 304),
        ("\"x\"".into(), 200),
    ] {
        let answer = gateway
            .as_operator(Request::get(path).field("If-None-Match", known.as_str()))
            .await;
        assert_eq!(answer.status, status, "{known}");
        assert_eq!(answer.field("etag"), Some(tag.as_str()));
        assert_eq!(answer.body.is_empty(), status == 304);
    }
    assert_eq!(agent.count(), 1);
    // A change of what is registered counts at once.
    let other = serving("/cards/b.json", &json!({"name": "B", "skills": []})).await;
    patch(
        &gateway,
        "target",
        json!({"card_url": format!("{}cards/b.json", other.url())}),
    )
    .await;
    let answer = card_of(&gateway, "target").await;
    assert_eq!(answer.json()["name"], "B");
    assert_ne!(answer.field("etag"), Some(tag.as_str()));
    patch(
        &gateway,
        "target",
        json!({"card_url": null, "role": "other"}),
    )
    .await;
    let served = card_of(&gateway, "target").await;
    assert_eq!(
        (
            served.json()["name"].clone(),
            served.json()["description"].clone()
        ),
        (json!("A"), json!("other"))
    );
    assert_eq!((agent.count(), other.count()), (2, 1));
}
