//! Departures, drains while others write, and credentials of those that stay.

use super::*;

const SECRET: &str = "s3cret-of-the-instances";

/// The list of URLs of a workspace's instances, sorted.
async fn urls_of(set: &Set, id: &str) -> Vec<String> {
    let view = set.gateway.read(&format!("/workspaces/{id}")).await;
    let all = view["instances"].as_array().into_iter().flatten();
    let urls = all.map(|one| one["url"].as_str().unwrap().to_owned());
    let mut urls: Vec<_> = urls.collect();
    urls.sort_unstable();
    urls
}

/// A change of all instances writes what it read of them; a drain at the same time is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_outlives_a_concurrent_change_of_all_instances() {
    let (set, _, [one, _two]) = Set::of_two(Pair::External).await;
    sqlx::any::install_default_drivers();
    let pool = sqlx::any::AnyPoolOptions::new().max_connections(1);
    let pool = pool.connect(&set.gateway.sql_url()).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let url = one.url();
    for change in [
        "UPDATE workspaces SET updated_at = updated_at WHERE id = 'target' AND url <> $1",
        "DELETE FROM workspace_instances WHERE workspace_id = 'target' AND instance_id = 'one' AND url = $1",
        "INSERT INTO workspace_instances (workspace_id, instance_id, url, draining, has_auth, registered_at, last_seen) \
         SELECT workspace_id, 'one', $1, 0, 0, registered_at, last_seen FROM workspace_instances \
         WHERE workspace_id = 'target' AND instance_id = 'two'",
    ] {
        let changed = sqlx::query(change).bind(&url).execute(&mut *tx).await;
        assert_eq!(changed.unwrap().rows_affected(), 1, "{change}");
    }
    let end = async {
        // Long enough for the drain to wait.
        tokio::time::sleep(Duration::from_millis(300)).await;
        tx.commit().await.unwrap();
    };
    tokio::join!(set.drain("one"), end);
    pool.close().await;
    set.assert_statuses(&[("one", "draining"), ("two", "online")])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_urls_of_an_operator_outlive_a_deregistration() {
    let set = Set::new(Pair::Embedded).await;
    let (one, two) = (answering().await, answering().await);
    let mut urls = vec![one.url(), two.url()];
    urls.sort_unstable();
    let body = json!({"id": "plain", "name": "plain", "liveness": "assumed", "urls": urls});
    set.post("/workspaces", body).await.has(201);
    let path = "/workspaces/plain/tokens";
    let token = set.gateway.token(path, "{}").await;
    let leave = json!({"workspace_id": "plain"});
    set.sent("/registry/deregister", &token, leave)
        .await
        .has(200);
    assert_eq!(urls_of(&set, "plain").await, urls);
    let resume = Request::post("/workspaces/plain/resume", "{}");
    let answer = set.gateway.as_operator(resume).await;
    assert_eq!(answer.json()["status"], "online", "{}", answer.text());
    until_holds("calls reach both", async || {
        let call = Request::post("/workspaces/plain/a2a", CALL).bearer(&set.caller.token);
        assert_eq!(set.gateway.call(&call).await.status, 200);
        one.calls() > 0 && two.calls() > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_keeps_its_credential_when_an_operator_registers_another() {
    let set = Set::new(Pair::Embedded).await;
    let token = set.own_token().await;
    let auth = json!({"upstream_auth": {"type": "bearer", "token": SECRET}});
    let agents = [answering().await, answering().await, answering().await];
    let [one, two, three] = &agents;
    set.register(&token, "one", one).await;
    assert_eq!(set.gateway.patch("target", auth).await.status, 200);
    set.try_register(ADMIN, "two", &two.url()).await.has(200);
    // It names its own place, for which no operator vouches.
    set.register(&token, "three", three).await;
    for agent in &agents {
        set.assert_calls_reach(agent).await;
    }
    let has_it = |agent: &Agent| {
        let expected = format!("Bearer {SECRET}");
        let all = agent.requests();
        let have = all
            .iter()
            .filter(|one| one.fields("authorization") == [&*expected]);
        (have.count(), all.len())
    };
    for agent in [one, two] {
        let (have, all) = has_it(agent);
        assert_eq!(have, all);
    }
    assert_eq!(has_it(three).0, 0);
}
