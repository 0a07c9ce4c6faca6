//! Which instance of an agent gets a call: by its task, its context, a hash, or load; and what happens when it is gone
//! (contract §13).

mod agents;
mod outages;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::agents::{Cluster, with_text};
use crate::explain::{explain, step};
use crate::harness::{Agent, Builder, Pair, Request, Step, ok_json, until_holds};

/// No breaker closes, no call ceases to count, and no instance lapses, while a case runs.
fn builder() -> Builder {
    let builder = Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", "1h");
    let builder = builder.set("breaker.window", "1h");
    let builder = builder.set("breaker.open_max", "1h");
    builder.set("breaker.open", "1h")
}

/// The breaker of an instance at a gateway.
async fn breaker(cluster: &Cluster, turn: usize, instance: &str) -> String {
    let explained = explain(&cluster.gateways[turn], "caller", "target").await;
    let instances = step(&explained, "instance")["fact"]["instances"].clone();
    let mut instances = instances.as_array().unwrap().iter();
    let found = instances.find(|one| one["instance_id"] == instance);
    found.unwrap()["breaker"].as_str().unwrap().to_owned()
}

/// Opens the breaker of an instance at each gateway, by calls about a task that it has. Returns both.
async fn open_one(cluster: &Cluster) -> (Value, String) {
    let (task, instance) = cluster.task(json!({})).await;
    cluster.until_written().await;
    open(cluster, &task, &instance).await;
    (task, instance)
}

