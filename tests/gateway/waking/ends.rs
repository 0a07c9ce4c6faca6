//! A parked call ends: with its wait, its clock, its caller, its target, its credential or the process.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{ANSWER, Asleep, PATIENT, beat, parked, patient, refused, until};
use crate::harness::tls::Secure;
use crate::harness::{
    ADMIN, Agent, CALL, Connection, Pair, Request, Stores, assert_refusal, card, holds_for,
};
use crate::on_both_pairs;

on_both_pairs! {
    async fn an_agent_that_does_not_come_is_waited_for_no_longer_than_said(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        // The clocks of a call go on while it waits.
        let answer = asleep.gateway.call(&asleep.request().field("X-Timeout", "1")).await;
        assert_refusal(&answer, "/a2a", "seen", "agent_timeout", "X-Timeout");
        assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        assert_eq!(answer.fact("clock").as_deref(), Some("total"));
        let answer = asleep.gateway.call(&asleep.request().field("X-Timeout", "soon")).await;
        assert_refusal(&answer, "/a2a", "seen", "invalid_request", "X-Timeout");

        let gone = json!({"id": "gone", "name": "gone"});
        let gone = asleep.gateway.settle(gone, card("gone"), Agent::json(ANSWER).await).await;
        // No waker listens there.
        let wake = json!({"url": "http://127.0.0.1:9/", "max_wait_seconds": 1});
        asleep.gateway.patch("gone", json!({"wake": wake, "status": "hibernated"})).await;
        let began = Instant::now();
        let request = Request { path: "/workspaces/gone/a2a".into(), ..asleep.request() };
        let calls: Vec<_> = (0..10).map(|_| asleep.call(request.clone())).collect();
        for call in calls {
            let answer = refused(call, "workspace_restarting", "it does not come").await;
            assert_eq!(answer.field("retry-after"), Some("15"));
            assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        }
        assert!(began.elapsed() >= Duration::from_secs(1));
        let (wakes, unreachable) = ("a2a_gateway_wakes_total", &["unreachable"]);
        asleep.gateway.until_counted(wakes, unreachable, 1.0).await;
        let tried = asleep.gateway.metric(wakes, unreachable).await;
        assert_eq!(tried, 1.0, "once in its cool-down");
        assert_eq!(asleep.target.agent.count() + gone.agent.count(), 0);
        asleep.gateway.assert_idle().await;
    }

    async fn a_target_that_will_not_come_ends_the_wait(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let call = asleep.parked(asleep.request()).await;
        // On its way by the word of its platform.
        for status in ["restarting", "provisioning"] {
            asleep.gateway.patch("target", json!({"status": status})).await;
        }
        let waits = async || parked(&asleep.gateway).await == 1;
        holds_for(Duration::from_millis(300), "it waits", waits).await;
        let pause = Request::post("/workspaces/target/pause", "{}");
        assert_eq!(asleep.gateway.as_operator(pause).await.status, 200);
        let answer = refused(call, "workspace_offline", "paused").await;
        assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        let resume = Request::post("/workspaces/target/resume", "{}");
        assert_eq!(asleep.gateway.as_operator(resume).await.status, 200);
        asleep.hibernate().await;
        let calls = [asleep.parked(asleep.request()).await, asleep.parked(asleep.request()).await];
        let remove = Request::new("DELETE", "/workspaces/target");
        assert_eq!(asleep.gateway.as_operator(remove).await.status, 200);
        for call in calls {
            refused(call, "workspace_removed", "removed").await;
        }
        assert_eq!(asleep.target.agent.count(), 0);
    }

    async fn what_was_taken_back_while_a_call_waited_counts(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let gateway = &asleep.gateway;
        let tokens = "/workspaces/caller/tokens";
        let made = gateway.as_operator(Request::post(tokens, "{}")).await.json();
        let token = made["token"].as_str().unwrap().to_owned();
        let request = asleep.request().without("Authorization").bearer(&token);
        let call = asleep.parked(request).await;
        let revoke = format!("{tokens}/{}", made["id"].as_str().unwrap());
        assert_eq!(gateway.as_operator(Request::new("DELETE", revoke)).await.status, 200);
        let moved = asleep.parked(asleep.request()).await;
        gateway.create(json!({"id": "far", "name": "far", "org": "other"})).await;
        gateway.patch("caller", json!({"org": "other"})).await.has(200);
        asleep.heartbeat().await;
        refused(call, "unauthenticated", "revoked").await;
        refused(moved, "not_permitted", "moved").await;
        assert_eq!(asleep.target.agent.count(), 0);
    }
}

