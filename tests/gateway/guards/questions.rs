//! Questions to guards: their members, their proof, and how the answers count.

use serde_json::{Value, json};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_names_the_call_and_is_signed_with_its_body() {
    let guard = guard().await;
    let more = json!({"header": "X-Key: planted-key-of-the-guard"});
    let guards = json!([table("g", &guard, "pass", more)]);
    let case = Case::guarded(&guards, "hello").await;
    let message = json!({"kind": "message", "messageId": "m-1", "role": "user", "contextId": "ctx", "parts": [
        {"kind": "text", "text": "a"}, {"kind": "data", "data": {"k": ["b"]}},
        {"kind": "file", "file": {"name": "f", "bytes": "AAAA"}}]});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send",
        "params": {"message": message, "metadata": {"run_id": "r-1"}}});
    let request = Request::post(case.target.path(), call.to_string())
        .bearer(&case.caller.token)
        .field("X-Request-Id", "req-of-guards");
    let answer = case.gateway.call(&request).await.has(200);
    let asked = guard.requests();
    assert_eq!(asked.len(), 2, "request and response");
    let question: Value = serde_json::from_slice(&asked[0].body).unwrap();
    let caller = json!({"id": case.caller.id, "org": null, "kind": "workspace"});
    let expected = json!({"version": 1, "guard": "g", "phase": "request", "request_id": "req-of-guards",
        "method": "message/send", "caller": caller, "target": {"id": case.target.id, "org": null},
        "rule": question["rule"], "context_id": "ctx", "run_id": "r-1", "texts": ["a", "b", "f"],
        "metadata": question["metadata"], "payload": message});
    assert_eq!(question, expected);
    assert_eq!(question["metadata"]["run_id"], "r-1");
    let question: Value = serde_json::from_slice(&asked[1].body).unwrap();
    assert_eq!(question["phase"], "response");
    assert_eq!(question["texts"], json!(["hello"]));
    assert_eq!(question["payload"], answer.json()["result"]);
    assert_eq!(question["run_id"], "r-1");
    assert_eq!(asked[0].field("x-key"), Some("planted-key-of-the-guard"));
    let token = asked[0].field("authorization").unwrap();
    let claims = verified(&case.gateway, token.strip_prefix("Bearer ").unwrap()).await;
    assert_eq!(claims["aud"], guard.url().trim_end_matches('/'));
    assert_eq!(claims["sub"], "g");
    assert_eq!(claims["scope"], "a2a:guard");
    assert_eq!(claims["bh"], hash(&asked[0].body));
}

fn hash(body: &[u8]) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(body))
}

/// The claims of a token that the gateway's published keys verify.
async fn verified(gateway: &Gateway, token: &str) -> Value {
    let keys = gateway.call(&Request::get("/.well-known/jwks.json")).await;
    let keys: jsonwebtoken::jwk::JwkSet = serde_json::from_slice(&keys.body).unwrap();
    let header = jsonwebtoken::decode_header(token).unwrap();
    assert_eq!(header.typ.as_deref(), Some("a2a-guard+jwt"));
    let key = keys.find(header.kid.as_deref().unwrap()).unwrap();
    let mut validation = jsonwebtoken::Validation::new(header.alg);
    validation.validate_aud = false;
    let key = jsonwebtoken::DecodingKey::from_jwk(key).unwrap();
    let verified = jsonwebtoken::decode::<Value>(token, &key, &validation);
    verified.unwrap().claims
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_are_asked_in_order_and_each_sees_what_the_one_before_made() {
    let guard = guard().await;
    let request = json!({"phases": ["request"]});
    let guards = json!([
        table("first", &guard, "replace", request.clone()),
        {"name": "own", "builtin": "patterns", "phases": ["request"],
            "patterns": [{"name": "mask", "regex": MASK, "action": "mask"}]},
        table("second", &guard, "reject", request.clone()),
        table("fails", &guard, "garbage", json!({"phases": ["request"], "on_failure": "allow"})),
    ]);
    let case = Case::guarded(&guards, "hello").await;
    case.call(Form::Rpc03, false, SECRET).await.has(200);
    let sent = wire(&case.target.agent);
    assert!(sent.contains("[mask]"), "{sent}");
    assert!(!sent.contains(SECRET), "{sent}");
    assert!(!sent.contains(MASK), "{sent}");
    let requests = guard.requests();
    let texts = requests.iter().map(|one| call_in(one)["texts"].clone());
    let expected = [[SECRET], ["[mask]"], ["[mask]"]].map(|one| json!(one));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_methods_sizes_and_failures_count_as_they_are_set() {
    let guard = guard().await;
    let small = json!({"max_bytes": "1KiB", "phases": ["request"], "methods": ["SendMessage"]});
    let elsewhere = json!({"targets": ["somewhere-else"]});
    let open = json!({"phases": ["request"], "on_failure": "allow", "methods": ["message/send"]});
    let guards = [("pass", small), ("reject", elsewhere), ("hang", open)];
    let guards = json!(guards.map(|(behaviour, more)| table(behaviour, &guard, behaviour, more)));
    let case = Case::guarded(&guards, "hello").await;
    let call = async |text: &str| case.call(Form::Rpc03, false, text).await;
    assert_eq!(call(SECRET).await.status, 200);
    let answer = call(&"x".repeat(2000)).await;
    answer.refuses(503, "guard_unavailable");
    assert_eq!(answer.fact("limit"), Some("1024".into()));
    assert_eq!(answer.fact("failure"), Some("too_large".into()));
    // Of another method, and of a card, no guard is asked. Two were asked about the first call.
    guard.until_count(2).await;
    let asked = guard.count();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "t-9"}});
    let request = Request::post(case.target.path(), call.to_string()).bearer(&case.caller.token);
    case.gateway.call(&request).await;
    let card = Request::get(case.target.path()).bearer(&case.caller.token);
    case.gateway.call(&card).await;
    assert_eq!(guard.count(), asked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_a_call_has_the_hash_of_what_guards_made_of_it() {
    let guard = guard().await;
    let guards = json!([table(
        "g",
        &guard,
        "replace",
        json!({"phases": ["request"]})
    )]);
    let case = Case::guarded(&guards, "hello").await;
    let proof = json!({"proof": "request"});
    case.gateway.patch("target", proof).await.has(200);
    case.call(Form::Rpc03, false, SECRET).await.has(200);
    let sent = case.target.agent.take();
    assert!(sent.text().contains(MASK));
    let token = sent.field("authorization").expect("a caller token");
    let token = token.strip_prefix("Bearer ").unwrap();
    let [_, claims] = trust::decode_unverified(token).unwrap();
    assert_eq!(claims["bh"], hash(&sent.body));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbidden_address_and_a_redirect_are_failures() {
    let elsewhere = Agent::json(r#"{"action":"pass"}"#).await;
    let to = elsewhere.url();
    let moved = format!("HTTP/1.1 307 X\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    let guard = Agent::scripted(move |_| vec![Step::write(&moved)]).await;
    for (url, failure) in [
        ("http://169.254.169.254/check", "unreachable"),
        (&guard.url(), "invalid"),
    ] {
        let guards = json!([{"name": "g", "url": url, "phases": ["request"], "timeout": "60s"}]);
        let case = Case::guarded(&guards, "hello").await;
        let answer = case.call(Form::Rpc03, false, "hi").await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.fact("failure").as_deref(), Some(failure));
        assert_eq!(case.target.agent.count(), 0);
    }
    assert_eq!(elsewhere.count(), 0);
}
