//! Callers who wait for a card that does not come: each may leave, and none keeps the process from ending.
//! And whose card is at the root.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use super::{add, patch, served};
use crate::harness::{
    ADMIN, Agent, Builder, Connection, Gateway, Pair, Request, Step, assert_refusal, card,
    until_holds,
};
use crate::reload::{Written, in_force};

/// The time after which an end counts as never.
const SOON: Duration = Duration::from_secs(60);

const CARD: &str = "/.well-known/agent-card.json";

/// The clock of a fetch, which is a little longer, does not end while a case runs.
const PATIENT: &str = "timeouts.connect=60s";

/// An agent that says nothing to the first `silent` requests, and gives its card to the others.
async fn silent_at_first(silent: usize) -> Agent {
    let asked = AtomicUsize::new(0);
    Agent::scripted(move |request| {
        if asked.fetch_add(1, Ordering::SeqCst) < silent {
            return vec![Step::Hang];
        }
        let card = json!({"name": "late", "url": "http://{agent}/"}).to_string();
        vec![Step::Write(served(request, CARD, &card))]
    })
    .await
}

/// Every way to make the gateway ask for the card of `target`.
fn asking() -> [Request; 5] {
    let below = |tail: &str| format!("/workspaces/target/a2a{tail}");
    let message = r#"{"message":{"text":"hi"}}"#;
    [
        Request::get(below(CARD)),
        Request::post(below(""), message),
        Request::post(below("/tasks/send"), message),
        Request::post(below("/message:send"), message),
        Request::get(below("/tasks/t-1")),
    ]
}

/// Adds `target`, whose agent is asked for its card by its callers alone: it was away, and moved while it was paused.
async fn add_unread(gateway: &Gateway, agent: &Agent) {
    add(gateway, "target", json!({"url": "http://127.0.0.1:9/"})).await;
    let operate = async |verb: &str| {
        let path = format!("/workspaces/target/{verb}");
        gateway.post(&path, json!({})).await.has(200);
    };
    operate("pause").await;
    patch(gateway, "target", json!({"url": agent.url()})).await;
    operate("resume").await;
}

/// Waits until so many exchanges are open.
async fn until_open(gateway: &Gateway, count: f64) {
    let open = async || gateway.counts("open_exchanges", "").await == count;
    until_holds("exchanges are open", open).await;
}

