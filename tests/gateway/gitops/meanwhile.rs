//! Changes by single routes while a policy is between its comparison and its commit, on PostgreSQL: SQLite has one
//! writer at a time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection as _};

use super::{apply, changes, export, post};
use crate::harness::{Builder, Gateway, Pair, Request};

/// Time for which one is waited for that has to wait for the lock, and for one that may.
const HAS_TO: Duration = Duration::from_secs(60);
const MAY: Duration = Duration::from_secs(2);

async fn start() -> Gateway {
    let builder = Builder::new(Pair::External).set("stores.timeout", "60s");
    builder.start().await
}

/// A transaction that holds the row of a workspace: a policy that changes or removes it waits there.
struct HeldRow {
    holder: AnyConnection,
    looker: AnyConnection,
}

impl HeldRow {
    async fn of(gateway: &Gateway, id: &str) -> Self {
        sqlx::any::install_default_drivers();
        let url = gateway.sql_url();
        let mut holder = AnyConnection::connect(&url).await.unwrap();
        sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
        let hold = sqlx::query("SELECT id FROM workspaces WHERE id = $1 FOR UPDATE").bind(id);
        assert_eq!(hold.fetch_all(&mut holder).await.unwrap().len(), 1);
        let looker = AnyConnection::connect(&url).await.unwrap();
        Self { holder, looker }
    }

    /// True once so many sessions wait for a lock; false if they do not in time.
    async fn are_waiting(&mut self, count: i64, patience: Duration) -> bool {
        let waiting = "SELECT COUNT(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            let query = sqlx::query_scalar::<_, i64>(waiting);
            if query.fetch_one(&mut self.looker).await.unwrap() >= count {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    async fn release(mut self) {
        let commit = sqlx::query("COMMIT");
        commit.execute(&mut self.holder).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_made_meanwhile_comes_after_the_policy() {
    let gateway = start().await;
    let policy = |role: &str, grants: Value| {
        json!({"version": 1, "grants": grants,
            "workspaces": [{"id": "pm", "role": role}, {"id": "other", "org": "beta"}]})
    };
    apply(&gateway, "", &policy("plans", json!([]))).await;
    let of = |note: &str| json!({"caller_id": "other", "target_id": "pm", "note": note});
    let mut row = HeldRow::of(&gateway, "pm").await;
    let wanted = policy("leads", json!([of("of the policy")]));
    let granting = async {
        assert!(row.are_waiting(1, HAS_TO).await, "the policy does not wait");
        let grant = Request::post("/grants", of("of the route").to_string());
        let releasing = async {
            row.are_waiting(2, MAY).await;
            row.release().await;
        };
        tokio::join!(gateway.as_operator(grant), releasing).0
    };
    let (applied, granted) = tokio::join!(post(&gateway, "", &wanted), granting);
    assert_eq!(applied.status, 200, "{}", applied.text());
    assert_eq!(granted.status, 201, "{}", granted.text());
    let made = changes(&applied.json());
    assert_eq!(made, ["change workspace pm", "create grant other -> pm"]);
    let left = export(&gateway).await["grants"].clone();
    assert_eq!(left, json!([of("of the route")]), "the later one holds");
    let answer = gateway.as_operator(Request::get("/grants")).await.json();
    let grants = answer["grants"].as_array().unwrap();
    assert_eq!(grants.len(), 1, "{answer}");
    assert_eq!(answer["grants"][0]["id"], granted.json()["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_is_changed_meanwhile_is_not_removed() {
    let gateway = start().await;
    let of = |ids: &[&str]| {
        let entries = ids.iter().map(|id| json!({"id": id}));
        json!({"version": 1, "workspaces": entries.collect::<Vec<_>>()})
    };
    apply(&gateway, "", &of(&["a", "b", "pm"])).await;
    // They are removed in order of id.
    let mut row = HeldRow::of(&gateway, "a").await;
    let changing = async {
        assert!(row.are_waiting(1, HAS_TO).await, "the policy does not wait");
        let changed = gateway.patch("b", json!({"role": "builds"})).await;
        row.release().await;
        changed
    };
    let pruned = of(&["pm"]);
    let (applied, changed) = tokio::join!(post(&gateway, "?prune=true", &pruned), changing);
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(applied.status, 409, "{}", applied.text());
    applied.refuses(409, "conflict");
    let changed = json!([{"kind": "workspace", "name": "b"}]);
    assert_eq!(applied.json()["changed"], changed);
    let left = export(&gateway).await["workspaces"].clone();
    let expected = json!([{"id": "a"}, {"id": "b", "role": "builds"}, {"id": "pm"}]);
    assert_eq!(left, expected);
}