async fn open(cluster: &Cluster, task: &Value, instance: &str) {
    let down = &cluster.instance(instance).is_down;
    down.store(true, Ordering::SeqCst);
    for turn in 0..cluster.gateways.len() {
        // A call is counted a moment after its answer, so an answer of before may come in between.
        let opened = async || {
            let params = json!({"id": task["id"]});
            cluster.call_at(turn, "tasks/get", params).await;
            breaker(cluster, turn, instance).await == "open"
        };
        until_holds("the breaker opens", opened).await;
    }
    down.store(false, Ordering::SeqCst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_of_the_instance_and_of_no_other_lets_a_call_try_at_every_replica() {
    let cluster = Cluster::start(Pair::External, builder).await;
    let (_, instance) = open_one(&cluster).await;
    let other = ["a", "b", "c"].into_iter().find(|id| **id != *instance);
    cluster.tell("/registry/heartbeat", other.unwrap()).await;
    let call = async |turn| {
        let params = json!({"message": with_text(json!({}))});
        cluster.call_at(turn, "message/send", params).await.status
    };
    let began = Instant::now();
    // For longer than the pause between two looks at a lease.
    while began.elapsed() < Duration::from_millis(1500) {
        for turn in [0, 1] {
            assert_eq!(call(turn).await, 200);
            assert_eq!(breaker(&cluster, turn, &instance).await, "open");
        }
    }
    cluster.tell("/registry/heartbeat", &instance).await;
    for turn in [0, 1] {
        let closed = async || {
            assert_eq!(call(turn).await, 200);
            breaker(&cluster, turn, &instance).await == "closed"
        };
        until_holds("the breaker closes", closed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_made_later_goes_to_the_instance_of_its_context_and_binds() {
    let cluster = Cluster::start(Pair::Embedded, builder).await;
    let (task, instance) = cluster.task(json!({})).await;
    let body = json!({"jsonrpc": "2.0", "id": "later", "method": "message/send",
        "params": {"message": with_text(json!({"contextId": task["contextId"]}))}});
    cluster.tell("/registry/drain", &instance).await;
    let before = cluster.instance(&instance).agent.count();
    let request = Request::post("/workspaces/target/a2a", body.to_string())
        .bearer(&cluster.caller.token)
        .field("Prefer", "respond-async");
    let gateway = &cluster.gateways[0];
    let turn = async |to: &str| {
        let request = Request::post(format!("/workspaces/target/{to}"), "{}");
        let answer = gateway.as_operator(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    turn("pause").await;
    let answer = gateway.call(&request).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    turn("resume").await;
    let agent = &cluster.instance(&instance).agent;
    agent.until_count(before + 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_binds_as_a_unary_answer_does_and_so_does_a_message() {
    let cluster = Cluster::start(Pair::Embedded, builder).await;
    for _ in 0..12 {
        let params = json!({"message": with_text(json!({}))});
        let streamed = cluster.call("message/stream", params).await;
        let events = streamed.events();
        assert_eq!(events.len(), 2, "{}", streamed.text());
        let data = events[0]
            .lines()
            .find_map(|line| line.strip_prefix("data: "))
            .unwrap();
        let first: Value = serde_json::from_str(data).unwrap();
        let (task, instance) = (&first["result"], &first["result"]["metadata"]["instance"]);
        let got = cluster
            .call("tasks/get", json!({"id": task["id"]}))
            .await
            .json();
        assert_eq!(got["result"]["metadata"]["instance"], *instance, "{got}");
        let hello = json!([{"kind": "text", "text": "hello"}]);
        let said = cluster
            .call(
                "message/send",
                json!({"message": with_text(json!({"parts": hello}))}),
            )
            .await
            .json();
        let (context, instance) = (
            &said["result"]["contextId"],
            &said["result"]["metadata"]["instance"],
        );
        for _ in 0..3 {
            let (_, next) = cluster.task(json!({"contextId": context})).await;
            assert_eq!(*instance, *next);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_of_the_callers_own_leads_to_one_instance_from_the_first_call_on() {
    let cluster = Cluster::start(Pair::External, builder).await;
    let mut seen = HashMap::new();
    for n in 0..60 {
        let message = || json!({"message": with_text(json!({"contextId": format!("own-{n}")}))});
        // At once at every replica, before anything is bound.
        let calls = (0..4).map(|turn| cluster.call_at(turn, "message/send", message()));
        let answers = join_all(calls).await;
        let of = |n: usize| answers[n].json()["result"]["metadata"]["instance"].to_string();
        assert!((1..4).all(|n| of(n) == of(0)), "own-{n}");
        *seen.entry(of(0)).or_insert(0) += 1;
    }
    assert!(
        seen.len() == 3 && seen.values().all(|count| *count >= 8),
        "{seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_drains_gets_only_what_is_bound_to_it() {
    let cluster = Cluster::start(Pair::Embedded, builder).await;
    let mut bound = Vec::new();
    while !["a", "b", "c"]
        .iter()
        .all(|id| bound.iter().any(|(_, of)| of == id))
    {
        bound.push(cluster.task(json!({})).await);
    }
    cluster.tell("/registry/drain", "a").await;
    for n in 0..20 {
        let (_, instance) = cluster.task(json!({})).await;
        assert_ne!(instance, "a");
        let (_, instance) = cluster.task(json!({"contextId": format!("new-{n}")})).await;
        assert_ne!(instance, "a");
    }
    for (task, instance) in &bound {
        let got = cluster
            .call("tasks/get", json!({"id": task["id"]}))
            .await
            .json();
        assert_eq!(got["result"]["metadata"]["instance"], **instance, "{got}");
    }
    cluster.tell("/registry/drain", "b").await;
    cluster.tell("/registry/drain", "c").await;
    let refused = cluster
        .call("message/send", json!({"message": with_text(json!({}))}))
        .await;
    assert_eq!(
        (refused.status, refused.reason()),
        (503, "workspace_restarting".to_owned())
    );
    assert_eq!(refused.fact("delivered").as_deref(), Some("false"));
    assert!(refused.field("retry-after").is_some());
    // It registers again: it is back.
    cluster.register(cluster.instance("a")).await;
    let (_, instance) = cluster.task(json!({})).await;
    assert_eq!(instance, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_killed_costs_no_call_that_is_not_about_its_tasks() {
    // Whatever waits for it waits too long.
    let mut cluster =
        Cluster::start(Pair::Embedded, || builder().set("upstream.hold", "10min")).await;
    let mut bound = Vec::new();
    while !["a", "b", "c"]
        .iter()
        .all(|id| bound.iter().any(|(_, of)| of == id))
    {
        bound.push(cluster.task(json!({})).await);
    }
    cluster.kill("a");
    let before: usize = cluster.counts().iter().sum();
    let calls = (0..40).map(|_| cluster.task(json!({})));
    for (_, instance) in join_all(calls).await {
        assert_ne!(instance, "a");
    }
    let after: usize = cluster.counts().iter().sum();
    assert_eq!(after - before, 40, "each call once");
    for (task, instance) in &bound {
        let got = cluster.call("tasks/get", json!({"id": task["id"]})).await;
        assert_eq!(got.status, 200, "{}", got.text());
        match &**instance {
            // Another instance answers: one with the same store would have it.
            "a" => assert_eq!(got.json()["error"]["code"], -32001, "{}", got.text()),
            _ => assert_eq!(got.json()["result"]["metadata"]["instance"], **instance),
        }
    }
    let rebound = cluster
        .metric("a2a_gateway_instance_choices_total", &["by=\"rebound\""])
        .await;
    let moved = bound.iter().filter(|(_, of)| of == "a").count();
    assert!(rebound <= moved as f64, "{rebound} of {moved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_fails_after_it_was_chosen_costs_no_call() {
    // A guard is asked between the choice and the call.
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let guard = Agent::scripted(move |request| {
        let verdict = Step::Write(ok_json(r#"{"action": "pass"}"#));
        match request.text().contains("held by the guard") {
            true => vec![Step::Held(Arc::clone(&held)), verdict],
            false => vec![verdict],
        }
    });
    let guard = guard.await;
    let guards =
        json!([{"name": "g", "url": guard.url(), "phases": ["request"], "timeout": "60s"}]);
    let builder = || builder().set("guard", &guards.to_string());
    let cluster = Cluster::start(Pair::Embedded, builder).await;
    let (task, instance) = cluster.task(json!({})).await;
    let parts = json!([{"kind": "text", "text": "held by the guard"}]);
    let message = json!({"contextId": task["contextId"], "parts": parts});
    let fail = async {
        let asked = async || {
            guard
                .requests()
                .iter()
                .any(|one| one.text().contains("held by"))
        };
        until_holds("the guard is asked", asked).await;
        open(&cluster, &task, &instance).await;
        gate.add_permits(9);
    };
    let ((_, other), ()) = tokio::join!(cluster.task(message), fail);
    assert_ne!(other, instance);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_of_one_instance_leaves_the_calls_to_the_others() {
    let cluster = Cluster::start(Pair::External, || builder().set("upstream.hold", "0s")).await;
    let (task, down) = open_one(&cluster).await;
    let before = cluster.instance(&down).agent.count();
    for _ in 0..20 {
        let (_, instance) = cluster.task(json!({})).await;
        assert_ne!(instance, down);
        let got = cluster.call("tasks/get", json!({"id": task["id"]})).await;
        assert_eq!(
            got.json()["error"]["code"],
            -32001,
            "another one answers: {}",
            got.text()
        );
    }
    assert_eq!(
        cluster.instance(&down).agent.count(),
        before,
        "nothing is sent to it"
    );
    let explained = explain(&cluster.gateways[0], "caller", "target").await;
    assert_ne!(step(&explained, "instance")["fact"]["chosen"], *down);
    // The others fail, too: the one whose breaker is open is not called either.
    for one in &cluster.instances {
        one.is_down.store(true, Ordering::SeqCst);
    }
    for turn in 0..cluster.gateways.len() {
        until_holds("all are open", async || {
            let params = json!({"message": with_text(json!({}))});
            let refused = cluster.call_at(turn, "message/send", params).await;
            refused.reason() == "agent_busy" && refused.fact("breaker").as_deref() == Some("open")
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_and_a_context_stay_with_their_instance_at_every_replica() {
    let cluster = Cluster::start(Pair::External, builder).await;
    let mut by_instance: HashMap<String, usize> = HashMap::new();
    for _ in 0..40 {
        let (task, instance) = cluster.task(json!({})).await;
        cluster.until_written().await;
        let (id, context) = (&task["id"], &task["contextId"]);
        *by_instance.entry(instance.clone()).or_default() += 1;
        for (method, params) in [
            ("tasks/get", json!({"id": id})),
            ("tasks/get", json!({"id": id})),
            (
                "message/send",
                json!({"message": with_text(json!({"taskId": id}))}),
            ),
            (
                "message/send",
                json!({"message": with_text(json!({"contextId": context}))}),
            ),
            (
                "message/send",
                json!({"message": with_text(json!({"referenceTaskIds": [id]}))}),
            ),
            ("tasks/cancel", json!({"id": id})),
        ] {
            let answer = cluster.call(method, params.clone()).await;
            let result = &answer.json()["result"];
            assert_eq!(
                result["metadata"]["instance"],
                *instance,
                "{params}: {}",
                answer.text()
            );
        }
    }
    assert_eq!(by_instance.len(), 3, "all take part: {by_instance:?}");
    let choices = async |by: &'static str| {
        cluster
            .metric("a2a_gateway_instance_choices_total", &[by])
            .await
    };
    assert_eq!(choices("by=\"load\"").await, 40.0);
    assert_eq!(choices("by=\"context\"").await, 40.0);
    assert_eq!(choices("by=\"task\"").await, 200.0);
    assert_eq!(choices("by=\"rebound\"").await, 0.0);
}
