//! Instances while a gateway or a store is killed: what is bound stays bound, and nothing is sent twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::agents::{Cluster, with_text};
use super::*;

/// Asks for each task, and asserts that its instance answers.
async fn assert_bound(cluster: &Cluster, bound: &[(Value, String)]) {
    for (task, instance) in bound {
        let got = cluster.call("tasks/get", json!({"id": task["id"]})).await;
        let at = got.json()["result"]["metadata"]["instance"].clone();
        assert_eq!(at, **instance, "{}", got.text());
    }
}

/// Starts tasks, and waits until each is written down, which comes a moment after its answer.
async fn tasks(cluster: &Cluster, count: usize) -> Vec<(Value, String)> {
    let mut bound = Vec::new();
    for _ in 0..count {
        bound.push(cluster.task(json!({})).await);
    }
    cluster.until_written().await;
    bound
}

/// Messages that an instance got more than once.
fn twice(cluster: &Cluster) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for one in &cluster.instances {
        for request in one.agent.requests() {
            let call: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            if let Some(id) = call["params"]["message"]["messageId"].as_str() {
                *seen.entry(id.to_owned()).or_default() += 1;
            }
        }
    }
    let twice = seen.into_iter().filter(|(_, count)| *count > 1);
    twice.map(|(id, _)| id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_alone_that_is_killed_knows_its_bindings_afterwards() {
    let mut cluster = Cluster::start(Pair::Embedded, builder).await;
    let bound = tasks(&cluster, 12).await;
    cluster.gateways[0].restart().await;
    assert_bound(&cluster, &bound).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_what_is_bound_stays_and_callers_contexts_go_one_way() {
    let cluster = Cluster::start(Pair::External, builder).await;
    let bound = tasks(&cluster, 12).await;
    // Each replica knows all of them from now on.
    for _ in 0..2 {
        assert_bound(&cluster, &bound).await;
        cluster.call("tasks/get", json!({"id": "x"})).await;
    }
    cluster.redis.as_ref().unwrap().kill();
    assert_bound(&cluster, &bound).await;
    for n in 0..10 {
        let mut at = Vec::new();
        for turn in [0, 1] {
            let message = with_text(json!({"contextId": format!("away-{n}")}));
            let sent = cluster
                .call_at(turn, "message/send", json!({"message": message}))
                .await;
            assert_eq!(sent.status, 200, "{}", sent.text());
            at.push(sent.json()["result"]["metadata"]["instance"].clone());
        }
        assert_eq!(at[0], at[1], "away-{n}");
    }
    cluster.redis.as_ref().unwrap().restart();
    assert_bound(&cluster, &bound).await;
    assert_eq!(twice(&cluster), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_and_an_instance_that_are_killed_under_load_have_nothing_sent_twice() {
    let mut cluster = Cluster::start(Pair::External, || builder().process()).await;
    let bound = tasks(&cluster, 12).await;
    let over = AtomicBool::new(false);
    // At the replica that stays.
    let converse = async || {
        let mut refused = Vec::new();
        while !over.load(Ordering::Acquire) {
            let params = json!({"message": with_text(json!({}))});
            let sent = cluster.call_at(0, "message/send", params).await;
            if sent.status != 200 {
                refused.push(sent.text());
            }
        }
        refused
    };
    let kill = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster.gateways[1].signal("KILL");
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster.instance("a").agent.stop();
        tokio::time::sleep(Duration::from_millis(400)).await;
        over.store(true, Ordering::Release);
    };
    let callers = join_all((0..8).map(|_| converse()));
    let (refused, ()) = tokio::join!(callers, kill);
    let refused: Vec<_> = refused.into_iter().flatten().collect();
    // Of each caller at most the call that the instance had when it stopped.
    assert!(refused.len() <= 8, "{refused:?}");
    for one in &refused {
        assert!(
            !one.contains(r#""delivered":"false""#),
            "it was not sent, and is refused: {one}"
        );
    }
    assert_eq!(twice(&cluster), Vec::<String>::new());
    cluster.gateways.truncate(1);
    let others: Vec<_> = bound.into_iter().filter(|(_, at)| at != "a").collect();
    assert_bound(&cluster, &others).await;
}

/// An agent at the port of one that was stopped, back after a while.
async fn back_at(port: u16) -> Agent {
    tokio::time::sleep(Duration::from_millis(400)).await;
    let ok = |_: &_| {
        vec![Step::Write(ok_json(
            r#"{"jsonrpc":"2.0","id":"call","result":{}}"#,
        ))]
    };
    Agent::scripted_at(&format!("127.0.0.1:{port}"), ok).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_one_instance_that_is_left_is_not_seen_while_others_are_dead() {
    let builder = || {
        let builder = builder().set("breaker.failures", "1");
        builder.set("upstream.hold", "60s")
    };
    let cluster = Cluster::start(Pair::Embedded, builder).await;
    for dead in ["b", "c"] {
        cluster.instance(dead).agent.stop();
    }
    // Each is met once, and its breaker opens.
    for dead in ["b", "c"] {
        let opened = async || {
            cluster.task(json!({})).await;
            breaker(&cluster, 0, dead).await == "open"
        };
        until_holds("the breaker opens", opened).await;
    }
    let last = &cluster.instance("a").agent;
    last.stop();
    let params = json!({"message": with_text(json!({}))});
    let (answer, back) = tokio::join!(cluster.call("message/send", params), back_at(last.port));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(back.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_task_is_gone_goes_where_its_context_is() {
    let mut cluster = Cluster::start(Pair::Embedded, builder).await;
    let (lost, gone) = cluster.task(json!({})).await;
    let mut kept = cluster.task(json!({})).await;
    while kept.1 == gone {
        kept = cluster.task(json!({})).await;
    }
    cluster.kill(&gone);
    cluster.tell("/registry/deregister", &gone).await;
    let before = cluster.instance(&kept.1).agent.count();
    for _ in 0..5 {
        let both = json!({"taskId": lost["id"], "contextId": kept.0["contextId"]});
        cluster
            .call("message/send", json!({"message": with_text(both)}))
            .await;
    }
    assert_eq!(cluster.instance(&kept.1).agent.count(), before + 5);
    assert_bound(&cluster, &[kept]).await;
}
