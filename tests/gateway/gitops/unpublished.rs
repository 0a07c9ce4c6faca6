//! Policies that are committed while the shared state takes no changes.

use serde_json::json;

use super::post;
use crate::audit::recorded;
use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Builder, CALL, Pair, Request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_was_not_published_is_recorded_and_holds() {
    let (redis, sql) = (Redis::start(), servers::postgres().database());
    let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
    let gateway = builder.start().await;
    let ok = async || Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let pm = gateway.seat("pm", "", ok().await).await;
    let removed = ["a", "b", "c"];
    let mut seats = Vec::new();
    for id in removed {
        seats.push(gateway.seat(id, "", ok().await).await);
    }
    let call = |id: &str| Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(&pm.token);
    gateway
        .until_warm(async || {
            for id in removed {
                assert_eq!(gateway.call(&call(id)).await.status, 200, "{id}");
            }
        })
        .await;
    // It takes messages to the other replicas, so nothing that is in memory expires.
    redis.command(&["ACL", "SETUSER", "default", "-del"]);
    let labels = [r#"store="shared""#, r#"operation="delete""#];
    let errors = "a2a_gateway_store_errors_total";
    let failures = async || gateway.metric(errors, &labels).await;
    let before = failures().await;
    let policy = json!({"version": 1, "workspaces": [{"id": "pm"}]});
    let answer = post(&gateway, "?prune=true", &policy).await;
    let (said, text) = (answer.json(), answer.text());
    answer.refuses_for(&text, 503, "store_unavailable");
    assert_eq!(said["committed"], true, "{text}");
    assert!(text.contains("the policy is applied"), "{text}");
    assert!(text.contains("stores.shared"), "{text}");
    // It does not go on after the first failure.
    assert_eq!(failures().await - before, 1.0);
    for id in removed {
        let answer = gateway.call(&call(id)).await;
        assert_eq!(answer.status, 403, "{id}: {}", answer.text());
        assert_eq!(answer.reason(), "not_permitted", "{id}: {}", answer.text());
    }
    let records = recorded(&gateway, "event_type=POLICY_APPLIED", 1).await;
    let (record, detail) = (&records[0], &records[0]["detail"]);
    assert_eq!(records.len(), 1);
    assert_eq!(record["outcome"], "store_unavailable");
    assert_eq!(detail["committed"], true, "{record}");
    assert_eq!(detail["changed"], 3, "{record}");
    let all = removed.map(|id| json!({"action": "remove", "kind": "workspace", "name": id}));
    assert_eq!(detail["changes"], json!(all), "{record}");
    redis.command(&["ACL", "SETUSER", "default", "+del"]);
    let again = post(&gateway, "?prune=true", &policy).await.has(200);
    assert_eq!(again.json()["changes"], json!([]), "{}", again.text());
}
