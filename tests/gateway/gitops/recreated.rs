//! A removed id that an operator gives away again has nothing of its earlier life, on any replica.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{apply, changes, team};
use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request, Seat, card, until_holds};
use crate::on_embedded;

/// Time from a removal to the next life of the id, at least, less what clocks differ by.
const GAP: Duration = Duration::from_millis(4_990);

async fn remove(gateway: &Gateway, id: &str) {
    let answer = gateway
        .as_operator(Request::new("DELETE", format!("/workspaces/{id}")))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Creates a removed id again, and registers an agent in it.
async fn recreate(gateway: &Gateway, workspace: Value, agent: Agent) -> Seat {
    let id = workspace["id"].as_str().unwrap().to_owned();
    let mut body = workspace;
    body["recreate"] = true.into();
    let answer = gateway
        .as_operator(Request::post("/workspaces", body.to_string()))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let enrolment = answer.json()["enrolment_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let token = gateway
        .register(&id, &enrolment, &agent.url(), card(&id))
        .await;
    Seat { id, token, agent }
}

/// An agent that answers each message with one and the same task, and everything else with "served".
async fn counting() -> Agent {
    let task = r#"{"kind":"task","id":"task-1","contextId":"c","status":{"state":"working"}}"#;
    Agent::json(&format!(
        r#"{{"jsonrpc":"2.0","id":"c-1","result":{task}}}"#
    ))
    .await
}

fn get_task(seat: &str, token: &str) -> Request {
    let body =
        json!({"jsonrpc": "2.0", "id": "c-1", "method": "tasks/get", "params": {"id": "task-1"}});
    Request::post(format!("/workspaces/{seat}/a2a"), body.to_string()).bearer(token)
}

fn call(to: &str, token: &str) -> Request {
    Request::post(format!("/workspaces/{to}/a2a"), CALL).bearer(token)
}

on_embedded! {
    async fn a_removed_id_comes_back_only_if_an_operator_says_so() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let workspace = json!({"id": "dev", "name": "dev", "org": "acme"});
        gateway.create(workspace.clone()).await;
        let post = async |body: &Value, token: &str| {
            gateway.call(&Request::post("/workspaces", body.to_string()).bearer(token)).await
        };
        let mut again = workspace.clone();
        again["recreate"] = true.into();
        let answer = post(&again, crate::harness::ADMIN).await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "it is not removed");
        gateway.create(json!({"id": "below", "name": "below", "parent_id": "dev"})).await;
        let removed = Instant::now();
        remove(&gateway, "dev").await;
        let answer = post(&workspace, crate::harness::ADMIN).await;
        assert_eq!(answer.status, 409);
        assert!(answer.text().contains("recreate"), "{}", answer.text());
        let path = "/orgs/acme/tokens";
        let token = gateway.as_operator(Request::post(path, "{}")).await.json();
        let answer = post(&again, token["token"].as_str().unwrap()).await;
        assert_eq!((answer.status, answer.reason().as_str()), (403, "not_permitted"));
        // The one below is of its org, and would be below it.
        again["org"] = "beta".into();
        let answer = post(&again, crate::harness::ADMIN).await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "{}", answer.text());
        again["org"] = "acme".into();
        again["parent_id"] = "below".into();
        let answer = post(&again, crate::harness::ADMIN).await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "{}", answer.text());
        again["parent_id"] = Value::Null;
        let answer = post(&again, crate::harness::ADMIN).await.has(201);
        assert!(removed.elapsed() >= GAP, "a request of the earlier life may act on this one: {:?}", removed.elapsed());
        let seen = answer.json();
        assert_eq!((&seen["status"], &seen["agent_card"]), (&json!("provisioning"), &Value::Null));
    }

    async fn destroy_and_apply_works() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let mut policy = team();
        apply(&gateway, "", &policy).await;
        let nothing = json!({"version": 1, "workspaces": [], "grants": [], "stops": []});
        let removed = Instant::now();
        apply(&gateway, "?prune=true", &nothing).await;
        let answer = crate::gitops::post(&gateway, "", &policy).await;
        assert!(answer.text().contains("recreate"), "{}", answer.text());
        policy["recreate"] = true.into();
        let difference = apply(&gateway, "", &policy).await;
        assert!(removed.elapsed() >= GAP, "{:?}", removed.elapsed());
        assert_eq!(changes(&difference), ["create grant other -> dev", "create stop workspace poller (running)",
            "recreate workspace dev", "recreate workspace other", "recreate workspace pm", "recreate workspace poller",
            "recreate workspace pool"]);
        assert_eq!(changes(&apply(&gateway, "?prune=true", &policy).await), [] as [&str; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_removed_workspace_counts_again_when_its_id_comes_back() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let stop = json!({"scope": {"workspace": "dev"}, "mode": "new", "reason": "a loop"});
    let mut policy =
        json!({"version": 1, "workspaces": [{"id": "dev"}, {"id": "pm"}], "stops": [stop]});
    apply(&gateway, "", &policy).await;
    let stops = async || gateway.as_operator(Request::get("/stops")).await.json()["stops"].clone();
    let made = stops().await;
    remove(&gateway, "dev").await;
    let exported = crate::gitops::export(&gateway).await;
    assert_eq!(exported["stops"], json!([]));
    let difference = apply(&gateway, "?prune=true", &exported).await;
    assert_eq!(difference["changes"], json!([]));
    assert_eq!(difference["unmanaged"], json!([]));
    assert_eq!(stops().await, made, "it stays in force");
    policy["recreate"] = true.into();
    let difference = apply(&gateway, "?prune=true", &policy).await;
    assert_eq!(
        changes(&difference),
        ["recreate workspace dev"],
        "the stop is there"
    );
    assert_eq!(stops().await, made);
    assert_eq!(
        changes(&apply(&gateway, "?prune=true", &policy).await),
        [] as [&str; 0]
    );
}

/// Everything that a workspace had before its removal is dead on both replicas, also what they have in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_earlier_life_is_left_on_two_replicas() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    // Pair tokens of one are good at the other.
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys").display().to_string();
    let start = async || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        builder
            .set("registry.heartbeat_ttl", "1h")
            .set("keys.dir", &keys)
            .set("tokens.issuer", "https://gw.example.com")
            .start()
            .await
    };
    let (one, two) = (start().await, start().await);
    one.until_coherent().await;
    two.until_coherent().await;
    everything_is_dead(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_earlier_life_is_left_on_one_gateway() {
    let gateway = Gateway::start(Pair::Embedded).await;
    everything_is_dead(&gateway, &gateway).await;
}

async fn everything_is_dead(one: &Gateway, two: &Gateway) {
    let pm = one.seat("pm", "", Agent::json("{}").await).await;
    let qa = one.seat("qa", "", Agent::json("{}").await).await;
    let old = one.seat("dev", "", counting().await).await;
    let far = one
        .create(json!({"id": "far", "name": "far", "org": "beta"}))
        .await;
    let far_agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    one.register("far", &far, &far_agent.url(), card("far"))
        .await;
    let grant = json!({"caller_id": "dev", "target_id": "far"});
    let grant = one
        .as_operator(Request::post("/grants", grant.to_string()))
        .await;
    assert_eq!(grant.status, 201, "{}", grant.text());
    let discover = Request::get("/registry/discover/pm").bearer(&old.token);
    let of_dev = one.call(&discover).await.json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let discover = Request::get("/registry/discover/dev").bearer(&pm.token);
    let for_dev = one.call(&discover).await.json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let key = |request: Request| request.field("Idempotency-Key", "k-1");
    for gateway in [one, two] {
        assert_eq!(gateway.call(&call("far", &old.token)).await.status, 200);
        assert_eq!(gateway.call(&call("pm", &of_dev)).await.status, 200);
        assert_eq!(gateway.call(&call("dev", &for_dev)).await.status, 200);
        assert_eq!(gateway.call(&key(call("dev", &pm.token))).await.status, 200);
        // The task is pm's, so qa may not have it.
        assert_eq!(gateway.call(&get_task("dev", &pm.token)).await.status, 200);
    }
    let refused = one.call(&get_task("dev", &qa.token)).await;
    assert!(refused.text().contains("-32001"), "{}", refused.text());
    let notice = Request::post("/workspaces/dev/notify", r#"{"message":"old"}"#).bearer(&old.token);
    assert_eq!(one.call(&notice).await.status, 200);
    let inbox = |token: &str| Request::get("/workspaces/dev/activity").bearer(token);
    assert!(two.call(&inbox(&old.token)).await.text().contains("old"));
    let delegation = json!({"target_id": "pm", "task": "later", "idempotency_key": "d-1"});
    let delegated = Request::post("/workspaces/dev/delegate", delegation.to_string());
    one.call(&delegated.bearer(&old.token)).await.has(202);

    remove(one, "dev").await;
    let new = recreate(one, json!({"id": "dev", "name": "dev"}), counting().await).await;
    let knows = async || two.call(&inbox(&new.token)).await.status == 200;
    until_holds("the other replica knows the new life", knows).await;

    let fresh = new.agent.count();
    for gateway in [one, two] {
        // Tokens: its own, and the pair tokens of both directions.
        assert_eq!(
            gateway.call(&call("pm", &old.token)).await.status,
            401,
            "its own token"
        );
        assert_eq!(
            gateway.call(&call("pm", &of_dev)).await.status,
            401,
            "its pair token"
        );
        assert_eq!(
            gateway.call(&call("dev", &for_dev)).await.status,
            403,
            "a pair token for it"
        );
        // Grants.
        assert_eq!(
            gateway.call(&call("far", &new.token)).await.status,
            403,
            "its grant"
        );
        // Inbox.
        let held = gateway.call(&inbox(&new.token)).await.has(200);
        assert!(!held.text().contains("old"), "{}", held.text());
        // Delegations.
        let listed = Request::get("/workspaces/dev/delegations").bearer(&new.token);
        let listed = gateway.call(&listed).await;
        assert_eq!(listed.status, 200);
        assert!(
            !listed.text().contains("delegation_id"),
            "{}",
            listed.text()
        );
        assert_eq!(
            new.agent.count(),
            fresh,
            "nothing of that reached the new agent"
        );
    }
    // A key of the earlier life is no key of this one: the call is made.
    let called = two.call(&key(call("dev", &pm.token))).await.has(200);
    assert_eq!(called.field("x-a2a-idempotent-replay"), None);
    assert_eq!(new.agent.count(), fresh + 1);
    // The id of the old task is free for another caller of the new agent, in a life in which pm called nothing.
    remove(one, "dev").await;
    let dev = json!({"id": "dev", "name": "dev"});
    let third = recreate(one, dev, counting().await).await;
    let knows = async || two.call(&inbox(&third.token)).await.status == 200;
    until_holds("the other replica knows the third life", knows).await;
    assert_eq!(two.call(&call("dev", &qa.token)).await.status, 200);
    let seen = one.call(&get_task("dev", &qa.token)).await.has(200);
    assert!(!seen.text().contains("-32001"), "{}", seen.text());
}