async fn begun(gateway: &Gateway, request: &Request, name: &str) -> Connection {
    let request = request.clone().bearer(ADMIN).field("X-Request-Id", name);
    let mut connection = Connection::open(gateway.public).await;
    let wire = request.wire(&gateway.public.to_string());
    connection.send(&wire).await;
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_the_agent_is_asked_for_its_card_is_not_waited_for() {
    let gateway = Gateway::with(PATIENT).await;
    let agent = silent_at_first(usize::MAX).await;
    add_unread(&gateway, &agent).await;
    for (number, request) in asking().iter().enumerate() {
        let name = format!("leaves-{number}");
        let connection = begun(&gateway, request, &name).await;
        until_holds("asked", async || agent.count() == number + 1).await;
        drop(connection);
        let line = gateway.access_lines(&name).await.pop();
        let line = line.unwrap_or_else(|| panic!("{request:?} goes on"));
        assert_eq!(line["outcome"], "caller_left", "{line}");
        gateway.assert_idle().await;
    }
    let asked = agent.requests();
    assert!(asked.iter().all(|request| request.head.starts_with("GET ")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_the_same_card_waits_on_when_another_leaves() {
    let gateway = Gateway::with(PATIENT).await;
    let agent = silent_at_first(1).await;
    add_unread(&gateway, &agent).await;
    let [card, ..] = asking();
    let first = begun(&gateway, &card, "first").await;
    until_holds("asked", async || agent.count() == 1).await;
    let mut second = begun(&gateway, &card, "second").await;
    until_open(&gateway, 2.0).await;
    drop(first);
    let answer = second.answer().await.has(200);
    assert_eq!(answer.json()["name"], "late");
    assert_eq!(agent.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_when_the_agent_has_moved_gets_no_card_of_its_old_address() {
    let gateway = Gateway::with(PATIENT).await;
    let answered = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&answered);
    let old = Agent::scripted(move |request| {
        let card = json!({"name": "old", "url": "http://{agent}/"}).to_string();
        let answer = served(request, CARD, &card);
        vec![Step::Held(Arc::clone(&held)), Step::Write(answer)]
    })
    .await;
    let new = silent_at_first(0).await;
    add_unread(&gateway, &old).await;
    let [card, ..] = asking();
    let mut first = begun(&gateway, &card, "first").await;
    until_holds("asked", async || old.count() == 1).await;
    let moved = gateway.patch("target", json!({"url": new.url()})).await;
    assert_eq!(moved.status, 200, "{}", moved.text());
    let mut second = begun(&gateway, &card, "second").await;
    until_open(&gateway, 2.0).await;
    // For it to come to where the first one waits.
    tokio::time::sleep(Duration::from_millis(100)).await;
    answered.add_permits(1);
    for (connection, name) in [(&mut first, "old"), (&mut second, "late")] {
        let answer = connection.answer().await;
        assert_eq!(answer.json()["name"], name, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_does_not_come_keeps_no_process_from_ending() {
    let mut gateway = Gateway::with(&format!("{PATIENT} server.drain=2s")).await;
    let agent = silent_at_first(usize::MAX).await;
    add(&gateway, "target", json!({"url": agent.url()})).await;
    let mut waiting = Vec::new();
    for request in asking() {
        waiting.push((begun(&gateway, &request, "cut").await, request));
    }
    until_open(&gateway, 5.0).await;
    until_holds("asked", async || agent.count() == 1).await;
    gateway.terminate();
    for (mut connection, request) in waiting {
        let (answer, path) = (connection.answer().await, &request.path);
        assert_refusal(&answer, path, "cut", "shutting_down", path);
        answer.tells("delivered", "false");
    }
    assert_eq!(gateway.wait(SOON).code(), Some(0));
    assert_eq!(agent.count(), 1, "one fetch for all, and no call");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_without_a_card_says_which_setting_is_missing_or_wrong() {
    let written = Written::new("");
    let builder = Builder::new(Pair::Embedded).file(written.path());
    let gateway = builder.set("stores.timeout", "20s").start().await;
    let root = || Request::get(CARD).field("X-Request-Id", "seen");
    let unset = gateway.call(&root()).await;
    assert_refusal(&unset, CARD, "seen", "not_found", "unset");
    unset.says("a2a.default_workspace");
    let warnings = |id: &str| {
        let log = gateway.log();
        let lines = log.lines().filter(|line| line.contains("\"WARN\""));
        let lines = lines.filter(|line| line.contains("a2a.default_workspace names"));
        lines.filter(|line| line.contains(id)).count()
    };
    written.save("[a2a]\ndefault_workspace = \"nobody\"\n");
    in_force(&gateway, "a2a.default_workspace", json!("nobody")).await;
    until_holds("a warning", async || warnings("nobody") == 1).await;
    let missing = gateway.as_operator(root()).await;
    assert_refusal(&missing, CARD, "seen", "workspace_not_found", "operator");
    let told = missing.text();
    assert!(told.contains("a2a.default_workspace is nobody"), "{told}");
    // Who may not know what exists learns nothing.
    let agent = Agent::json("{}").await;
    let dev = gateway.seat("dev", "", agent).await;
    let refused = gateway.call(&root().bearer(&dev.token)).await;
    assert_refusal(&refused, CARD, "seen", "not_permitted", "a workspace");
    assert!(!refused.text().contains("nobody"), "{}", refused.text());
    written.save("[a2a]\ndefault_workspace = \"dev\"\n");
    in_force(&gateway, "a2a.default_workspace", json!("dev")).await;
    let found = gateway.as_operator(root()).await;
    assert_eq!(found.json()["name"], card("dev")["name"]);
    assert_eq!(warnings("dev"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_workspace_that_is_nobody_is_warned_of_at_the_start() {
    let gateway = Gateway::with("a2a.default_workspace=ghost-ws").await;
    let warned = async || {
        let log = gateway.log();
        log.contains("a2a.default_workspace names") && log.contains("ghost-ws")
    };
    until_holds("a warning", warned).await;
}
