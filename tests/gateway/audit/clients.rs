//! Where calls came from, and what a flood of strangers leaves.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{end, message, of_request, recorded, says};
use crate::harness::{Agent, Builder, Connection, Gateway, Pair, Request, until_holds};
use crate::on_embedded;
use crate::operators::{paired, staged};

/// The address in the record and in the access line of a request.
async fn addresses(gateway: &Gateway, request_id: &str) -> (Value, Value) {
    let record = of_request(gateway, request_id).await;
    let line = &gateway.access_lines(request_id).await[0];
    (
        record["client_address"].clone(),
        line["client_address"].clone(),
    )
}

on_embedded! {
    async fn the_clients_address_stands_in_record_and_access_line() {
        for (shown, direct, behind) in [
            ("full", json!("127.0.0.1"), json!("203.0.113.77")),
            ("prefix", json!("127.0.0.0/24"), json!("203.0.113.0/24")),
            ("none", Value::Null, Value::Null),
        ] {
            let builder = Builder::new(Pair::Embedded).set("audit.client_address", shown);
            let (mut gateway, caller, _target) = staged(builder, Agent::json("{}").await).await;
            let forged = message(&caller.token, "r-1").field("X-Forwarded-For", "203.0.113.77");
            assert_eq!(gateway.call(&forged).await.status, 200);
            let expected = (direct.clone(), direct.clone());
            assert_eq!(addresses(&gateway, "r-1").await, expected, "a stranger's word counts for nothing");
            assert_eq!(gateway.call(&message("no", "r-2")).await.status, 401);
            assert_eq!(addresses(&gateway, "r-2").await.0, direct);
            let change = Request::post("/workspaces/target/pause", "").field("X-Request-Id", "r-3");
            assert_eq!(gateway.as_operator(change).await.status, 200);
            assert_eq!(of_request(&gateway, "r-3").await["client_address"], direct);
            end(&mut gateway);
            says(&gateway, &["verify"], 0);

            let builder = Builder::new(Pair::Embedded)
                .set("audit.client_address", shown)
                .set("server.trusted_proxies", "[\"127.0.0.1/32\"]");
            let (gateway, caller, _target) = staged(builder, Agent::json("{}").await).await;
            let proxied = message(&caller.token, "r-4").field("X-Forwarded-For", "198.51.100.1, 203.0.113.77");
            assert_eq!(gateway.call(&proxied).await.status, 200);
            assert_eq!(addresses(&gateway, "r-4").await, (behind.clone(), behind));
        }
    }

    async fn a_flood_of_strangers_is_a_few_records_beside_all_of_the_known_callers() {
        const REFUSALS: usize = 1000;
        let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let flood = async {
            let mut connection = Connection::open(gateway.public).await;
            for n in 0..REFUSALS {
                let request = message("no", &format!("flood-{n}"));
                let wire = request.wire(&gateway.public.to_string());
                if connection.try_send(&wire).await.is_err() || connection.try_answer().await.is_none() {
                    connection = Connection::open(gateway.public).await;
                    assert_eq!(connection.call(&request).await.status, 401);
                }
            }
        };
        let good = async {
            for n in 0..20 {
                assert_eq!(gateway.call(&message(&caller.token, &format!("good-{n}"))).await.status, 200);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let started = Instant::now();
        tokio::join!(flood, good);
        let seconds = started.elapsed().as_secs() as usize;
        for n in 0..20 {
            of_request(&gateway, &format!("good-{n}")).await;
        }
        let count = |record: &Value| record["detail"]["count"].as_u64().unwrap_or(1);
        until_holds("all are counted", async || {
            let records = recorded(&gateway, "outcome=unauthenticated&limit=500", 1).await;
            let refused: u64 = records.iter().map(count).sum();
            // The connection is made anew now and then, and what was under way on it may have been counted.
            let are_counted = refused >= REFUSALS as u64;
            if are_counted {
                assert!(records.len() <= seconds + 4, "{} records in {seconds} s", records.len());
                assert!(records.iter().all(|record| record["caller"].is_null()));
            }
            are_counted
        }).await;
        assert_eq!(gateway.metric("a2a_gateway_audit_lost_total", &[]).await, 0.0);
    }

    async fn a_change_says_what_was_changed_and_no_secret() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.create(json!({"id": "boss", "name": "boss", "org": "acme"})).await;
        let body = json!({"id": "dev", "name": "dev", "org": "acme", "parent_id": "boss",
            "url": "http://127.0.0.1:9/secret-path?key=hidden", "upstream_auth": {"type": "bearer", "token": "hidden-token-1"}});
        let create = Request::post("/workspaces", body.to_string()).field("X-Request-Id", "c-1");
        let created = gateway.as_operator(create).await;
        assert_eq!(created.status, 201, "{}", created.text());
        let record = of_request(&gateway, "c-1").await;
        let detail = &record["detail"];
        assert_eq!((&detail["org"], &detail["parent_id"]), (&json!("acme"), &json!("boss")));
        assert_eq!((&detail["url"], &detail["upstream_auth"]), (&json!("http://127.0.0.1:9"), &json!("bearer")));
        let patch = json!({"org": "globex", "parent_id": null, "url": "http://127.0.0.1:10/x",
            "upstream_auth": {"type": "header", "name": "X-Key", "value": "hidden-value-2"}, "max_concurrent": 3});
        let changed = gateway.patch("dev", patch).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        let record = of_request(&gateway, "seen").await;
        let detail = &record["detail"];
        assert_eq!((&detail["org"], &detail["parent_id"]), (&json!("globex"), &Value::Null));
        assert_eq!((&detail["url"], &detail["upstream_auth"]), (&json!("http://127.0.0.1:10"), &json!("header")));
        assert_eq!(detail["changed"], json!(["max_concurrent", "org", "url", "parent_id", "upstream_auth"]));
        let agent = Agent::json("{}").await;
        gateway.seat("own", "", agent).await;
        let records = recorded(&gateway, "event_type=WORKSPACE_REGISTERED", 1).await;
        assert!(records[0]["detail"]["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
        let all = recorded(&gateway, "limit=500", 1).await;
        assert!(!json!(all).to_string().contains("hidden"), "{all:?}");
    }
}
