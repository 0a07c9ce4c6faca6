//! Old records go in whole pieces, and what stays is proven.

use std::time::Duration;

use a2a_gateway::trust::{SigningAlgorithm, TokenHead, read_published_keys, rotate};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::{audit, end, execute, message, recorded, says};
use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, holds_for, until_holds,
};
use crate::on_both_pairs;
use crate::operators::{paired, staged};
use crate::stores::open_db;

async fn call(gateway: &Gateway, token: &str, id: &str) -> Value {
    assert_eq!(gateway.call(&message(token, id)).await.status, 200);
    recorded(gateway, &format!("request_id={id}"), 1).await[0].clone()
}

on_both_pairs! {
    async fn a_chain_that_is_too_old_goes_and_the_next_one_says_so(pair: Pair) {
        let (mut gateway, caller, _target) = staged(Builder::new(pair).set("audit.retention", "3s"), Agent::json("{}").await).await;
        let old = call(&gateway, &caller.token, "old").await;
        end(&mut gateway);
        gateway.restart().await;
        let pruned = recorded(&gateway, "event_type=AUDIT_PRUNED", 1).await;
        assert_eq!(pruned[0]["detail"]["replica"], old["replica"], "{pruned:?}");
        assert_eq!(pruned[0]["detail"]["whole"], true, "{pruned:?}");
        until_holds("it goes", async || recorded(&gateway, "request_id=old", 0).await.is_empty()).await;
        call(&gateway, &caller.token, "new").await;
        end(&mut gateway);
        says(&gateway, &["verify"], 0);
    }

    async fn a_chain_that_is_written_is_cut_at_a_checkpoint(pair: Pair) {
        let mut gateway = Builder::new(pair).set("audit.retention", "1s").start().await;
        // A stranger's refusals would be one record a second.
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        // Enough for a checkpoint, well before the first look at what is too old.
        let refused = async || {
            let mut connection = Connection::open(gateway.public).await;
            for _ in 0..135 {
                let request = Request::post("/workspaces/target/a2a", CALL).bearer(&caller.token);
                assert_eq!(connection.call(&request).await.status, 403);
            }
        };
        futures_util::future::join_all((0..8).map(|_| refused())).await;
        let pruned = recorded(&gateway, "event_type=AUDIT_PRUNED", 1).await;
        let detail = &pruned[0]["detail"];
        assert_eq!(detail["replica"], pruned[0]["replica"], "{pruned:?}");
        assert_eq!(detail["whole"], false, "{pruned:?}");
        let first = detail["before"].as_i64().unwrap();
        assert!(first > 1000, "{first}");
        end(&mut gateway);
        says(&gateway, &["verify"], 0);
        let (lines, _) = audit(&gateway, &["export"]);
        let kept: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let oldest = kept.iter().filter_map(|record| record["seq"].as_i64()).min();
        // PostgreSQL has the older ones until their month goes; they are not shown.
        assert_eq!(oldest, Some(first));
    }
}

