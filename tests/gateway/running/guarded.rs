//! `run --guard`: the agent gets no request but those of the gateway, with the proven caller.

use super::*;
use crate::harness::Connection;
use crate::harness::ports::free_address;

/// A token that is one for the agent but for its signature, its claims, or its algorithm.
fn forged(token: &str) -> Vec<String> {
    let parts: Vec<_> = token.split('.').collect();
    let [head, claims, signature] = parts[..] else {
        panic!("{token}");
    };
    let mut begins = ["AAAA", "BBBB"].into_iter();
    let begin = begins.find(|begin| !signature.starts_with(begin));
    let other = format!("{}{}", begin.unwrap(), &signature[4..]);
    let reversed: String = claims.chars().rev().collect();
    vec![
        format!("{head}.{claims}.{other}"),
        format!("{head}.{reversed}.{signature}"),
        format!("{head}.{claims}."),
        "nothing".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_token_about_the_caller_is_refused() {
    let stage = Stage::new(Pair::Embedded).await;
    let guard = free_address("127.0.0.1");
    let _run = stage.joined("one", &["--guard", &guard.to_string()]).await;
    assert_eq!(stage.said().await[1..], ["/rpc", "caller"]);
    let view = stage.view().await;
    assert_eq!(view["instances"][0]["url"], format!("http://{guard}/rpc"));

    let discovered = Request::get("/registry/discover/target").bearer(&stage.caller.token);
    let found = stage.gateway.call(&discovered).await.json();
    let good = found["token"].as_str().unwrap();
    let call = |token: &str| {
        let request = Request::post("/rpc", CALL).bearer(token);
        request
            .field("X-A2A-Caller", "mallory")
            .field("X-Workspace-ID", "mallory")
    };
    let answer = Connection::open(guard).await.call(&call(good)).await;
    assert_eq!(said(&answer)[2], "caller");
    let mut bad = forged(good);
    bad.push(stage.caller.token.clone());
    for token in bad {
        let answer = Connection::open(guard).await.call(&call(&token)).await;
        assert_eq!(answer.reason(), "unauthenticated", "{token}");
    }
    let without = Request::post("/rpc", CALL);
    let answer = Connection::open(guard).await.call(&without).await;
    assert_eq!(answer.reason(), "unauthenticated");
    let card = Request::get("/.well-known/agent-card.json");
    assert_eq!(Connection::open(guard).await.call(&card).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_for_bound_tokens_has_the_gateway_bind_them() {
    let stage = Stage::new(Pair::Embedded).await;
    let guard = free_address("127.0.0.1");
    let more = ["--guard", &guard.to_string(), "--require-bound"];
    let _run = stage.joined("one", &more).await;
    assert_eq!(stage.view().await["proof"], "request");
    assert_eq!(stage.said().await[2], "caller");
    let discovered = Request::get("/registry/discover/target").bearer(&stage.caller.token);
    let found = stage.gateway.call(&discovered).await.json();
    let unbound = Request::post("/rpc", CALL).bearer(found["token"].as_str().unwrap());
    let answer = Connection::open(guard).await.call(&unbound).await;
    answer.says("not bound to a request");
}
