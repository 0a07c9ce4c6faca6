//! What the families say of what happened.

use serde_json::json;

use super::load::Stage;
use super::series::settled;
use crate::harness::{ADMIN, Builder, CALL, Gateway, Pair, Request, until_holds};
use crate::on_both_pairs;

on_both_pairs! {
    async fn what_waits_is_told_with_its_age(pair: Pair) {
        let stage = Stage::on(Builder::new(pair).start().await).await;
        let gateway = &stage.gateway;
        for _ in 0..3 {
            assert_eq!(gateway.call(&stage.ask("poller", CALL)).await.status, 200);
        }
        // A target that is away: what is delegated to it waits.
        gateway.create(json!({"id": "away", "name": "away"})).await;
        let body = json!({"target_id": "away", "task": "do"});
        let request = Request::post("/workspaces/caller/delegate", body.to_string()).bearer(&stage.caller.token);
        assert_eq!(gateway.call(&request).await.status, 202);
        gateway.until_counted("a2a_gateway_queue_entries", &["\"inbox\""], 3.0).await;
        gateway.until_counted("a2a_gateway_queue_entries", &["\"jobs\""], 1.0).await;
        gateway.until_counted("a2a_gateway_queue_oldest_seconds", &["\"inbox\""], 0.001).await;
        gateway.until_counted("a2a_gateway_queue_oldest_seconds", &["\"jobs\""], 0.001).await;
        // Acknowledged, it waits no more.
        let own = Request::get("/workspaces/poller/activity").bearer(ADMIN);
        let newest = gateway.call(&own).await.json()[0]["id"].clone();
        let path = "/workspaces/poller/activity/ack";
        let ack = Request::post(path, json!({"up_to": newest}).to_string());
        assert_eq!(gateway.call(&ack.bearer(stage.poller())).await.status, 200);
        let entries = async || gateway.metric("a2a_gateway_queue_entries", &["\"inbox\""]).await;
        until_holds("none waits", async || entries().await == 0.0).await;
        assert_eq!(gateway.metric("a2a_gateway_queue_oldest_seconds", &["\"inbox\""]).await, 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_timed_and_states_of_tasks_are_counted() {
    let stage = Stage::on(Builder::new(Pair::Embedded).start().await).await;
    let gateway = &stage.gateway;
    let stream = CALL.replace("message/send", "message/stream");
    let get = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t-1"}}"#;
    for body in [stream.as_str(), CALL, get] {
        assert_eq!(
            gateway.call(&stage.ask("target", body)).await.status,
            200,
            "{body}"
        );
    }
    let keyed = stage.ask("target", &stream).field("Idempotency-Key", "k");
    assert_eq!(gateway.call(&keyed).await.status, 200);
    gateway
        .until_counted("a2a_gateway_exchanges_total", &["answered"], 4.0)
        .await;
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
        assert_eq!(
            gateway.metric(name, &[labels]).await,
            value,
            "{name} {labels}"
        );
    }
    // Two pauses of 20 ms each; of what comes late on a busy machine, the next comes sooner behind it.
    let paused = gateway
        .metric("a2a_gateway_between_events_seconds_sum", &[])
        .await;
    assert!(paused >= 0.02, "{paused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_credentials_are_counted_by_why() {
    let stage = Stage::on(Builder::new(Pair::Embedded).start().await).await;
    let gateway = &stage.gateway;
    let refused = |plane: &'static str, reason: &'static str| async move {
        let (plane, reason) = (format!("plane=\"{plane}\""), format!("reason=\"{reason}\""));
        gateway
            .metric("a2a_gateway_refusals_total", &[&plane, &reason])
            .await
    };
    let credential = |why: &'static str| async move {
        let why = format!("why=\"{why}\"");
        gateway
            .metric("a2a_gateway_credentials_refused_total", &[&why])
            .await
    };
    assert_eq!(
        credential("missing").await + credential("unknown").await,
        0.0
    );
    for request in stage.requests(0) {
        gateway.call(&request).await;
    }
    let ticket = Request::get("/workspaces").bearer(&format!("a2at_{}", "x".repeat(43)));
    gateway.call(&ticket).await;
    gateway
        .until_counted("a2a_gateway_refusals_total", &["a2a", "parse_error"], 1.0)
        .await;
    for (plane, reason, count) in [
        ("a2a", "parse_error", 1.0),
        ("a2a", "not_permitted", 2.0),
        ("a2a", "invalid_workspace_id", 1.0),
        ("a2a", "unauthenticated", 4.0),
        ("a2a", "internal", 0.0),
        ("control", "not_found", 1.0),
        ("control", "unauthenticated", 1.0),
    ] {
        let labels = [format!("plane=\"{plane}\""), format!("reason=\"{reason}\"")];
        gateway
            .until_counted(
                "a2a_gateway_refusals_total",
                &[&labels[0], &labels[1]],
                count,
            )
            .await;
        assert_eq!(refused(plane, reason).await, count, "{plane} {reason}");
    }
    for (why, count) in [
        ("missing", 1.0),
        ("unknown", 1.0),
        ("unknown_key", 1.0),
        ("expired", 0.0),
    ] {
        let label = format!("why=\"{why}\"");
        gateway
            .until_counted("a2a_gateway_credentials_refused_total", &[&label], count)
            .await;
        assert_eq!(credential(why).await, count, "{why}");
    }
    assert_eq!(
        credential("form").await + credential("misplaced").await,
        2.0
    );

    // The sidecar's, which tells nothing of rooms that it does not have.
    let guarded = &stage.guarded;
    let token = guarded.token(CALL);
    for (token, status) in [(&token, 200), (&token, 401), (&"rubbish".to_owned(), 401)] {
        let answer = guarded.call(&crate::harness::sidecar::call(token)).await;
        assert_eq!(answer.status, status);
    }
    let text = guarded.sidecar.admin_get("/metrics").await.text();
    for line in [
        "a2a_gateway_credentials_refused_total{why=\"replayed\"} 1",
        "a2a_gateway_credentials_refused_total{why=\"malformed\"} 1",
        "a2a_gateway_token_uses_total{use=\"again\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for absent in [
        "coherent",
        "keys_current",
        "config_",
        "store_",
        "audit_",
        "inbox_",
    ] {
        assert!(!text.contains(&format!("a2a_gateway_{absent}")), "{absent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_process_and_build_are_told() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway
        .until_counted("a2a_gateway_keys", &["\"active\""], 1.0)
        .await;
    for (name, labels, range) in [
        ("a2a_gateway_keys", "\"next\"", 1.0..=1.0),
        ("a2a_gateway_keys", "\"retired\"", 0.0..=0.0),
        ("a2a_gateway_key_age_seconds", "\"active\"", 0.0..=3600.0),
        (
            "a2a_gateway_build_info",
            env!("CARGO_PKG_VERSION"),
            1.0..=1.0,
        ),
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
            let line = format!(
                "a2a_gateway_refusals_total{{plane=\"{plane}\",reason=\"{}\"}} 0",
                reason.as_str()
            );
            assert!(text.contains(&line), "{line}");
        }
    }
}
