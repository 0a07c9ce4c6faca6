//! Observed rules (contract §20): judged, counted and recorded, and never enforced.

use serde_json::json;

use super::{cap, capped, hello, in_run, send};
use crate::audit::recorded;
use crate::harness::{ADMIN, Agent, Builder, Gateway, Pair};
use crate::on_embedded;

/// `detail.observed` of the records of calls, of which there are `count`.
async fn observed(gateway: &Gateway, count: usize) -> Vec<serde_json::Value> {
    gateway.assert_idle().await;
    let records = recorded(gateway, "event_type=A2A_CALL&limit=500", count).await;
    assert_eq!(records.len(), count);
    let told = records.iter().map(|one| one["detail"]["observed"].clone());
    told.filter(|one| !one.is_null()).collect()
}

on_embedded! {
    async fn an_observed_cap_tells_which_calls_it_would_refuse_and_affects_none() {
        let caps = json!([
            {"name": "seen", "per": "run", "count": "messages", "limit": 263, "mode": "observe"},
            {"name": "much", "per": "caller", "count": "bytes", "limit": 1, "window": "1h", "mode": "observe"},
            {"name": "real", "per": "context", "count": "messages", "limit": 1},
        ]);
        let gateway = capped(Pair::Embedded, &caps).start().await;
        let (caller, target) = gateway.pair(Agent::scripted(hello).await).await;
        for _ in 0..300 {
            gateway.call(&send(&target, &caller, &in_run("r"))).await.has(200);
        }
        assert_eq!(target.agent.count(), 300);
        let name = "a2a_gateway_policy_differs_total";
        let told = observed(&gateway, 300).await;
        let over = |rule: &str| told.iter().filter(|one| one.to_string().contains(rule)).count();
        assert_eq!((over("cap:seen"), over("cap:much")), (37, 299));
        assert_eq!(gateway.metric(name, &["rule=\"cap:seen\"", "would=\"refuse\""]).await, 37.0);
        assert_eq!(gateway.metric("a2a_gateway_cap_refusals_total", &[]).await, 0.0);
        // It is not shown as one that is in force.
        assert!(cap(&gateway, "seen").await.is_null());
    }

    async fn an_observed_root_tells_which_calls_it_would_refuse() {
        let rules = json!([{"targets": ["low"], "root": "person", "mode": "observe"}]);
        let gateway = Builder::new(Pair::Embedded).set("access.require", &rules.to_string()).start().await;
        let top = gateway.seat("top", "", Agent::scripted(hello).await).await;
        let low = gateway.seat("low", "top", Agent::scripted(hello).await).await;
        for (to, by) in [(&low, &top), (&top, &low)] {
            gateway.call(&send(to, by, &in_run("r"))).await.has(200);
        }
        assert_eq!(observed(&gateway, 2).await, [json!([{"rule": "access.require", "would": "refuse"}])]);
        assert_eq!(gateway.metric("a2a_gateway_policy_differs_total", &["rule=\"access.require\""]).await, 1.0);
    }

    async fn an_observed_lineage_tells_what_it_would_allow_or_refuse() {
        for (real, observed_as, status, would) in [("direct", "any", 403, "allow"), ("any", "direct", 200, "refuse")] {
            let builder = Builder::new(Pair::Embedded);
            let builder = builder.set("access.lineage", real).set("access.observe.lineage", observed_as);
            let gateway = builder.start().await;
            let top = gateway.seat("top", "", Agent::scripted(hello).await).await;
            let middle = gateway.seat("middle", "top", Agent::scripted(hello).await).await;
            let low = gateway.seat("low", "middle", Agent::scripted(hello).await).await;
            let call = async |to, by| gateway.call(&send(to, by, &in_run("r"))).await;
            call(&middle, &top).await.has(200);
            call(&low, &top).await.has(status);
            let told = observed(&gateway, 2).await;
            assert_eq!(told, [json!([{"rule": "access.lineage", "would": would}])]);
            let would = format!("would=\"{would}\"");
            assert_eq!(gateway.metric("a2a_gateway_policy_differs_total", &[&would]).await, 1.0);
            // A grant is a rule of its own, before and after.
            let grant = json!({"caller_id": "top", "target_id": "low"});
            crate::operators::call(&gateway, "POST", "/grants", ADMIN, grant).await.has(201);
            call(&low, &top).await.has(200);
            assert_eq!(observed(&gateway, 3).await.len(), 1);
        }
    }
}
