//! Each form of a call waits for its agent, and is sent once.

use std::time::Duration;

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{DecodingKey, Validation};
use serde_json::{Value, json};

use super::{ANSWER, Asleep, parked, patient, until, wakes};
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, CALL, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Step, card, chunk, holds_for,
    ok_json,
};
use crate::on_both_pairs;

/// An answer that can be translated.
const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message","messageId":"a-1","role":"agent","parts":[]}}"#;

/// Verifies a wake token as a waker would: by the published keys.
async fn claims(gateway: &Gateway, token: &str, audience: &str) -> Value {
    let keys = gateway.call(&Request::get("/.well-known/jwks.json")).await;
    let keys: JwkSet = serde_json::from_value(keys.json()).unwrap();
    let head = jsonwebtoken::decode_header(token).unwrap();
    assert_eq!(head.typ.as_deref(), Some("a2a-wake+jwt"));
    let key = keys.find(head.kid.as_deref().unwrap());
    let mut rules = Validation::new(head.alg);
    rules.set_audience(&[audience]);
    rules.set_issuer(&[format!("http://{}", gateway.public)]);
    rules.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
    let key = DecodingKey::from_jwk(key.expect("a published key")).unwrap();
    let read = jsonwebtoken::decode::<Value>(token, &key, &rules);
    read.unwrap().claims
}

