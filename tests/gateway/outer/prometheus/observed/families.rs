//! What the families say of what happened.

use serde_json::json;

use super::load::Stage;
use super::series::settled;
use crate::harness::sidecar::call;
use crate::harness::{ADMIN, Builder, CALL, Gateway, Pair, Request, until_holds};
use crate::on_both_pairs;

on_both_pairs! {
    async fn what_waits_is_told_with_its_age(pair: Pair) {
        let stage = Stage::on(Builder::new(pair).start().await).await;
        let gateway = &stage.gateway;
        for _ in 0..3 {
            gateway.call(&stage.ask("poller", CALL)).await.has(200);
        }
        // A target that is away: what is delegated to it waits.
        gateway.found("away").await;
        let body = json!({"target_id": "away", "task": "do"});
        let request = Request::post("/workspaces/caller/delegate", body.to_string()).bearer(&stage.caller.token);
        gateway.call(&request).await.has(202);
        for (queue, entries) in [("\"inbox\"", 3.0), ("\"jobs\"", 1.0)] {
            gateway.until_counted("a2a_gateway_queue_entries", &[queue], entries).await;
            gateway.until_counted("a2a_gateway_queue_oldest_seconds", &[queue], 0.001).await;
        }
        // Acknowledged, it waits no more.
        let own = Request::get("/workspaces/poller/activity").bearer(ADMIN);
        let newest = gateway.call(&own).await.json()[0]["id"].clone();
        let path = "/workspaces/poller/activity/ack";
        let ack = Request::post(path, json!({"up_to": newest}).to_string());
        gateway.call(&ack.bearer(&stage.poller)).await.has(200);
        for name in ["a2a_gateway_queue_entries", "a2a_gateway_queue_oldest_seconds"] {
            let is_none = async || gateway.metric(name, &["\"inbox\""]).await == 0.0;
            until_holds("none waits", is_none).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_timed_and_states_of_tasks_are_counted() {
    let stage = Stage::on(Builder::new(Pair::Embedded).start().await).await;
    let gateway = &stage.gateway;
    let stream = CALL.replace("message/send", "message/stream");
    let get = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t-1"}}"#;
    let keyed = stage.ask("target", &stream).field("Idempotency-Key", "k");
    let asks = [&*stream, CALL, get].map(|body| stage.ask("target", body));
    for ask in asks.iter().chain([&keyed]) {
        gateway.call(ask).await.has(200);
    }
    let ended = "a2a_gateway_exchanges_total";
    gateway.until_counted(ended, &["answered"], 4.0).await;
    for (name, labels, value) in [
        ("a2a_gateway_first_event_seconds_count", "", 2.0),
        ("a2a_gateway_between_events_seconds_count", "", 4.0),
        ("a2a_gateway_task_states_total", "\"submitted\"", 2.0),
        ("a2a_gateway_task_states_total", "\"working\"", 2.0),
        ("a2a_gateway_task_states_total", "\"completed\"", 3.0),
        ("a2a_gateway_task_states_total", "\"input_required\"", 1.0),
        ("a2a_gateway_task_states_total", "\"failed\"", 0.0),
    ] {
        gateway.until_counted(name, &[labels], value).await;
        let counted = gateway.metric(name, &[labels]).await;
        assert_eq!(counted, value, "{name} {labels}");
    }
    // Two pauses of 20 ms each; of what comes late on a busy machine, the next comes sooner behind it.
    let paused = "a2a_gateway_between_events_seconds_sum";
    let paused = gateway.metric(paused, &[]).await;
    assert!(paused >= 0.02, "{paused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_credentials_are_counted_by_why() {
    let stage = Stage::on(Builder::new(Pair::Embedded).start().await).await;
    let gateway = &stage.gateway;
    let of_credentials = "a2a_gateway_credentials_refused_total";
    let credential = async |why: &str| {
        let why = format!("why=\"{why}\"");
        gateway.metric(of_credentials, &[&why]).await
    };
    let none = credential("missing").await + credential("unknown").await;
    assert_eq!(none, 0.0);
    for request in stage.requests(0) {
        gateway.call(&request).await;
    }
    let ticket = Request::get("/workspaces").bearer(&format!("a2at_{}", "x".repeat(43)));
    gateway.call(&ticket).await;
    let refusals = "a2a_gateway_refusals_total";
    for (plane, reason, count) in [
        ("a2a", "parse_error", 1.0),
        ("a2a", "not_permitted", 2.0),
        ("a2a", "invalid_workspace_id", 1.0),
        ("a2a", "unauthenticated", 4.0),
        ("a2a", "internal", 0.0),
        ("control", "not_found", 1.0),
        ("control", "unauthenticated", 1.0),
    ] {
        let (by_plane, why) = (format!("plane=\"{plane}\""), format!("reason=\"{reason}\""));
        let labels = [&*by_plane, &*why];
        gateway.until_counted(refusals, &labels, count).await;
        let counted = gateway.metric(refusals, &labels).await;
        assert_eq!(counted, count, "{plane} {reason}");
    }
    for (why, count) in [
        ("missing", 1.0),
        ("unknown", 1.0),
        ("unknown_key", 1.0),
        ("expired", 0.0),
    ] {
        let label = format!("why=\"{why}\"");
        gateway
            .until_counted(of_credentials, &[&label], count)
            .await;
        assert_eq!(credential(why).await, count, "{why}");
    }
    let of_form = credential("form").await + credential("misplaced").await;
    assert_eq!(of_form, 2.0);

    // The sidecar's, which tells nothing of rooms that it does not have.
    let guarded = &stage.guarded;
    let token = guarded.token(CALL);
    for (token, status) in [(&token, 200), (&token, 401), (&"rubbish".to_owned(), 401)] {
        guarded.call(&call(token)).await.has(status);
    }
    let text = guarded.sidecar.admin_get("/metrics").await.text();
    for line in [
        "a2a_gateway_credentials_refused_total{why=\"replayed\"} 1",
        "a2a_gateway_credentials_refused_total{why=\"malformed\"} 1",
        "a2a_gateway_token_uses_total{use=\"again\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for absent in "coherent keys_current config_ store_ audit_ inbox_".split(' ') {
        assert!(!text.contains(&format!("a2a_gateway_{absent}")), "{absent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_process_and_build_are_told() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let keys = "a2a_gateway_keys";
    gateway.until_counted(keys, &["\"active\""], 1.0).await;
    let version = env!("CARGO_PKG_VERSION");
    for (name, labels, range) in [
        (keys, "\"next\"", 1.0..=1.0),
        (keys, "\"retired\"", 0.0..=0.0),
        ("a2a_gateway_key_age_seconds", "\"active\"", 0.0..=3600.0),
        ("a2a_gateway_build_info", version, 1.0..=1.0),
        ("process_cpu_seconds_total", "", 0.0..=3600.0),
        ("process_resident_memory_bytes", "", 1e6..=1e10),
        ("process_open_fds", "", 5.0..=10_000.0),
        ("process_max_fds", "", 64.0..=1e9),
        ("process_threads", "", 2.0..=500.0),
        ("process_start_time_seconds", "", 1.7e9..=4e9),
    ] {
        let value = gateway.metric(name, &[labels]).await;
        assert!(range.contains(&value), "{name} {labels}: {value}");
    }
    // What is closed begins at 0, so that a rate sees the first of its kind.
    let text = settled(&gateway).await;
    for reason in a2a_gateway::rejection::Reason::ALL {
        for plane in ["a2a", "control"] {
            let labels = format!("plane=\"{plane}\",reason=\"{}\"", reason.as_str());
            let line = format!("a2a_gateway_refusals_total{{{labels}}} 0");
            assert!(text.contains(&line), "{line}");
        }
    }
}
