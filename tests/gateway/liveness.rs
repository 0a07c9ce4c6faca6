//! Heartbeats, lapses and discovery (contract §4.2, §4.4), and what a message to each state meets.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, SSE_HEAD, Seat, Step,
    assert_refusal, card, chunk, until_holds,
};
use crate::on_both_pairs;

/// `registry.heartbeat_ttl` where a case waits for a lapse: the least that can be.
const TTL: Duration = Duration::from_secs(1);

async fn beat(gateway: &Gateway, token: &str, id: &str, mut more: Value) -> Answer {
    more["workspace_id"] = id.into();
    let request = Request::post("/registry/heartbeat", more.to_string()).bearer(token);
    gateway.call(&request.field("X-Request-Id", "seen")).await
}

async fn get(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = Request::get(path).bearer(token);
    gateway.call(&request.field("X-Request-Id", "seen")).await
}

async fn send(gateway: &Gateway, caller: &Seat, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(&caller.token);
    gateway.call(&request.field("X-Request-Id", "seen")).await
}

fn refused(answer: &Answer, path: &str, reason: &str, what: &str) {
    assert_refusal(answer, path, "seen", reason, what);
    if matches!(reason, "workspace_offline" | "workspace_restarting") {
        assert_eq!(answer.field("retry-after"), Some("15"), "{what}");
    }
}

/// The times at which the log notes that the target has lapsed.
fn lapses(gateway: &Gateway) -> Vec<SystemTime> {
    let log = gateway.log();
    let lines = log.lines().filter(|line| line.contains("lapsed"));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_target = lines.filter(|line| line["workspace.id"] == "target");
    of_target.map(|line| time(&line["timestamp"])).collect()
}

fn time(text: &Value) -> SystemTime {
    humantime::parse_rfc3339(text.as_str().unwrap()).unwrap()
}

