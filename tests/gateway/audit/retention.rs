//! Old records go in whole pieces, and what stays is proven.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{audit, end, recorded};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request};
use crate::on_both_pairs;
use crate::stores::open_db;

async fn call(gateway: &Gateway, token: &str, id: &str) -> Value {
    let request = Request::post("/workspaces/target/a2a", CALL).bearer(token);
    let request = request.field("X-Request-Id", id);
    assert_eq!(gateway.call(&request).await.status, 200);
    recorded(gateway, &format!("request_id={id}"), 1).await[0].clone()
}

on_both_pairs! {
    async fn a_chain_that_is_too_old_goes_and_the_next_one_says_so(pair: Pair) {
        let mut gateway = Builder::new(pair).set("audit.retention", "3s").start().await;
        let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
        let old = call(&gateway, &caller.token, "old").await;
        end(&mut gateway);
        // As if it had been gone for a while: only chains that nobody writes to are cut by others.
        let db = open_db(&gateway.sql_url());
        let long_ago = sqlx::query("UPDATE audit_chains SET signed_at = 0");
        long_ago.execute(db.pool()).await.unwrap();
        gateway.restart().await;
        let deadline = Instant::now() + Duration::from_secs(20);
        let pruned = recorded(&gateway, "event_type=AUDIT_PRUNED", 1).await;
        assert_eq!(pruned[0]["detail"]["replica"], old["replica"], "{pruned:?}");
        assert_eq!(pruned[0]["detail"]["whole"], true, "{pruned:?}");
        let embedded = matches!(pair, Pair::Embedded);
        // PostgreSQL keeps what is in this month's part.
        while embedded && !recorded(&gateway, "request_id=old", 0).await.is_empty() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        call(&gateway, &caller.token, "new").await;
        end(&mut gateway);
        let (said, status) = audit(&gateway, &["verify"]);
        assert_eq!(status, Some(0), "{said}");
    }
}
