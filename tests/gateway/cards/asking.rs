//! Who may read a card, and how often it is asked for.

use serde_json::json;

use super::{add, card_of, patch, serving};
use crate::harness::{Gateway, Pair, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_admitted_like_a_call() {
    let gateway = Gateway::with("cors.origins=https://canvas.example").await;
    let card = json!({"name": "A", "url": "http://{agent}/"});
    let agent = serving("/.well-known/agent-card.json", &card).await;
    let (caller, target) = gateway.pair(agent).await;
    let other = json!({"id": "else", "name": "else", "org": "other"});
    gateway.create(other).await;
    let path = format!("{}/.well-known/agent-card.json", target.path());
    let beside = "/workspaces/target/.well-known/agent-card.json";
    let get = |path: &str| Request::get(path).bearer(&caller.token);
    assert_eq!(gateway.call(&get(&path)).await.status, 200);
    // Its own, as registered.
    gateway.call(&get(&caller.path())).await.has(200);
    let of_nobody = get("/workspaces/nobody/a2a/.well-known/agent.json");
    let other = get(&path).field("X-Workspace-ID", "target");
    let foreign = get(&path).field("Origin", "https://evil.example");
    let nonsense = Request::get(&path).bearer("nonsense");
    for (request, status, reason) in [
        (Request::get(&path), 401, "unauthenticated"),
        (nonsense, 401, "unauthenticated"),
        (other, 403, "caller_mismatch"),
        (get("/workspaces/else/a2a"), 403, "not_permitted"),
        (of_nobody, 403, "not_permitted"),
        (get("/workspaces/a:b/a2a"), 400, "invalid_workspace_id"),
        (foreign, 403, "origin_forbidden"),
        (get(&path).field("Host", "evil.example"), 421, "misdirected"),
        (get(&path).field("X-A2A-Hops", "8"), 508, "loop_detected"),
    ] {
        let answer = gateway.call(&request).await;
        answer.refuses_for(&request, status, reason);
        assert!(answer.json()["jsonrpc"] == "2.0", "an A2A route");
        let beside = Request {
            path: request.path.replace("/a2a", ""),
            ..request
        };
        if beside.path.contains(".well-known") {
            let answer = gateway.call(&beside).await;
            assert_eq!(answer.status, status, "{beside:?}");
            assert_eq!(answer.json()["reason"].as_str(), Some(reason), "{beside:?}");
        }
    }
    let nobody = Request::get("/workspaces/nobody/a2a");
    gateway
        .as_operator(nobody)
        .await
        .gives("workspace_not_found");
    for (method, path, allow) in [
        ("POST", path.as_str(), "GET, HEAD, OPTIONS"),
        ("DELETE", beside, "GET, HEAD, OPTIONS"),
        ("PUT", "/workspaces/target/a2a", "GET, HEAD, POST, OPTIONS"),
    ] {
        let mut request = get(path);
        request.method = method.into();
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, 405, "{method} {path}");
        assert_eq!(answer.field("allow"), Some(allow), "{method} {path}");
    }
    // Even a page's GET of a card has a preflight: a2a-js sends `A2A-Version` with it.
    for path in [path.as_str(), beside, "/workspaces/target/a2a"] {
        let page = |request: Request| request.field("Origin", "https://canvas.example");
        let asked = "a2a-version,authorization";
        let preflight = page(Request::new("OPTIONS", path))
            .field("Access-Control-Request-Method", "GET")
            .field("Access-Control-Request-Headers", asked);
        let answer = gateway.call(&preflight).await.has(204);
        let allowed = answer.field("access-control-allow-headers").unwrap();
        assert!(allowed.contains("a2a-version"), "{allowed}");
        let request = page(get(path)).field("A2A-Version", "1.0");
        let answer = gateway.call(&request).await.has(200);
        answer.has_field("access-control-allow-origin", "https://canvas.example");
        let exposed = answer.field("access-control-expose-headers").unwrap();
        assert!(exposed.contains("etag"), "{exposed}");
    }
    // Without a default there is nothing at the origin.
    let none = get("/.well-known/agent-card.json");
    gateway.call(&none).await.gives("not_found");
    // A card is fetched for no particular caller.
    let seen = target.agent.take();
    for name in "x-workspace-id authorization x-a2a-caller-token cookie".split(' ') {
        assert_eq!(seen.field(name), None, "{name}");
    }
    let labels = ["method=\"agent_card\"", "outcome=\"answered\""];
    let exchanges = "a2a_gateway_exchanges_total";
    gateway.until_counted(exchanges, &labels, 5.0).await;
    let fetched = gateway.counts("card_fetches_total", "outcome=\"fetched\"");
    assert!(fetched.await >= 1.0);
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
        let request = Request::get(path).field("If-None-Match", known.as_str());
        let answer = gateway.as_operator(request).await;
        assert_eq!(answer.status, status, "{known}");
        assert_eq!(answer.field("etag"), Some(tag.as_str()));
        assert_eq!(answer.body.is_empty(), status == 304);
    }
    assert_eq!(agent.count(), 1);
    // A change of what is registered counts at once.
    let other = serving("/cards/b.json", &json!({"name": "B", "skills": []})).await;
    let there = json!({"card_url": format!("{}cards/b.json", other.url())});
    patch(&gateway, "target", there).await;
    let answer = card_of(&gateway, "target").await;
    assert_eq!(answer.json()["name"], "B");
    assert_ne!(answer.field("etag"), Some(tag.as_str()));
    let back = json!({"card_url": null, "role": "other"});
    patch(&gateway, "target", back).await;
    let served = card_of(&gateway, "target").await;
    assert_eq!(served.json()["name"], "A");
    assert_eq!(served.json()["description"], "other");
    assert_eq!((agent.count(), other.count()), (2, 1));
}
