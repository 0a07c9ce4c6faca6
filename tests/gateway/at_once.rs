//! Two change one workspace at the same moment, through two replicas: what the database and Redis say in
//! the end is the same. And a creation that breaks off leaves nothing behind.

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{Answer, Builder, Gateway, Pair, Request, card, until_holds};
use crate::stores::open_db;

/// Without the second look at the row one round in four goes wrong.
const ROUNDS: u32 = 15;

struct Two {
    redis: Redis,
    one: Gateway,
    other: Gateway,
}

impl Two {
    async fn start() -> Self {
        let redis = Redis::start();
        let sql = servers::postgres().database();
        let start = async || {
            let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
            let builder = builder.set("rate.caller_per_second", "0");
            builder.set("registry.heartbeat_ttl", "1h").start().await
        };
        let (one, other) = (start().await, start().await);
        Self { redis, one, other }
    }

    async fn view(&self, id: &str) -> Value {
        let request = Request::get(format!("/workspaces/{id}"));
        self.one.as_operator(request).await.json()
    }
}

async fn register(gateway: &Gateway, id: &str, url: &str) -> Answer {
    let body = json!({"id": id, "url": url, "agent_card": card(id)});
    let request = Request::post("/registry/register", body.to_string());
    gateway.as_operator(request).await
}

async fn leave(gateway: &Gateway, id: &str) -> Answer {
    let body = json!({"workspace_id": id}).to_string();
    let request = Request::post("/registry/deregister", body);
    gateway.as_operator(request).await
}

#[tokio::test]
async fn redis_has_the_urls_and_the_lease_of_the_row() {
    let two = Two::start().await;
    for round in 0..ROUNDS {
        let id = &format!("w{round}");
        let url = &format!("ws:{id}:url");
        let lease = &format!("workspace:{id}:heartbeat");
        let at = |port: u32| format!("http://127.0.0.1:{port}/");
        let in_redis = |key: &str| two.redis.command(&["GET", key]).trim().to_owned();
        assert_eq!(register(&two.one, id, &at(1)).await.status, 200);
        assert_ne!(in_redis(lease), "", "that is the lease's key");

        let (first, second) = (at(2), at(3));
        tokio::join!(
            register(&two.one, id, &first),
            register(&two.other, id, &second)
        );
        assert_eq!(
            two.view(id).await["url"],
            in_redis(url),
            "two registrations"
        );

        let (first, second) = (json!({"url": at(4)}), at(5));
        tokio::join!(two.one.patch(id, first), register(&two.other, id, &second));
        assert_eq!(
            two.view(id).await["url"],
            in_redis(url),
            "patch and register"
        );

        let second = at(6);
        tokio::join!(leave(&two.one, id), register(&two.other, id, &second));
        let row = two.view(id).await;
        assert_eq!(row["url"].as_str().unwrap_or_default(), in_redis(url));
        if row["status"] == "online" {
            assert_ne!(in_redis(lease), "", "online, and without a lease");
        }

        let (second, gone) = (at(7), Request::new("DELETE", format!("/workspaces/{id}")));
        tokio::join!(two.one.as_operator(gone), register(&two.other, id, &second));
        assert_eq!(
            (in_redis(url), in_redis(lease)),
            Default::default(),
            "removed"
        );
    }
}

#[tokio::test]
async fn a_creation_without_its_enrolment_token_creates_nothing() {
    let gateway = Gateway::start(Pair::External).await;
    let db = open_db(&gateway.sql_url());
    let rename = async |from: &str, to: &str| {
        let text = format!("ALTER TABLE {from} RENAME TO {to}");
        let text = sqlx::AssertSqlSafe(text);
        sqlx::query(text).execute(db.pool()).await.unwrap();
    };
    let body = json!({"id": "w", "name": "w"}).to_string();
    let create = async || {
        gateway
            .as_operator(Request::post("/workspaces", &body))
            .await
    };
    rename("enrolment_tokens", "away").await;
    let refused = create().await;
    assert_eq!(
        (refused.status, refused.reason()),
        (503, "store_unavailable".into())
    );
    rename("away", "enrolment_tokens").await;
    until_holds("repeating it completes it", async || {
        create().await.status == 201
    })
    .await;
    assert_eq!(create().await.reason(), "conflict");
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM enrolment_tokens")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(left, 1, "a refused creation leaves no token behind");
}
