//! An explanation leaves nothing behind.

use serde_json::json;

use super::{Met, call, explain, step};
use crate::harness::{Agent, Builder, Connection, Pair, Request};
use crate::on_embedded;
use crate::operators::staged;

/// Families that say what messages do.
const FAMILIES: [&str; 6] = [
    "a2a_gateway_exchanges_total",
    "a2a_gateway_refusals_total",
    "a2a_gateway_open_exchanges",
    "a2a_gateway_target_permits",
    "a2a_gateway_request_bytes_total",
    "a2a_gateway_inbox_refused_total",
];

on_embedded! {
    async fn explaining_counts_nothing_takes_nothing_and_sends_nothing() {
        let builder = Builder::new(Pair::Embedded).set("rate.caller_per_second", "1").set("rate.caller_burst", "50");
        let (gateway, caller, target) = staged(builder.set("server.max_exchanges", "4"), Agent::json("{}").await).await;
        gateway.patch("target", json!({"max_concurrent": 1})).await;
        let remaining = async |connection: &mut Connection| {
            let answer = connection.call(&call("target", &caller.token)).await;
            assert_eq!(Met::of_message(&answer).reason, "sent", "{}", answer.text());
            answer.field("ratelimit-remaining").unwrap().parse::<u64>().unwrap()
        };
        let mut connection = Connection::open(gateway.public).await;
        let before = remaining(&mut connection).await;
        gateway.assert_idle().await;
        let counted = async || {
            let mut counts = Vec::new();
            for family in FAMILIES {
                counts.push(gateway.metric(family, &[]).await);
            }
            counts
        };
        let counts = counted().await;
        for _ in 0..40 {
            for (caller, target, reason) in [
                ("caller", "target", json!(null)), ("caller", "nobody", json!("not_permitted")),
                ("operator", "nobody", json!("workspace_not_found")), ("operator", "a:b", json!("invalid_workspace_id")),
            ] {
                let explained = explain(&gateway, caller, target).await;
                assert_eq!(explained["reason"], reason, "{explained:#}");
            }
        }
        assert_eq!(counted().await, counts);
        assert_eq!(target.agent.count(), 1);
        // One message later one is gone, or none if a second has passed.
        let after = remaining(&mut connection).await;
        assert!(before - after.min(before) <= 1, "{before}, {after}");
        let explained = explain(&gateway, "caller", "target").await;
        let left = &step(&explained, "rate")["fact"]["credentials"][0]["remaining"];
        assert!(left.as_u64().unwrap() >= after, "{explained:#}");
        let last = call("target", &caller.token).field("X-Request-Id", "last");
        assert_eq!(gateway.call(&last).await.status, 200);
        gateway.access_lines("last").await;
        assert!(!gateway.log().contains("nobody"), "an explanation left a line: {}", gateway.log());
    }

    async fn no_secret_of_a_workspace_is_shown() {
        let gateway = crate::harness::Gateway::start(Pair::Embedded).await;
        let (caller, target) = gateway.pair(Agent::json("{}").await).await;
        let secret = json!({"upstream_auth": {"type": "bearer", "token": "s3cret-of-the-agent"}});
        assert_eq!(gateway.patch("target", secret).await.status, 200);
        let explained = explain(&gateway, "caller", "target").await;
        assert_eq!(step(&explained, "upstream")["fact"]["credential"], true);
        let text = explained.to_string();
        for secret in ["s3cret-of-the-agent", &caller.token, &target.token] {
            assert!(!text.contains(secret), "{text}");
        }
        // No more of a token than its first characters.
        assert!(text.contains(&caller.token[..8]), "{text}");
        assert!(!text.contains(&caller.token[..12]), "{text}");
    }

    async fn what_is_no_question_is_refused_with_how_to_ask() {
        let gateway = crate::harness::Gateway::start(Pair::Embedded).await;
        for query in [
            "", "?", "?caller=a", "?target=b", "?caller=&target=b", "?caller=a&caller=b&target=c", "?caller=a&target=b&x=1",
            "?caller=a:b&target=c", "?caller=org:&target=c", "?caller=canvas:&target=c", "?caller=%FF&target=c",
            "?caller=canvas:a&workspaces=x,,y&target=c",
        ] {
            let answer = gateway.admin_get(&format!("/explain{query}")).await.unwrap();
            assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{query}");
        }
        let answer = gateway.call(&Request::get("/explain?caller=a&target=b")).await;
        assert_eq!((answer.status, answer.reason().as_str()), (404, "not_found"), "it is not on the public listener");
    }
}
