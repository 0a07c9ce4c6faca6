//! Owners outlive a restart, and each caller has a share of its own.

use std::time::Duration;

use serde_json::json;

use super::{Team, call, refused, rpc, send, served};
use crate::harness::{Builder, Connection, Pair, Request, until_holds};
use crate::on_both_pairs;

on_both_pairs! {
    async fn owners_survive_a_restart(pair: Pair) {
        let mut gateway = Builder::new(pair).set("registry.heartbeat_ttl", "1h").start().await;
        let team = Team::below(&gateway, "").await;
        let (ann, bob, agent) = (&team.ann.token, &team.bob.token, &team.dev.agent);
        let mut connection = Connection::open(gateway.public).await;
        let start = send("message/send", &json!({"id": "t-1"}).to_string());
        assert_eq!(call(&mut connection, ann, &start).await.status, 200);
        gateway.terminate();
        assert!(gateway.wait(Duration::from_secs(60)).success());
        gateway.restart().await;
        let mut connection = Connection::open(gateway.public).await;
        let ask = rpc("tasks/get", &json!({"id": "t-1"}));
        refused(&mut connection, bob, &ask, agent).await;
        served(&mut connection, ann, &ask, agent).await;
        // What the gateway never saw passes.
        served(&mut connection, bob, &rpc("tasks/get", &json!({"id": "t-x"})), agent).await;
        // A foreign task that an agent names in an answer stays its owner's.
        let other = send("message/send", &json!({"id": "t-1"}).to_string());
        gateway.restart().await;
        let mut connection = Connection::open(gateway.public).await;
        assert_eq!(call(&mut connection, bob, &other).await.status, 200);
        agent.take();
        let path = "/workspaces/dev/a2a";
        until_holds("the task stays its owner's", async || {
            let answer = gateway.call(&Request::post(path, &ask).bearer(bob)).await;
            answer.field("x-a2a-refused").is_some()
        }).await;
    }

    async fn many_tasks_of_one_caller_push_out_its_own_alone(pair: Pair) {
        let settings = "registry.heartbeat_ttl=1h a2a.tasks_per_caller=50";
        let mut gateway = Builder::new(pair).sets(settings).start().await;
        let team = Team::below(&gateway, "").await;
        let (ann, bob, agent) = (&team.ann.token, &team.bob.token, &team.dev.agent);
        let mut connection = Connection::open(gateway.public).await;
        let start = |task: &str| send("message/send", &json!({"id": task}).to_string());
        assert_eq!(call(&mut connection, ann, &start("t-ann")).await.status, 200);
        for n in 0..400 {
            assert_eq!(call(&mut connection, bob, &start(&format!("t-{n}"))).await.status, 200);
        }
        gateway.terminate();
        assert!(gateway.wait(Duration::from_secs(60)).success());
        gateway.restart().await;
        let mut connection = Connection::open(gateway.public).await;
        refused(&mut connection, bob, &rpc("tasks/get", &json!({"id": "t-ann"})), agent).await;
        refused(&mut connection, ann, &rpc("tasks/get", &json!({"id": "t-399"})), agent).await;
        if pair == Pair::External {
            // A row in Redis for each is gone: the oldest is unknown to every replica.
            served(&mut connection, ann, &rpc("tasks/get", &json!({"id": "t-0"})), agent).await;
        }
    }
}