on_both_pairs! {
    async fn a_call_waits_for_its_agent_and_the_waker_can_tell_who_asks(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let gateway = &asleep.gateway;
        let events = Request::get("/events").bearer(ADMIN);
        let mut feed = Feed::open(gateway.public, &events).await;
        let call = asleep.parked(asleep.request()).await;
        asleep.until_woken(1).await;
        let asked = asleep.waker.take();
        assert!(asked.head.starts_with("POST /wake?of=target HTTP/1.1\r\n"), "{}", asked.head);
        assert_eq!(asked.field("content-type"), Some("application/json"));
        let body: Value = serde_json::from_str(asked.text()).unwrap();
        assert_eq!(body, json!({"workspace_id": "target", "reason": "message"}));
        let token = asked.field("authorization").unwrap().strip_prefix("Bearer ").unwrap();
        let origin = format!("http://127.0.0.1:{}", asleep.waker.port);
        let claims = claims(gateway, token, &origin).await;
        assert_eq!((&claims["sub"], &claims["scope"]), (&json!("target"), &json!("a2a:wake")));
        assert!(claims["jti"].as_str().is_some_and(|id| !id.is_empty()));
        let life = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
        assert_eq!(life, 60);
        let as_caller = gateway.call(&asleep.by(token)).await;
        assert_eq!(as_caller.status, 401, "it is no credential");
        assert_eq!(asleep.target.agent.count(), 0);
        let parked_bytes = gateway.metric("a2a_gateway_parked_bytes", &[]).await;
        assert_eq!(parked_bytes, CALL.len() as f64);
        loop {
            let event = feed.event().await.data;
            if event["event"] == "WORKSPACE_WAKING" {
                assert_eq!(event["workspace_id"], "target");
                assert_eq!(event["payload"], json!({"reason": "message"}));
                break;
            }
        }

        asleep.heartbeat().await;
        let answer = call.await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, ANSWER));
        assert_eq!(asleep.target.agent.count(), 1);
        let seen = asleep.target.agent.take();
        assert_eq!(seen.text(), CALL);
        assert_eq!(seen.field("x-workspace-id"), Some("caller"));
        assert_eq!(parked(gateway).await, 0);
        assert_eq!(gateway.metric("a2a_gateway_parked_bytes", &[]).await, 0.0);
        until(async || !wakes(gateway, "target").await.is_empty()).await;
        assert_eq!(wakes(gateway, "target").await, [("done".to_owned(), json!({"status": 200, "wake": "accepted"}))]);
        assert_eq!(gateway.metric("a2a_gateway_wakes_total", &["accepted"]).await, 1.0);

        // Awake: no waker is asked.
        assert_eq!(gateway.call(&asleep.request()).await.status, 200);
        // It deregisters when it stops, and registers when it starts.
        let body = json!({"workspace_id": "target"}).to_string();
        let leaves = Request::post("/registry/deregister", body).bearer(&asleep.target.token);
        assert_eq!(gateway.call(&leaves).await.status, 200);
        let call = asleep.parked(asleep.request()).await;
        let body = json!({"id": "target", "url": asleep.target.agent.url(), "agent_card": card("target")});
        let comes = Request::post("/registry/register", body.to_string()).bearer(&asleep.target.token);
        assert_eq!(gateway.call(&comes).await.status, 200);
        assert_eq!(call.await.unwrap().status, 200);
        gateway.assert_idle().await;
    }

    async fn a_lapsed_heartbeat_counts_as_sleep(pair: Pair) {
        let asleep = Asleep::on(patient(pair).set("registry.heartbeat_ttl", "10s")).await;
        asleep.heartbeat().await;
        until(async || asleep.gateway.view("target").await["status"] == "offline").await;
        let call = asleep.parked(asleep.request()).await;
        asleep.until_woken(1).await;
        // One of them counts until the call is sent.
        until(async || { asleep.heartbeat().await; call.is_finished() }).await;
        assert_eq!(call.await.unwrap().status, 200);
    }

    async fn one_call_with_a_key_is_made_for_all_that_wait(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let request = asleep.request().field("Idempotency-Key", "k-1");
        let first = asleep.parked(request.clone()).await;
        let second = asleep.parked(request.clone()).await;
        asleep.until_woken(1).await;
        asleep.heartbeat().await;
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!((first.status, second.status), (200, 200));
        assert_eq!(asleep.target.agent.count(), 1);
        // A kept answer needs no agent.
        asleep.hibernate().await;
        let third = asleep.gateway.call(&request).await;
        assert_eq!(third.field("idempotent-replay"), Some("true"), "{third:?}");
        assert_eq!((asleep.target.agent.count(), asleep.waker.count()), (1, 1));
    }

    async fn a_deferred_call_wakes_and_does_not_wait(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let request = asleep.request().field("Prefer", "respond-async");
        asleep.gateway.call(&request).await.has(202);
        assert_eq!(parked(&asleep.gateway).await, 0);
        until(async || asleep.waker.count() > 0).await;
        asleep.heartbeat().await;
        until(async || asleep.target.agent.count() == 1).await;
        holds_for(Duration::from_millis(300), "it is sent once", async || asleep.target.agent.count() == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_the_routes_of_http_json_wait_as_well() {
    let agent = Agent::scripted(|request| {
        if !request.text().contains("message/stream") {
            return vec![Step::Write(ok_json(MESSAGE))];
        }
        let event = r#"{"jsonrpc":"2.0","id":"c-1","result":{"final":true}}"#;
        let event = Step::Write(chunk(format!("data: {event}\n\n")));
        vec![Step::write(SSE_HEAD), event, Step::write(LAST_CHUNK)]
    });
    let (agent, waker) = (agent.await, Agent::json("{}").await);
    let asleep = Asleep::with(patient(Pair::Embedded), agent, waker).await;
    let stream = CALL.replace("message/send", "message/stream");
    let stream = asleep.caller.sends(&asleep.target, stream);
    let message = r#"{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}"#;
    let rest = Request::post(format!("{}/v1/message:send", asleep.target.path()), message);
    let rest = rest.bearer(&asleep.caller.token);
    let stream = asleep.parked(stream).await;
    let rest = asleep.parked(rest).await;
    asleep.until_woken(1).await;
    asleep.heartbeat().await;
    stream.await.unwrap().has(200).says("\"final\":true");
    let rest = rest.await.unwrap().has(200).json();
    assert_eq!(rest["message"]["messageId"], "a-1", "{rest}");
    let sent = asleep.target.agent.requests();
    let sent = sent.iter().filter(|one| one.head.starts_with("POST"));
    assert_eq!(sent.count(), 2);
    // A question for a task waits, too.
    asleep.hibernate().await;
    let task = Request::get(format!("{}/tasks/unknown", asleep.target.path()));
    let task = asleep.parked(task.bearer(&asleep.caller.token)).await;
    asleep.heartbeat().await;
    assert_eq!(task.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_may_have_one_waker_for_all() {
    let waker = Agent::json("{}").await;
    let url = format!("http://127.0.0.1:{}/w/{{workspace_id}}", waker.port);
    let gateway = Gateway::with(&format!("wake.url={url}")).await;
    let (caller, target) = gateway.pair(Agent::json(ANSWER).await).await;
    let asleep = Asleep {
        gateway,
        caller,
        target,
        waker,
    };
    asleep.hibernate().await;
    let path = "/explain?caller=caller&target=target";
    let explained = asleep.gateway.admin_get(path).await.unwrap().json();
    let state = explained["steps"].as_array().unwrap().last().unwrap();
    let wakes = json!({"by": "wake.url", "max_wait_ms": 60_000, "cool_down_ms": 30_000});
    assert_eq!(state["fact"]["wakes"], wakes, "{explained}");
    let call = asleep.parked(asleep.request()).await;
    asleep.until_woken(1).await;
    let head = asleep.waker.take().head;
    assert!(head.starts_with("POST /w/target HTTP/1.1\r\n"), "{head}");
    asleep.heartbeat().await;
    assert_eq!(call.await.unwrap().status, 200);
    let explained = asleep.gateway.admin_get(path).await.unwrap();
    assert!(!explained.text().contains("wakes"));
}