on_both_pairs! {
    async fn a_heartbeat_says_how_long_it_counts_and_is_read_at_once(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let seat = gateway.seat("dev", "", Agent::json("{}").await).await;
        let before = gateway.view("dev").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let said = json!({"active_tasks": 3, "current_task": "Lesen", "uptime_seconds": 12.5,
            "sample_error": "e", "runtime_state": "running", "error_rate": 0.0, "unknown": [1]});
        let answer = beat(&gateway, &seat.token, "dev", said).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok", "expires_in": 90})));
        let after = gateway.view("dev").await;
        assert_eq!((&after["active_tasks"], &after["current_task"]), (&json!(3), &json!("Lesen")));
        assert!(after["last_seen"].as_str() > before["last_seen"].as_str(), "{after}");
        assert_eq!(after["updated_at"], before["updated_at"], "only its liveness changed");
        let answer = beat(&gateway, ADMIN, "dev", json!({})).await;
        assert_eq!(answer.status, 200, "an operator may beat for it");
    }

    async fn a_lapse_is_offline_and_a_heartbeat_revives(pair: Pair) {
        let gateway = Builder::new(pair).set("registry.heartbeat_ttl", "1s").start().await;
        // Its registration is its first sign of life.
        let registered = Instant::now();
        let (caller, target) = gateway.pair(Agent::json("{}").await).await;
        let assumed = json!({"id": "assumed", "name": "a", "url": target.agent.url(), "liveness": "assumed"});
        gateway.create(assumed).await;
        // A beat now and then keeps it online: it lapses so long after the last one, and no sooner.
        let began = Instant::now();
        let (mut sent, mut longest) = (registered, Duration::ZERO);
        while began.elapsed() < TTL * 2 {
            let before = sent;
            sent = Instant::now();
            let answer = beat(&gateway, &target.token, "target", json!({})).await;
            assert_eq!((answer.status, &answer.json()["expires_in"]), (200, &json!(1)));
            longest = longest.max(before.elapsed());
            tokio::time::sleep(TTL / 8).await;
        }
        let kept = lapses(&gateway).is_empty();
        assert!(kept || longest.max(sent.elapsed()) >= TTL, "lapsed between beats {longest:?} apart");
        let seen = gateway.view("target").await["last_seen"].clone();
        // No request is made: the sweep alone has to find the lapse. An earlier one may precede that beat.
        let calls = target.agent.calls();
        let since = time(&seen) + TTL / 2;
        let noted = async || lapses(&gateway).iter().any(|at| *at > since);
        until_holds("the lapse is noted", noted).await;
        assert!(sent.elapsed() >= TTL, "{:?}", sent.elapsed());
        let offline = gateway.view("target").await;
        assert_eq!((&offline["status"], &offline["last_seen"]), (&json!("offline"), &seen));
        let answer = send(&gateway, &caller, "target").await;
        refused(&answer, "/a2a", "workspace_offline", "lapsed");
        assert_eq!(answer.json()["retry_after"], 15);
        assert_eq!(answer.fact("last_seen").as_deref(), seen.as_str());
        let answer = get(&gateway, ADMIN, "/registry/discover/target").await;
        refused(&answer, "", "workspace_offline", "lapsed");
        assert_eq!(answer.json()["last_seen"], seen);
        assert_eq!(gateway.view("assumed").await["status"], "online", "it needs no heartbeat");
        // The caller has lapsed, too: who asks need not be reachable.
        assert_eq!(send(&gateway, &caller, "assumed").await.status, 200);
        assert_eq!(target.agent.calls(), calls + 1, "only the one for `assumed`");
        let revived = async || {
            beat(&gateway, &target.token, "target", json!({})).await.has(200);
            let online = gateway.view("target").await["status"] == "online";
            send(&gateway, &caller, "target").await.status == 200 && online
        };
        // A call meets the lapse at its moment, and does not wait for the sweep.
        let lapsed = async || send(&gateway, &caller, "target").await.status != 200;
        let by_a_call = async || {
            until_holds("a heartbeat revives it", &revived).await;
            until_holds("it lapses", &lapsed).await;
            let noticed = ["noticed=\"request"];
            gateway.metric("a2a_gateway_lapses_total", &noticed).await > 0.0
        };
        until_holds("a call finds a lapse", by_a_call).await;
        let answer = send(&gateway, &caller, "target").await;
        answer.refuses(503, "workspace_offline");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_cannot_be_is_refused_and_says_when_to_register_again() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let seat = gateway.seat("dev", "", Agent::json("{}").await).await;
    let answer = beat(&gateway, ADMIN, "nobody", json!({})).await;
    refused(&answer, "", "workspace_not_found", "unknown");
    assert_eq!(answer.json()["reregister"], json!(true));
    for (id, reason) in [("nobody", "not_permitted"), ("a/b", "invalid_workspace_id")] {
        let answer = beat(&gateway, &seat.token, id, json!({})).await;
        refused(&answer, "", reason, id);
    }
    for more in [
        json!({"error_rate": "high"}),
        json!({"error_rate": 1.01}),
        json!({"error_rate": -0.01}),
        json!({"active_tasks": -1}),
        json!({"runtime_metadata": 1}),
    ] {
        let answer = beat(&gateway, &seat.token, "dev", more.clone()).await;
        refused(&answer, "", "invalid_params", &more.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_degrades_from_one_half_and_passes_below_a_tenth() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, target) = gateway.pair(Agent::json("{}").await).await;
    let wedged = |rate: f64| json!({"error_rate": rate, "runtime_state": "wedged"});
    let rate = |rate: f64| json!({"error_rate": rate});
    for (said, status) in [
        (rate(0.49), "online"),
        (rate(0.5), "degraded"),
        (rate(0.49), "degraded"),
        (rate(0.1), "degraded"),
        (rate(0.099), "online"),
        (rate(1.0), "degraded"),
        (wedged(0.0), "degraded"),
        (json!({}), "online"),
        (wedged(0.0), "degraded"),
        (wedged(0.0), "degraded"),
        (json!({"runtime_state": "running"}), "online"),
    ] {
        let after = format!("{status} after {said}");
        let answer = beat(&gateway, &target.token, "target", said).await;
        assert_eq!(answer.status, 200, "{after}: {}", answer.text());
        assert_eq!(gateway.view("target").await["status"], status, "{after}");
        let answer = send(&gateway, &caller, "target").await;
        assert_eq!(answer.status, 200, "{after}: {}", answer.text());
    }
    // Registering again is a fresh start.
    beat(&gateway, &target.token, "target", rate(1.0)).await;
    let body = json!({"id": "target", "url": target.agent.url(), "agent_card": card("target")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&target.token);
    assert_eq!(gateway.call(&request).await.status, 200);
    assert_eq!(gateway.view("target").await["status"], "online");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_never_registered_is_restarting() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let without = gateway.create(json!({"id": "fresh", "name": "fresh"}));
    without.await;
    let with_url = json!({"id": "early", "name": "early", "url": caller.agent.url()});
    let enrolment = gateway.create(with_url).await;
    for id in ["fresh", "early"] {
        let answer = send(&gateway, &caller, id).await;
        refused(&answer, "/a2a", "workspace_restarting", id);
        assert_eq!(answer.json()["restarting"], json!(true));
        assert_eq!(answer.json()["retry_after"], 15);
        let answer = get(&gateway, ADMIN, &format!("/registry/discover/{id}")).await;
        assert_refusal(&answer, "", "seen", "workspace_restarting", id);
    }
    // A heartbeat proves life, but not where: without a URL there is nowhere to send to.
    assert_eq!(beat(&gateway, ADMIN, "fresh", json!({})).await.status, 200);
    assert_eq!(gateway.view("fresh").await["status"], "provisioning");
    assert_eq!(caller.agent.count(), 0);
    let url = caller.agent.url();
    let registered = gateway.register("early", &enrolment, &url, card("early"));
    registered.await;
    assert_eq!(send(&gateway, &caller, "early").await.status, 200);
    assert_eq!(caller.agent.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_tells_each_caller_the_address_that_it_can_use() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let target = json!({"id": "target", "name": "Target"});
    let enrolment = gateway.create(target).await;
    let (outside, inside) = ("http://127.0.0.1:9/outside", "http://127.0.0.2:9/inside");
    let body = json!({"id": "target", "url": outside, "agent_card": card("target"),
        "internal_url": inside});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    assert_eq!(gateway.call(&request).await.status, 200);
    let canvas = gateway.token("/canvas/tokens", r#"{"user":"ada"}"#).await;
    let path = "/registry/discover/target";
    let found = get(&gateway, &caller.token, path).await.json();
    for (token, url) in [
        (&*caller.token, json!(inside)),
        (&canvas, Value::Null),
        (ADMIN, json!(outside)),
    ] {
        let answer = get(&gateway, token, path).await.has(200);
        assert_eq!(answer.json()["url"], url);
    }
    let proxy = format!("http://{}/workspaces/target/a2a", gateway.public);
    let mut shown = card("target");
    shown["url"] = json!(proxy);
    for (name, value) in [
        ("id", json!("target")),
        ("name", json!("Target")),
        ("delivery_mode", json!("push")),
        ("status", json!("online")),
        ("agent_card", shown),
        ("proxy_url", json!(proxy)),
    ] {
        assert_eq!(found[name], value, "{name}");
    }
    assert!(found["last_seen"].as_str().unwrap().ends_with('Z'));
    // Without an internal URL everybody gets the one there is.
    let found = get(&gateway, &caller.token, "/registry/discover/caller").await;
    assert_eq!(found.json()["url"], caller.agent.url());
    let foreign = json!({"id": "foreign", "name": "f", "org": "other"});
    gateway.create(foreign).await;
    // Those who may know, and those who may not.
    for (token, id, reason) in [
        (&*caller.token, "foreign", "not_permitted"),
        (&caller.token, "nobody", "not_permitted"),
        (ADMIN, "nobody", "workspace_not_found"),
        (&canvas, "nobody", "not_permitted"),
        (ADMIN, "a:b", "invalid_workspace_id"),
    ] {
        let answer = get(&gateway, token, &format!("/registry/discover/{id}")).await;
        refused(&answer, "", reason, id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_target_has_no_address_and_an_inbox_that_needs_nobody_there() {
    let gateway = Gateway::with("registry.heartbeat_ttl=1s").await;
    let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
    let enrolment = gateway.create(json!({"id": "poller", "name": "p"})).await;
    let body = json!({"id": "poller", "delivery_mode": "poll", "agent_card": card("p")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    let answer = gateway.call(&request).await.has(200);
    assert_eq!(answer.json()["delivery_mode"], "poll");
    for token in [&caller.token, ADMIN] {
        let found = get(&gateway, token, "/registry/discover/poller").await;
        let found = found.json();
        assert_eq!(found["url"], Value::Null);
        assert_eq!(found["delivery_mode"], "poll");
        let proxy = found["proxy_url"].as_str().unwrap();
        assert!(proxy.ends_with("/workspaces/poller/a2a"), "{proxy}");
    }
    let is_queued = async || {
        let answer = send(&gateway, &caller, "poller").await.has(200);
        assert_eq!(answer.json()["status"], "queued");
    };
    is_queued().await;
    // An inbox needs nobody to be there.
    let lapsed = async || gateway.view("poller").await["status"] == "offline";
    until_holds("it lapses", &lapsed).await;
    is_queued().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspaces_own_idle_timeout_counts_from_its_heartbeat_on() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let event = || Step::write(chunk("data: 1\n\n"));
    let agent = Agent::scripted(move |_| vec![Step::write(SSE_HEAD), event(), Step::Hang]);
    let (caller, target) = gateway.pair(agent.await).await;
    let said = json!({"runtime_metadata": {"idle_timeout_seconds": 1, "capabilities": ["x"]}});
    beat(&gateway, &target.token, "target", said).await.has(200);
    let started = Instant::now();
    // The clock of the gateway's configuration ends later than a caller of these cases waits.
    let answer = send(&gateway, &caller, "target").await;
    answer.says("AGENT_SILENT");
    let took = started.elapsed();
    assert!(took > Duration::from_millis(900), "{took:?}");
}
