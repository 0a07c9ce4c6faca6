//! The credential with which the gateway calls an agent: it reaches that agent and nobody else, and is
//! kept sealed.

mod places;

use serde_json::{Value, json};
use sqlx::Row as _;

use crate::harness::authority::write_secret;
use crate::harness::{
    Agent, Answer, Builder, CALL, Gateway, Pair, Request, assert_refusal, card, until_holds,
};
use crate::on_both_pairs;

const SECRET: &str = "s3cret-of-the-agent";

async fn send(gateway: &Gateway, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL);
    let request = request.field("X-API-Key", "the-callers");
    gateway
        .as_operator(request.field("X-Request-Id", "seen"))
        .await
}

/// The column, as it stands in the table.
async fn stored(sql: &str, id: &str) -> Option<String> {
    sqlx::any::install_default_drivers();
    let pool = sqlx::any::AnyPoolOptions::new().max_connections(1);
    let pool = pool.connect(sql).await.unwrap();
    let query = sqlx::query("SELECT upstream_auth FROM workspaces WHERE id = $1").bind(id);
    let row = query.fetch_one(&pool).await.unwrap();
    pool.close().await;
    row.try_get(0).unwrap()
}

on_both_pairs! {
    async fn the_agent_gets_its_credential_and_the_caller_never_sees_it(pair: Pair) {
        let gateway = Builder::new(pair).set("forward.headers", "X-API-Key").start().await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let new = json!({"id": "a", "name": "a", "url": agent.url(), "liveness": "assumed",
            "upstream_auth": {"type": "bearer", "token": SECRET}});
        let mut answers = vec![gateway.as_operator(Request::post("/workspaces", new.to_string())).await];
        assert_eq!(answers[0].status, 201, "{}", answers[0].text());
        let sealed = stored(&gateway.sql_url(), "a").await.unwrap();
        assert!(sealed.starts_with("v1.") && !sealed.contains(SECRET), "{sealed}");
        for (auth, name, value) in [
            (None, "authorization", format!("Bearer {SECRET}")),
            (Some(json!("plain-s3cret")), "authorization", "Bearer plain-s3cret".to_owned()),
            (Some(json!({"type": "basic", "username": "u", "password": "p"})), "authorization", "Basic dTpw".to_owned()),
            (Some(json!({"type": "header", "name": "X-API-Key", "value": SECRET})), "x-api-key", SECRET.to_owned()),
        ] {
            if let Some(auth) = &auth {
                answers.push(gateway.patch("a", json!({"upstream_auth": auth})).await);
            }
            // Another change leaves it as it is.
            answers.push(gateway.patch("a", json!({"role": name})).await);
            let answer = send(&gateway, "a").await.has(200);
            answers.push(answer);
            let seen = agent.take();
            assert_eq!(seen.fields(name), [value], "{auth:?}");
            // The caller's own field of that name passes only where it is not the credential.
            let own = if name == "x-api-key" { 0 } else { 1 };
            let callers = seen.fields("x-api-key").iter().filter(|v| **v == "the-callers").count();
            assert_eq!(callers, own);
        }
        answers.push(gateway.patch("a", json!({"upstream_auth": null})).await);
        assert_eq!(stored(&gateway.sql_url(), "a").await, None);
        answers.push(send(&gateway, "a").await);
        assert!(agent.take().fields("authorization")[0].starts_with("Bearer eyJ"), "the gateway's");
        for path in ["/workspaces/a", "/registry/discover/a"] {
            answers.push(gateway.as_operator(Request::get(path)).await);
        }
        for answer in &answers {
            assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
            let text = answer.text();
            assert!(!text.contains("s3cret") && !text.contains("upstream_auth"), "{text}");
        }
        assert!(!gateway.log().contains("s3cret"), "it is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_credential_is_refused_and_not_repeated() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway.create(json!({"id": "a", "name": "a"})).await;
    for auth in [
        json!(7),
        json!(""),
        json!({}),
        json!([SECRET]),
        json!("s3cret\r\nX: y"),
        json!({"type": SECRET}),
        json!({"type": "bearer", "token": "s3cret two"}),
        json!({"type": "basic", "username": SECRET}),
        json!({"type": "header", "name": "X-Workspace-ID", "value": SECRET}),
        json!({"type": "header", "name": "Transfer-Encoding", "value": SECRET}),
        json!({"type": "header", "name": "X-API-Key", "value": "x".repeat(5000)}),
    ] {
        let new = json!({"id": "b", "name": "b", "upstream_auth": auth}).to_string();
        let request = Request::post("/workspaces", new).field("X-Request-Id", "seen");
        let created = gateway.as_operator(request).await;
        let changed = json!({"name": "b", "upstream_auth": auth});
        let (changed, auth) = (gateway.patch("a", changed).await, auth.to_string());
        for answer in [created, changed] {
            assert_refusal(&answer, "/workspaces", "seen", "invalid_params", &auth);
            assert!(!answer.text().contains("s3cret"), "{}", answer.text());
        }
    }
    assert_eq!(gateway.read("/workspaces/a").await["name"], "a");
    let other = gateway.as_operator(Request::get("/workspaces/b")).await;
    other.has(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_key_nothing_is_sent() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    for (id, auth) in [("a", json!(SECRET)), ("open", Value::Null)] {
        let new = json!({"id": id, "name": id, "url": agent.url(), "liveness": "assumed",
            "upstream_auth": auth});
        gateway.create(new).await;
    }
    assert_eq!(send(&gateway, "a").await.status, 200);
    let key = gateway.dir.join("keys/seal.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    gateway.restart().await;
    let answer = send(&gateway, "a").await;
    assert_refusal(&answer, "/a2a", "seen", "store_unavailable", "another key");
    answer.says("upstream_auth");
    assert_eq!(agent.calls(), 1, "it was sent without");
    assert_eq!(send(&gateway, "open").await.status, 200);
    gateway.until_told("seal.key in keys.dir", 1).await;
    assert!(!gateway.log().contains(SECRET), "{}", gateway.log());
    // One of the ways out that the text names; then the other.
    let auth = json!({"upstream_auth": "new"});
    gateway.patch("a", auth).await.has(200);
    assert_eq!(send(&gateway, "a").await.status, 200);
    write_secret(&key, kept);
    gateway.restart().await;
    assert_eq!(send(&gateway, "a").await.reason(), "store_unavailable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_one_key_file_open_what_another_sealed() {
    let redis = crate::harness::servers::Redis::start();
    let sql = crate::harness::servers::postgres().database();
    let keys = tempfile::tempdir().unwrap();
    let file = keys.path().join("mounted");
    write_secret(&file, "ab".repeat(32));
    let replica = || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        let builder = builder.set("keys.seal_key", &file.display().to_string());
        builder.start()
    };
    let (one, other) = (replica().await, replica().await);
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let enrolment = one.create(json!({"id": "a", "name": "a"})).await;
    one.register("a", &enrolment, &agent.url(), card("a")).await;
    assert_eq!(send(&other, "a").await.status, 200);
    // Without a credential of the agent's own the field is the gateway's.
    let arrived = agent.take();
    assert!(arrived.fields("authorization")[0].starts_with("Bearer eyJ"));
    assert!(arrived.fields("x-a2a-caller-token").is_empty());
    let auth = json!({"upstream_auth": SECRET});
    one.patch("a", auth).await.has(200);
    let follows = async || {
        assert_eq!(send(&other, "a").await.status, 200);
        agent.take().field("authorization") == Some(&format!("Bearer {SECRET}"))
    };
    until_holds("the other replica has it", follows).await;
    // A mounted key is not made.
    assert!(!one.dir.join("keys/seal.key").exists());
}