#[tokio::test]
async fn nothing_goes_because_a_row_says_that_it_is_old() {
    let (mut gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let replica = call(&gateway, &caller.token, "new").await["replica"].clone();
    end(&mut gateway);
    let db = open_db(&gateway.sql_url());
    for text in [
        "CREATE TABLE times AS SELECT id, time FROM structure_events",
        "UPDATE structure_events SET time = 0",
        "UPDATE audit_chains SET signed_at = 0",
    ] {
        execute(&db, text).await;
    }
    gateway.restart().await;
    let rows = async |table: &str| -> i64 {
        let count = format!("SELECT COUNT(*) FROM {table}");
        let count = sqlx::query_scalar(AssertSqlSafe(count));
        count.fetch_one(db.pool()).await.unwrap()
    };
    let before = rows("times").await;
    // Longer than until the first look at what is too old.
    let old_rows = async || rows("structure_events WHERE time = 0").await == before;
    holds_for(Duration::from_secs(6), "the old rows", old_rows).await;
    end(&mut gateway);
    execute(&db, "UPDATE structure_events SET time = (SELECT time FROM times WHERE times.id = structure_events.id) WHERE time = 0").await;
    says(&gateway, &["verify"], 0);
    let (lines, _) = audit(&gateway, &["export", "--request-id", "new"]);
    assert!(lines.contains(replica.as_str().unwrap()), "{lines}");
}

#[tokio::test]
async fn a_month_that_no_chain_needs_is_dropped_whole() {
    let builder = Builder::new(Pair::External).set("audit.retention", "1day");
    let mut gateway = builder.start().await;
    let started = recorded(&gateway, "event_type=AUDIT_STARTED", 1).await[0].clone();
    let chain = started["replica"].as_str().unwrap();
    let db = open_db(&gateway.sql_url());
    // 2020-01 has a record from before its chain begins, as is signed, 2020-02 one of a chain that is kept, 2020-03 one
    // of which nothing is signed.
    let gone = started["seq"].as_i64().unwrap() - 1;
    let months: [i64; 4] = [
        1_577_836_800_000,
        1_580_515_200_000,
        1_582_934_400_000,
        1_585_612_800_000,
    ];
    for (n, (replica, seq)) in [(chain, gone), (chain, 1_000_000), ("nobody", 1)]
        .into_iter()
        .enumerate()
    {
        let (from, to) = (months[n], months[n + 1]);
        let part = format!("structure_events_2020_0{}", n + 1);
        let create = format!(
            "CREATE TABLE {part} PARTITION OF structure_events FOR VALUES FROM ({from}) TO ({to})"
        );
        execute(&db, &create).await;
        let insert = format!(
            "INSERT INTO {part} SELECT '{replica}', {seq}, {from}, event_type, request_id, trace_id, caller, \
             credential_kind, credential_prefix, target, org, rule, method, outcome, status, request_bytes, \
             response_bytes, duration_ms, task_id, detail, prev, hash FROM structure_events \
             WHERE event_type = 'AUDIT_STARTED' LIMIT 1"
        );
        execute(&db, &insert).await;
    }
    gateway.restart().await;
    let parts = async || -> Vec<String> {
        let names = "SELECT CAST(relname AS TEXT) FROM pg_class WHERE relname LIKE 'structure_events_20%' ORDER BY 1";
        sqlx::query_scalar(names)
            .fetch_all(db.pool())
            .await
            .unwrap()
    };
    let has = |parts: &[String], month: &str| parts.iter().any(|part| part.ends_with(month));
    until_holds("a month goes", async || !has(&parts().await, "2020_01")).await;
    let two_are_left = async || {
        let parts = parts().await;
        has(&parts, "_2020_02") && has(&parts, "_2020_03")
    };
    assert!(two_are_left().await, "{:?}", parts().await);
    // What a row says without being signed is not believed.
    end(&mut gateway);
    execute(&db, "UPDATE audit_chains SET first_seq = 2000000").await;
    gateway.restart().await;
    // Longer than until the first look at what is too old.
    holds_for(Duration::from_secs(6), "two months", two_are_left).await;
}

#[tokio::test]
async fn after_a_rotation_every_end_is_signed_anew_before_its_key_goes() {
    let (mut gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    call(&gateway, &caller.token, "old").await;
    end(&mut gateway);
    gateway.restart().await;
    call(&gateway, &caller.token, "new").await;
    let db = open_db(&gateway.sql_url());
    let statements = async || -> Vec<String> {
        let all = "SELECT statement FROM audit_chains ORDER BY replica";
        sqlx::query_scalar(all).fetch_all(db.pool()).await.unwrap()
    };
    let keys = gateway.dir.join("keys");
    for _ in 0..2 {
        let before = statements().await;
        assert_eq!(before.len(), 2);
        rotate(&keys, SigningAlgorithm::EdDsa).unwrap();
        let kid = read_published_keys(&keys).unwrap();
        let signed = |statement: &String| {
            kid.find(&TokenHead::parse_own(statement, "a2a-audit+jws").unwrap())
                .is_some()
        };
        let all_anew = async || {
            let now = statements().await;
            now.iter().zip(&before).all(|(now, then)| now != then)
        };
        until_holds("each end is signed anew", all_anew).await;
        assert!(statements().await.iter().all(signed));
    }
    for file in std::fs::read_dir(&keys).unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with("retired-") {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    let said = says(&gateway, &["verify"], 0);
    assert!(said.contains("by keys that are not known here"), "{said}");
}
