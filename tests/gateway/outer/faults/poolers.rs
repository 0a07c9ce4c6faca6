//! PostgreSQL behind a real PgBouncer: what its modes change, and what they must not.

use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::pooler::PgBouncer;
use crate::harness::servers::Redis;
use crate::harness::{ADMIN, Builder, Connection, Gateway, Pair, Request, until_found};

/// Changes at once, far more than the pooler has connections (5).
const CHANGES: usize = 80;

fn builder(pooler: &PgBouncer, redis: &Redis) -> Builder {
    let builder = Builder::new(Pair::Embedded).stores(&pooler.url(), &redis.url());
    // Not what is looked at: a busy machine takes its time.
    builder.set("stores.timeout", "60s")
}

/// Makes as many workspaces at once, over the gateways in turn; how many were refused.
async fn change(gateways: &[&Gateway], round: &str) -> usize {
    let mut crowd = JoinSet::new();
    for number in 0..CHANGES {
        let at = gateways[number % gateways.len()].public;
        let body = json!({"id": format!("{round}-{number}"), "name": format!("name of {number}")});
        let request = Request::post("/workspaces", body.to_string()).bearer(ADMIN);
        crowd.spawn(async move { Connection::open(at).await.call(&request).await.status });
    }
    let statuses = crowd.join_all().await;
    statuses.into_iter().filter(|status| *status != 201).count()
}

/// No workspace of a round is refused, and each is there as it was made, read over every gateway.
async fn all_succeed(gateways: &[&Gateway], round: &str) {
    let log = || gateways[0].log();
    assert_eq!(change(gateways, round).await, 0, "{}", log());
    for number in 0..CHANGES {
        let gateway = gateways[(number + 1) % gateways.len()];
        let request = Request::get(format!("/workspaces/{round}-{number}"));
        let answer = gateway.as_operator(request).await.has(200);
        assert_eq!(answer.json()["name"], format!("name of {number}"));
    }
}

/// A gateway behind a pooler in session mode, with fewer connections than the pooler has.
struct Pooled {
    gateway: Gateway,
    pooler: PgBouncer,
    _redis: Redis,
}

impl Pooled {
    async fn in_session_mode() -> Self {
        let (pooler, redis) = (PgBouncer::start("session"), Redis::start());
        let builder = builder(&pooler, &redis).set("stores.sql_connections", "4");
        let gateway = builder.start().await;
        Self {
            gateway,
            pooler,
            _redis: redis,
        }
    }
}

const NOTICED: &str = "stores.sql is behind a pooler in transaction mode";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eighty_changes_at_once_behind_a_pooler_in_transaction_mode_all_succeed() {
    let (pooler, redis) = (PgBouncer::start("transaction"), Redis::start());
    // Another client of the pool has left statements with the names that the driver would use.
    for name in ["sqlx_s_1", "sqlx_s_2", "sqlx_s_3"] {
        pooler.sql(&format!("PREPARE {name} AS SELECT 'of another client'"));
    }
    let builder = || builder(&pooler, &redis);
    let (one, other) = tokio::join!(builder().start(), builder().start());
    one.until_told(NOTICED, 1).await;
    let gateways = [&one, &other];
    for round in ["a", "b", "c"] {
        all_succeed(&gateways, round).await;
    }
    let errors = one.metric("a2a_gateway_store_errors_total", &["sql"]);
    assert_eq!(errors.await, 0.0);
    // What a session is told stays out of the pooler's: another client waits as long as it wants.
    assert_eq!(pooler.sql("SHOW statement_timeout"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_is_like_none() {
    let Pooled { gateway, .. } = &Pooled::in_session_mode().await;
    all_succeed(&[gateway], "a").await;
    assert!(!gateway.log().contains(NOTICED), "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_pooler_serves_a_user_with_a_password() {
    let (pooler, redis) = (PgBouncer::documented(), Redis::start());
    let gateway = builder(&pooler, &redis).start().await;
    all_succeed(&[&gateway], "a").await;
    gateway.until_told(NOTICED, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mode_that_changes_while_a_gateway_runs_is_noticed() {
    let pooled = Pooled::in_session_mode().await;
    let gateway = &pooled.gateway;
    assert_eq!(change(&[gateway], "a").await, 0, "{}", gateway.log());
    pooled.pooler.change_mode("session", "transaction");
    // Until the first foreign statement is met, changes may be refused. Afterwards none is.
    let mut rounds = 0;
    until_found("the mode is noticed", async || {
        rounds += 1;
        let refused = change(&[gateway], &format!("r{rounds}")).await;
        let noticed = gateway.log().contains("came to be behind a pooler");
        (refused == 0 && noticed).then_some(())
    })
    .await;
    all_succeed(&[gateway], "z").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_statement_could_be_right_the_gateway_is_never_ready_and_says_why() {
    let redis = Redis::start();
    let of_statements = "transaction blocks not allowed in statement pooling mode";
    let of_parameters = "ignore_startup_parameters = extra_float_digits";
    for (pooler, why) in [
        (PgBouncer::start("statement"), of_statements),
        (PgBouncer::with("transaction", ""), of_parameters),
    ] {
        // The listener opens when the database is prepared, or after this.
        let builder = builder(&pooler, &redis).set("stores.timeout", "2s");
        let gateway = builder.spawn();
        gateway.until_told(why, 1).await;
        for path in ["/readyz", "/readyz/traffic"] {
            let ready = gateway.admin_get(path).await.unwrap().has(503);
            assert_eq!(ready.json()["sql"], "unavailable");
        }
    }
}