/// Over HTTP/2 a caller leaves with a reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_http_2_that_is_reset_takes_its_call_along() {
    let secure = Secure::start(patient(Pair::Embedded)).await;
    let gateway = &secure.gateway;
    let (caller, target) = gateway.pair(Agent::json(ANSWER).await).await;
    let waker = Agent::json("{}").await;
    let wake = json!({"wake": {"url": waker.url()}, "status": "hibernated"});
    assert_eq!(gateway.patch("target", wake).await.status, 200);
    let http2 = secure.http2().await;
    let request = caller.sends(&target, "");
    let begin = async || {
        let mut begun = http2.begin(&request, false).await;
        begun.send(CALL.as_bytes(), true).await;
        begun
    };
    let (mut left, stays) = (begin().await, begin().await);
    until(async || parked(gateway).await == 2).await;
    left.body.send_reset(h2::Reason::CANCEL);
    until(async || parked(gateway).await == 1).await;
    beat(gateway, &target).await;
    assert_eq!(stays.answer().await.unwrap().status, 200);
    assert_eq!(target.agent.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_is_asked_again_after_its_cool_down() {
    let asleep = Asleep::on(patient(Pair::Embedded)).await;
    let wake = json!({"url": asleep.wake_url(), "cool_down_seconds": 1});
    asleep.set(wake).await;
    let call = asleep.parked(asleep.request()).await;
    until(async || asleep.waker.count() >= 2).await;
    let url = asleep.target.agent.url();
    let body = json!({"id": "target", "url": url, "agent_card": card("target")});
    let comes = Request::post("/registry/register", body.to_string());
    assert_eq!(asleep.gateway.as_operator(comes).await.status, 200);
    assert_eq!(call.await.unwrap().status, 200);
}

/// Without Redis each replica keeps to its own cool-down, and looks for the agent each second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_woken_while_the_shared_state_is_away() {
    let stores = Stores::start();
    let asleep = Asleep::on(stores.builder().sets(PATIENT)).await;
    stores.redis.kill();
    let call = asleep.parked(asleep.request()).await;
    asleep.until_woken(1).await;
    asleep.heartbeat().await;
    assert_eq!(call.await.unwrap().status, 200);
    assert_eq!((asleep.waker.count(), asleep.target.agent.count()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_calls_wait_than_may() {
    let builder = patient(Pair::Embedded).set("wake.max_parked", "3");
    let asleep = Asleep::on(builder).await;
    // The caller has half of what the others leave; the target is another caller, to itself.
    let first = asleep.parked(asleep.request()).await;
    let answer = asleep.gateway.call(&asleep.request()).await;
    assert_refusal(&answer, "/a2a", "seen", "workspace_restarting", "its share");
    let itself = asleep.by(&asleep.target.token);
    let second = asleep.parked(itself.clone()).await;
    let third = asleep.parked(asleep.by(ADMIN)).await;
    let call = asleep.call(itself.field("X-Request-Id", "seen"));
    let answer = refused(call, "workspace_restarting", "all").await;
    answer.says("wake.max_parked = 3");
    let name = "a2a_gateway_parked_refused_total";
    assert_eq!(asleep.gateway.metric(name, &[]).await, 2.0);
    asleep.heartbeat().await;
    for call in [first, second, third] {
        assert_eq!(call.await.unwrap().status, 200);
    }
    assert_eq!(asleep.target.agent.count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_takes_its_call_along() {
    let asleep = Asleep::on(patient(Pair::Embedded)).await;
    let mut leavers = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(asleep.gateway.public).await;
        connection.ask(&asleep.request()).await;
        leavers.push(connection);
    }
    until(async || parked(&asleep.gateway).await == 3).await;
    let stays = asleep.parked(asleep.request()).await;
    drop(leavers);
    until(async || parked(&asleep.gateway).await == 1).await;
    asleep.heartbeat().await;
    assert_eq!(stays.await.unwrap().status, 200);
    assert_eq!(asleep.target.agent.count(), 1);
    asleep.gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_calls_end_when_the_process_does() {
    let mut asleep = Asleep::on(patient(Pair::Embedded)).await;
    let calls = [
        asleep.parked(asleep.request()).await,
        asleep.parked(asleep.request()).await,
    ];
    asleep.until_woken(1).await;
    asleep.gateway.terminate();
    for call in calls {
        let answer = refused(call, "shutting_down", "SIGTERM").await;
        assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
    }
    let status = asleep.gateway.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
    assert_eq!(asleep.target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_caller_a_card_and_an_agent_that_polls_wake_nothing() {
    let rates = "rate.caller_per_second=1 rate.caller_burst=30";
    let asleep = Asleep::on(patient(Pair::Embedded).sets(rates)).await;
    let gateway = &asleep.gateway;
    let agent = Agent::json("{}").await;
    let stranger = gateway.seat("stranger", "caller", agent).await;
    let unread = asleep.caller.sends(&asleep.target, "{");
    let extended = CALL.replace("message/send", "agent/getAuthenticatedExtendedCard");
    for (request, status) in [
        (asleep.by(&stranger.token), 403),
        (asleep.by("a2aw_nonsense"), 401),
        (unread.clone(), 400),
        (asleep.caller.sends(&asleep.target, extended), 503),
    ] {
        gateway.call(&request).await.has(status);
    }
    until(async || gateway.call(&unread).await.status == 429).await;
    for path in ["", "/.well-known/agent-card.json"] {
        let request = Request::get(format!("{}{path}", asleep.target.path()));
        assert_eq!(gateway.as_operator(request).await.status, 200, "{path}");
    }
    for path in ["/workspaces/target", "/registry/discover/target"] {
        let answer = gateway.as_operator(Request::get(path)).await;
        assert!([200, 503].contains(&answer.status), "{path}");
    }
    asleep.patch(json!({"delivery_mode": "poll"})).await;
    gateway.call(&asleep.by(ADMIN)).await.has(503);
    assert_eq!(gateway.metric("a2a_gateway_wakes_total", &[]).await, 0.0);
    assert_eq!(asleep.waker.count(), 0);
}
